//! Checks which exit codes the faults of a run explain.

use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::{Outcome, exit_code};

use super::Cluster;
use crate::scenario::{Fault, Scenario};

impl Cluster {
    /// Checks that all tasks ended with an exit code that the faults explain.
    pub(super) fn check_exit_codes(&mut self) {
        let checkpoints = self.world.scenario.checkpoints.is_some();
        for (task, code) in self.exit_codes.clone() {
            let (task_away, coordinator_away) = (self.away.contains(&task), self.away.contains(&TaskId::ps(0)));
            let was_away = task_away || coordinator_away;
            // The claim of the run may not have been released, or may not record the generation in which the run began.
            let unrecorded = task_away && coordinator_away;
            let right = match code {
                0 => true,
                exit_code::TERMINATED => {
                    self.stopped.contains(&task) || self.scaled_down.contains(&task) || self.stop_ends_the_run()
                }
                // The last checkpoint of a run could not be written because the store was failing just then, or the run
                // could not begin: a run that has begun waits for its store. If a server is missing, only a run that
                // was told to stop ends so.
                exit_code::CHECKPOINT => {
                    let stopped_without_a_server = self.server_lost && !self.stopped.is_empty();
                    let without_its_store = self.store_failed || self.world.store.kept_a_run_from_beginning;
                    checkpoints && (without_its_store || stopped_without_a_server || self.stopped_in_half_a_push())
                }
                // Without checkpoints, a run does not outlive its servers or all of its workers, and a task that was
                // away when the run ended finds no trace of it.
                exit_code::PEERS => {
                    let excused = unrecorded || self.lost_at_the_end || self.stopped_unheard();
                    // The run waits for a task that is stopped before it begins, as for one that is killed; but no task
                    // is restarted once others were told to stop.
                    let not_started_again = !self.stopped.is_empty() && !self.killed.is_empty();
                    let excused = excused || self.stopped_before_it_began || not_started_again;
                    let came_too_late = self.unknown.contains(&task) && (was_away || self.was_over_early());
                    // Workers that were scaled down left without saying goodbye.
                    let nobody_is_left = !self.scaled_down.is_empty() && self.all_workers(|_| false);
                    let excused = excused || came_too_late || nobody_is_left;
                    let was_not_there = |worker: &TaskId| self.away.contains(worker) || self.unknown.contains(worker);
                    let all_were_away = || self.all_workers(was_not_there);
                    excused || !checkpoints && (task_away || self.server_lost || all_were_away())
                }
                _ => false,
            };
            if !right {
                self.world.watch.fail(|| format!("{task} ended with exit code {code}"));
            }
        }
    }

    /// Checks that a dead server is reported as lost, not as slow to write its part of the last checkpoint.
    pub(super) fn check_whom_it_blames(&mut self, outcome: &Outcome) {
        let missed_after = self.world.scenario.patience.silent + Duration::from_secs(2);
        for server in (0..self.world.scenario.servers).map(TaskId::ps) {
            let slow = [format!("no answer from {server}"), format!("{server} made no progress")];
            let is_blamed = slow.iter().any(|slow| outcome.reason.contains(slow.as_str()));
            let killed = self.killed.get(&server).filter(|_| is_blamed);
            if killed.is_some_and(|killed| *killed + missed_after < self.world.now) {
                self.world.watch.fail(|| format!("{server} is dead, but the run says: {}", outcome.reason));
            }
        }
    }

    /// True if every worker is gone, or missed according to `is_missed`.
    fn all_workers(&self, is_missed: impl Fn(&TaskId) -> bool) -> bool {
        let is_gone = |worker: &TaskId| self.stopped.contains(worker) || self.scaled_down.contains(worker);
        (0..self.world.scenario.workers).map(TaskId::worker).all(|worker| is_gone(&worker) || is_missed(&worker))
    }

    /// True if the run may have ended before a task joined that it did not need, or did not need yet.
    fn was_over_early(&self) -> bool {
        let Scenario { dynamic, checkpoints, .. } = &self.world.scenario;
        let could_not_begin = self.world.store.kept_a_run_from_beginning;
        let could_fail = checkpoints.is_none() || self.store_failed;
        could_not_begin || !self.stopped.is_empty() || *dynamic && could_fail
    }

    /// True if a worker was lost in the middle of a push when the run was told to stop: some servers have a round that
    /// the others lack, and no worker is left to push it to them.
    fn stopped_in_half_a_push(&self) -> bool {
        let rounds = matches!(self.world.scenario.run.mode, Mode::Sync { .. });
        let is_a_worker = |task: &TaskId| task.job == Job::Worker;
        rounds && self.world.scenario.servers > 1 && !self.stopped.is_empty() && self.away.iter().any(is_a_worker)
    }

    /// True if the tasks that were told to stop end the run for all: one of them is a server, or they are all workers
    /// present.
    fn stop_ends_the_run(&self) -> bool {
        let is_there = |worker: &TaskId| !self.stopped.contains(worker) && !self.away.contains(worker);
        let any_server = self.stopped.iter().any(|task| task.job == Job::Ps);
        let others = (0..self.world.scenario.workers).map(TaskId::worker).any(|worker| is_there(&worker));
        any_server || !self.stopped.is_empty() && (self.some_were_away_at_stop || !others)
    }

    /// True if a task that was told to stop, and is not restarted, may have left without the coordinator learning of
    /// it, so that the run waits for it in vain: the task or the coordinator was away just then, or the goodbye was
    /// lost with a connection.
    fn stopped_unheard(&self) -> bool {
        let is_between =
            |task: &TaskId| self.world.scenario.colocated || self.stopped.contains(task) || *task == TaskId::ps(0);
        let parts_them = |fault: &Fault| match fault {
            Fault::Kill(task, ..) | Fault::Pause(task, _) | Fault::CutOff(task, _) | Fault::Disconnect(task) => {
                is_between(task)
            }
            Fault::Store(..) | Fault::Stop(_) | Fault::ScaleDown(_) => false,
        };
        let parted = self.world.scenario.faults.iter().any(|(_, fault)| parts_them(fault));
        !self.stopped.is_empty() && (self.stopped_some || parted)
    }
}
