//! Reports on training, from what a worker counts and measures: events for observers, curves for TensorBoard,
//! heartbeats for the coordinator, and warnings when a run does not learn. This module decides nothing.

use std::sync::PoisonError;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::learning::advice::Situation;
use windlass_instruments::{StepMeasurement, WorkerInstruments};
use windlass_tensorboard::{Description, HParam};
use windlass_wire::client::Traffic;
use windlass_wire::control::proto::{Heartbeat, Score, WorkerTotals};
use windlass_wire::control::session::Progress;

use crate::batches::order::DataPosition;
use crate::board::{Beginning, Board, BoardConfig, BoardOwner, StepFigures};
use crate::event::{Epoch, Event, Report, Step, Warning, Watcher};
use crate::history::{History, HistoryConfig};
use crate::learning::{LearningWatch, Observed};
use crate::metrics::{Metric, MetricKind, Metrics};
use crate::model::PngImage;
use crate::tally::{EpochTally, Interval, StepTimes, Tally};

/// The interval between two [`Event::Progress`]: as often as an observer wants to see the numbers change.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// What is reported, and how often.
#[derive(Debug, Clone)]
pub struct TelemetryConfig {
    /// This worker.
    pub worker: u32,
    /// Steps between two [`Event::Step`]s.
    pub log_every: u64,
    /// Samples in a step of this worker.
    pub samples_a_step: usize,
    /// Samples that make one update of the parameters.
    pub samples_an_update: usize,
    /// What the advice depends on if the run does not learn.
    pub situation: Situation,
    /// Curves for TensorBoard.
    pub board: BoardConfig,
    /// The hyperparameters shown with the curves.
    pub hparams: Vec<(String, HParam)>,
    /// The loss over time.
    pub history: HistoryConfig,
    /// The metrics that can be read from outside.
    pub instruments: WorkerInstruments,
}

/// The reporting of a worker's training.
pub(crate) struct Telemetry {
    config: TelemetryConfig,
    /// Batches per epoch.
    batches: usize,
    pub(crate) tally: Tally,
    progress: Progress,
    board: Board,
    history: History,
    learning: LearningWatch,
    /// Time since the last log line, and since the last progress event.
    line: Interval,
    glance: Interval,
    epoch: EpochTally,
}

/// A completed step.
pub(crate) struct StepDone {
    pub(crate) position: DataPosition,
    pub(crate) loss: f32,
    /// The norm of the step's gradient, if it was measured.
    pub(crate) norm: Option<f64>,
    /// The global step that the gradient was computed on, and the one after the push.
    pub(crate) base: u64,
    pub(crate) global_step: u64,
    pub(crate) learning_rate: f32,
    pub(crate) traffic: Traffic,
    pub(crate) times: StepTimes,
    /// False if the push was dropped.
    pub(crate) applied: bool,
    /// How long a server held its answer back because of other workers.
    pub(crate) held_back: Duration,
}

impl Telemetry {
    pub(crate) fn new(config: TelemetryConfig, batches: usize, progress: Progress, chance_loss: Option<f64>) -> Self {
        let owner = BoardOwner {
            worker: config.worker,
            description: Description {
                command_line: config.board.command_line.clone(),
                hparams: config.hparams.clone(),
                workers: config.situation.workers,
            },
            samples_a_step: config.samples_a_step,
            samples_an_update: config.samples_an_update,
        };
        Self {
            batches,
            tally: Tally::default(),
            progress,
            board: Board::new(config.board.clone(), owner),
            history: History::new(config.history.clone(), config.samples_an_update),
            learning: LearningWatch::new(config.worker, config.situation, chance_loss),
            line: Interval::new_at(0),
            glance: Interval::new_at(0),
            epoch: EpochTally::new(),
            config,
        }
    }

    /// Continues at this many steps of the worker and this global step of the run.
    pub(crate) fn go_to(&mut self, steps: u64, global_step: u64) {
        (self.tally.steps, self.tally.global_step) = (steps, global_step);
        self.learning.begin_after(global_step);
    }

    /// Called when training begins or continues after this global step. An evaluation that was due after it is
    /// repeated.
    pub(crate) fn begin(&mut self, global_step: u64, evaluates_again: bool, is_chief: bool) {
        self.tally.global_step = global_step;
        self.board.begin(Beginning { after: global_step, evaluates_again, is_chief }, &self.tally);
        self.history.begin();
        self.line = Interval::new_at(self.tally.steps);
        self.glance = Interval::new_at(self.tally.steps);
        self.epoch = EpochTally::new();
    }

    /// The curves for TensorBoard.
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    /// Returns what is wrong with how the run learns, as of the last step.
    pub(crate) fn warning(&self) -> Option<Warning> {
        self.learning.last_warning()
    }

    /// Reports a step.
    pub(crate) fn step(&mut self, done: &StepDone, is_chief: bool, watch: &mut Watcher) {
        self.count(done);
        let StepDone { position, loss, learning_rate, global_step, .. } = *done;
        let staleness = global_step.saturating_sub(done.base + 1);
        let warning = self.learning.observe(Observed { step: global_step, loss, staleness, learning_rate });
        if let Some(warning) = warning.filter(|_| is_chief) {
            watch(&Event::Warning(warning));
        }
        let figures = StepFigures { learning_rate, gradient_norm: done.norm, duration: done.times.began.elapsed() };
        self.board.step(&self.tally, figures, is_chief);
        if is_chief {
            self.history.step(global_step, loss, Instant::now());
        }
        if self.tally.steps.is_multiple_of(self.config.log_every) {
            let step_ms = self.line.mean_ms(self.tally.steps);
            watch(&Event::Step(self.step_event(position, step_ms)));
        }
        if self.glance.has_lasted(PROGRESS_EVERY) {
            let step_ms = self.glance.mean_ms(self.tally.steps);
            watch(&Event::Progress(self.step_event(position, step_ms)));
        }
    }

    /// Called when there are no more steps: writes the last point of the curves.
    pub(crate) fn finish(&mut self, learning_rate: f32, is_chief: bool) {
        self.board.point(&self.tally, StepFigures { learning_rate, ..StepFigures::default() }, is_chief);
        self.tell_tally(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn count(&mut self, done: &StepDone) {
        let StepTimes { began, computed, data: [before, after] } = done.times;
        let now = Instant::now();
        let computed = computed.unwrap_or(now);
        let (compute, wait) = ((computed - began).saturating_sub(before), (now - computed).saturating_sub(after));
        let tally = &mut self.tally;
        tally.steps += 1;
        tally.own_steps += 1;
        tally.global_step = done.global_step;
        tally.loss = done.loss;
        tally.losses += f64::from(done.loss);
        tally.step_times.record(now - began);
        tally.compute += compute;
        tally.wait += wait;
        tally.data += before + after;
        tally.wait_times.record(wait);
        tally.held_back += done.held_back.min(wait);
        tally.dropped += u64::from(!done.applied);
        tally.staleness += done.global_step.saturating_sub(done.base + 1);
        tally.traffic += done.traffic;
        let samples = self.config.samples_a_step as u64;
        if let Ok(mut progress) = self.progress.try_lock() {
            self.tell_tally(&mut progress);
        }
        self.epoch.count(done.loss);
        self.config.instruments.stepped(&StepMeasurement {
            step: now - began,
            compute,
            wait,
            data: before + after,
            samples,
            sent: done.traffic.sent,
            received: done.traffic.received,
            loss: Some(done.loss),
            global_step: done.global_step,
        });
    }

    /// Puts what this worker has done so far into the heartbeat.
    fn tell_tally(&self, progress: &mut Heartbeat) {
        let tally = &self.tally;
        progress.local_step = tally.steps;
        progress.global_step = tally.global_step;
        progress.loss = tally.loss;
        **progress.totals.get_or_insert_default() = WorkerTotals {
            steps: tally.own_steps,
            samples: tally.own_steps * self.config.samples_a_step as u64,
            compute_seconds: tally.compute.as_secs_f64(),
            wait_seconds: tally.wait.as_secs_f64(),
            data_seconds: tally.data.as_secs_f64(),
            bytes_sent: tally.traffic.sent,
            bytes_received: tally.traffic.received,
            held_back_seconds: tally.held_back.as_secs_f64(),
            staleness: tally.staleness,
            dropped: tally.dropped,
            loss: tally.losses,
            scoring_seconds: tally.scoring.as_secs_f64(),
        };
    }

    fn step_event(&self, position: DataPosition, step_ms: f64) -> Step {
        Step {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            worker: self.config.worker,
            local_step: self.tally.steps,
            global_step: self.tally.global_step,
            epoch: position.epoch,
            batch: position.batch,
            batches: self.batches,
            loss: Some(self.tally.loss),
            step_ms,
        }
    }

    /// Reports what a [`Report`] says.
    pub(crate) fn report(&mut self, report: Report, is_chief: bool, watch: &mut Watcher) {
        if is_chief {
            self.board.report(&report);
            self.tell_scores(report.global_step, &report.scores());
        }
        watch(&Event::Report(report));
    }

    /// Tells the coordinator that this worker scores the network instead of training.
    pub(crate) fn begin_scoring(&self) -> Instant {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).scoring = true;
        Instant::now()
    }

    /// Tells the coordinator that this worker trains again.
    pub(crate) fn end_scoring(&mut self, began: Instant) {
        self.tally.scoring += began.elapsed();
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.scoring = false;
        if let Some(totals) = &mut progress.totals {
            totals.scoring_seconds = self.tally.scoring.as_secs_f64();
        }
    }

    /// Puts the network's scores into the heartbeat.
    fn tell_scores(&self, global_step: u64, metrics: &Metrics) {
        let score = |metric: &Metric| Score {
            name: metric.name.clone(),
            value: metric.value,
            global_step,
            is_fraction: metric.kind == MetricKind::Fraction,
        };
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).scores = metrics.iter().map(score).collect();
    }

    /// Reports the end of an epoch and begins the next.
    pub(crate) fn epoch(&mut self, position: DataPosition, metrics: Option<Metrics>, watch: &mut Watcher) {
        watch(&Event::Epoch(Epoch {
            worker: self.config.worker,
            epoch: position.epoch,
            global_step: self.tally.global_step,
            loss: self.epoch.mean_loss(),
            metrics,
            seconds: self.epoch.began.elapsed().as_secs_f64(),
        }));
        self.epoch = EpochTally::new();
        // Scoring is not part of a step.
        self.line = Interval::new_at(self.tally.steps);
    }

    /// Reports the scores of the network, and histograms of its values by name.
    pub(crate) fn scores<'a>(
        &mut self,
        step: u64,
        metrics: &Metrics,
        values: impl Iterator<Item = (&'a str, &'a [f32])>,
    ) {
        self.board.eval(step, metrics);
        self.history.scores(step, metrics);
        self.tell_scores(step, metrics);
        if self.board.wants_histograms() {
            // Constants may have been left out.
            self.board.histogram(step, values.filter(|(_, values)| !values.is_empty()));
        }
    }

    /// Writes pictures of the network after this step.
    pub(crate) fn images(&mut self, step: u64, images: &[PngImage]) {
        self.board.images(step, images);
    }

    /// Records that the run has ended well.
    pub(crate) fn end(&mut self, step: u64) {
        self.board.end(step);
    }
}
