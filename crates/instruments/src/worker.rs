//! What a worker counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::local::LocalHistogram;
use prometheus::{Histogram, HistogramOpts};

use crate::ps::buckets;
use crate::reading::{Readable, VALID, counter, gauge, seconds};

/// What a step took.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepMeasurement {
    /// All of it.
    pub step: Duration,
    /// Of that, computing.
    pub compute: Duration,
    /// Waiting for parameter servers.
    pub wait: Duration,
    /// Waiting for data.
    pub data: Duration,
    /// Samples in its batch.
    pub samples: u64,
    /// Bytes sent to the parameter servers.
    pub sent: u64,
    /// Bytes received from them.
    pub received: u64,
    /// The loss of its batch.
    pub loss: f32,
    /// The global step after it.
    pub global_step: u64,
}

/// What a worker counts. Clones count together.
///
/// A step of the smallest network takes 16 µs, so a step is counted under one lock that only a reader contends for, and
/// becomes instruments when somebody reads.
#[derive(Debug, Clone, Default)]
pub struct WorkerInstruments(Arc<Mutex<Counted>>);

#[derive(Debug)]
struct Counted {
    /// Sums over all steps; of the loss and the global step, the last.
    total: StepMeasurement,
    /// What has been observed since somebody last read `steps`.
    unread: LocalHistogram,
    steps: Histogram,
}

impl Default for Counted {
    fn default() -> Self {
        // From 16 µs to 67 s.
        let options = HistogramOpts::new("windlass_worker_step_seconds", "Time of a step.");
        let steps = Histogram::with_opts(options.buckets(buckets(16e-6, 2.0, 23))).expect(VALID);
        Self { total: StepMeasurement::default(), unread: steps.local(), steps }
    }
}

impl WorkerInstruments {
    /// Counts a step.
    pub fn stepped(&self, done: &StepMeasurement) {
        let mut counted = self.lock();
        counted.unread.observe(done.step.as_secs_f64());
        let before = counted.total;
        counted.total = StepMeasurement {
            step: before.step + done.step,
            compute: before.compute + done.compute,
            wait: before.wait + done.wait,
            data: before.data + done.data,
            samples: before.samples + done.samples,
            sent: before.sent + done.sent,
            received: before.received + done.received,
            loss: done.loss,
            global_step: done.global_step,
        };
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readable for WorkerInstruments {
    fn instruments(&self) -> Vec<Box<dyn Collector>> {
        let counted = self.lock();
        counted.unread.flush();
        let (total, steps) = (counted.total, counted.steps.clone());
        drop(counted);
        let mut instruments: Vec<Box<dyn Collector>> = vec![
            Box::new(steps.clone()),
            seconds("windlass_worker_compute_seconds_total", "Time spent computing steps.", total.compute),
            seconds("windlass_worker_wait_seconds_total", "Time spent waiting for parameter servers.", total.wait),
            seconds("windlass_worker_data_seconds_total", "Time spent waiting for data.", total.data),
            counter("windlass_worker_samples_total", "Samples trained on.", total.samples),
            counter("windlass_worker_sent_bytes_total", "Bytes sent to parameter servers.", total.sent),
            counter("windlass_worker_received_bytes_total", "Bytes received from parameter servers.", total.received),
            gauge("windlass_worker_global_step", "The global step after the last step.", total.global_step as f64),
        ];
        // Before the first step there is none.
        if steps.get_sample_count() > 0 {
            instruments.push(gauge("windlass_worker_loss", "The loss of the last batch.", f64::from(total.loss)));
        }
        instruments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_first_step_there_is_no_loss() {
        let worker = WorkerInstruments::default();
        let names = || -> Vec<String> {
            let families = worker.instruments().into_iter().flat_map(|instrument| instrument.collect());
            families.map(|family| family.name().to_owned()).collect()
        };
        assert!(!names().contains(&"windlass_worker_loss".to_owned()), "{:?}", names());
        worker.stepped(&StepMeasurement::default());
        assert!(names().contains(&"windlass_worker_loss".to_owned()), "{:?}", names());
    }
}
