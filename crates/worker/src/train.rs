//! The training loop.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::run::LearningRate;
use windlass_core::schedule::Schedule;
use windlass_core::timing::Durations;
use windlass_wire::client::{ClientError, ParameterClient, Push};
use windlass_wire::session::Progress;

use crate::board::{Board, BoardConfig, Point, norm};
use crate::event::{Epoch, Event, Step, Watcher};
use crate::model::{Metrics, Model};
use crate::order::{Order, Place};
use crate::replica::Replica;

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
}

/// A worker's training: what it keeps from step to step, and over a break in its connection.
pub struct Training<M: Model> {
    config: TrainConfig,
    replica: Replica<M>,
    order: Order,
    progress: Progress,
    board: Board,
    /// Read by whoever evaluates or reports after training.
    pub tally: Tally,
}

/// What a worker has done so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Its steps, those of earlier processes of this worker included.
    pub steps: u64,
    /// Its steps in this process since training last began.
    pub own_steps: u64,
    /// The last global step it saw.
    pub global_step: u64,
    /// The loss of its last batch.
    pub loss: f32,
    /// How long steps took.
    pub step_times: Durations,
    /// Time spent computing.
    pub compute: Duration,
    /// Time spent waiting for servers.
    pub wait: Duration,
    /// How long each of those waits took.
    pub wait_times: Durations,
}

impl<M: Model> Training<M> {
    /// Nothing has been done yet.
    pub fn new(config: TrainConfig, replica: Replica<M>, order: Order, progress: Progress) -> Self {
        let board = Board::new(config.board.clone());
        Self { config, replica, order, progress, board, tally: Tally::default() }
    }

    /// The worker's copy of the model.
    pub fn replica(&mut self) -> &mut Replica<M> {
        &mut self.replica
    }

    /// The walk through the data.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Goes to where this worker has had so many batches, in this process or an earlier one.
    pub fn go_to(&mut self, batches: u64) {
        self.order.seek(batches);
        self.tally.steps = batches;
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
        let mut pulled = client.pull(Vec::new())?;
        self.board.begin_after(pulled.step);
        let mut interval = Interval::new_at(self.tally.steps, pulled.step);
        let mut epoch = EpochTally::new();
        let (mut batch, mut place) = self.next_batch();
        while !pulled.over {
            let began = Instant::now();
            self.replica.load(pulled.dense);
            let (loss, gradients) = self.replica.step(batch);
            self.check(loss, pulled.step)?;
            let shown = (self.tally.steps + 1).is_multiple_of(self.config.log_every);
            let gradient_norm = (shown && self.board.is_wanted()).then(|| norm(&gradients));
            let (computed, base) = (Instant::now(), pulled.step);
            client.push(Push { dense: gradients, ..Push::default() })?;
            let (next_batch, next_place) = self.next_batch(); // while the servers work
            pulled = client.wait()?;
            self.follow_schedule(client, pulled.step);
            if pulled.applied || !self.is_last(pulled.step) {
                self.count(loss, pulled.step, began, computed);
            }
            epoch.count(loss);
            if self.tally.steps.is_multiple_of(self.config.log_every) {
                let samples_per_second =
                    interval.updates_per_second(pulled.step) * self.config.samples_an_update as f64;
                let step = self.step_event(place, &mut interval);
                if is_chief() {
                    self.board.train(Point {
                        step: pulled.step,
                        loss,
                        learning_rate: client.learning_rate().rate,
                        step_ms: step.step_ms,
                        samples_per_second,
                        gradient_norm: gradient_norm.unwrap_or_default(),
                        staleness: pulled.step.saturating_sub(base + 1),
                    });
                }
                watch(&Event::Step(step));
            }
            if place.batch == self.order.batches() {
                let score = self.config.evaluate_epochs && is_chief();
                pulled.dense = self.end_epoch(place, &epoch, pulled.dense, score, watch);
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
        self.replica.step(self.replica.batch(self.order.peek()));
    }

    /// Puts the next batch together.
    fn next_batch(&mut self) -> (M::Batch, Place) {
        let (samples, place) = self.order.next_batch();
        (self.replica.batch(samples), place)
    }

    /// Whether the run ends with this global step. (Other servers may be a push behind the one that counts.)
    fn is_last(&self, global_step: u64) -> bool {
        self.config.steps.is_some_and(|steps| global_step >= steps)
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

    /// Tells of the end of an epoch, perhaps scoring the network with these values, which are given back.
    fn end_epoch(
        &mut self,
        place: Place,
        epoch: &EpochTally,
        values: Vec<Vec<f32>>,
        score: bool,
        watch: &mut Watcher,
    ) -> Vec<Vec<f32>> {
        let metrics = score.then(|| self.score(self.tally.global_step, &values));
        watch(&Event::Epoch(Epoch {
            worker: self.config.worker,
            epoch: place.epoch,
            global_step: self.tally.global_step,
            loss: epoch.mean_loss(),
            metrics,
            seconds: epoch.began.elapsed().as_secs_f64(),
        }));
        values
    }
}

impl<M: Model> Training<M> {
    /// Scores the network with these values, and writes the scores to the curves.
    pub fn score(&mut self, step: u64, values: &[Vec<f32>]) -> Metrics {
        self.replica.load(values.to_vec());
        let metrics = self.replica.evaluate();
        self.board.eval(step, &metrics);
        if self.board.wants_histograms() {
            let names = self.replica.table().iter().map(|(_, spec)| spec.name.as_str());
            self.board.histogram(step, names.zip(values.iter().map(Vec::as_slice)));
        }
        metrics
    }
}

struct EpochTally {
    began: Instant,
    losses: f64,
    /// Fewer than an epoch has, where training went on in the middle of one.
    batches: u32,
}

impl EpochTally {
    fn new() -> Self {
        Self { began: Instant::now(), losses: 0.0, batches: 0 }
    }

    fn count(&mut self, loss: f32) {
        self.losses += f64::from(loss);
        self.batches += 1;
    }

    fn mean_loss(&self) -> f32 {
        (self.losses / f64::from(self.batches.max(1))) as f32
    }
}

/// The time between two lines of the log.
struct Interval {
    began: Instant,
    steps: u64,
    global_step: u64,
}

impl Interval {
    fn new_at(steps: u64, global_step: u64) -> Self {
        Self { began: Instant::now(), steps, global_step }
    }

    fn updates_per_second(&self, global_step: u64) -> f64 {
        let seconds = self.began.elapsed().as_secs_f64();
        if seconds > 0.0 { global_step.saturating_sub(self.global_step) as f64 / seconds } else { 0.0 }
    }

    /// The mean time of a step; the next interval begins.
    fn mean_ms(&mut self, steps: u64, global_step: u64) -> f64 {
        let mean = self.began.elapsed().as_secs_f64() * 1e3 / (steps - self.steps).max(1) as f64;
        *self = Self::new_at(steps, global_step);
        mean
    }
}
