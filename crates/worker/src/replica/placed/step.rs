//! One step of a placed model: what its pieces do, and what they pass to each other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, ensure};
use burn::tensor::TensorData;
use windlass_core::executor::NodeId;
use windlass_wire::client::RowRequest;

use super::host::{StageForward, StageHost, StageResult, StageRows, StageStart};
use super::lanes::Working;
use super::layout::Layout;
use super::remote_stage::Lost;
use super::schedule::{Piece, Schedule};
use super::source::MicroBatch;
use crate::replica::remote::CrewError;
use crate::stages::StagePlan;
use crate::threads;

/// The hosts, one per tower.
pub(super) type Hosts = Arc<Vec<Mutex<Box<dyn StageHost>>>>;

/// The model's stages, where they are, and what computes them.
#[derive(Clone)]
pub(super) struct Divided {
    pub(super) plan: Arc<StagePlan>,
    pub(super) layout: Arc<Layout>,
    pub(super) hosts: Hosts,
}

/// A step that is being computed.
pub(super) struct Step {
    divided: Divided,
    schedule: Schedule,
    /// By tower.
    starts: Vec<Mutex<Option<StageStart>>>,
    micro_batches: Arc<Vec<MicroBatch>>,
    /// The joined worker of each tower that is computed elsewhere. If there are any, the step may have to be repeated,
    /// so its batch is cloned instead of moved.
    elsewhere: Vec<Option<String>>,
    /// The weight of each micro-batch's loss.
    weights: Vec<f32>,
    /// By stage and micro-batch.
    slots: Vec<Vec<Mutex<Slot>>>,
    /// By tower.
    results: Vec<Mutex<Option<StageResult>>>,
}

/// The state of a micro-batch in a stage.
#[derive(Default)]
struct Slot {
    outputs: Vec<TensorData>,
    /// The number of outputs, and the number of stages that have yet to take them.
    count: usize,
    awaited_by: usize,
    /// The gradients of the outputs from each stage that they feed. They are added up in the order of those stages.
    gradients: Vec<Vec<Option<TensorData>>>,
    loss: f32,
}

/// Ends a step whose loss is not finite: otherwise the backward pass would be blamed for its gradients.
#[derive(Debug, thiserror::Error)]
#[error("the loss is {0}")]
pub(super) struct LossNotFinite(pub(super) f32);

/// The result of a step.
pub(super) struct Computed {
    /// The weighted sum of the losses of the micro-batches.
    pub(super) loss: f32,
    /// By tower: the result of its micro-batches, and the fraction of the samples that they contain.
    pub(super) results: Vec<(StageResult, f32)>,
}

impl Step {
    pub(super) fn new(
        divided: Divided,
        schedule: Schedule,
        starts: Vec<StageStart>,
        (micro_batches, elsewhere): (Arc<Vec<MicroBatch>>, Vec<Option<String>>),
        is_summed: bool,
    ) -> Self {
        let samples: usize = micro_batches.iter().map(|micro| micro.samples).sum();
        let weight = |micro: &MicroBatch| if is_summed { 1.0 } else { micro.samples as f32 / samples as f32 };
        let weights = micro_batches.iter().map(weight).collect();
        let slots = divided.plan.stages().iter().map(|stage| {
            let slot = || Slot { gradients: vec![Vec::new(); stage.feeds.len()], ..Slot::default() };
            micro_batches.iter().map(|_| Mutex::new(slot())).collect()
        });
        Self {
            slots: slots.collect(),
            results: divided.layout.towers().iter().map(|_| Mutex::new(None)).collect(),
            starts: starts.into_iter().map(|start| Mutex::new(Some(start))).collect(),
            divided,
            schedule,
            micro_batches,
            elsewhere,
            weights,
        }
    }

    /// Returns the result of the step once all of it is done.
    pub(super) fn computed(&self) -> Computed {
        let Divided { plan, layout, .. } = &self.divided;
        let last = &self.slots[plan.last()];
        let loss = last.iter().zip(&self.weights).map(|(slot, weight)| weight * locked(slot).loss).sum();
        let all: usize = self.micro_batches.iter().map(|micro| micro.samples).sum();
        let result = |(tower, result): (usize, &Mutex<Option<StageResult>>)| {
            let is_own = |micro: usize| layout.tower(layout.towers()[tower].stage, micro) == tower;
            let own = self.micro_batches.iter().enumerate().filter(|(micro, _)| is_own(*micro));
            let own: usize = own.map(|(_, micro)| micro.samples).sum();
            (locked(result).take().unwrap_or_default(), own as f32 / all as f32)
        };
        Computed { loss, results: self.results.iter().enumerate().map(result).collect() }
    }

    fn forward(&self, stage: usize, micro: usize) -> anyhow::Result<()> {
        let Divided { plan, layout, .. } = &self.divided;
        let planned = &plan.stages()[stage];
        let (mut inputs, mut foreign) = (Vec::new(), Vec::new());
        for input in &planned.inputs {
            let outputs = self.outputs(*input, micro);
            let worker = self.elsewhere[layout.tower(*input, micro)].as_ref();
            foreign.extend(worker.map(|worker| from(worker, &outputs)));
            inputs.extend(outputs);
        }
        let part = &self.micro_batches[micro];
        let mut feed = locked(&part.feeds[stage]);
        let is_repeatable = self.elsewhere.iter().any(Option::is_some);
        let feed = if is_repeatable { feed.clone() } else { feed.take() };
        let feed = feed.context("a stage takes its part of a batch once")?;
        let input = StageForward {
            feed,
            inputs,
            rows: rows_of(&planned.parameters, &part.rows).into_iter().map(|rows| rows.rows).collect(),
            // The first stage uses the same seed as an undivided network; the others use seeds of their own.
            seed: if stage == 0 { part.seed } else { crate::randomness::mix(part.seed ^ stage as u64) },
        };
        let outputs = threads::caught("computing", || self.host(stage, micro).forward(micro, input));
        let outputs = outputs.map_err(|error: anyhow::Error| match foreign.is_empty() {
            // Outputs computed elsewhere are not checked, and may be the cause of this failure.
            false if !error.is::<Lost>() && !error.is::<CrewError>() => error.context(foreign.join(" and ")),
            _ => error,
        })?;
        let mut slot = locked(&self.slots[stage][micro]);
        if stage == plan.last() {
            slot.loss = loss(&outputs)?;
            if !slot.loss.is_finite() {
                return Err(LossNotFinite(slot.loss).into());
            }
            slot.count = 1;
            slot.gradients = vec![vec![Some(filled(&outputs[0], self.weights[micro]))]];
        } else {
            (slot.count, slot.awaited_by) = (outputs.len(), planned.feeds.len());
            slot.outputs = outputs;
        }
        Ok(())
    }

    /// Returns the host that computes a micro-batch in a stage.
    fn host(&self, stage: usize, micro: usize) -> MutexGuard<'_, Box<dyn StageHost>> {
        locked(&self.divided.hosts[self.divided.layout.tower(stage, micro)])
    }

    /// Returns the outputs of a stage. The last stage to ask gets them without a copy.
    fn outputs(&self, stage: usize, micro: usize) -> Vec<TensorData> {
        let mut slot = locked(&self.slots[stage][micro]);
        slot.awaited_by -= 1;
        if slot.awaited_by == 0 { std::mem::take(&mut slot.outputs) } else { slot.outputs.clone() }
    }

    fn backward(&self, stage: usize, micro: usize) -> anyhow::Result<()> {
        let plan = &self.divided.plan;
        let planned = &plan.stages()[stage];
        let gradients = {
            let mut slot = locked(&self.slots[stage][micro]);
            let count = slot.count;
            summed(std::mem::take(&mut slot.gradients), count)?
        };
        let mut of_inputs = self.host(stage, micro).backward(micro, gradients)?.into_iter();
        for input in &planned.inputs {
            let mut slot = locked(&self.slots[*input][micro]);
            let place = plan.stages()[*input].feeds.iter().position(|fed| *fed == stage);
            let own: Vec<Option<TensorData>> = of_inputs.by_ref().take(slot.count).collect();
            ensure!(own.len() == slot.count, "too few gradients");
            slot.gradients[place.expect("whoever feeds a stage knows it")] = own;
        }
        ensure!(of_inputs.next().is_none(), "too many gradients");
        Ok(())
    }
}

impl Working for Step {
    fn run(&self, node: NodeId) -> anyhow::Result<()> {
        match self.schedule.piece(node) {
            Piece::Load { tower } => {
                let start = locked(&self.starts[tower]).take().context("a stage gets its values once")?;
                locked(&self.divided.hosts[tower]).begin(start)
            }
            Piece::Forward { stage, micro } => self.forward(stage, micro),
            Piece::Backward { stage, micro } => self.backward(stage, micro),
            Piece::Gradients { tower } => {
                let result = locked(&self.divided.hosts[tower]).finish()?;
                *locked(&self.results[tower]) = Some(result);
                Ok(())
            }
        }
    }
}

/// Selects the rows that belong to a stage's parameters.
pub(super) fn rows_of(parameters: &[usize], rows: &[RowRequest]) -> Vec<StageRows> {
    let own = rows.iter().filter_map(|request| {
        let parameter = parameters.binary_search(&(request.parameter.0 as usize)).ok()?;
        Some(StageRows { parameter, rows: request.rows.clone() })
    });
    own.collect()
}

fn from(worker: &str, outputs: &[TensorData]) -> String {
    let shapes: Vec<String> = outputs.iter().map(|output| format!("{:?}", output.shape().as_slice())).collect();
    format!("with outputs of shape {} from {worker}", shapes.join(", "))
}

fn loss(outputs: &[TensorData]) -> anyhow::Result<f32> {
    let shapes: Vec<Vec<usize>> = outputs.iter().map(|output| output.shape().to_vec()).collect();
    match outputs {
        [loss] if loss.num_elements() == 1 => Ok(loss.iter::<f32>().next().unwrap_or(f32::NAN)),
        _ => anyhow::bail!("the last stage must return one loss, but returned tensors of shapes {shapes:?}"),
    }
}

fn filled(like: &TensorData, value: f32) -> TensorData {
    TensorData::new(vec![value; like.num_elements()], like.shape().clone())
}

/// Sums the gradients of `count` outputs over all stages that used them.
fn summed(parts: Vec<Vec<Option<TensorData>>>, count: usize) -> anyhow::Result<Vec<Option<TensorData>>> {
    let mut sums: Vec<Option<TensorData>> = vec![None; count];
    for part in parts {
        for (sum, gradient) in sums.iter_mut().zip(part) {
            *sum = match (sum.take(), gradient) {
                (Some(sum), Some(gradient)) => Some(added(sum, &gradient)?),
                (sum, gradient) => sum.or(gradient),
            };
        }
    }
    Ok(sums)
}

fn added(mut sum: TensorData, gradient: &TensorData) -> anyhow::Result<TensorData> {
    let (expected, got) = (sum.shape().to_vec(), gradient.shape().to_vec());
    ensure!(expected == got, "gradients of shapes {expected:?} and {got:?} for the same output");
    let values: Vec<f32> = gradient.iter::<f32>().collect();
    let sums = sum.as_mut_slice::<f32>().map_err(|error| anyhow::anyhow!("{error:?}"))?;
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    Ok(sum)
}

pub(super) fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
