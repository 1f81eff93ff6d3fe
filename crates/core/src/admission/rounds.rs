//! Synchronous rounds: which gradients count in the open round, and when it is complete.

use std::time::Duration;

use super::{Gate, Request};
use crate::cluster::WorkerId;
use crate::consistency::Consistency;
use crate::ledger::{Fate, Incarnation};
use crate::optimizer::Update;

/// The fate of a gradient that has arrived completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contribution {
    /// The gradient is to be added to the round, and may complete it.
    Counted {
        /// True if the round is to be applied now.
        complete: bool,
    },
    /// The same push arrived before and has been counted.
    Again,
    /// The round ended while the gradient was on its way.
    Late,
    /// The sending process was declared dead or replaced, or has continued without waiting for the answer.
    Fenced,
}

impl Gate {
    /// Records a gradient for a round that has arrived completely.
    pub fn arrived(&mut self, request: &Request) -> Contribution {
        let push = request.push;
        match (self.ledger.fate(push), &self.consistency) {
            (None, _) => Contribution::Fenced,
            (Some(Fate::Taken { .. }), _) => Contribution::Again,
            (_, Consistency::Sync(round)) if !round.takes(request.push.worker, request.base) => {
                self.drop_push(push);
                Contribution::Late
            }
            _ => {
                self.ledger.settle(push, Fate::Taken { step: self.consistency.version() + 1 });
                self.statistics.pushes += 1;
                let complete = self.consistency.applied(request.push.worker);
                Contribution::Counted { complete: self.completes(complete) }
            }
        }
    }

    /// Takes a worker that asks for a later version than the current one out of the open round. True if that completes
    /// the round. Only the living process counts: after a server was restored, an older process may ask for a version
    /// that it has seen before.
    pub fn skip_to(&mut self, request: &Request) -> bool {
        let complete = self.is_living(request) && self.consistency.skip_to(request.push.worker, request.base);
        self.completes(complete)
    }

    /// Records that a process of a worker has left. True if that completes a round.
    pub fn leave(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        let complete = self.ledger.retire(worker, incarnation) && self.consistency.leave(worker);
        self.completes(complete)
    }

    /// Records that the caller will apply the round, if it is complete.
    fn completes(&mut self, complete: bool) -> bool {
        self.applying |= complete;
        complete
    }

    /// The update of a round with this many gradients.
    pub fn round_update(&self, gradients: usize) -> Update {
        self.update(self.consistency.version() + 1, 1.0 / gradients as f32)
    }

    /// Opens the next round, after the update of the complete one has been applied.
    pub fn end_round(&mut self, now: Duration) {
        self.consistency.end_round();
        self.applying = false;
        self.learning_rate = self.announced;
        self.count_step(now);
        self.cut_after_round();
    }
}
