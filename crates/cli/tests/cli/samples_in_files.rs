//! Data in files that are read batch by batch: training is the same as from memory, whole files are distributed to
//! workers, and a file that cannot be read ends the run with its name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use windlass::burn::module::{Module, Param};
use windlass::burn::tensor::{Device, Tensor, TensorData};
use windlass::optimizer::Optimizer;
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup, anyhow, burn};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::exit_code;
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_worker::task::RunConfig;

use crate::in_process::{AllEnded, Layout, train, train_until_ended, try_out};

/// Samples in each of the files; a sample is one number.
const FILES: [usize; 4] = [10, 6, 8, 12];
const SYNC: Mode = Mode::Sync { replicas_to_aggregate: None };

/// The files that each worker has read.
type Reads = Arc<Mutex<BTreeMap<u32, BTreeSet<usize>>>>;

/// A model that learns the mean of numbers.
#[derive(Clone)]
struct Mean {
    /// The directory of the files; `None` for the same numbers in memory.
    directory: Option<PathBuf>,
    worker: u32,
    reads: Reads,
}

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Estimate {
    value: Param<Tensor<1>>,
}

fn number(sample: usize) -> f32 {
    (sample as f32 * 0.7).sin()
}

fn path(directory: &Path, file: usize) -> PathBuf {
    directory.join(format!("part-{file}"))
}

fn write(directory: &Path) {
    let mut numbers = (0..).map(number);
    for (file, samples) in FILES.into_iter().enumerate() {
        let bytes: Vec<u8> = numbers.by_ref().take(samples).flat_map(f32::to_le_bytes).collect();
        std::fs::write(path(directory, file), bytes).unwrap();
    }
}

impl Mean {
    fn read(&self, sample: usize) -> anyhow::Result<f32> {
        let Some(directory) = &self.directory else { return Ok(number(sample)) };
        let (mut file, mut within) = (0, sample);
        while within >= FILES[file] {
            within -= FILES[file];
            file += 1;
        }
        self.reads.lock().unwrap().entry(self.worker).or_default().insert(file);
        let path = path(directory, file);
        let mut bytes = [0; 4];
        let read = File::open(&path).and_then(|opened| opened.read_exact_at(&mut bytes, within as u64 * 4));
        anyhow::Context::with_context(read, || format!("cannot read {}", path.display()))?;
        Ok(f32::from_le_bytes(bytes))
    }
}

impl Model for Mean {
    const NAME: &'static str = "mean";
    const ABOUT: &'static str = "learn the mean of numbers";
    type Flags = NoFlags;
    type Network = Estimate;
    type Batch = Tensor<1>;

    fn defaults(_flags: &NoFlags) -> Defaults {
        unreachable!("the test says how to train")
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        unreachable!("the test makes the model")
    }

    fn network(&self, device: &Device) -> Estimate {
        Estimate { value: Param::from_tensor(Tensor::zeros([1], device)) }
    }

    fn samples(&self) -> usize {
        FILES.iter().sum()
    }

    fn sample_files(&self) -> Vec<usize> {
        FILES.to_vec()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Tensor<1>> {
        let numbers = samples.iter().map(|sample| self.read(*sample)).collect::<anyhow::Result<Vec<f32>>>()?;
        Ok(Tensor::from_data(TensorData::new(numbers, [samples.len()]), device))
    }

    fn loss(&self, network: &Estimate, numbers: Tensor<1>) -> Tensor<1> {
        (network.value.val() - numbers).powi_scalar(2).mean()
    }

    fn evaluate(&self, network: &Estimate, _device: &Device) -> anyhow::Result<Metrics> {
        Ok(Metrics::new().number("mean", network.value.val().into_data().iter::<f64>().sum()))
    }
}

fn run(mode: Mode) -> RunConfig {
    RunConfig {
        mode,
        optimizer: Optimizer::Sgd,
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: 4,
        accumulate: 1,
        towers: 1,
        clip_norm: None,
        steps: Some(40),
        epochs: None,
        seed: 3,
        shuffle: true,
        shard_data: true,
        deterministic: false,
        staleness_scaling: false,
        evaluate_epochs: false,
        log_every: 1,
        model_flags: BTreeMap::new(),
        data_dir: None,
    }
}

/// Makes the models of worker 0, 1…
fn models(directory: Option<&Path>) -> (impl Fn() -> Mean, Reads) {
    let (reads, next) = (Reads::default(), AtomicU32::new(0));
    let (directory, shared) = (directory.map(Path::to_owned), reads.clone());
    let make = move || {
        let worker = next.fetch_add(1, Ordering::Relaxed);
        Mean { directory: directory.clone(), worker, reads: shared.clone() }
    };
    (make, reads)
}

#[test]
fn reading_batches_from_disk_trains_the_same_bits_as_from_memory() {
    let directory = TempDir::new().unwrap();
    write(directory.path());
    for layout in [Layout { servers: 0, workers: 1 }, Layout { servers: 2, workers: 2 }] {
        let trained = |directory: Option<&Path>| train(layout, &run(SYNC), models(directory).0);
        let (disk, memory) = (trained(Some(directory.path())), trained(None));
        assert_eq!(disk.losses, memory.losses);
        assert_eq!(disk.summary.metrics, memory.summary.metrics);
    }
}

#[test]
fn with_shard_data_every_file_is_read_by_one_worker_alone() {
    let directory = TempDir::new().unwrap();
    write(directory.path());
    let (make, reads) = models(Some(directory.path()));
    train(Layout { servers: 1, workers: 2 }, &run(Mode::Async), make);
    let expected = BTreeMap::from([(0, BTreeSet::from([0, 2])), (1, BTreeSet::from([1, 3]))]);
    assert_eq!(*reads.lock().unwrap(), expected);
}

#[test]
fn without_shard_data_every_worker_reads_every_file() {
    let directory = TempDir::new().unwrap();
    write(directory.path());
    let (make, reads) = models(Some(directory.path()));
    train(Layout { servers: 1, workers: 2 }, &RunConfig { shard_data: false, ..run(SYNC) }, make);
    let all: BTreeSet<usize> = (0..FILES.len()).collect();
    assert_eq!(*reads.lock().unwrap(), BTreeMap::from([(0, all.clone()), (1, all)]));
}

#[test]
fn a_file_that_cannot_be_read_ends_the_run_of_all_tasks_and_is_named() {
    let directory = TempDir::new().unwrap();
    write(directory.path());
    let damaged = path(directory.path(), 1);
    std::fs::write(&damaged, [0; 5]).unwrap();
    let ended =
        train_until_ended(Layout { servers: 1, workers: 2 }, &run(SYNC), models(Some(directory.path())).0, |shard| {
            shard
        });
    let AllEnded { workers, servers, .. } = ended;
    for outcome in workers.iter().map(|ended| &ended.outcome).chain(&servers) {
        assert_eq!(outcome.exit_code, exit_code::INTERNAL, "{outcome:?}");
        let named = format!("cannot make a batch: cannot read {}: failed to fill whole buffer", damaged.display());
        assert!(outcome.reason.ends_with(&named), "{outcome:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_before_training_is_no_mistake_of_the_user() {
    let directory = TempDir::new().unwrap();
    let (make, _) = models(Some(directory.path()));
    let outcome = try_out(&run(Mode::Async), make()).outcome;
    assert_eq!(outcome.exit_code, exit_code::INTERNAL, "{outcome:?}");
    assert!(outcome.reason.contains(&format!("cannot read {}", directory.path().display())), "{outcome:?}");
}
