//! Several replicas side by side in one process, each on its own device or threads: every batch is split, each replica
//! computes its share, and to the training loop their sum is one step.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use burn::tensor::Device;
use rayon::ThreadPool;
use windlass_core::footprint::gradient_bytes;
use windlass_core::parameter::{Access, ParameterTable};
use windlass_wire::client::RowRequest;

use super::accumulation::{self, Sums, Weighted};
use super::division::evenly;
use super::packed::PackedPart;
use super::{Batch, BatchSource, Local, LocalConfig, ModelInfo, Replica, StepResult};
use crate::buffer::TensorBuffer;
use crate::metrics::Metrics;
use crate::model::{Model, PngImage};
use crate::randomness::Draw;
use crate::report::Reports;
use crate::threads;
use crate::travel::TravelError;

/// Replicas of one model that share every step.
pub struct Towers {
    /// The first tower also does what is done only once.
    towers: Vec<Tower>,
    source: Arc<SharedOut>,
    /// The values last loaded of the parameters accessed by row: each tower gets the rows of its own share.
    rows: Vec<TensorBuffer>,
}

struct Tower {
    replica: Box<dyn Replica>,
    /// The threads that the tower computes on.
    threads: ThreadPool,
}

/// Makes a batch share by share.
struct SharedOut(Vec<Arc<dyn BatchSource>>);

impl Towers {
    /// Puts replicas of the same model side by side, each with its own threads.
    ///
    /// # Panics
    /// Panics if there are none.
    pub fn new(towers: Vec<(Box<dyn Replica>, ThreadPool)>) -> Self {
        assert!(!towers.is_empty(), "at least one tower");
        let source = Arc::new(SharedOut(towers.iter().map(|(replica, _)| replica.source()).collect()));
        let towers = towers.into_iter().map(|(replica, threads)| Tower { replica, threads }).collect();
        Self { towers, source, rows: Vec::new() }
    }

    /// Makes a replica of a model on each of these devices. CPU devices share these threads, with at least one each;
    /// every other device has one thread to feed it.
    pub fn of<M: Model>(model: M, devices: &[Device], threads: usize, config: &LocalConfig) -> anyhow::Result<Self> {
        let model = Arc::new(model);
        let mut towers = Vec::with_capacity(devices.len());
        for (device, threads) in devices.iter().zip(threads::shared_out(devices, threads)?) {
            let config = LocalConfig { device: device.clone(), is_tower: true, ..config.clone() };
            let replica: Box<dyn Replica> = Box::new(Local::sharing(model.clone(), config)?);
            towers.push((replica, threads));
        }
        Ok(Self::new(towers))
    }

    fn first(&self) -> &dyn Replica {
        &*self.towers[0].replica
    }

    fn first_mut(&mut self) -> &mut dyn Replica {
        &mut *self.towers[0].replica
    }

    /// Lets all towers work on their shares at the same time.
    fn side_by_side<T: Send>(
        &mut self,
        shares: Vec<Share>,
        work: impl Fn(&mut dyn Replica, Share) -> anyhow::Result<T> + Sync,
    ) -> anyhow::Result<Vec<T>> {
        let mut done: Vec<Option<anyhow::Result<T>>> = shares.iter().map(|_| None).collect();
        let work = &work;
        let pieces = self.towers.iter_mut().zip(shares).zip(&mut done);
        let mut pieces = pieces.map(|((Tower { replica, threads }, share), done)| {
            (&*threads, move || *done = Some(work(&mut **replica, share)))
        });
        all_at_once(&mut pieces);
        done.into_iter().map(|done| done.expect("the scope waits for all")).collect()
    }

    /// Returns the shares of a batch that needs these rows, each with the values of its own rows.
    fn shares(&self, content: Box<dyn Any + Send>, rows: &[RowRequest]) -> Vec<Share> {
        let table = self.table();
        let values = |batch: &Batch| {
            let mut values = vec![TensorBuffer::default(); table.len()];
            for (all, own) in rows.iter().zip(batch.rows()) {
                let index = all.parameter.0 as usize;
                let loaded = self.rows.get(index).filter(|loaded| !loaded.is_empty());
                let own = |loaded: &TensorBuffer| {
                    accumulation::gather(loaded, &all.rows, &own.rows, table[all.parameter].width()).into()
                };
                values[index] = loaded.map(own).unwrap_or_default();
            }
            values
        };
        shares(content).into_iter().map(|batch| Share { values: values(&batch), batch }).collect()
    }
}

/// Runs each piece of work on its own threads, and waits for all of them. The process's pool has no part in it: its
/// threads would wait for towers, which may wait for a lock that is held by somebody who waits for that pool.
fn all_at_once<W: FnOnce() + Send>(pieces: &mut dyn Iterator<Item = (&ThreadPool, W)>) {
    if let Some((threads, work)) = pieces.next() {
        threads.in_place_scope(|scope| {
            scope.spawn(|_| work());
            all_at_once(pieces);
        });
    }
}

/// What one tower computes on: its part of a batch, and of the loaded rows.
struct Share {
    batch: Batch,
    values: Vec<TensorBuffer>,
}

impl Replica for Towers {
    fn info(&self) -> &ModelInfo {
        self.first().info()
    }

    fn table(&self) -> &ParameterTable {
        self.first().table()
    }

    fn has_rows(&self) -> bool {
        self.first().has_rows()
    }

    fn reports(&self) -> Option<Reports> {
        self.first().reports()
    }

    fn gradient_bytes(&self) -> u64 {
        gradient_bytes(self.table()).saturating_mul(self.towers.len() as u64)
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        self.source.clone()
    }

    fn first_values(&self) -> Vec<TensorBuffer> {
        self.first().first_values()
    }

    fn load(&mut self, values: Vec<TensorBuffer>) {
        let is_by_row: Vec<bool> = self.table().iter().map(|(_, spec)| spec.access == Access::Rows).collect();
        let keep = |(values, by_row): (&TensorBuffer, &bool)| if *by_row { values.clone() } else { Vec::new().into() };
        if self.has_rows() {
            self.rows = values.iter().zip(&is_by_row).map(keep).collect();
        }
        // All towers read the same memory.
        let values: Vec<TensorBuffer> = values.into_iter().map(TensorBuffer::shared).collect();
        self.towers.iter_mut().for_each(|tower| tower.replica.load(values.clone()));
    }

    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult> {
        let Batch { content, rows, samples } = batch;
        let shares = self.shares(content, &rows);
        let own_rows: Vec<Vec<RowRequest>> = shares.iter().map(|share| share.batch.rows().to_vec()).collect();
        let results = self.side_by_side(shares, |replica, Share { batch, values }| {
            if !batch.rows().is_empty() {
                replica.load(values);
            }
            replica.step(batch)
        })?;
        Ok(joined(self.first(), results, &own_rows, &rows, samples))
    }

    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()> {
        let shares = shares(batch.content).into_iter().map(|batch| Share { batch, values: Vec::new() }).collect();
        self.side_by_side(shares, |replica, Share { batch, .. }| replica.rehearse(batch)).map(drop)
    }

    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>> {
        self.first().held_out(draw)
    }

    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64> {
        let Tower { replica, threads } = &mut self.towers[0];
        threads.install(|| replica.loss(batch))
    }

    fn evaluate(&mut self) -> anyhow::Result<Metrics> {
        // Uses all threads, because the other towers are idle.
        self.first_mut().evaluate()
    }

    fn images(&mut self) -> anyhow::Result<Vec<PngImage>> {
        self.first_mut().images()
    }

    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        self.first_mut().conclude()
    }
}

impl BatchSource for SharedOut {
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        let mut rest = samples;
        let mut shares = Vec::with_capacity(self.0.len());
        for (index, (source, count)) in self.0.iter().zip(evenly(samples.len(), self.0.len())).enumerate() {
            let (share, others) = rest.split_at(count);
            rest = others;
            if !share.is_empty() {
                let draw = Draw { first_part: draw.first_part + index * self.parts(), ..draw };
                shares.push(source.batch(share, draw)?);
            }
        }
        Ok(shared_out(shares))
    }

    fn parts(&self) -> usize {
        self.0[0].parts()
    }

    fn pack(&self, batch: Batch) -> Result<Vec<PackedPart>, TravelError> {
        let packed = shares(batch.content).into_iter().zip(&self.0).map(|(share, source)| source.pack(share));
        Ok(packed.collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Assigns parts to towers by their samples: if a batch was made for the same number of towers, each gets its own
    /// part. A step gives the shares to the first towers, so a tower that would get no part is passed over here, too.
    fn unpack(&self, parts: Vec<PackedPart>) -> Result<Batch, TravelError> {
        let samples = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.samples));
        let mut parts = parts.into_iter().peekable();
        let mut shares = Vec::with_capacity(self.0.len());
        let (mut due, mut given) = (0, 0_usize);
        for (index, count) in evenly(samples, self.0.len()).into_iter().enumerate() {
            due += count;
            let (mut own, is_last) = (Vec::new(), index + 1 == self.0.len());
            while let Some(part) = parts.next_if(|_| given < due || is_last) {
                given = given.saturating_add(part.samples);
                own.push(part);
            }
            if !own.is_empty() {
                shares.push(self.0[shares.len()].unpack(own)?);
            }
        }
        Ok(shared_out(shares))
    }
}

/// Makes a batch from these shares.
fn shared_out(shares: Vec<Batch>) -> Batch {
    let rows = accumulation::union(&shares.iter().map(Batch::rows).collect::<Vec<_>>());
    let samples = shares.iter().map(Batch::samples).sum();
    Batch { content: Box::new(shares), rows, samples }
}

fn shares(content: Box<dyn Any + Send>) -> Vec<Batch> {
    *content.downcast().expect("a batch goes to the replica whose source has made it")
}

/// Combines the steps of all towers into one, weighted by their samples.
pub(super) fn joined(
    replica: &dyn Replica,
    results: Vec<StepResult>,
    own_rows: &[Vec<RowRequest>],
    rows: &[RowRequest],
    samples: usize,
) -> StepResult {
    let is_summed = replica.info().loss_is_summed;
    let mut sums = Sums::new(replica.table(), rows);
    let (mut loss, mut state) = (0.0, Weighted::default());
    for (result, own) in results.into_iter().zip(own_rows) {
        let share = result.samples as f32 / samples as f32;
        loss += share * result.loss;
        sums.add_times(if is_summed { 1.0 } else { share }, result.gradients, own);
        state.add_times(share, result.state);
    }
    StepResult { loss, gradients: sums.scaled(1.0), state: state.into_values(), samples }
}

#[cfg(test)]
#[path = "towers_tests.rs"]
mod tests;
