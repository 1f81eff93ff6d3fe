//! Synchronous rounds: which gradients count in the open one, and when it is complete.

use std::time::Duration;

use super::{Gate, Request};
use crate::cluster::WorkerId;
use crate::consistency::Consistency;
use crate::ledger::{Fate, Incarnation};
use crate::optimizer::Update;

/// What became of a gradient that has wholly arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contribution {
    /// It is to be added to the round, and perhaps completes it.
    Counted {
        /// True if the round is now to be applied.
        complete: bool,
    },
    /// The same push has been counted, having come twice.
    Again,
    /// The round went by while it was on its way.
    Late,
    /// Its process was declared dead or replaced, or has continued without waiting for it.
    Fenced,
}

impl Gate {
    /// Notes a gradient for a round that has wholly arrived.
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

    /// Lets a worker go that asks for a later version than there is. True if that completes a round. The word of another
    /// process than the living one does not count: after a server was restored, it may ask for what it has seen before.
    pub fn skip_to(&mut self, request: &Request) -> bool {
        let complete = self.is_living(request) && self.consistency.skip_to(request.push.worker, request.base);
        self.completes(complete)
    }

    /// Notes that a process of a worker has left. True if that completes a round.
    pub fn leave(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        let complete = self.ledger.retire(worker, incarnation) && self.consistency.leave(worker);
        self.completes(complete)
    }

    /// Notes that the caller will apply the round, if it is complete.
    fn completes(&mut self, complete: bool) -> bool {
        self.applying |= complete;
        complete
    }

    /// The update from this many gradients of a round.
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
