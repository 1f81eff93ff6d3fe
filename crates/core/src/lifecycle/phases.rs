//! The transitions from one phase to the next: all tasks present, servers ready, values initialised, training finished,
//! run concluded.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Decision, Lifecycle, Outcome, Phase};
use crate::cluster::{Job, ServerId, TaskId, WorkerId};
use crate::fault::{self, Fault};

impl Lifecycle {
    /// Records that a task comes from a run that had already begun: this coordinator replaces an earlier one.
    pub fn begun_before(&mut self) -> Vec<Decision> {
        self.again |= self.phase == Phase::Gathering;
        self.prepare_if_all_are_here()
    }

    /// Records that the run had ended when the previous coordinator died: it continues only if a worker joins that
    /// wants more steps.
    pub fn finished_before(&mut self) {
        self.finished_before = self.phase == Phase::Gathering;
    }

    /// Records that a worker has joined that wants more steps than the run has had.
    pub fn wants_more(&mut self) {
        self.finished_before = false;
    }

    /// Sets the servers that take part in the run, once that is known. A run begins when all servers have joined, so
    /// that all of them learn of its end; from then on it neither waits for the idle ones nor loses anything with them.
    pub fn set_active_servers(&mut self, active: &BTreeSet<ServerId>) -> Vec<Decision> {
        let holds_nothing = |task: &TaskId| task.job == Job::Ps && !active.contains(&ServerId(task.index));
        self.idle = self.tasks.iter().copied().filter(holds_nothing).collect();
        self.prepare_if_all_are_here()
    }

    fn prepare_if_all_are_here(&mut self) -> Vec<Decision> {
        let all_here = self.phase == Phase::Gathering && self.missing().is_empty();
        if all_here { self.prepare() } else { Vec::new() }
    }

    /// Lets the servers prepare for the tasks that are present. If the chief is not, another worker becomes chief.
    pub(super) fn prepare(&mut self) -> Vec<Decision> {
        let present = self.present_workers();
        if self.config.workers.is_none() && !self.again {
            // After a rollback, the run does not wait for workers that joined and left before.
            self.tasks.retain(|task| task.job == Job::Ps || self.membership.is_present(*task));
        }
        if !present.contains(&self.chief) && !fault::is_back(Fault::ChiefLostWithServer) {
            self.chief = present.first().copied().unwrap_or(self.chief);
        }
        (self.phase, self.finished_before) = (Phase::Preparing, false);
        self.ready.clear();
        vec![Decision::Prepare]
    }

    /// Records that a server has its shard, new or restored from a checkpoint.
    pub fn server_ready(&mut self, server: TaskId, restored: bool) -> Vec<Decision> {
        self.ready.insert(server);
        let all = self.active_servers().all(|task| self.ready.contains(&task));
        if self.phase != Phase::Preparing || !all {
            return Vec::new();
        }
        self.phase = Phase::Initialising;
        if restored {
            return self.initialised();
        }
        vec![Decision::Initialise(self.chief)]
    }

    /// Records that the chief has pushed the first values.
    pub fn initialised(&mut self) -> Vec<Decision> {
        if self.phase != Phase::Initialising {
            return Vec::new();
        }
        self.phase = Phase::Training;
        self.present_workers().into_iter().map(Decision::Start).collect()
    }

    /// Records that a worker has done its share of the training; it stays for the end.
    pub fn worker_finished(&mut self, worker: WorkerId) -> Vec<Decision> {
        if !matches!(self.phase, Phase::Training | Phase::Finishing) {
            return Vec::new();
        }
        let incarnation = self.membership.incarnation(TaskId::from(worker)).unwrap_or_default();
        let mut decisions = self.part_with_leavers(Duration::MAX);
        self.left.insert(worker, String::new());
        decisions.push(Decision::Left(worker, incarnation, String::new()));
        decisions.extend(self.finish_if_nobody_trains());
        decisions
    }

    pub(super) fn finish_if_nobody_trains(&mut self) -> Vec<Decision> {
        let present = self.present_workers();
        let training = present.iter().any(|worker| !self.left.contains_key(worker));
        if self.phase != Phase::Training || training || present.is_empty() {
            return Vec::new();
        }
        self.phase = Phase::Finishing;
        vec![Decision::AllFinished]
    }

    /// Records that the chief has scored the network, so that nothing is left to do.
    pub fn concluded(&mut self, worker: WorkerId) -> Vec<Decision> {
        let last = self.phase == Phase::Finishing && worker == self.chief;
        if last { self.end(Outcome::done()) } else { Vec::new() }
    }
}
