//! The replica that consists of joined workers: each batch is split among them, and to the training loop the sum of
//! their answers is one step. What is done only once, such as scoring, is done here.

use std::path::PathBuf;
use std::sync::Arc;

use windlass_core::footprint::gradient_bytes;
use windlass_core::parameter::ParameterTable;
use windlass_instruments::Sites;
use windlass_wire::client::{Interrupt, RowRequest};

use super::crew::Crew;
use super::seat::Pace;
use super::share::{Share, Values, own_rows};
use super::split::Job;
use crate::batches::order::DataPosition;
use crate::buffer::TensorBuffer;
use crate::metrics::Metrics;
use crate::model::PngImage;
use crate::randomness::Draw;
use crate::replica::division::{evenly, in_proportion};
use crate::replica::towers::joined;
use crate::replica::{Batch, BatchSource, ModelInfo, Replica, StepResult, accumulation};
use crate::report::Reports;
use crate::travel::TravelError;

/// How a replica uses its crew.
#[derive(Clone)]
pub struct InGraphConfig {
    /// The workers that share each of its steps; other workers compute for it only while these are lost.
    pub seats: Vec<usize>,
    /// Whether shares are proportional to the workers' speed instead of equal.
    pub balance: bool,
    /// The interrupt that ends its waits.
    pub stop: Arc<Interrupt>,
}

/// A replica whose steps are computed by joined workers.
pub struct InGraph {
    /// Scores and makes batches, but computes no steps.
    local: Box<dyn Replica>,
    crew: Arc<Crew>,
    source: Arc<SplitSource>,
    values: Values,
    /// The versions of the values that `local` holds.
    local_has: Vec<u64>,
    config: InGraphConfig,
}

/// Makes a batch share by share, packed to be sent.
struct SplitSource {
    source: Arc<dyn BatchSource>,
    crew: Arc<Crew>,
    seats: Vec<usize>,
    balance: bool,
}

impl InGraph {
    /// Makes a replica of the same model as `local`.
    pub fn new(local: Box<dyn Replica>, crew: Arc<Crew>, config: InGraphConfig) -> Self {
        let (seats, balance) = (config.seats.clone(), config.balance);
        let source = Arc::new(SplitSource { source: local.source(), crew: crew.clone(), seats, balance });
        let values = Values::new(local.table());
        let local_has = vec![0; local.table().len()];
        Self { local, crew, source, values, local_has, config }
    }

    /// Checks with one of these samples whether a model's batches can be sent.
    pub fn check(local: &dyn Replica, samples: &[usize]) -> anyhow::Result<Result<(), TravelError>> {
        let draw = Draw { worker: 0, position: DataPosition { epoch: 0, batch: 0 }, first_part: 0 };
        let source = local.source();
        let batch = source.batch(samples, draw)?;
        Ok(source.pack(batch).map(drop))
    }

    /// Returns the replica in this process, with the values that were loaded last.
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

    fn is_client(&self) -> bool {
        true
    }

    fn sites(&self) -> Option<Sites> {
        let (crew, seats) = (self.crew.clone(), self.config.seats.clone());
        Some(Arc::new(move || seats.iter().map(|seat| crew.site(*seat)).collect()))
    }

    fn devices(&self) -> Option<Vec<String>> {
        let stop = &self.config.stop;
        let named = |seat: &usize| {
            let (devices, seat) = (self.crew.devices(*seat, &|| stop.ends_all_waits()), *seat);
            devices.into_iter().map(move |device| format!("/job:worker/task:{seat}/{device}"))
        };
        Some(self.config.seats.iter().flat_map(named).collect())
    }

    /// A gradient of every worker: in async mode each has its own replica, but all are in this process.
    fn gradient_bytes(&self) -> u64 {
        gradient_bytes(self.table()).saturating_mul(self.crew.len() as u64)
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

    /// A trial step would show nothing about this process.
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
        for (seat, counts) in self.seats.iter().zip(self.counts(samples.len())) {
            let (mut parts, mut rows) = (Vec::new(), Vec::new());
            for count in &counts {
                let (part, others) = rest.split_at(*count);
                rest = others;
                if !part.is_empty() {
                    let batch = self.source.batch(part, Draw { first_part, ..draw })?;
                    rows.push(batch.rows().to_vec());
                    parts.extend(self.source.pack(batch)?);
                    first_part += self.parts();
                }
            }
            if !parts.is_empty() {
                let rows = accumulation::union(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
                shares.push((*seat, Share { parts, rows, samples: counts.iter().sum() }));
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
    /// Returns how many samples each tower of each worker gets.
    fn counts(&self, samples: usize) -> Vec<Vec<usize>> {
        let paces: Vec<Pace> = self.seats.iter().map(|seat| self.crew.pace(*seat)).collect();
        if !self.balance {
            return equal(samples, &paces);
        }
        let are_present: Vec<bool> = self.seats.iter().map(|seat| self.crew.is_present(*seat)).collect();
        balanced(samples, &paces, &are_present)
    }
}

/// Divides samples as a single process with all towers of these workers would.
fn equal(samples: usize, paces: &[Pace]) -> Vec<Vec<usize>> {
    let mut all = evenly(samples, paces.iter().map(|pace| pace.towers).sum()).into_iter();
    paces.iter().map(|pace| all.by_ref().take(pace.towers).collect()).collect()
}

/// Divides samples in proportion to the speed of these workers, once it is known. Those that are lost get none, because
/// others would have to compute their shares after their own.
fn balanced(samples: usize, paces: &[Pace], are_present: &[bool]) -> Vec<Vec<usize>> {
    let takes_part = |seat: &usize| are_present[*seat] || !are_present.contains(&true);
    let seats: Vec<usize> = (0..paces.len()).filter(takes_part).collect();
    let own: Vec<Pace> = seats.iter().map(|seat| paces[*seat]).collect();
    let speeds: Option<Vec<f64>> = own.iter().map(|pace| pace.speed).collect();
    let counts = match speeds {
        Some(speeds) => {
            let shares = in_proportion(samples, &speeds).into_iter().zip(&own);
            shares.map(|(share, pace)| evenly(share, pace.towers)).collect()
        }
        None => equal(samples, &own),
    };
    let mut all = vec![Vec::new(); paces.len()];
    seats.into_iter().zip(counts).for_each(|(seat, counts)| all[seat] = counts);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_lost_gets_no_share_of_a_balanced_batch() {
        let pace = |towers, speed| Pace { towers, speed: Some(speed) };
        let paces = [pace(1, 30.0), pace(2, 20.0), pace(1, 10.0)];
        assert_eq!(balanced(60, &paces, &[true; 3]), [vec![30], vec![10, 10], vec![10]]);
        assert_eq!(balanced(60, &paces, &[true, false, true]), [vec![45], vec![], vec![15]]);
        assert_eq!(balanced(60, &paces, &[false; 3]), [vec![30], vec![10, 10], vec![10]], "all are awaited");
        let unknown = [paces[0], Pace { towers: 2, speed: None }, paces[2]];
        assert_eq!(balanced(60, &unknown, &[true; 3]), [vec![15], vec![15, 15], vec![15]]);
        assert_eq!(balanced(60, &unknown, &[true, false, true]), [vec![45], vec![], vec![15]]);
    }
}
