//! A step of a placed model: its graph is run, again if a worker was lost meanwhile, and the results of all stages are
//! combined.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tracing::info;
use windlass_wire::client::RowRequest;

use super::config::PlaceAt;
use super::host::{StageHost, StageStart};
use super::layout::StageTower;
use super::remote_stage::{Joined, Lost};
use super::schedule::Schedule;
use super::source::MicroBatch;
use super::step::{Computed, Divided, LossNotFinite, Step, locked, rows_of};
use super::{Placed, Replica, StepResult};
use crate::buffer::TensorBuffer;
use crate::replica::accumulation::Weighted;
use crate::replica::remote::CrewError;

/// How often a step is repeated because a worker was lost during it.
const MOST_REPEATS: usize = 10;

impl Placed {
    /// Computes a step, and repeats it for as long as workers are lost during it and come back.
    pub(super) fn step_on(
        &mut self,
        micro_batches: Vec<MicroBatch>,
        rows: &[RowRequest],
        samples: usize,
    ) -> anyhow::Result<StepResult> {
        let micro_batches = Arc::new(micro_batches);
        for repeats in 0.. {
            match self.attempt(&micro_batches, rows) {
                Ok(computed) => return Ok(self.joined(computed, samples)),
                Err(error) => {
                    self.renew_stages();
                    if let Some(LossNotFinite(loss)) = error.downcast_ref() {
                        // As with an undivided model, the loop judges the loss. There are no gradients.
                        let gradients = vec![TensorBuffer::default(); self.values.len()];
                        return Ok(StepResult { loss: *loss, gradients, state: Vec::new(), samples });
                    }
                    self.recover(error, repeats)?;
                }
            }
        }
        unreachable!("repeats are counted")
    }

    /// Called after a step that was not completed: all stages need their values again, since running state has moved
    /// and values may not have arrived.
    fn renew_stages(&mut self) {
        self.new_to_stages.iter_mut().zip(&self.values).for_each(|(is_new, values)| *is_new = !values.is_empty());
    }

    /// Waits for the lost worker if that is why a step failed; returns other errors.
    fn recover(&self, error: anyhow::Error, repeats: usize) -> anyhow::Result<()> {
        let (Some(lost), Some(Joined { crew, stop })) = (error.downcast_ref::<Lost>(), self.joined.get()) else {
            return Err(error);
        };
        if repeats == MOST_REPEATS {
            let (Lost { worker, why }, times) = (lost, repeats + 1);
            let why = format!("{worker} was lost {times} times in the same step, the last time because {why}");
            return Err(CrewError::Unreliable(why).into());
        }
        crew.gather(&|| stop.ends_all_waits())?;
        info!("{} is back; repeating the step", lost.worker);
        Ok(())
    }

    /// Computes a step once, without repeating it.
    fn attempt(&mut self, micro_batches: &Arc<Vec<MicroBatch>>, rows: &[RowRequest]) -> anyhow::Result<Computed> {
        let schedule = self.schedule(micro_batches.len());
        let is_summed = self.info().loss_is_summed;
        let (starts, graph) = (self.starts(rows), schedule.graph().clone());
        let batch = (micro_batches.clone(), self.elsewhere());
        let step = Step::new(self.divided.clone(), schedule, starts, batch, is_summed);
        let (step, began) = (Arc::new(step), Instant::now());
        let ran = self.lanes.run(&graph, step.clone())?;
        self.usage.add(&graph, &ran, began.elapsed());
        if let Some(Joined { crew, .. }) = self.joined.get() {
            let seats: BTreeSet<usize> = self.assigned.iter().map(|stage| stage.worker).collect();
            seats.into_iter().for_each(|seat| crew.count_step(seat));
        }
        self.trace.iter().for_each(|trace| trace.add(&graph, &ran));
        Ok(step.computed())
    }

    /// Returns the joined worker of each tower that has one.
    fn elsewhere(&self) -> Vec<Option<String>> {
        let worker = |tower: &StageTower| match (&tower.at, self.joined.get()) {
            (PlaceAt::Worker(worker, _), Some(Joined { crew, .. })) => Some(crew.name(*worker)),
            _ => None,
        };
        self.divided.layout.towers().iter().map(worker).collect()
    }

    /// Returns what each tower begins a step with, given the rows that the step needs.
    fn starts(&mut self, rows: &[RowRequest]) -> Vec<StageStart> {
        let Divided { plan, layout, hosts } = &self.divided;
        let start = |(tower, host): (&StageTower, &Mutex<Box<dyn StageHost>>)| {
            let stage = &plan.stages()[tower.stage];
            let is_empty = locked(host).needs_all_values();
            let values = stage.parameters.iter().map(|index| match is_empty || self.new_to_stages[*index] {
                true => self.values[*index].clone(),
                false => TensorBuffer::default(),
            });
            StageStart { values: values.collect(), rows: rows_of(&stage.parameters, rows) }
        };
        let starts = layout.towers().iter().zip(&**hosts).map(start).collect();
        self.new_to_stages.fill(false);
        starts
    }

    /// Returns the schedule of a batch with this many parts.
    fn schedule(&mut self, micro_batches: usize) -> Schedule {
        match &self.schedule {
            Some((of, schedule)) if *of == micro_batches => schedule.clone(),
            _ => {
                let schedule = Schedule::new(&self.divided.plan, &self.divided.layout, micro_batches);
                self.schedule = Some((micro_batches, schedule.clone()));
                schedule
            }
        }
    }

    /// Combines the gradients and running state of all stages by parameter. The gradients are already weighted through
    /// the loss; the running state of a stage with several towers is averaged.
    fn joined(&self, computed: Computed, samples: usize) -> StepResult {
        let Computed { loss, results } = computed;
        let (mut gradients, mut state) = (vec![TensorBuffer::default(); self.values.len()], Vec::new());
        let mut results = results.into_iter();
        for (index, stage) in self.divided.plan.stages().iter().enumerate() {
            let (mut own_gradients, mut own_state) = (Weighted::default(), Weighted::default());
            let towers = results.by_ref().take(self.divided.layout.of(index).len());
            for (result, share) in towers.filter(|(_, share)| *share > 0.0) {
                own_gradients.add_times(1.0, result.gradients);
                own_state.add_times(share, result.state);
            }
            let (own_gradients, own_state) = (own_gradients.into_values(), own_state.into_values());
            for (index, gradient) in stage.parameters.iter().zip(own_gradients) {
                gradients[*index] = gradient;
            }
            if !own_state.is_empty() {
                state.resize(self.values.len(), TensorBuffer::default());
            }
            for (index, own) in stage.parameters.iter().zip(own_state) {
                state[*index] = own;
            }
        }
        let loss = if self.info().loss_is_summed { loss / samples as f32 } else { loss };
        StepResult { loss, gradients, state, samples }
    }
}
