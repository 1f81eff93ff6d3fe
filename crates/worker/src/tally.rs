//! What a worker counts and measures: its steps and where their time goes, the time between two log lines, and the mean
//! loss of an epoch.

use std::time::{Duration, Instant};

use windlass_core::timing::Durations;
use windlass_wire::client::Traffic;

/// What a worker has done so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// The worker's steps, including those of its earlier processes.
    pub steps: u64,
    /// The steps of this process, including those that a rollback has undone. The times and the traffic below count the
    /// same steps.
    pub own_steps: u64,
    /// The last global step that the worker saw.
    pub global_step: u64,
    /// The loss of the last batch.
    pub loss: f32,
    /// The sum of the losses of all batches in this process.
    pub losses: f64,
    /// How long steps took.
    pub step_times: Durations,
    /// Time spent computing.
    pub compute: Duration,
    /// Time spent waiting for servers.
    pub wait: Duration,
    /// The part of that for which servers held their answers back because of other workers.
    pub held_back: Duration,
    /// The total number of updates by others between reading the parameters and applying this worker's pushes.
    pub staleness: u64,
    /// The number of dropped pushes.
    pub dropped: u64,
    /// Time spent scoring the network between steps.
    pub scoring: Duration,
    /// Time spent waiting for batches that were not ready.
    pub data: Duration,
    /// The duration of each wait for servers.
    pub wait_times: Durations,
    /// Bytes of gradients and values moved by the worker's steps.
    pub traffic: Traffic,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTimes {
    pub(crate) began: Instant,
    /// When the gradient was ready to be pushed.
    pub(crate) computed: Option<Instant>,
    /// Time spent waiting for batches before and after `computed`.
    pub(crate) data: [Duration; 2],
}

impl StepTimes {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), computed: None, data: [Duration::ZERO; 2] }
    }

    /// Marks the end of computing: only the wait for the servers remains.
    pub(crate) fn computed(&mut self) {
        self.computed = Some(Instant::now());
    }

    /// Does work that may have to wait for a batch, and counts its time as such.
    pub(crate) fn waiting_for_data<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let batch = wait();
        self.data[usize::from(self.computed.is_some())] += began.elapsed();
        batch
    }
}

/// The part of an epoch that has been trained on.
pub(crate) struct EpochTally {
    pub(crate) began: Instant,
    losses: f64,
    /// Fewer than in a whole epoch if training resumed in the middle of one.
    batches: u32,
}

impl EpochTally {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), losses: 0.0, batches: 0 }
    }

    pub(crate) fn count(&mut self, loss: f32) {
        self.losses += f64::from(loss);
        self.batches += 1;
    }

    pub(crate) fn mean_loss(&self) -> f32 {
        (self.losses / f64::from(self.batches.max(1))) as f32
    }
}

/// The time between two log lines, or between two progress events.
pub(crate) struct Interval {
    began: Instant,
    steps: u64,
}

impl Interval {
    pub(crate) fn new_at(steps: u64) -> Self {
        Self { began: Instant::now(), steps }
    }

    pub(crate) fn has_lasted(&self, duration: Duration) -> bool {
        self.began.elapsed() >= duration
    }

    /// Returns the mean step time and begins the next interval.
    pub(crate) fn mean_ms(&mut self, steps: u64) -> f64 {
        let mean = self.began.elapsed().as_secs_f64() * 1e3 / (steps - self.steps).max(1) as f64;
        *self = Self::new_at(steps);
        mean
    }
}
