//! The metrics of the run that Prometheus reads from ps 0.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::membership::Presence;
use windlass_instruments::prometheus::core::Collector;
use windlass_instruments::prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts};
use windlass_instruments::{Readable, VALID, counter, gauge, seconds};

use super::observation::{Observation, PHASES};

/// The coordinator's latest observation.
pub(super) struct RunInstruments(pub(super) watch::Receiver<Arc<Observation>>);

impl Readable for RunInstruments {
    fn instruments(&self) -> Vec<Box<dyn Collector>> {
        let observed = self.0.borrow().clone();
        instruments(&observed)
    }
}

fn instruments(run: &Observation) -> Vec<Box<dyn Collector>> {
    let statistics = &run.statistics;
    let mut instruments = vec![
        gauge("windlass_run_global_step", "Updates of the parameters so far.", statistics.steps as f64),
        gauge(
            "windlass_run_target_step",
            "The run's last step; 0 if it ends by epochs.",
            run.target.unwrap_or(0) as f64,
        ),
        counter("windlass_run_rollbacks_total", "How often the run went back to a checkpoint.", run.history.rollbacks),
        counter(
            "windlass_run_updates_lost_total",
            "Updates that were lost when the run went back to a checkpoint.",
            run.history.updates_lost,
        ),
    ];
    let phase =
        IntGaugeVec::new(Opts::new("windlass_run_phase", "1 for the phase of the run, 0 for the others."), &["phase"])
            .expect(VALID);
    PHASES.iter().for_each(|name| phase.with_label_values(&[name]).set(i64::from(*name == run.phase_name())));
    instruments.push(Box::new(phase));
    instruments.extend(of_tasks(run));
    instruments.extend(of_checkpoints(run));
    instruments
}

fn of_tasks(run: &Observation) -> Vec<Box<dyn Collector>> {
    let by_task = |name: &str, help: &str| GaugeVec::new(Opts::new(name, help), &["role", "task"]).expect(VALID);
    let present = by_task("windlass_run_task_present", "1 if the task is there, 0 if it is missing or dead.");
    let silence = by_task("windlass_run_task_silence_seconds", "Time since the task was last heard from.");
    let awaited = by_task("windlass_run_awaited_seconds", "Time for which the run has been waiting for the task.");
    let restarts = Opts::new("windlass_run_task_restarts_total", "Restarts of the task.");
    let restarts = IntCounterVec::new(restarts, &["role", "task"]).expect(VALID);
    for observed in &run.tasks {
        let (role, index) = (observed.task.job.to_string(), observed.task.index.to_string());
        let labels = [&*role, &*index];
        let since = |then: Duration| run.at.saturating_sub(then).as_secs_f64();
        let is_present = observed.presence == Some(Presence::Present);
        // A worker that has finished is not missing.
        if observed.presence != Some(Presence::Finished) {
            present.with_label_values(&labels).set(f64::from(u8::from(is_present)));
        }
        if let Some(heard) = observed.heard.filter(|_| is_present) {
            silence.with_label_values(&labels).set(since(heard));
        }
        awaited.with_label_values(&labels).set(observed.awaited_since.map_or(0.0, since));
        // For joined workers this is not known, and the coordinator counts a client as a worker.
        let counted_as = match observed.task {
            TaskId::CLIENT => Some(TaskId::CHIEF),
            task => (task.job == Job::Ps || !run.layout.has_client()).then_some(task),
        };
        let processes = counted_as.and_then(|task| run.history.processes.get(&task)).copied().unwrap_or(0);
        restarts.with_label_values(&labels).inc_by(processes.saturating_sub(1));
    }
    vec![Box::new(present), Box::new(silence), Box::new(awaited), Box::new(restarts)]
}

/// A run without checkpoints has no such metrics. Until the first is written, the age counts from the start.
fn of_checkpoints(run: &Observation) -> Vec<Box<dyn Collector>> {
    if run.kept_checkpoints == 0 {
        return Vec::new();
    }
    let history = &run.history;
    let newest = history.checkpoints.back().copied();
    let age = newest.map_or(run.at, |newest| run.age(&newest));
    let failures = Opts::new("windlass_checkpoint_failures_total", "Checkpoints that could not be written.");
    let failures = IntCounterVec::new(failures, &["kind"]).expect(VALID);
    failures.with_label_values(&["failed"]).inc_by(history.not_saved);
    failures.with_label_values(&["missed"]).inc_by(history.missed);
    let saving = "Time that writing checkpoints has taken.";
    let mut instruments = vec![
        counter("windlass_checkpoints_total", "Checkpoints written.", history.saved),
        Box::new(failures),
        seconds("windlass_checkpoint_duration_seconds_total", saving, history.saving),
        gauge(
            "windlass_checkpoint_age_seconds",
            "Time since the newest checkpoint was written, or since the start if there is none.",
            age.as_secs_f64(),
        ),
    ];
    if let Some(newest) = newest {
        let written = (SystemTime::now() - age).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (step, bytes) = (newest.step as f64, newest.bytes as f64);
        instruments.extend([
            gauge("windlass_checkpoint_timestamp_seconds", "When the newest checkpoint was written.", written),
            gauge("windlass_checkpoint_step", "The step of the newest checkpoint.", step),
            gauge("windlass_checkpoint_bytes", "The size of the newest checkpoint.", bytes),
        ]);
    }
    // For a checkpoint of an earlier coordinator, these are not known.
    if let Some(newest) = newest.filter(|newest| newest.written_before.is_none()) {
        let (duration, hold) = (newest.duration.as_secs_f64(), newest.held_up.as_secs_f64());
        instruments.extend([
            gauge("windlass_checkpoint_last_duration_seconds", "Time that the newest checkpoint took.", duration),
            gauge("windlass_checkpoint_last_hold_seconds", "The longest time that it held up a push.", hold),
        ]);
    }
    instruments
}
