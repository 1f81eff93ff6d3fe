//! Reports of tasks that have joined, and how the coordinator handles them.

use tracing::info;
use windlass_core::checkpoint::{Setback, SetbackKind};
use windlass_core::cluster::{Job, RunLayout, ServerId, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, Phase};
use windlass_wire::control::proto::{Failure, Heartbeat, task_message};

use super::history::HistoryKind;
use super::interface::OwnShard;
use super::joined;
use super::machine::Coordinator;
use crate::checkpoint::Part;

impl<S: OwnShard> Coordinator<S> {
    /// Handles a report of a task.
    pub(super) fn message(&mut self, task: TaskId, incarnation: Incarnation, message: task_message::Kind) {
        let worker = WorkerId(task.index);
        let decisions = match message {
            task_message::Kind::Heartbeat(heartbeat) => {
                self.note_progress(task, heartbeat);
                return;
            }
            task_message::Kind::ServerReady(ready) if self.is_prepared_for(ready.number) => {
                self.lifecycle.server_ready(task, ready.restored)
            }
            task_message::Kind::Marked(_)
            | task_message::Kind::PartWritten(_)
            | task_message::Kind::CheckpointFailed(_)
            | task_message::Kind::PartProgress(_) => return self.checkpoint_message(task, message),
            task_message::Kind::Initialised(initialised) if initialised.incarnation == incarnation.0 => {
                self.lifecycle.initialised()
            }
            task_message::Kind::Finished(report) if report.incarnation == incarnation.0 => {
                self.note_finished(worker, report.steps);
                self.reports.insert(worker, report);
                self.lifecycle.worker_finished(worker)
            }
            task_message::Kind::Concluded(concluded) if concluded.incarnation == incarnation.0 => {
                self.lifecycle.concluded(worker)
            }
            task_message::Kind::Failed(failure) if self.is_of_now(task, incarnation, &failure) => {
                // A failure is never a success, whatever its number.
                let exit_code = u8::try_from(failure.exit_code).ok().filter(|code| *code > 0).unwrap_or(u8::MAX);
                match (is_of_itself(task, &failure), self.config.layout) {
                    // Each worker's process has a server, and the worker is what its user knows.
                    (true, RunLayout::Colocated) => {
                        return self.colocated_failed(worker, Outcome { exit_code, reason: failure.reason });
                    }
                    (true, _) => self.lifecycle.failed(Outcome { exit_code, reason: failure.reason }),
                    (false, _) => self.lifecycle.task_failed(task, exit_code, failure.reason),
                }
            }
            task_message::Kind::Goodbye(_) => {
                let decisions = self.lifecycle.goodbye(task, incarnation, self.now);
                // At the end of the run it stays, to learn how the run ended.
                if !matches!(self.lifecycle.phase(), Phase::Saving(_) | Phase::Over(_)) {
                    self.members.remove(task);
                }
                decisions
            }
            // These answer messages from before a rollback.
            task_message::Kind::ServerReady(_)
            | task_message::Kind::Failed(_)
            | task_message::Kind::Initialised(_)
            | task_message::Kind::Finished(_)
            | task_message::Kind::Concluded(_)
            | task_message::Kind::Hello(_) => return,
        };
        self.carry_out(decisions);
    }

    /// Handles a server's report on its part of a checkpoint.
    fn checkpoint_message(&mut self, task: TaskId, message: task_message::Kind) {
        let server = ServerId(task.index);
        match message {
            task_message::Kind::Marked(marked) => {
                let mark = serde_json::from_str(&marked.mark);
                self.checkpoint(|checkpoints| checkpoints.cycle().marked(marked.number, server, mark.ok()?));
            }
            task_message::Kind::PartWritten(written) => {
                let part: Result<Part, _> = serde_json::from_str(&written.part);
                self.checkpoint(|checkpoints| checkpoints.cycle().written(written.number, server, part.ok()?));
            }
            task_message::Kind::CheckpointFailed(failed) => {
                let kind = if failed.missed { SetbackKind::Missed } else { SetbackKind::Failed };
                let setback = Setback { reason: format!("{task}: {}", failed.reason), kind };
                self.checkpoint(|checkpoints| checkpoints.cycle().failed(failed.number, setback));
            }
            task_message::Kind::PartProgress(progress) => {
                if let Some(checkpoints) = &mut self.checkpoints {
                    checkpoints.cycle().progressed(progress.number, server);
                }
            }
            _ => {}
        }
    }

    /// Returns whether this is the latest `Prepare`. While a checkpoint is looked up, another one is about to follow,
    /// and servers that are prepared for the old one have to prepare again.
    fn is_prepared_for(&self, number: u64) -> bool {
        number == self.prepare.number && self.looking.is_none()
    }

    /// Returns whether a failure concerns the latest request: a server fails to prepare, a worker to train.
    fn is_of_now(&self, task: TaskId, incarnation: Incarnation, failure: &Failure) -> bool {
        match task.job {
            Job::Ps => is_of_itself(task, failure) || self.is_prepared_for(failure.prepare),
            Job::Worker | Job::Client => failure.incarnation == incarnation.0,
        }
    }

    /// Notes that a worker has finished; for a client, once all of its workers have.
    fn note_finished(&mut self, worker: WorkerId, steps: u64) {
        let name = self.lifecycle.named(worker);
        let steps = if name == TaskId::CLIENT { self.client.finished(worker, steps) } else { Some(steps) };
        if let Some(steps) = steps {
            let finished = format!("{name} finished after {steps} steps");
            info!("{finished}");
            self.history.note(self.now, HistoryKind::Left, finished);
        }
    }

    /// Stores a task's heartbeat. If the run waits for that task and it has moved on, that is progress.
    fn note_progress(&mut self, task: TaskId, mut heartbeat: Heartbeat) {
        joined::bound(&mut heartbeat.sites);
        let stage = |heartbeat: &Heartbeat| (heartbeat.local_step, heartbeat.global_step, heartbeat.waiting.clone());
        let now = stage(&heartbeat);
        let before = self.progress.insert(task, heartbeat).as_ref().map(stage);
        if before != Some(now) && self.lifecycle.awaited().contains(&task) {
            self.lifecycle.progressed(self.now);
        }
    }
}

/// Returns whether a server reports a failure of its own process, unrelated to any `Prepare`.
fn is_of_itself(task: TaskId, failure: &Failure) -> bool {
    task.job == Job::Ps && failure.prepare == 0
}
