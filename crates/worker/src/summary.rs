//! The summary of a run: `summary.json`, and the table printed at the end.

use serde::{Deserialize, Serialize};
use windlass_core::timing::Durations;
use windlass_wire::control::proto::{AllFinished, WorkerReport};

use crate::event::Warning;
use crate::metrics::Metrics;
use crate::replica::LaneReport;

/// A whole run in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The model.
    pub model: String,
    /// How pushes became updates.
    pub mode: String,
    /// Parameter servers; zero for a run in one process.
    pub ps: u32,
    /// The number of workers.
    pub workers: u32,
    /// Whether the servers lived in the workers' processes.
    pub colocated: bool,
    /// What the servers did with gradients.
    pub optimizer: String,
    /// Samples per step of a worker.
    pub batch_size: usize,
    /// Updates applied, including those before the checkpoint that the run began from.
    pub global_step: u64,
    /// Updates applied in this run, across all rollbacks, in `wall_seconds`.
    #[serde(default)]
    pub steps_this_run: u64,
    /// The global step of the checkpoint that training last began from, at the start of the run or after a rollback; 0
    /// if there was none. The step times below count from there.
    #[serde(default)]
    pub resumed_at: u64,
    /// From the start to the end of the run, rollbacks included.
    pub wall_seconds: f64,
    /// From the start of the run to the first update after `resumed_at`.
    pub first_step_seconds: f64,
    /// From the first update after `resumed_at` to the last.
    pub training_seconds: f64,
    /// Updates per second in that time.
    pub steps_per_second: f64,
    /// Samples per second over all workers, in the same time.
    pub samples_per_second: f64,
    /// The step time, over all workers.
    pub step_ms: Percentiles,
    /// The average traffic of a worker's step.
    pub bytes_per_step: Bytes,
    /// The mean loss of the workers' last batches, per sample; `None` if there were none.
    pub loss: Option<f64>,
    /// What is wrong with how the run learned, in the chief's view at the end.
    #[serde(default)]
    pub warning: Option<Warning>,
    /// The final scores.
    #[serde(flatten)]
    pub metrics: Metrics,
    /// Gradients dropped as stale.
    pub dropped_gradients: u64,
    /// The average number of updates between reading parameters and pushing their gradient.
    pub mean_staleness: f64,
    /// The devices that the model was divided among, and the load of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<LaneReport>,
    /// Each worker's share.
    pub per_worker: Vec<WorkerSummary>,
    /// The joined workers that computed, if the run was in-graph.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<JoinedSummary>,
}

/// A joined worker's part in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedSummary {
    /// Its number and address.
    pub worker: String,
    /// Steps that it has computed a share of.
    pub steps: u64,
    /// The number of times it has joined.
    pub joined: u64,
    /// Bytes sent to it by its client: batches, activations, values and gradients.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes received from it by its client.
    #[serde(default)]
    pub received_bytes: u64,
}

/// Two percentiles, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 95th percentile.
    pub p95: f64,
}

/// Bytes of gradients and values, whether they go by a socket or stay within the process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bytes {
    /// To the servers.
    pub sent: f64,
    /// From the servers.
    pub received: f64,
    /// The part of both that stayed within the worker's process.
    #[serde(default)]
    pub in_process: f64,
}

/// One worker's share of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerSummary {
    /// The worker.
    pub worker: u32,
    /// The worker's steps, including those before the checkpoint that the run began from.
    pub steps: u64,
    /// The worker's steps in this run.
    #[serde(default)]
    pub steps_this_run: u64,
    /// The median step time.
    pub step_ms_p50: f64,
    /// The mean step time: computing, and waiting for servers and for data.
    #[serde(default)]
    pub step_ms: f64,
    /// The mean time per step spent computing.
    pub compute_ms: f64,
    /// The mean time per step spent waiting for the servers.
    pub wait_ms: f64,
    /// The median time per step spent waiting for the servers.
    pub wait_ms_p50: f64,
    /// The mean time per step spent waiting for a batch that was not ready.
    #[serde(default)]
    pub data_ms: f64,
    /// Why the worker left early, if it did.
    pub left: Option<String>,
}

/// What the chief itself knows of the run.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The model.
    pub model: String,
    /// The mode.
    pub mode: String,
    /// Parameter servers; zero for a run in one process.
    pub ps: u32,
    /// Workers.
    pub workers: u32,
    /// Whether the servers live in the workers' processes.
    pub colocated: bool,
    /// The optimizer.
    pub optimizer: String,
    /// Samples per step.
    pub batch_size: usize,
    /// Time from the start to the end.
    pub wall_seconds: f64,
    /// The global step at which the chief joined training.
    pub began_at: u64,
    /// The final scores.
    pub metrics: Metrics,
    /// What is wrong with how the run learned.
    pub warning: Option<Warning>,
    /// The devices that the model was divided among.
    pub devices: Vec<LaneReport>,
}

impl Summary {
    /// Whether the run has rolled back to one of its own checkpoints: its speed then covers only the steps since.
    pub fn is_rolled_back(&self) -> bool {
        self.steps_this_run > self.global_step.saturating_sub(self.resumed_at)
    }

    /// Returns this summary with the measurements of an earlier one, if this run has only scored what the earlier one
    /// trained and so has none of its own.
    #[must_use]
    pub fn keeping_measurements(self, earlier: Self) -> Self {
        let is_of_same_steps = earlier.model == self.model && earlier.global_step == self.global_step;
        if self.steps_this_run > 0 || earlier.steps_this_run == 0 || !is_of_same_steps {
            return self;
        }
        Self { metrics: self.metrics, ..earlier }
    }

    /// Combines what the chief knows with what the coordinator has gathered.
    pub fn new(facts: Facts, finished: &AllFinished) -> Self {
        let mut times = Durations::default();
        let mut per_worker = Vec::new();
        for report in &finished.reports {
            let own: Durations = serde_json::from_str(&report.step_times).unwrap_or_default();
            times.merge(&own);
            per_worker.push(WorkerSummary {
                worker: report.worker,
                steps: report.steps,
                steps_this_run: report.steps.saturating_sub(report.began_at),
                step_ms_p50: own.percentile_ms(50.0),
                step_ms: report.compute_ms + report.wait_ms + report.data_ms,
                compute_ms: report.compute_ms,
                wait_ms: report.wait_ms,
                wait_ms_p50: report.wait_ms_p50,
                data_ms: report.data_ms,
                left: (!report.left.is_empty()).then(|| report.left.clone()),
            });
        }
        let samples: u64 = finished.reports.iter().map(|report| report.samples).sum();
        let steps: u64 = finished.reports.iter().map(|report| report.steps).sum();
        // Bytes count the present processes only; steps and samples do not.
        let own_steps: u64 = finished.reports.iter().map(|report| report.own_steps).sum();
        let bytes = |pick: fn(&WorkerReport) -> u64| {
            finished.reports.iter().map(pick).sum::<u64>() as f64 / own_steps.max(1) as f64
        };
        // A worker that has made no step has no loss.
        let tells = |report: &&WorkerReport| report.left.is_empty() && report.own_steps > 0;
        let losses: Vec<f64> = finished.reports.iter().filter(tells).map(|report| report.loss).collect();
        let rate = |count: f64| if finished.training_seconds > 0.0 { count / finished.training_seconds } else { 0.0 };
        // The first step starts the clock and is not part of the measured time.
        let applied = finished.global_step.saturating_sub(finished.resumed_at);
        let counted = applied.saturating_sub(1) as f64;
        let samples_a_step = samples as f64 / applied.max(1) as f64;
        Self {
            model: facts.model,
            mode: facts.mode,
            ps: facts.ps,
            workers: facts.workers,
            colocated: facts.colocated,
            optimizer: facts.optimizer,
            batch_size: facts.batch_size,
            global_step: finished.global_step,
            // The process that has not been restarted since knows better.
            steps_this_run: finished.global_step.saturating_sub(finished.began_at.min(facts.began_at)),
            resumed_at: finished.resumed_at,
            wall_seconds: facts.wall_seconds,
            first_step_seconds: finished.first_step_seconds,
            training_seconds: finished.training_seconds,
            steps_per_second: rate(counted),
            samples_per_second: if steps == 0 { 0.0 } else { rate(counted * samples_a_step) },
            step_ms: Percentiles { p50: times.percentile_ms(50.0), p95: times.percentile_ms(95.0) },
            bytes_per_step: Bytes {
                sent: bytes(|report| report.bytes_sent),
                received: bytes(|report| report.bytes_received),
                in_process: bytes(|report| report.bytes_in_process),
            },
            loss: (!losses.is_empty()).then(|| losses.iter().sum::<f64>() / losses.len() as f64),
            warning: facts.warning,
            metrics: facts.metrics,
            dropped_gradients: finished.dropped_gradients,
            mean_staleness: finished.mean_staleness,
            devices: facts.devices,
            per_worker,
            joined: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            model: "linear".into(),
            mode: "async".into(),
            ps: 1,
            workers: 2,
            colocated: false,
            optimizer: "sgd".into(),
            batch_size: 100,
            wall_seconds: 3.0,
            began_at: u64::MAX,
            metrics: Metrics::default(),
            warning: None,
            devices: Vec::new(),
        }
    }

    fn report(worker: u32, own_steps: u64, batch_size: u64) -> WorkerReport {
        WorkerReport {
            worker,
            steps: own_steps + 500, // those of an earlier process included
            own_steps,
            samples: own_steps * batch_size,
            bytes_sent: own_steps * 300,
            bytes_received: own_steps * 400,
            compute_ms: 2.0,
            wait_ms: 0.5,
            data_ms: 0.25,
            ..WorkerReport::default()
        }
    }

    #[test]
    fn traffic_is_a_step_however_many_samples_each_worker_has_in_its() {
        for batch_size in [10, 100, 1000] {
            let reports = vec![report(0, 10, 100), report(1, 30, batch_size)];
            let finished = AllFinished { reports, global_step: 40, ..AllFinished::default() };
            let bytes = Summary::new(facts(), &finished).bytes_per_step;
            assert_eq!((bytes.sent, bytes.received), (300.0, 400.0), "batches of {batch_size}");
        }
    }

    #[test]
    fn a_run_that_only_scores_keeps_the_measurements_of_the_one_that_trained() {
        let trained = Summary {
            steps_this_run: 40,
            steps_per_second: 7.0,
            ..Summary::new(
                facts(),
                &AllFinished { reports: vec![report(0, 40, 100)], global_step: 40, ..AllFinished::default() },
            )
        };
        let metrics = Metrics::default().with("accuracy", crate::metrics::MetricKind::Fraction, 0.5);
        let scored = Facts { metrics: metrics.clone(), began_at: 40, ..facts() };
        let scored = Summary::new(scored, &AllFinished { global_step: 40, began_at: 40, ..AllFinished::default() });
        assert_eq!(scored.steps_this_run, 0);
        let kept = scored.clone().keeping_measurements(trained.clone());
        assert_eq!(kept, Summary { metrics, ..trained.clone() });
        let of_other_steps = Summary { global_step: 30, ..trained };
        assert_eq!(scored.clone().keeping_measurements(of_other_steps), scored);
    }

    #[test]
    fn a_rollback_is_told_from_a_run_that_was_resumed() {
        let summary = |began_at, resumed_at| {
            let finished = AllFinished { global_step: 40, began_at, resumed_at, ..AllFinished::default() };
            Summary::new(facts(), &finished)
        };
        assert!(!summary(0, 0).is_rolled_back());
        assert!(!summary(30, 30).is_rolled_back(), "resumed");
        assert!(summary(0, 30).is_rolled_back());
    }

    #[test]
    fn the_mean_time_of_a_workers_steps_is_that_of_its_parts() {
        let finished = AllFinished { reports: vec![report(0, 10, 100)], ..AllFinished::default() };
        let worker = &Summary::new(facts(), &finished).per_worker[0];
        assert_eq!((worker.step_ms, worker.compute_ms, worker.wait_ms, worker.data_ms), (2.75, 2.0, 0.5, 0.25));
    }
}
