//! What a worker counts and measures: its steps and where their time goes, the time between two lines of the log, an
//! epoch's mean loss.

use std::time::{Duration, Instant};

use windlass_core::timing::Durations;
use windlass_wire::client::Traffic;

/// What a worker has done so far.
#[derive(Debug, Default)]
pub struct Tally {
    /// Its steps, those of earlier processes of this worker included.
    pub steps: u64,
    /// Its steps in this process, with those that a rollback has undone, as the times and the traffic below.
    pub own_steps: u64,
    /// The last global step it saw.
    pub global_step: u64,
    /// The loss of its last batch.
    pub loss: f32,
    /// The losses of all batches in this process.
    pub losses: f64,
    /// How long steps took.
    pub step_times: Durations,
    /// Time spent computing.
    pub compute: Duration,
    /// Time spent waiting for servers.
    pub wait: Duration,
    /// Of that, how long they held their answers back because of other workers.
    pub held_back: Duration,
    /// Updates by others between reading the parameters and applying its pushes, over all of them.
    pub staleness: u64,
    /// Pushes that were dropped.
    pub dropped: u64,
    /// Time between steps in which it scored the network.
    pub scoring: Duration,
    /// Time spent waiting for batches that were not ready.
    pub data: Duration,
    /// How long each of the waits for servers took.
    pub wait_times: Durations,
    /// Bytes of gradients and values that its steps have moved.
    pub traffic: Traffic,
}

/// Where the time of a step went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTimes {
    pub(crate) began: Instant,
    /// When there was something to push.
    pub(crate) computed: Option<Instant>,
    /// Waiting for batches: before and after that.
    pub(crate) data: [Duration; 2],
}

impl StepTimes {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now(), computed: None, data: [Duration::ZERO; 2] }
    }

    /// What is left is to wait for the servers.
    pub(crate) fn computed(&mut self) {
        self.computed = Some(Instant::now());
    }

    /// Does what may have to wait for a batch.
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
    /// Fewer than an epoch has, where training went on in the middle of one.
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

/// The time between two lines of the log, or two looks at the progress.
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

    /// The mean time of a step; the next interval begins.
    pub(crate) fn mean_ms(&mut self, steps: u64) -> f64 {
        let mean = self.began.elapsed().as_secs_f64() * 1e3 / (steps - self.steps).max(1) as f64;
        *self = Self::new_at(steps);
        mean
    }
}
