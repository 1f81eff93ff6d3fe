//! Tasks that leave or die: a run continues without a worker, under another chief if need be, and rolls back to a
//! checkpoint when it loses a server.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Decision, Lifecycle, Outcome, Phase, exit_code};
use crate::cluster::{Job, TaskId, WorkerId};
use crate::fault::{self, Fault};
use crate::ledger::Incarnation;
use crate::membership::Presence;

/// How long the others wait for a worker that was told to stop before they train without it. When all workers are told
/// to stop one after another, this prevents an update that only some of them took part in.
pub(super) const FAREWELL: Duration = Duration::from_millis(300);

impl Lifecycle {
    /// Advances the time: declares silent tasks dead, and gives up on tasks that do not come.
    pub fn tick(&mut self, now: Duration) -> Vec<Decision> {
        let mut decisions = self.part_with_leavers(now);
        let has_to_write = self.servers_with_a_part_to_write();
        for (task, reason) in self.membership.expire(now, |task| has_to_write.contains(&task)) {
            decisions.extend(match task.job {
                Job::Ps if self.phase == Phase::Gathering => Vec::new(),
                Job::Ps if matches!(self.phase, Phase::Over(_)) => Vec::new(),
                Job::Ps if self.idle.contains(&task) => vec![Decision::IdleLeft(task, reason)],
                Job::Ps => self.server_lost(format!("lost {task}: {reason}")),
                Job::Worker | Job::Client => {
                    let worker = WorkerId(task.index);
                    let mut decisions = self.worker_left(worker, reason);
                    decisions.extend(self.go_on_without(worker));
                    decisions
                }
            });
        }
        decisions.extend(self.wait_for_tasks(now));
        decisions
    }

    /// Handles a task that leaves because it was told to stop. The run continues without a worker, but not without a
    /// server.
    pub fn goodbye(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) -> Vec<Decision> {
        if !self.membership.finished(task, incarnation) {
            return Vec::new();
        }
        let others = match self.phase {
            Phase::Saving(_) => true,
            // After a server was lost, the other workers may be about to rejoin, unless they were told to stop, too.
            Phase::Gathering if self.again && fault::is_back(Fault::StoppedWorkersAwaited) => self.workers().len() > 1,
            Phase::Gathering if self.again => self.workers().iter().any(|worker| !self.was_told_to_stop(*worker)),
            _ => !self.present_workers().is_empty(),
        };
        if task.job == Job::Worker {
            // Even the last worker: the checkpoint waits for a push that has partly arrived, but not forever.
            self.leaving.insert(WorkerId(task.index), now);
            if others {
                return Vec::new();
            }
        }
        let reason = format!("{} was told to stop", self.named(task));
        if self.idle.contains(&task) && (self.again || self.phase != Phase::Gathering) {
            return vec![Decision::IdleLeft(task, reason)];
        }
        self.end(Outcome { exit_code: exit_code::TERMINATED, reason })
    }

    fn was_told_to_stop(&self, task: impl Into<TaskId>) -> bool {
        self.membership.presence(task.into()) == Some(Presence::Finished)
    }

    /// The servers that the last checkpoint needs, even if they have said goodbye.
    fn servers_with_a_part_to_write(&self) -> BTreeSet<TaskId> {
        let saves = matches!(self.phase, Phase::Saving(_)) && !fault::is_back(Fault::StoppedServerNotMissed);
        self.active_servers().filter(|_| saves && !self.needs_no_server()).collect()
    }

    /// True while the last checkpoint waits only for the store.
    fn needs_no_server(&self) -> bool {
        self.parts_are_written && !fault::is_back(Fault::NeededWhilePublished)
    }

    /// Continues training without the workers that said goodbye a while ago: they were told to stop, or have failed.
    pub(super) fn part_with_leavers(&mut self, now: Duration) -> Vec<Decision> {
        // By then the cut of a last checkpoint has been made, and contains no round that one of them missed.
        let patience = if matches!(self.phase, Phase::Saving(_)) { 3 * FAREWELL } else { FAREWELL };
        let parted = |_: &WorkerId, since: &mut Duration| now.saturating_sub(*since) >= patience;
        let parted: Vec<WorkerId> = self.leaving.extract_if(.., parted).map(|(worker, _)| worker).collect();
        let mut decisions = Vec::new();
        for worker in parted {
            let reason = self.failures.remove(&worker).unwrap_or_else(|| "told to stop".to_owned());
            decisions.extend(self.worker_left(worker, reason));
            decisions.extend(self.go_on_without(worker));
        }
        decisions
    }

    fn worker_left(&mut self, worker: WorkerId, reason: String) -> Vec<Decision> {
        // Reported even while the last checkpoint is written, since that waits for a push that has partly arrived, and
        // the worker that left will not send the rest.
        if matches!(self.phase, Phase::Over(_) | Phase::Gathering) {
            return Vec::new();
        }
        let incarnation = self.membership.incarnation(TaskId::from(worker)).unwrap_or_default();
        let was_training = self.left.insert(worker, reason.clone()).is_none();
        if was_training { vec![Decision::Left(worker, incarnation, reason)] } else { Vec::new() }
    }

    fn go_on_without(&mut self, worker: WorkerId) -> Vec<Decision> {
        if matches!(self.phase, Phase::Saving(_) | Phase::Over(_) | Phase::Gathering) {
            return Vec::new();
        }
        let mut decisions = Vec::new();
        if worker == self.chief {
            decisions.extend(self.name_another_chief());
        }
        decisions.extend(self.finish_if_nobody_trains());
        decisions
    }

    /// Worker 0 is chief while it lives; then the lowest-numbered living worker takes over for good.
    fn name_another_chief(&mut self) -> Vec<Decision> {
        let Some(next) = self.present_workers().first().copied() else {
            // With checkpoints, the parameters can outlive the workers, so the run waits for workers, too.
            if self.config.checkpoints {
                if self.phase == Phase::Preparing {
                    self.phase = Phase::Gathering;
                }
                return Vec::new();
            }
            let reason = "no workers are left".to_owned();
            return self.end(Outcome { exit_code: exit_code::PEERS, reason });
        };
        self.chief = next;
        match self.phase {
            Phase::Initialising => vec![Decision::Initialise(next)],
            Phase::Finishing => vec![Decision::AllFinished],
            _ => Vec::new(),
        }
    }

    /// Without one server's parameters the others' are useless: all tasks roll back to the last checkpoint once that
    /// server is back, even if only the last checkpoint was left to write; the workers stay until it is written. Once
    /// all its parts are, the loss matters only if it cannot be published.
    pub(super) fn server_lost(&mut self, reason: String) -> Vec<Decision> {
        match &self.phase {
            Phase::Over(_) => return Vec::new(),
            Phase::Saving(_) if self.needs_no_server() => {
                self.lost_meanwhile.get_or_insert(reason);
                return Vec::new();
            }
            Phase::Saving(outcome) if !self.trains_again_after(outcome) => return self.not_saved(&reason),
            _ => {}
        }
        if !self.config.checkpoints {
            return self.end_at_once(Outcome { exit_code: exit_code::PEERS, reason });
        }
        (self.phase, self.again, self.finished_before) = (Phase::Gathering, true, false);
        self.parts_are_written = false;
        self.awaited_since.clear();
        self.servers_here_since = None;
        self.left.clear();
        self.leaving.clear();
        self.failures.clear();
        for worker in self.workers() {
            self.membership.dismiss(worker.into());
        }
        vec![Decision::Regather(reason)]
    }

    /// True if a run that was to end with this outcome continues when its last checkpoint is lost. A run that was told
    /// to stop or has failed is not trained further, nor is one whose tasks have been told to stop meanwhile.
    fn trains_again_after(&self, outcome: &Outcome) -> bool {
        let servers_stay = !self.active_servers().any(|server| self.was_told_to_stop(server));
        let workers_stay = self.workers().iter().any(|worker| !self.was_told_to_stop(*worker));
        outcome.exit_code == 0 && servers_stay && workers_stay && !fault::is_back(Fault::LostWhileSaving)
    }
}
