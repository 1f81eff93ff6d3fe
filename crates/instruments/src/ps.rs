//! The metrics of a parameter server.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Counter, CounterVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, exponential_buckets,
};

use crate::reading::VALID;

/// The fate of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushFate {
    /// It was applied, or counted in a round.
    Applied,
    /// It had already been counted.
    Repeated,
    /// It was computed from parameters that a round has replaced.
    Stale,
    /// The run had already taken its last step.
    Over,
    /// Its process had been declared dead.
    Fenced,
    /// It contradicted what the server knows.
    Refused,
}

impl PushFate {
    const ALL: [Self; 6] = [Self::Applied, Self::Repeated, Self::Stale, Self::Over, Self::Fenced, Self::Refused];

    fn name(self) -> &'static str {
        match self {
            PushFate::Applied => "applied",
            PushFate::Repeated => "repeated",
            PushFate::Stale => "stale",
            PushFate::Over => "over",
            PushFate::Fenced => "fenced",
            PushFate::Refused => "refused",
        }
    }
}

/// The metrics of a parameter server. Clones share their counts.
#[derive(Debug, Clone)]
pub struct PsInstruments {
    pushes: [IntCounter; PushFate::ALL.len()],
    pushes_by_fate: IntCounterVec,
    staleness: Histogram,
    round_wait: CounterVec,
    received: IntCounter,
    sent: IntCounter,
    held_up: Counter,
    parameter_bytes: IntGauge,
}

impl Default for PsInstruments {
    fn default() -> Self {
        let pushes_by_fate =
            IntCounterVec::new(Opts::new("windlass_ps_pushes_total", "Pushes, by what became of them."), &["fate"])
                .expect(VALID);
        let staleness = HistogramOpts::new(
            "windlass_ps_push_staleness_updates",
            "Updates by others between reading the parameters and applying the push computed from them.",
        );
        let staleness = staleness.buckets([0.0].into_iter().chain(buckets(1.0, 2.0, 10)).collect());
        let round_wait = Opts::new(
            "windlass_ps_round_wait_seconds_total",
            "Time that sync rounds waited for a worker after the gradient before its own had arrived.",
        );
        let counter = |name, help| IntCounter::new(name, help).expect(VALID);
        Self {
            pushes: PushFate::ALL.map(|fate| pushes_by_fate.with_label_values(&[fate.name()])),
            pushes_by_fate,
            staleness: Histogram::with_opts(staleness).expect(VALID),
            round_wait: CounterVec::new(round_wait, &["worker"]).expect(VALID),
            received: counter("windlass_ps_received_bytes_total", "Bytes of tensor streams received from workers."),
            sent: counter("windlass_ps_sent_bytes_total", "Bytes of tensor streams sent to workers."),
            held_up: Counter::new("windlass_ps_held_up_seconds_total", "Time that checkpoints have held up pushes.")
                .expect(VALID),
            parameter_bytes: IntGauge::new("windlass_ps_parameter_bytes", "Size of the parameters on this server.")
                .expect(VALID),
        }
    }
}

impl PsInstruments {
    /// Counts a push.
    pub fn pushed(&self, fate: PushFate) {
        self.pushes[fate as usize].inc();
    }

    /// How many pushes have had this fate.
    pub fn count(&self, fate: PushFate) -> u64 {
        self.pushes[fate as usize].get()
    }

    /// Counts a push that was applied and was computed from parameters that are this many updates old.
    pub fn applied(&self, staleness: u64) {
        self.pushed(PushFate::Applied);
        self.staleness.observe(staleness as f64);
    }

    /// Counts time that a round waited for this worker.
    pub fn round_waited(&self, worker: u32, waited: Duration) {
        self.round_wait.with_label_values(&[&worker.to_string()]).inc_by(waited.as_secs_f64());
    }

    /// Counts time that a checkpoint held up a push.
    pub fn held_up(&self, held_up: Duration) {
        if !held_up.is_zero() {
            self.held_up.inc_by(held_up.as_secs_f64());
        }
    }

    /// Counts bytes from a worker.
    pub fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    /// Counts bytes to a worker.
    pub fn sent(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    /// Sets the size of the parameters.
    pub fn holds(&self, bytes: usize) {
        self.parameter_bytes.set(bytes as i64);
    }

    pub(crate) fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![
            Box::new(self.pushes_by_fate.clone()),
            Box::new(self.staleness.clone()),
            Box::new(self.round_wait.clone()),
            Box::new(self.received.clone()),
            Box::new(self.sent.clone()),
            Box::new(self.held_up.clone()),
            Box::new(self.parameter_bytes.clone()),
        ]
    }
}

/// Upper bounds of a histogram.
pub(crate) fn buckets(start: f64, factor: f64, count: usize) -> Vec<f64> {
    exponential_buckets(start, factor, count).expect("they grow from a positive number")
}
