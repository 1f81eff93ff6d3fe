//! The training loop.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::learning::advice::Situation;
use windlass_core::parameter::{ParameterId, ParameterKind};
use windlass_core::run::LearningRate;
use windlass_core::schedule::Schedule;
use windlass_wire::client::{ClientError, Push, RowRequest};
use windlass_wire::session::Progress;

use crate::board::{Board, BoardConfig, Point};
use crate::buffer::{ParameterClient, Pulled, TensorBuffer};
use crate::event::{Epoch, Event, Step, Warning, Watcher};
use crate::gradient;
use crate::learning::{LearningWatch, Observed};
use crate::model::{Metrics, Model};
use crate::order::{Order, Place};
use crate::randomness::Draw;
use crate::replica::Replica;
use crate::report::{Moment, Reporter};
use crate::rows;
use crate::tally::{EpochTally, Interval, Tally};

/// Between two [`Event::Progress`]: as often as someone who watches wants to see numbers change.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// When and how a worker's training ends, and what it tells meanwhile.
#[derive(Debug, Clone)]
pub struct TrainConfig {
    /// This worker.
    pub worker: u32,
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// Epochs to train for, if that is what ends it.
    pub epochs: Option<u64>,
    /// Steps between two [`Event::Step`]s.
    pub log_every: u64,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How it changes.
    pub schedule: Schedule,
    /// Whether the chief scores the network after every epoch, and not only at the end.
    pub evaluate_epochs: bool,
    /// Samples that make one update of the parameters.
    pub samples_an_update: usize,
    /// What advice depends on, should the run not learn.
    pub situation: Situation,
    /// Curves for TensorBoard.
    pub board: BoardConfig,
}

/// Why training stopped before its end.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The parameters could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The loss is infinite or not a number.
    #[error("the loss is {loss} at step {step} (global step {global_step})")]
    NotFinite {
        /// What it is.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
    /// The loss and its gradient are numbers, but not all of the running state after the step. Nothing was pushed.
    #[error(
        "the running state {parameter} contains {value} at step {step} (global step {global_step}), where the loss is {loss}"
    )]
    StateNotFinite {
        /// The path of the tensor.
        parameter: String,
        /// What is in it.
        value: f32,
        /// The loss of a sample.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
    /// The loss is a number, but part of its gradient is infinite or not one. Nothing of it was pushed.
    #[error(
        "the gradient of {parameter} contains {value} at step {step} (global step {global_step}), where the loss is {loss}"
    )]
    GradientNotFinite {
        /// The path of the parameter.
        parameter: String,
        /// What is in its gradient.
        value: f32,
        /// The loss of a sample.
        loss: f32,
        /// The worker's step.
        step: u64,
        /// The global step.
        global_step: u64,
    },
}

/// A worker's training: what it keeps from step to step, and over a break in its connection.
pub struct Training<M: Model> {
    config: TrainConfig,
    replica: Replica<M>,
    order: Order,
    progress: Progress,
    board: Board,
    reporter: Option<Reporter>,
    learning: LearningWatch,
    /// What makes a batch's loss that of a sample.
    loss_scale: f32,
    /// Read by whoever evaluates or reports after training.
    pub tally: Tally,
}

impl<M: Model> Training<M> {
    /// Nothing has been done yet.
    pub fn new(config: TrainConfig, replica: Replica<M>, order: Order, progress: Progress) -> Self {
        let board = Board::new(config.board.clone());
        let reporter = replica.model().reports().map(Reporter::new);
        let learning = LearningWatch::new(config.worker, config.situation, replica.model().chance_loss());
        let loss_scale = if replica.model().loss_is_summed() { 1.0 / order.peek().len() as f32 } else { 1.0 };
        Self { config, replica, order, progress, board, reporter, learning, loss_scale, tally: Tally::default() }
    }

    /// The worker's copy of the model.
    pub fn replica(&mut self) -> &mut Replica<M> {
        &mut self.replica
    }

    /// The walk through the data.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Goes to where this worker has had so many batches, in this process or an earlier one, and sent this note along
    /// with the last of them, and where the run has come to this step.
    pub fn go_to(&mut self, batches: u64, note: &str, global_step: u64) {
        self.order.seek(batches);
        (self.tally.steps, self.tally.global_step) = (batches, global_step);
        self.reporter.iter_mut().for_each(|reporter| reporter.recall(note));
        self.learning.begin_after(global_step);
    }

    /// What is wrong with how the run learns, as of the last step.
    pub fn warning(&self) -> Option<Warning> {
        self.learning.last_warning()
    }

    /// True if this worker has had all the epochs it is to have.
    fn has_had_enough(&self) -> bool {
        self.config.epochs.is_some_and(|epochs| self.order.epochs_done() >= epochs)
    }

    /// Trains until the run or this worker's share of it is over.
    pub fn run(
        &mut self,
        client: &mut ParameterClient,
        is_chief: &(dyn Fn() -> bool + Sync),
        watch: &mut Watcher,
    ) -> Result<(), TrainError> {
        if self.has_had_enough() {
            return Ok(());
        }
        let (mut batch, mut place) = self.next_batch();
        let mut rows = self.replica.rows(&batch);
        let constants = rows::pull_only(client, self.replica.table(), self.replica.constants())?;
        self.replica.load(constants);
        let mut pulled = client.pull(rows.clone())?;
        self.tally.global_step = pulled.step;
        self.board.begin_after(pulled.step, self.report_is_due());
        self.follow_schedule(client, pulled.step); // which is not the first if it goes on from a checkpoint
        self.reporter.iter_mut().for_each(Reporter::begin);
        if self.report_is_due() {
            // The push before it was this worker's last, and the report did not come to be.
            pulled = self.report(client, &rows, is_chief(), watch)?;
        }
        let mut interval = Interval::new_at(self.tally.steps, pulled.step);
        let mut glance = Interval::new_at(self.tally.steps, pulled.step);
        let mut epoch = EpochTally::new();
        while !pulled.over {
            let began = Instant::now();
            let (base, traffic) = (pulled.step, client.traffic());
            self.replica.load(rows::join(pulled, &rows));
            let (loss, mut gradients) = self.replica.step(batch, self.draw(place));
            let loss = loss * self.loss_scale;
            self.check(loss, base)?;
            let norm = self.measure(&gradients, loss, base)?;
            if let (Some(norm), Some(longest)) = (norm, self.replica.model().clip_norm()) {
                gradient::clip(&mut gradients, norm, longest);
            }
            self.replica.add_state(&mut gradients);
            self.check_state(&gradients, loss, base)?;
            let row_gradients = rows::split(&mut gradients, rows);
            // If it has rows, the next batch is put together before they are asked for, along with the push.
            let early = self.replica.has_rows().then(|| self.next_batch());
            rows = early.as_ref().map(|(batch, _)| self.replica.rows(batch)).unwrap_or_default();
            let computed = Instant::now();
            self.reporter.iter_mut().for_each(|reporter| reporter.count(loss));
            let note = self.reporter.as_ref().map(Reporter::note).unwrap_or_default();
            client.push(Push { dense: gradients, rows: row_gradients, wanted: rows.clone(), note })?;
            let (next_batch, next_place) = early.unwrap_or_else(|| self.next_batch()); // while the servers work
            pulled = client.wait()?;
            self.follow_schedule(client, pulled.step);
            if !pulled.applied && self.is_last(pulled.step) {
                // It came after the run's last update, and is no step: there is nothing to tell of.
                (batch, place) = (next_batch, next_place);
                continue;
            }
            self.count(loss, pulled.step, began, computed);
            self.tally.traffic += client.traffic() - traffic;
            epoch.count(loss);
            let staleness = pulled.step.saturating_sub(base + 1);
            let learning_rate = client.learning_rate().rate;
            let warning = self.learning.observe(Observed { step: pulled.step, loss, staleness, learning_rate });
            if let Some(warning) = warning.filter(|_| is_chief()) {
                watch(&Event::Warning(warning));
            }
            if self.tally.steps.is_multiple_of(self.config.log_every) {
                let updates_per_second = interval.updates_per_second(pulled.step);
                let step = self.step_event(place, &mut interval);
                if is_chief() {
                    self.board.train(Point {
                        step: pulled.step,
                        loss,
                        learning_rate,
                        step_ms: step.step_ms,
                        samples_per_second: updates_per_second * self.config.samples_an_update as f64,
                        gradient_norm: norm.unwrap_or_default(),
                        staleness,
                    });
                }
                watch(&Event::Step(step));
            }
            if glance.has_lasted(PROGRESS_EVERY) {
                watch(&Event::Progress(self.step_event(place, &mut glance)));
            }
            if self.report_is_due() {
                pulled = self.report(client, &rows, is_chief(), watch)?;
            }
            if place.batch == self.order.batches() {
                let scored = self.config.evaluate_epochs && is_chief();
                let metrics = scored.then(|| self.score_now(client, &mut pulled, &rows)).transpose()?;
                self.end_epoch(place, &epoch, metrics, watch);
                epoch = EpochTally::new();
                if self.config.epochs.is_some_and(|epochs| place.epoch >= epochs) {
                    break;
                }
                interval = Interval::new_at(self.tally.steps, pulled.step);
            }
            (batch, place) = (next_batch, next_place);
        }
        Ok(())
    }

    /// Computes one step and throws it away, to learn how long it takes.
    pub(crate) fn rehearse(&mut self) {
        let draw = self.draw(Place { epoch: 0, batch: 0 });
        self.replica.rehearse(self.replica.batch(self.order.peek(), draw), draw);
    }

    /// Puts the next batch together.
    fn next_batch(&mut self) -> (M::Batch, Place) {
        let worker = self.config.worker;
        let (samples, place) = self.order.next_batch();
        (self.replica.batch(samples, Draw { worker, place }), place)
    }

    fn draw(&self, place: Place) -> Draw {
        Draw { worker: self.config.worker, place }
    }

    /// Whether the run ends with this global step. (Other servers may be a push behind the one that counts.)
    fn is_last(&self, global_step: u64) -> bool {
        self.config.steps.is_some_and(|steps| global_step >= steps)
    }

    fn report_is_due(&self) -> bool {
        self.reporter.as_ref().is_some_and(|reporter| reporter.is_due(self.tally.steps))
    }

    fn check(&self, loss: f32, global_step: u64) -> Result<(), TrainError> {
        if loss.is_finite() {
            return Ok(());
        }
        Err(TrainError::NotFinite { loss, step: self.tally.steps + 1, global_step: global_step + 1 })
    }

    /// Whoever sees a step first sets its rate for all; the version keeps it from being set back.
    fn follow_schedule(&self, client: &mut ParameterClient, step: u64) {
        if self.config.schedule != Schedule::Constant {
            let rate = self.config.schedule.rate(self.config.learning_rate, step);
            client.set_learning_rate(LearningRate { version: step, rate });
        }
    }

    fn count(&mut self, loss: f32, global_step: u64, began: Instant, computed: Instant) {
        let now = Instant::now();
        let tally = &mut self.tally;
        tally.steps += 1;
        tally.own_steps += 1;
        tally.global_step = global_step;
        tally.loss = loss;
        tally.step_times.record(now - began);
        tally.compute += computed - began;
        tally.wait += now - computed;
        tally.wait_times.record(now - computed);
        if let Ok(mut progress) = self.progress.try_lock() {
            progress.local_step = tally.steps;
            progress.global_step = global_step;
            progress.loss = loss;
        }
    }

    fn step_event(&self, place: Place, interval: &mut Interval) -> Step {
        Step {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            worker: self.config.worker,
            local_step: self.tally.steps,
            global_step: self.tally.global_step,
            epoch: place.epoch,
            batch: place.batch,
            batches: self.order.batches(),
            loss: Some(self.tally.loss),
            step_ms: interval.mean_ms(self.tally.steps, self.tally.global_step),
        }
    }

    /// Checks that a gradient is finite. Its length, if it is to be clipped or if this is a step whose curves are
    /// written, tells that too.
    fn measure(&self, gradients: &[TensorBuffer], loss: f32, global_step: u64) -> Result<Option<f64>, TrainError> {
        let shown = (self.tally.steps + 1).is_multiple_of(self.config.log_every) && self.board.is_wanted();
        let norm = (shown || self.replica.model().clip_norm().is_some()).then(|| gradient::norm(gradients));
        if norm.is_some_and(f64::is_finite) {
            return Ok(norm);
        }
        let Some((parameter, value)) = gradient::not_finite(gradients) else { return Ok(norm) };
        let parameter = self.replica.table()[ParameterId(parameter as u32)].name.clone();
        let (step, global_step) = (self.tally.steps + 1, global_step + 1);
        Err(TrainError::GradientNotFinite { parameter, value, loss, step, global_step })
    }

    /// Checks that running state is finite: servers assign it as it is, and every worker would have it.
    fn check_state(&self, pushed: &[TensorBuffer], loss: f32, global_step: u64) -> Result<(), TrainError> {
        let tensors = self.replica.table().iter().zip(pushed);
        let state = tensors.filter(|((_, spec), _)| spec.kind == ParameterKind::State);
        for ((_, spec), values) in state {
            if let Some(value) = gradient::first_not_finite(values) {
                let (parameter, step) = (spec.name.clone(), self.tally.steps + 1);
                return Err(TrainError::StateNotFinite { parameter, value, loss, step, global_step: global_step + 1 });
            }
        }
        Ok(())
    }

    /// Scores the network with these values, and writes the scores to the curves.
    pub fn score(&mut self, step: u64, values: &[TensorBuffer]) -> Metrics {
        self.replica.load(values.to_vec());
        let metrics = self.replica.evaluate();
        self.board.eval(step, &metrics);
        if self.board.wants_histograms() {
            let names = self.replica.table().iter().map(|(_, spec)| spec.name.as_str());
            // What never changes may have been left out.
            let values = names.zip(values.iter().map(|values| &**values)).filter(|(_, values)| !values.is_empty());
            self.board.histogram(step, values);
        }
        metrics
    }

    /// Scores the network with the values of now. `pulled` stays what the next step, with these rows, is computed on.
    fn score_now(
        &mut self,
        client: &mut ParameterClient,
        pulled: &mut Pulled,
        rows: &[RowRequest],
    ) -> Result<Metrics, ClientError> {
        let step = self.tally.global_step;
        if !self.replica.has_rows() {
            return Ok(self.score(step, &pulled.dense));
        }
        let metrics = self.score(step, &rows::pull_whole(client, self.replica.table())?);
        *pulled = client.pull(rows.to_vec())?;
        Ok(metrics)
    }

    /// Reports on the last steps, and lowers the learning rate if that is due. Gives the values for the next step.
    fn report(
        &mut self,
        client: &mut ParameterClient,
        rows: &[RowRequest],
        is_chief: bool,
        watch: &mut Watcher,
    ) -> Result<Pulled, ClientError> {
        let measured = Instant::now();
        let moment = Moment {
            worker: self.config.worker,
            local_step: self.tally.steps,
            global_step: self.tally.global_step,
            batch_size: self.order.peek().len(),
        };
        let draw = u64::from(moment.worker) << 48 | moment.local_step;
        let pull = |rows: Vec<RowRequest>| client.pull(rows.clone()).map(|pulled| rows::join(pulled, &rows));
        let held_out = self.replica.score_held_out(draw, pull)?;
        let pulled = client.pull(rows.to_vec())?;
        let reporter = self.reporter.as_mut().expect("a report was due");
        let (report, lowered) = reporter.close(moment, measured, held_out, client.learning_rate());
        if let Some(lowered) = lowered.filter(|_| self.config.schedule == Schedule::Constant) {
            client.set_learning_rate(lowered);
        }
        if is_chief {
            self.board.eval(report.global_step, &report.perplexities());
        }
        watch(&Event::Report(report));
        Ok(pulled)
    }

    fn end_epoch(&self, place: Place, epoch: &EpochTally, metrics: Option<Metrics>, watch: &mut Watcher) {
        watch(&Event::Epoch(Epoch {
            worker: self.config.worker,
            epoch: place.epoch,
            global_step: self.tally.global_step,
            loss: epoch.mean_loss(),
            metrics,
            seconds: epoch.began.elapsed().as_secs_f64(),
        }));
    }
}
