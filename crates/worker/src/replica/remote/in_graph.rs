//! The replica that is joined workers: a batch is split among them, and to the training loop the sum of what they answer
//! is one step. What is done once, as scoring, is done here.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use windlass_core::parameter::ParameterTable;
use windlass_instruments::{Site, Sites};
use windlass_wire::client::{Interrupt, RowRequest};

use super::crew::{Crew, Job, Presence};
use super::share::{Share, Values, own_rows};
use crate::batches::order::DataPosition;
use crate::buffer::TensorBuffer;
use crate::metrics::Metrics;
use crate::model::PngImage;
use crate::randomness::Draw;
use crate::replica::towers::joined;
use crate::replica::{Batch, BatchSource, ModelInfo, Replica, StepResult, accumulation};
use crate::report::Reports;
use crate::travel::TravelError;

/// How a replica uses its crew.
#[derive(Clone)]
pub struct InGraphConfig {
    /// The workers that share each of its steps; others compute for it only while these are lost.
    pub seats: Vec<usize>,
    /// Whether shares are in proportion to the workers' speed, and not equal.
    pub balance: bool,
    /// What ends its waits.
    pub stop: Arc<Interrupt>,
}

/// A replica whose steps are computed by joined workers.
pub struct InGraph {
    /// Scores, and makes batches. It computes no step.
    local: Box<dyn Replica>,
    crew: Arc<Crew>,
    source: Arc<SplitSource>,
    values: Values,
    /// The versions of the values that `local` has.
    local_has: Vec<u64>,
    config: InGraphConfig,
}

/// Makes a batch share by share, packed for its journey.
struct SplitSource {
    source: Arc<dyn BatchSource>,
    crew: Arc<Crew>,
    seats: Vec<usize>,
    balance: bool,
}

impl InGraph {
    /// A replica of the model that `local` is one of.
    pub fn new(local: Box<dyn Replica>, crew: Arc<Crew>, config: InGraphConfig) -> Self {
        let (seats, balance) = (config.seats.clone(), config.balance);
        let source = Arc::new(SplitSource { source: local.source(), crew: crew.clone(), seats, balance });
        let values = Values::new(local.table());
        let local_has = vec![0; local.table().len()];
        Self { local, crew, source, values, local_has, config }
    }

    /// Whether a model's batches travel: tried with one of these samples.
    pub fn check(local: &dyn Replica, samples: &[usize]) -> anyhow::Result<Result<(), TravelError>> {
        let draw = Draw { worker: 0, position: DataPosition { epoch: 0, batch: 0 }, first_part: 0 };
        let source = local.source();
        let batch = source.batch(samples, draw)?;
        Ok(source.pack(batch).map(drop))
    }

    /// The replica in this process, with the values that were loaded last.
    fn local(&mut self) -> &mut dyn Replica {
        let newer = self.values.newer(&mut self.local_has);
        if !newer.is_empty() {
            let mut values = vec![TensorBuffer::default(); self.values.current.len()];
            newer.into_iter().for_each(|index| values[index] = self.values.current[index].clone());
            self.local.load(values);
        }
        &mut *self.local
    }
}

impl Replica for InGraph {
    fn info(&self) -> &ModelInfo {
        self.local.info()
    }

    fn table(&self) -> &ParameterTable {
        self.local.table()
    }

    fn has_rows(&self) -> bool {
        self.local.has_rows()
    }

    fn reports(&self) -> Option<Reports> {
        self.local.reports()
    }

    fn sites(&self) -> Option<Sites> {
        let (crew, seats) = (self.crew.clone(), self.config.seats.clone());
        let known = Mutex::new(vec![Presence::default(); seats.len()]);
        Some(Arc::new(move || {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            let site = |(seat, known): (&usize, &mut Presence)| {
                crew.presence(*seat, known);
                Site { name: crew.name(*seat), replicas: known.replicas.max(1), reachable: known.is_there }
            };
            seats.iter().zip(&mut *known).map(site).collect()
        }))
    }

    fn source(&self) -> Arc<dyn BatchSource> {
        self.source.clone()
    }

    fn first_values(&self) -> Vec<TensorBuffer> {
        self.local.first_values()
    }

    fn load(&mut self, values: Vec<TensorBuffer>) {
        self.values.load(values);
    }

    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult> {
        let Batch { content, rows, samples } = batch;
        let shares: Vec<(usize, Share)> =
            *content.downcast().expect("a batch goes to the replica whose source has made it");
        let table = self.local.table();
        let job = |(preferred, share)| Job { preferred, share, rows: own_rows(table, &self.values, &rows, share) };
        let jobs: Vec<Job<'_>> = shares.iter().map(|(seat, share)| job((*seat, share))).collect();
        let stop = &self.config.stop;
        let results = self.crew.compute(table, &self.values, &jobs, &|| stop.ends_all_waits())?;
        let own: Vec<Vec<RowRequest>> = shares.into_iter().map(|(_, share)| share.rows).collect();
        Ok(joined(&*self.local, results, &own, &rows, samples))
    }

    /// There is nothing to learn from a step here.
    fn rehearse(&mut self, _batch: Batch) -> anyhow::Result<()> {
        Ok(())
    }

    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>> {
        self.local.held_out(draw)
    }

    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64> {
        self.local().loss(batch)
    }

    fn evaluate(&mut self) -> anyhow::Result<Metrics> {
        self.local().evaluate()
    }

    fn images(&mut self) -> anyhow::Result<Vec<PngImage>> {
        self.local().images()
    }

    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>> {
        self.local().conclude()
    }
}

impl BatchSource for SplitSource {
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch> {
        let mut rest = samples;
        let mut shares: Vec<(usize, Share)> = Vec::with_capacity(self.seats.len());
        let mut first_part = draw.first_part;
        for (seat, count) in self.seats.iter().zip(self.counts(samples.len())) {
            let (mut own, others) = rest.split_at(count);
            rest = others;
            let (mut parts, mut rows, towers) = (Vec::new(), Vec::new(), self.crew.towers(*seat));
            for tower in 0..towers {
                let (part, later) = own.split_at(own.len().div_ceil(towers - tower));
                own = later;
                if !part.is_empty() {
                    let batch = self.source.batch(part, Draw { first_part, ..draw })?;
                    rows.push(batch.rows().to_vec());
                    parts.extend(self.source.pack(batch)?);
                    first_part += self.parts();
                }
            }
            if !parts.is_empty() {
                let rows = accumulation::union(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
                shares.push((*seat, Share { parts, rows, samples: count }));
            }
        }
        let rows = accumulation::union(&shares.iter().map(|(_, share)| &share.rows[..]).collect::<Vec<_>>());
        Ok(Batch { content: Box::new(shares), rows, samples: samples.len() })
    }

    fn parts(&self) -> usize {
        self.source.parts()
    }
}

impl SplitSource {
    /// How many samples each worker gets.
    fn counts(&self, samples: usize) -> Vec<usize> {
        let speeds: Option<Vec<f64>> = self.seats.iter().map(|seat| self.crew.speed(*seat)).collect();
        match speeds.filter(|_| self.balance) {
            Some(speeds) => proportional(samples, &speeds),
            None => {
                // By towers, so that every replica has as much to do.
                let towers: Vec<f64> = self.seats.iter().map(|seat| self.crew.towers(*seat) as f64).collect();
                proportional(samples, &towers)
            }
        }
    }
}

/// Shares of so many samples, in proportion to weights; each has one at least if there are enough.
fn proportional(samples: usize, weights: &[f64]) -> Vec<usize> {
    let mut rest = (samples, weights.iter().sum::<f64>());
    let mut shares = Vec::with_capacity(weights.len());
    for (index, weight) in weights.iter().enumerate() {
        let others = weights.len() - index - 1;
        let fair = (rest.0 as f64 * weight / rest.1).round() as usize;
        let share =
            fair.clamp(usize::from(rest.0 > others), rest.0.saturating_sub(others).max(usize::from(rest.0 > 0)));
        let share = share.min(rest.0);
        shares.push(share);
        rest = (rest.0 - share, rest.1 - weight);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_shared_out_in_proportion_and_nobody_has_none_while_there_are_enough() {
        assert_eq!(proportional(100, &[1.0, 1.0]), [50, 50]);
        assert_eq!(proportional(10, &[1.0, 1.0, 1.0]), [3, 4, 3]);
        assert_eq!(proportional(100, &[3.0, 1.0]), [75, 25]);
        assert_eq!(proportional(10, &[1000.0, 1.0, 1.0]), [8, 1, 1]);
        assert_eq!(proportional(2, &[1.0, 1.0, 1.0]).iter().sum::<usize>(), 2);
        for samples in 0..40 {
            let shares = proportional(samples, &[0.1, 7.0, 2.5]);
            assert_eq!(shares.iter().sum::<usize>(), samples);
            assert!(samples < 3 || shares.iter().all(|share| *share > 0), "{shares:?}");
        }
    }
}
