//! Tests of `towers`: how batches are divided and results combined. That every model learns the same is tested with the
//! models.

use std::sync::Mutex;

use windlass_core::parameter::{ParameterId, ParameterKind, ParameterSpec};

use super::*;
use crate::batches::order::DataPosition;
use crate::threads;
use crate::travel::Parcel;

const DRAW: Draw = Draw { worker: 0, position: DataPosition { epoch: 1, batch: 1 }, first_part: 0 };

/// A replica whose gradient is the sum or the mean of its samples, and whose state counts the samples of a step.
struct Summing {
    info: ModelInfo,
    table: ParameterTable,
    loaded: Vec<TensorBuffer>,
    fails: bool,
}

#[derive(Default)]
struct Numbers {
    draws: Mutex<Vec<(usize, Vec<usize>)>>,
    /// The samples of the batches that it has unpacked.
    unpacked: Mutex<Vec<usize>>,
}

impl BatchSource for Numbers {
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        self.draws.lock().unwrap().push((draw.first_part, samples.to_vec()));
        let mut rows: Vec<u32> = samples.iter().map(|sample| *sample as u32).collect();
        rows.sort_unstable();
        let rows = vec![RowRequest { parameter: ParameterId(1), rows }];
        Ok(Batch { content: Box::new(samples.to_vec()), rows, samples: samples.len() })
    }

    fn parts(&self) -> usize {
        2
    }

    fn unpack(&self, parts: Vec<PackedPart>) -> Result<Batch, TravelError> {
        let samples = parts.iter().map(|part| part.samples).sum();
        self.unpacked.lock().unwrap().push(samples);
        Ok(Batch { content: Box::new(()), rows: Vec::new(), samples })
    }
}

impl Summing {
    fn new(loss_is_summed: bool) -> Self {
        let spec = |name: &str, shape: &[usize], access, kind| ParameterSpec {
            name: name.to_owned(),
            shape: shape.to_vec(),
            access,
            kind,
        };
        let specs = vec![
            spec("dense", &[1], Access::Dense, ParameterKind::Trained),
            spec("table", &[10, 1], Access::Rows, ParameterKind::Trained),
            spec("count", &[1], Access::Dense, ParameterKind::State),
        ];
        let info = ModelInfo {
            name: "summing",
            samples: 10,
            sample_files: Vec::new(),
            fingerprint: None,
            files: Vec::new(),
            chance_loss: None,
            loss_is_summed,
        };
        Self { info, table: ParameterTable::new(specs).unwrap(), loaded: Vec::new(), fails: false }
    }
}

impl Replica for Summing {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn table(&self) -> &ParameterTable {
        &self.table
    }

    fn has_rows(&self) -> bool {
        true
    }

    fn reports(&self) -> Option<Reports> {
        None
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        Arc::new(Numbers::default())
    }

    fn first_values(&self) -> Vec<TensorBuffer> {
        Vec::new()
    }

    fn load(&mut self, values: Vec<TensorBuffer>) {
        if self.loaded.is_empty() {
            self.loaded = values;
            return;
        }
        let given = self.loaded.iter_mut().zip(values).filter(|(_, values)| !values.is_empty());
        given.for_each(|(loaded, values)| *loaded = values);
    }

    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult> {
        anyhow::ensure!(!self.fails, "this tower fell");
        let samples: Vec<usize> = *batch.content.downcast().unwrap();
        let count = samples.len() as f32;
        let sum = samples.iter().sum::<usize>() as f32;
        let factor = if self.info.loss_is_summed { 1.0 } else { 1.0 / count };
        // The gradient of a row is its value, which shows which rows were loaded.
        let rows: Vec<f32> = self.loaded[1].iter().map(|value| value * factor).collect();
        Ok(StepResult {
            loss: sum / count,
            gradients: vec![vec![sum * factor].into(), rows.into(), TensorBuffer::default()],
            state: vec![TensorBuffer::default(), TensorBuffer::default(), vec![count].into()],
            samples: samples.len(),
        })
    }

    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()> {
        self.step(batch).map(drop)
    }

    fn held_out(&self, _draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>> {
        Ok(Vec::new())
    }

    fn loss(&mut self, _batch: Batch) -> anyhow::Result<f64> {
        Ok(0.0)
    }

    fn evaluate(&mut self) -> anyhow::Result<Metrics> {
        Ok(Metrics::new())
    }

    fn images(&mut self) -> anyhow::Result<Vec<PngImage>> {
        Ok(Vec::new())
    }

    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

fn towers(replicas: Vec<Summing>) -> Towers {
    let tower = |replica| (Box::new(replica) as Box<dyn Replica>, threads::pool(1).unwrap());
    Towers::new(replicas.into_iter().map(tower).collect())
}

/// Computes a step of `count` towers on these samples; row r of the table has the value 10 r.
fn step(count: usize, loss_is_summed: bool, samples: &[usize]) -> StepResult {
    let mut towers = towers((0..count).map(|_| Summing::new(loss_is_summed)).collect());
    let batch = towers.source().batch(samples, DRAW).unwrap();
    let values = batch.rows()[0].rows.iter().map(|row| *row as f32 * 10.0).collect::<Vec<f32>>();
    towers.load(vec![vec![1.0].into(), values.into(), vec![0.0].into()]);
    towers.step(batch).unwrap()
}

#[test]
fn shares_are_joined_by_their_samples() {
    let samples = [3, 1, 4, 7, 9];
    for loss_is_summed in [false, true] {
        let factor = if loss_is_summed { 1.0 } else { 0.2 };
        for count in 1..=6 {
            let joined = step(count, loss_is_summed, &samples);
            let near = |got: f32, expected: f32| assert!((got - expected).abs() < 1e-4, "{count}: {got} {expected}");
            assert_eq!(joined.samples, 5);
            near(joined.loss, 24.0 / 5.0);
            near(joined.gradients[0][0], 24.0 * factor);
            let rows = [1.0, 3.0, 4.0, 7.0, 9.0];
            assert_eq!(joined.gradients[1].len(), rows.len());
            joined.gradients[1].iter().zip(rows).for_each(|(got, row)| near(*got, row * 10.0 * factor));
            assert!(joined.gradients[2].is_empty());
        }
    }
    // Of three towers, two have two samples and one has one: running state is weighted by samples, too.
    let state = step(3, false, &samples).state;
    assert!(state[0].is_empty() && (state[2][0] - (2.0 * 2.0 + 2.0 * 2.0 + 1.0) / 5.0).abs() < 1e-6, "{state:?}");
}

#[test]
fn every_part_of_every_tower_draws_numbers_of_its_own() {
    let sources: Vec<Arc<Numbers>> = (0..3).map(|_| Arc::new(Numbers::default())).collect();
    let shared = SharedOut(sources.iter().map(|source| source.clone() as Arc<dyn BatchSource>).collect());
    shared.batch(&[5, 6, 7, 8], DRAW).unwrap();
    let drawn: Vec<_> = sources.iter().flat_map(|source| source.draws.lock().unwrap().clone()).collect();
    assert_eq!(drawn, [(0, vec![5, 6]), (2, vec![7]), (4, vec![8])]);
}

#[test]
fn a_tower_gets_the_parts_that_were_made_for_one_however_many_those_are() {
    let source = towers(vec![Summing::new(false), Summing::new(false)]).source();
    let unpacked = |samples: &[usize]| {
        let part = |samples: &usize| PackedPart { samples: *samples, seed: 1, parcel: Parcel::default() };
        let batch = source.unpack(samples.iter().map(part).collect()).unwrap();
        shares(batch.content).iter().map(Batch::samples).collect::<Vec<_>>()
    };
    assert_eq!(unpacked(&[2, 2, 1, 1, 1, 1, 1]), [5, 4]);
    assert_eq!(unpacked(&[4, 4]), [4, 4]);
    assert_eq!(unpacked(&[9]), [9]);
}

#[test]
fn each_tower_unpacks_the_share_that_it_computes_even_if_there_are_more_towers_than_shares() {
    let sources: Vec<Arc<Numbers>> = (0..3).map(|_| Arc::new(Numbers::default())).collect();
    let shared = SharedOut(sources.iter().map(|source| source.clone() as Arc<dyn BatchSource>).collect());
    let part = |samples| PackedPart { samples, seed: 1, parcel: Parcel::default() };
    let batch = shared.unpack(vec![part(5), part(1)]).unwrap();
    // In a step, the first share goes to the first tower and the second to the second.
    assert_eq!(shares(batch.content).iter().map(Batch::samples).collect::<Vec<_>>(), [5, 1]);
    let unpacked: Vec<Vec<usize>> = sources.iter().map(|source| source.unpacked.lock().unwrap().clone()).collect();
    assert_eq!(unpacked, [vec![5], vec![1], vec![]]);
}

#[test]
fn a_tower_that_fails_fails_the_step() {
    let mut towers = towers(vec![Summing::new(true), Summing { fails: true, ..Summing::new(true) }]);
    let batch = towers.source().batch(&[1, 2], DRAW).unwrap();
    towers.load(vec![vec![1.0].into(), vec![0.0, 0.0].into(), vec![0.0].into()]);
    assert_eq!(towers.step(batch).unwrap_err().to_string(), "this tower fell");
}

/// The process's threads may be waiting for a lock that is held by somebody who waits for the towers.
#[test]
fn towers_compute_while_every_thread_of_the_process_is_occupied() {
    let (begun, begins) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    rayon::in_place_scope(|scope| {
        scope.spawn_broadcast(|_, _| {
            begun.send(()).unwrap();
            // Every other thread waits for this lock, and its holder for the end of the test.
            let _ = released.lock().unwrap().recv();
        });
        (0..rayon::current_num_threads()).for_each(|_| begins.recv().unwrap());
        let pools: Vec<ThreadPool> = (0..3).map(|_| threads::pool(1).unwrap()).collect();
        let mut sums = [0; 3];
        let pieces = pools.iter().zip(&mut sums).enumerate();
        all_at_once(&mut pieces.map(|(index, (pool, sum))| (pool, move || *sum = index + 1)));
        drop(release);
        assert_eq!(sums, [1, 2, 3]);
    });
}
