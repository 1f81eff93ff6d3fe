//! The training loop.

use std::time::{Duration, Instant};

use tracing::warn;
use windlass_core::parameter::{ParameterId, ParameterKind};
use windlass_core::run::LearningRate;
use windlass_core::schedule::Schedule;
use windlass_wire::client::{ClientError, Interrupt, Push, RowRequest};
use windlass_wire::control::session::Progress;

use crate::batches::Batches;
use crate::batches::making::Making;
use crate::batches::order::Order;
use crate::buffer::{ParameterClient, Pulled, TensorBuffer};
use crate::event::{HeldOut, Warning, Watcher};
use crate::gradient;
use crate::metrics::Metrics;
use crate::replica::remote::CrewError;
use crate::replica::{Replica, StepResult};
use crate::report::{Moment, Reporter};
use crate::rows;
use crate::tally::{StepTimes, Tally};
use crate::telemetry::{StepDone, Telemetry, TelemetryConfig};

/// When and how a worker's training ends, and what it reports meanwhile.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// The last epoch, if the run ends by epochs.
    pub epochs: Option<u64>,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// The largest norm of a gradient; a larger one is scaled down to it.
    pub clip_norm: Option<f32>,
    /// How long to wait for a batch that is not ready.
    pub data_patience: Duration,
    /// Whether the chief scores the network after every epoch, and not only at the end.
    pub evaluate_epochs: bool,
    /// What is reported meanwhile.
    pub telemetry: TelemetryConfig,
}

/// Why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The parameters could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// No joined worker is left to compute.
    #[error(transparent)]
    Crew(CrewError),
    /// A batch could not be made, a step could not be computed, or the network could not be scored, because of the
    /// model.
    #[error("{0:#}")]
    Model(anyhow::Error),
    /// The loss is infinite or not a number.
    #[error("the loss is {loss} at step {step} (global step {global_step})")]
    NotFinite {
        /// The loss.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
    /// A joined worker has answered with a value that is not finite. Nothing was pushed.
    #[error("{found} at step {step} (global step {global_step})")]
    AnswerNotFinite {
        /// The value and the worker that sent it.
        found: CrewError,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
    /// The loss and its gradient are finite, but part of the running state after the step is not. Nothing was pushed.
    #[error(
        "the running state {parameter} contains {value} at step {step} (global step {global_step}), where the loss is {loss}"
    )]
    StateNotFinite {
        /// The path of the tensor.
        parameter: String,
        /// The value in it that is not finite.
        value: f32,
        /// The loss per sample.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
    /// The loss is finite, but part of its gradient is not. Nothing was pushed.
    #[error(
        "the gradient of {parameter} contains {value} at step {step} (global step {global_step}), where the loss is {loss}"
    )]
    GradientNotFinite {
        /// The path of the parameter.
        parameter: String,
        /// The value in its gradient that is not finite.
        value: f32,
        /// The loss per sample.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
}

impl From<anyhow::Error> for TrainError {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<CrewError>() {
            Ok(CrewError::Interrupted) => Self::Client(ClientError::Interrupted),
            Ok(error) => Self::Crew(error),
            Err(error) => Self::Model(error),
        }
    }
}

/// A worker's training: its state from step to step, which survives a break in the connection.
pub struct Training {
    config: TrainConfig,
    replica: Box<dyn Replica>,
    batches: Batches,
    reporter: Option<Reporter>,
    telemetry: Telemetry,
}

/// Whether this worker is the chief, which may change while it trains.
pub type IsChief<'a> = &'a (dyn Fn() -> bool + Sync);

impl Training {
    /// Trains until the run or this worker's share of it is over.
    pub fn run(
        &mut self,
        client: &mut ParameterClient,
        is_chief: IsChief<'_>,
        watch: &mut Watcher,
    ) -> Result<(), TrainError> {
        if self.config.epochs.is_some_and(|epochs| self.batches.epochs_done() >= epochs) {
            return Ok(());
        }
        let (mut batch, mut position) = self.batches.next(|| client.may_wait())?;
        let mut pulled = self.begin(client, batch.rows(), is_chief, watch)?;
        while !pulled.over {
            let mut times = StepTimes::begin();
            let (base, traffic, rows) = (pulled.step, client.traffic(), batch.rows().to_vec());
            self.replica.load(rows::join(pulled, &rows));
            let mut step = self.replica.step(batch).map_err(|error| self.at_step(error.into(), base))?;
            let (loss, norm) = self.examine(&mut step, base)?;
            let mut gradients = step.into_pushed();
            let row_gradients = rows::split(&mut gradients, rows);
            // The push also asks for the rows that the next batch needs.
            let is_last = self.config.epochs.is_some_and(|epochs| position.is_end_of(epochs, self.batches.per_epoch()));
            let mut next = None;
            if self.has_rows() && !is_last {
                next = Some(times.waiting_for_data(|| self.batches.next(|| client.may_wait()))?);
            }
            let wanted = next.as_ref().map(|(batch, _)| batch.rows().to_vec()).unwrap_or_default();
            let note = self.note(loss)?;
            times.computed();
            client.push(Push { dense: gradients, rows: row_gradients, wanted: wanted.clone(), note })?;
            if !self.has_rows() && !is_last {
                next = Some(times.waiting_for_data(|| self.batches.next(|| client.may_wait()))?);
            }
            pulled = client.wait()?;
            self.follow_schedule(client, pulled.step);
            // A push that came after the run's last update is not a step: there is nothing to report.
            if pulled.applied || self.config.steps.is_none_or(|steps| pulled.step < steps) {
                let (global_step, learning_rate) = (pulled.step, client.learning_rate().rate);
                let traffic = client.traffic() - traffic;
                let (applied, held_back) = (pulled.applied, pulled.held_back);
                let done = StepDone {
                    position,
                    loss,
                    norm,
                    base,
                    global_step,
                    learning_rate,
                    traffic,
                    times,
                    applied,
                    held_back,
                };
                self.telemetry.step(&done, is_chief(), watch);
                if self.report_is_due() {
                    let began = self.telemetry.begin_scoring();
                    pulled = self.report(client, &wanted, is_chief(), watch)?;
                    self.telemetry.end_scoring(began);
                }
                if position.batch == self.batches.per_epoch() {
                    let scored = self.config.evaluate_epochs && is_chief();
                    let metrics = scored.then(|| self.score_aside(client, &mut pulled, &wanted)).transpose()?;
                    self.telemetry.epoch(position, metrics, watch);
                }
            }
            let Some(following) = next else { break };
            (batch, position) = following;
        }
        self.batches.stop();
        self.telemetry.finish(client.learning_rate().rate, is_chief());
        Ok(())
    }

    /// Makes a loop that has not begun.
    pub fn new(config: TrainConfig, replica: Box<dyn Replica>, order: Order, progress: Progress) -> Self {
        let batches = Batches::new(config.telemetry.worker, replica.source(), order, config.data_patience);
        let chance = replica.info().chance_loss;
        let telemetry = Telemetry::new(config.telemetry.clone(), batches.per_epoch(), progress, chance);
        let reporter = replica.reports().map(Reporter::new);
        Self { config, replica, batches, reporter, telemetry }
    }

    /// Where steps are computed.
    pub fn replica(&mut self) -> &mut dyn Replica {
        &mut *self.replica
    }

    /// Batches per epoch.
    pub fn batches(&self) -> usize {
        self.batches.per_epoch()
    }

    /// Samples that an epoch omits, because they do not fill a batch.
    pub fn left_out(&self) -> usize {
        self.batches.left_out()
    }

    /// What the worker has done so far.
    pub fn tally(&self) -> &Tally {
        &self.telemetry.tally
    }

    /// Returns what is wrong with how the run learns, as of the last step.
    pub fn warning(&self) -> Option<Warning> {
        self.telemetry.warning()
    }

    /// Moves to where this worker has trained on this many batches, in this process or an earlier one, and the run has
    /// reached this global step. `note` is the one that was pushed with the last of those batches.
    pub fn go_to(&mut self, batches: u64, note: &str, global_step: u64) {
        self.batches.seek(batches);
        self.telemetry.go_to(batches, global_step);
        self.reporter.iter_mut().for_each(|reporter| reporter.recall(note));
    }

    /// The batch that this thread may be making.
    pub(crate) fn making(&self) -> Making {
        self.batches.making().clone()
    }

    /// Computes one step and throws it away, to learn how long it takes.
    pub(crate) fn rehearse(&mut self, stop: &Interrupt) -> Result<Duration, TrainError> {
        let may_wait = || if stop.ends_all_waits() { Err(ClientError::Interrupted) } else { Ok(()) };
        may_wait()?;
        let batch = self.batches.sample(may_wait)?;
        let began = Instant::now();
        self.replica.rehearse(batch)?;
        Ok(began.elapsed())
    }

    /// Pulls the values and these rows for the first step, and catches up on a report that was due.
    fn begin(
        &mut self,
        client: &mut ParameterClient,
        rows: &[RowRequest],
        is_chief: IsChief<'_>,
        watch: &mut Watcher,
    ) -> Result<Pulled, TrainError> {
        let constants = rows::pull_only(client, self.replica.table(), rows::constants(self.replica.table(), rows))?;
        self.replica.load(constants);
        let pulled = client.pull(rows.to_vec())?;
        self.telemetry.begin(pulled.step, self.report_is_due(), is_chief());
        self.follow_schedule(client, pulled.step); // which is not the first if it goes on from a checkpoint
        self.reporter.iter_mut().for_each(Reporter::begin);
        if self.report_is_due() {
            // Training was interrupted after this worker's last push, before its report.
            return self.report(client, rows, is_chief(), watch);
        }
        Ok(pulled)
    }

    fn has_rows(&self) -> bool {
        self.replica.has_rows()
    }

    fn report_is_due(&self) -> bool {
        self.reporter.as_ref().is_some_and(|reporter| reporter.is_due(self.tally().steps))
    }

    /// Counts a step for the next report, and returns the note to push with it.
    fn note(&mut self, loss: f32) -> anyhow::Result<String> {
        let Some(reporter) = &mut self.reporter else { return Ok(String::new()) };
        reporter.count(loss);
        reporter.note()
    }

    /// The first worker to see a step sets its rate for all; the version prevents it from being set back.
    fn follow_schedule(&self, client: &mut ParameterClient, step: u64) {
        if self.config.schedule != Schedule::Constant {
            let rate = self.config.schedule.rate(self.config.learning_rate, step);
            client.set_learning_rate(LearningRate { version: step, rate });
        }
    }

    /// Adds the current step to an error about a joined worker's answer.
    fn at_step(&self, error: TrainError, base: u64) -> TrainError {
        match error {
            TrainError::Crew(found @ CrewError::NotFinite { .. }) => {
                TrainError::AnswerNotFinite { found, step: self.tally().steps + 1, global_step: base + 1 }
            }
            error => error,
        }
    }

    /// Checks that loss, gradients and running state are finite before any of it is pushed, and clips the gradient. The
    /// norm is measured if the gradient may have to be clipped or a curve needs it; it is finite if the gradient is.
    fn examine(&self, result: &mut StepResult, base: u64) -> Result<(f32, Option<f64>), TrainError> {
        let loss = result.loss;
        let (step, global_step) = (self.tally().steps + 1, base + 1);
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { loss, step, global_step });
        }
        let is_measured = self.config.clip_norm.is_some() || self.telemetry.board().wants_norm();
        let norm = is_measured.then(|| gradient::norm(&result.gradients));
        if !norm.is_some_and(f64::is_finite)
            && let Some((parameter, value)) = gradient::not_finite(&result.gradients)
        {
            let parameter = self.replica.table()[ParameterId(parameter as u32)].name.clone();
            return Err(TrainError::GradientNotFinite { parameter, value, loss, step, global_step });
        }
        if let (Some(norm), Some(largest)) = (norm, self.config.clip_norm) {
            gradient::clip(&mut result.gradients, norm, largest);
        }
        // Servers assign running state unchecked, and every worker would receive it.
        let state = self.replica.table().iter().zip(&result.state);
        for ((_, spec), values) in state.filter(|((_, spec), _)| spec.kind == ParameterKind::State) {
            if let Some(value) = gradient::first_not_finite(values) {
                let parameter = spec.name.clone();
                return Err(TrainError::StateNotFinite { parameter, value, loss, step, global_step });
            }
        }
        Ok((loss, norm))
    }

    /// Scores the network with its final values after this step, when the run has ended well.
    pub fn score_last(&mut self, step: u64, values: &[TensorBuffer]) -> anyhow::Result<Metrics> {
        let metrics = self.score(step, values)?;
        if self.telemetry.board().is_wanted() {
            self.draw(step);
            self.telemetry.end(step);
        }
        Ok(metrics)
    }

    /// Scores the network with these values.
    fn score(&mut self, step: u64, values: &[TensorBuffer]) -> anyhow::Result<Metrics> {
        self.replica.load(values.to_vec());
        let metrics = self.replica.evaluate()?;
        let names = self.replica.table().iter().map(|(_, spec)| spec.name.as_str());
        self.telemetry.scores(step, &metrics, names.zip(values.iter().map(|values| &**values)));
        Ok(metrics)
    }

    /// Writes pictures of the network's results with its current values. A failure does not end the run.
    fn draw(&mut self, step: u64) {
        match self.replica.images() {
            Ok(images) => self.telemetry.images(step, &images),
            Err(error) => warn!("cannot make pictures for TensorBoard: {error:#}"),
        }
    }

    /// Like [`Training::score_now`], but counted as time in which this worker does not train.
    fn score_aside(
        &mut self,
        client: &mut ParameterClient,
        pulled: &mut Pulled,
        rows: &[RowRequest],
    ) -> Result<Metrics, TrainError> {
        let began = self.telemetry.begin_scoring();
        let scored = self.score_now(client, pulled, rows);
        self.telemetry.end_scoring(began);
        scored
    }

    /// Scores the network with the current values. `pulled` remains what the next step, with these rows, is computed
    /// on.
    fn score_now(
        &mut self,
        client: &mut ParameterClient,
        pulled: &mut Pulled,
        rows: &[RowRequest],
    ) -> Result<Metrics, TrainError> {
        let step = self.tally().global_step;
        let metrics = if self.has_rows() {
            let values = rows::pull_whole(client, self.replica.table())?;
            let metrics = self.score(step, &values)?;
            *pulled = client.pull(rows.to_vec())?;
            metrics
        } else {
            self.score(step, &pulled.dense)?
        };
        if self.telemetry.board().wants_images() {
            self.draw(step);
        }
        Ok(metrics)
    }

    /// Reports on the last steps, and lowers the learning rate if that is due. Returns the values for the next step.
    fn report(
        &mut self,
        client: &mut ParameterClient,
        rows: &[RowRequest],
        is_chief: bool,
        watch: &mut Watcher,
    ) -> Result<Pulled, TrainError> {
        let measured = Instant::now();
        let moment = Moment {
            worker: self.config.telemetry.worker,
            local_step: self.tally().steps,
            global_step: self.tally().global_step,
            batch_size: self.batches.samples(),
        };
        let held_out = self.score_held_out(client, u64::from(moment.worker) << 48 | moment.local_step)?;
        let pulled = client.pull(rows.to_vec())?;
        let reporter = self.reporter.as_mut().expect("a report was due");
        let (report, lowered) = reporter.close(moment, measured, held_out, client.learning_rate());
        if let Some(lowered) = lowered.filter(|_| self.config.schedule == Schedule::Constant) {
            client.set_learning_rate(lowered);
        }
        self.telemetry.report(report, is_chief, watch);
        Ok(pulled)
    }

    /// Returns the loss on each part of the held-out data.
    fn score_held_out(&mut self, client: &mut ParameterClient, draw: u64) -> Result<Vec<HeldOut>, TrainError> {
        let mut scored = Vec::new();
        for (name, batch) in self.replica.held_out(draw)? {
            let loss = match batch {
                Some(batch) => {
                    let pulled = client.pull(batch.rows().to_vec())?;
                    self.replica.load(rows::join(pulled, batch.rows()));
                    Some(self.replica.loss(batch)?)
                }
                None => None,
            };
            scored.push(HeldOut { name, loss });
        }
        Ok(scored)
    }
}
