//! Computes the steps that a client requests from a joined worker: checks requests, loads values, lists gradients.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use burn::tensor::TensorData;
use tracing::info;
use windlass_core::parameter::{ParameterId, ParameterTable};
use windlass_instruments::{StepMeasurement, WorkerInstruments};
use windlass_wire::client::RowRequest;
use windlass_wire::compute::{Contents, Limits, Tensor};

use super::protocol::{Answer, Ask, PartAsked, StepAnswered, StepAsked, request_limits};
use super::requests::Stepping;
use crate::buffer::TensorBuffer;
use crate::replica::packed::{self, PackedPart};
use crate::replica::{Replica, StepResult};
use crate::threads;

/// Steps that are tried on one thread and then on all, twice. The quickest of each counts.
const TRIED: u64 = 4;

/// Computes steps with one replica.
pub(super) struct Stepper {
    replica: Box<dyn Replica>,
    pools: Pools,
    steps: u64,
    counts: WorkerInstruments,
}

impl Stepper {
    /// Computes on this many threads, or on one or all, whichever turns out to be faster.
    pub(super) fn new(replica: Box<dyn Replica>, threads: Option<usize>, counts: WorkerInstruments) -> Self {
        Self { replica, pools: Pools::Unmade(threads), steps: 0, counts }
    }

    /// Returns the attached values, each in the position of its parameter.
    fn values(&self, changed: &[u32], tensors: &mut impl Iterator<Item = Tensor>) -> anyhow::Result<Vec<TensorBuffer>> {
        let mut values = vec![TensorBuffer::default(); self.replica.table().len()];
        for index in changed {
            let slot = values.get_mut(*index as usize).with_context(|| format!("there is no parameter {index}"))?;
            let contents = tensors.next().map(|tensor| tensor.contents);
            let Some(Contents::F32(floats)) = contents else { bail!("the values of parameter {index} are not floats") };
            *slot = floats.into();
        }
        Ok(values)
    }
}

impl Stepping for Stepper {
    type Asked = StepAsked;

    fn asked(ask: Ask) -> anyhow::Result<StepAsked> {
        match ask {
            Ask::Step(asked) => Ok(asked),
            _ => bail!("it asked for a stage, but was given all of the model"),
        }
    }

    fn limits(&self) -> Limits {
        request_limits(self.replica.table())
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn answer(&mut self, asked: StepAsked, tensors: Vec<Tensor>) -> anyhow::Result<(Answer, Vec<TensorData>)> {
        let began = Instant::now();
        let mut tensors = tensors.into_iter();
        let mut values = self.values(&asked.changed, &mut tensors)?;
        let parts = parts(asked.parts, &mut tensors)?;
        ensure!(tensors.next().is_none(), "the step request has unexpected extra tensors");
        let replica = &mut self.replica;
        let pool = self.pools.get()?;
        let result = threads::compute(pool, || {
            let batch = replica.source().unpack(parts).context("cannot take the batch")?;
            check(replica.table(), &values, batch.rows())?;
            replica.load(std::mem::take(&mut values));
            replica.step(batch)
        })?;
        self.steps += 1;
        self.pools.took(began.elapsed());
        self.counts.stepped(&StepMeasurement {
            step: began.elapsed(),
            compute: began.elapsed(),
            samples: result.samples as u64,
            loss: Some(result.loss),
            ..StepMeasurement::default()
        });
        Ok(listed(result, began.elapsed()))
    }
}

fn parts(asked: Vec<PartAsked>, tensors: &mut impl Iterator<Item = Tensor>) -> anyhow::Result<Vec<PackedPart>> {
    ensure!(!asked.is_empty(), "the step request has no batch");
    let part = |PartAsked { samples, seed, tensors: count }: PartAsked| {
        Ok(PackedPart { samples, seed, parcel: packed::parcel(tensors, count)? })
    };
    asked.into_iter().map(part).collect()
}

/// Fails if the number of values does not match the network.
fn check(table: &ParameterTable, values: &[TensorBuffer], rows: &[RowRequest]) -> anyhow::Result<()> {
    for ((id, spec), values) in table.iter().zip(values) {
        let asked = rows.iter().find(|request| request.parameter == id);
        let expected = match asked {
            Some(request) => {
                ensure!(request.rows.iter().all(|row| (*row as usize) < spec.rows()), "{} has no such row", spec.name);
                request.rows.len() * spec.width()
            }
            None if values.is_empty() => continue,
            None => spec.elements(),
        };
        ensure!(values.len() == expected, "received {} values of {}, expected {expected}", values.len(), spec.name);
    }
    Ok(())
}

fn listed(result: StepResult, took: Duration) -> (Answer, Vec<TensorData>) {
    let StepResult { loss, gradients, state, samples } = result;
    let numbers = |values: &[TensorBuffer]| {
        let filled = (0..).zip(values).filter(|(_, values)| !values.is_empty());
        filled.map(|(index, _)| ParameterId(index).0).collect::<Vec<u32>>()
    };
    let (loss, micros) = (loss.to_bits(), took.as_micros() as u64);
    let (gradients_of, state_of) = (numbers(&gradients), numbers(&state));
    let answer = StepAnswered { loss, samples, micros, gradients: gradients_of, state: state_of, usage: None };
    let tensors = gradients.into_iter().chain(state).filter(|values| !values.is_empty());
    (Answer::Stepped(answer), tensors.map(TensorBuffer::into_flat_data).collect())
}

/// The threads that steps are computed on.
enum Pools {
    /// Not created yet: this many threads, or the faster choice.
    Unmade(Option<usize>),
    /// One thread and all threads are being tried, with the quickest step on each.
    Trying {
        one: rayon::ThreadPool,
        all: rayon::ThreadPool,
        steps: u64,
        quickest: [Duration; 2],
    },
    Chosen(rayon::ThreadPool),
}

impl Pools {
    fn get(&mut self) -> anyhow::Result<&rayon::ThreadPool> {
        if let Self::Unmade(threads) = self {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            *self = match *threads {
                Some(threads) => Self::Chosen(threads::pool(threads)?),
                None if cores == 1 => Self::Chosen(threads::pool(1)?),
                None => {
                    let (one, all) = (threads::pool(1)?, threads::pool(cores)?);
                    Self::Trying { one, all, steps: 0, quickest: [Duration::MAX; 2] }
                }
            };
        }
        match self {
            Self::Chosen(pool) => Ok(pool),
            Self::Trying { one, all, steps, .. } => Ok(if (*steps / TRIED).is_multiple_of(2) { one } else { all }),
            Self::Unmade(_) => bail!("there are no threads"),
        }
    }

    /// Records how long a step took. Either choice computes the same bits.
    fn took(&mut self, time: Duration) {
        let Self::Trying { steps, quickest, .. } = self else { return };
        let tried = (*steps / TRIED % 2) as usize;
        quickest[tried] = quickest[tried].min(time);
        *steps += 1;
        if *steps < 4 * TRIED {
            return;
        }
        if let Self::Trying { one, all, quickest, .. } = std::mem::replace(self, Self::Unmade(None)) {
            let pool = if quickest[1] < quickest[0] { all } else { one };
            let threads = pool.current_num_threads();
            info!("computing on {threads} thread{}", if threads == 1 { "" } else { "s" });
            *self = Self::Chosen(pool);
        }
    }
}
