//! Parameters accessed by row: a model that holds only the rows of its batch learns the same as one with the whole
//! table, in every layout, and moves fewer bytes.

use windlass::burn::module::{Module, Param};
use windlass::burn::nn::{Linear, LinearConfig};
use windlass::burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use windlass::optimizer::Optimizer;
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup, Summary};
use windlass_core::consistency::Mode;
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_worker::replica::{Local, LocalConfig};
use windlass_worker::task::RunConfig;

use crate::in_process::{Layout, train};

const WORDS: usize = 200;
const SIZE: usize = 3;
/// Words per sample.
const LENGTH: usize = 4;
const SAMPLES: usize = 96;

/// A model that learns a number for each word from sums of a few words.
#[derive(Clone, Copy)]
struct Lookup {
    by_rows: bool,
    /// If set, only the layer after the sums is trained.
    frozen: bool,
}

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    table: Param<Tensor<2>>,
    output: Linear,
}

/// The words of every sample, as indices into `rows`, and the target sum.
struct Batch {
    rows: Vec<u32>,
    words: Vec<usize>,
    sums: Vec<f32>,
}

windlass_worker::travels!(Batch { rows, words, sums });

/// The word at a position of a sample. Low words occur more often.
fn word(sample: usize, place: usize) -> usize {
    let draw = (sample * 7919 + place * 104_729 + 13) % (WORDS * WORDS);
    WORDS - 1 - (draw as f64).sqrt() as usize
}

impl Model for Lookup {
    const NAME: &'static str = "lookup";
    const ABOUT: &'static str = "learn a number for each word";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = Batch;

    fn defaults(_flags: &NoFlags) -> Defaults {
        unreachable!("the test says how to train")
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        unreachable!("the test makes the model")
    }

    fn network(&self, device: &Device) -> Network {
        let table = Tensor::random([WORDS, SIZE], Distribution::Uniform(-0.5, 0.5), device);
        let table = Param::from_tensor(table).set_require_grad(!self.frozen);
        Network { table, output: LinearConfig::new(SIZE, 1).init(device) }
    }

    fn samples(&self) -> usize {
        SAMPLES
    }

    fn batch(&self, samples: &[usize], _device: &Device, _random: &mut StdRng) -> anyhow::Result<Batch> {
        let words: Vec<usize> =
            samples.iter().flat_map(|sample| (0..LENGTH).map(|place| word(*sample, place))).collect();
        let sums = words.chunks(LENGTH).map(|words| words.iter().map(|word| *word as f32 / WORDS as f32).sum());
        let sums = sums.collect();
        let mut rows: Vec<u32> = words.iter().map(|word| *word as u32).collect();
        rows.sort_unstable();
        rows.dedup();
        let place = |word: &usize| rows.binary_search(&(*word as u32)).unwrap();
        let words = if self.by_rows { words.iter().map(place).collect() } else { words };
        Ok(Batch { rows, words, sums })
    }

    fn loss(&self, network: &Network, batch: Batch) -> Tensor<1> {
        let table = network.table.val();
        let (device, samples) = (table.device(), batch.sums.len());
        assert_eq!(table.dims()[0], if self.by_rows { batch.rows.len() } else { WORDS });
        let words = batch.words.iter().map(|word| *word as i64).collect::<Vec<_>>();
        let words = Tensor::<1, Int>::from_data(TensorData::new(words, [samples * LENGTH]), &device);
        let sums = Tensor::<2>::from_data(TensorData::new(batch.sums, [samples, 1]), &device);
        let looked_up = table.select(0, words).reshape([samples, LENGTH, SIZE]).sum_dim(1).squeeze_dim::<2>(1);
        let error = network.output.forward(looked_up) - sums;
        (error.clone() * error).mean()
    }

    /// Its scores are its parameters.
    fn evaluate(&self, network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        let table = network.table.val();
        assert_eq!(table.dims(), [WORDS, SIZE]);
        let (table, weights) = (table.into_data(), network.output.weight.val().into_data());
        let values = table.iter::<f64>().chain(weights.iter::<f64>());
        Ok(values.enumerate().fold(Metrics::new(), |metrics, (index, value)| metrics.number(&index.to_string(), value)))
    }

    fn row_parameters(&self) -> &[&str] {
        if self.by_rows { &["table"] } else { &[] }
    }

    fn rows(&self, batch: &Batch) -> Vec<Vec<u32>> {
        if self.by_rows { vec![batch.rows.clone()] } else { Vec::new() }
    }
}

fn learn(lookup: Lookup, mode: Mode, optimizer: &str, layout: Layout) -> Summary {
    let run = RunConfig {
        mode,
        optimizer: Optimizer::named(optimizer).unwrap(),
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: 8,
        steps: Some(30),
        epochs: None,
        seed: 3,
        shuffle: true,
        shard_data: true,
        deterministic: false,
        staleness_scaling: false,
        // Small enough to take effect: the gradient has the same norm whether or not it is clipped by rows.
        clip_norm: Some(0.5),
        accumulate: 1,
        towers: 1,
        evaluate_epochs: true,
        log_every: 10,
        model_flags: std::collections::BTreeMap::new(),
        data_dir: None,
    };
    train(layout, &run, || lookup).summary
}

/// Adagrad and SGD do not change values without a gradient, as in a table accessed by row.
fn assert_rows_equal_dense(mode: Mode, optimizer: &str, layout: Layout) {
    let [rows, dense] = [true, false].map(|by_rows| learn(Lookup { by_rows, frozen: false }, mode, optimizer, layout));
    for (by_rows, dense) in rows.metrics.iter().zip(dense.metrics.iter()) {
        let (name, by_rows, dense) = (&by_rows.name, by_rows.value, dense.value);
        assert!((by_rows - dense).abs() < 1e-5, "parameter {name}: {by_rows} by rows, {dense} dense");
    }
    let [by_rows, by_all] = [rows.loss.unwrap(), dense.loss.unwrap()];
    assert!((by_rows - by_all).abs() < 1e-5, "{by_rows} {by_all}");
    let bytes = |summary: &Summary| summary.bytes_per_step.sent + summary.bytes_per_step.received;
    assert!(bytes(&rows) < bytes(&dense) / 2.0, "{} {}", bytes(&rows), bytes(&dense));
}

const SYNC: Mode = Mode::Sync { replicas_to_aggregate: None };

#[test]
fn a_single_process_learns_the_same_by_rows() {
    for optimizer in ["sgd", "adagrad"] {
        assert_rows_equal_dense(Mode::Async, optimizer, Layout { servers: 0, workers: 1 });
    }
}

#[test]
fn one_worker_on_two_servers_learns_the_same_by_rows() {
    assert_rows_equal_dense(Mode::Async, "adagrad", Layout { servers: 2, workers: 1 });
    assert_rows_equal_dense(Mode::Ssp { staleness: 1 }, "sgd", Layout { servers: 2, workers: 1 });
}

#[test]
fn workers_in_step_learn_the_same_by_rows() {
    assert_rows_equal_dense(SYNC, "sgd", Layout { servers: 2, workers: 2 });
}

#[test]
fn a_frozen_table_stays_as_it_was_whether_or_not_it_is_reached_by_rows() {
    for (mode, layout) in [
        (Mode::Async, Layout { servers: 0, workers: 1 }),
        (SYNC, Layout { servers: 2, workers: 2 }),
        (Mode::Ssp { staleness: 1 }, Layout { servers: 1, workers: 1 }),
    ] {
        let [rows, whole] = [true, false].map(|by_rows| learn(Lookup { by_rows, frozen: true }, mode, "adamw", layout));
        let trained = learn(Lookup { by_rows: false, frozen: false }, mode, "adamw", layout);
        let values = |summary: &Summary| summary.metrics.iter().map(|metric| metric.value as f32).collect::<Vec<_>>();
        assert_eq!(values(&rows), values(&whole), "{mode:?}");
        let first = Local::new(Lookup { by_rows: false, frozen: true }, LocalConfig::on_cpu(3)).unwrap().values();
        assert_eq!(values(&whole)[..WORDS * SIZE], first[0], "{mode:?}");
        assert_ne!(values(&whole)[WORDS * SIZE..], values(&trained)[WORDS * SIZE..]);
        let bytes = [&whole, &rows, &trained].map(|summary| summary.bytes_per_step.sent);
        assert!(bytes[0] <= bytes[1] && bytes[1] < bytes[2] / 2.0, "{bytes:?}");
    }
}
