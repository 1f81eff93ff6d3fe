//! Tasks that were not admitted and have yet to learn why: the run cannot begin, or is about to end. They are told when
//! they come again, instead of being left to wait for ps 0.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::cluster::WorkerId;
use windlass_core::lifecycle::Outcome;
use windlass_wire::control::proto::Hello;

use super::interface::{OwnShard, SessionId};
use super::machine::Coordinator;

/// Tasks that have yet to learn that the run cannot begin, or how it ended.
#[derive(Debug, Default)]
pub(super) struct Untold {
    tasks: BTreeSet<String>,
    /// Tasks that are being told, by session.
    told: BTreeMap<SessionId, String>,
}

impl Untold {
    pub(super) fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Notes that a task is to come again to learn how the run ends.
    pub(super) fn put_off(&mut self, hello: &Hello) {
        self.tasks.insert(name(hello));
    }

    /// Notes that a task was admitted, and will learn of the end like all others.
    pub(super) fn let_in(&mut self, hello: &Hello) {
        self.tasks.remove(&name(hello));
    }

    /// Notes that a task was told on this session, which it closes once it has received that.
    pub(super) fn dismissed(&mut self, id: SessionId, hello: &Hello) {
        let task = name(hello);
        if self.tasks.contains(&task) {
            self.told.insert(id, task);
        }
    }

    /// A session was closed.
    pub(super) fn closed(&mut self, id: SessionId) {
        if let Some(task) = self.told.remove(&id) {
            self.tasks.remove(&task);
        }
    }
}

fn name(hello: &Hello) -> String {
    format!("{} {}", hello.job, hello.index)
}

impl<S: OwnShard> Coordinator<S> {
    /// Ends the run. If it has not begun, ps 0 stays for a while to tell the tasks that are still to come.
    pub(super) fn refuse_to_begin(&mut self, outcome: Outcome) {
        if self.prepare.number == 0 {
            self.untold.tasks = self.lifecycle.missing().iter().map(ToString::to_string).collect();
        }
        let decisions = self.lifecycle.failed(outcome);
        self.carry_out(decisions);
    }

    /// Ends the run because the process of a worker that also serves parameters has failed. If the run has not begun, ps 0
    /// stays for a while to tell the other tasks that are still to come.
    pub(super) fn colocated_failed(&mut self, worker: WorkerId, Outcome { exit_code, reason }: Outcome) {
        if self.prepare.number == 0 {
            let others = self.lifecycle.missing().into_iter().filter(|task| task.index != worker.0);
            self.untold.tasks = others.map(|task| task.to_string()).collect();
        }
        let decisions = self.lifecycle.task_failed(worker.into(), exit_code, reason);
        self.carry_out(decisions);
    }
}
