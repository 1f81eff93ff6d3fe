//! Decides whether a push counts, as which update, and which of its pieces are still to be applied.

use std::time::Duration;

use super::{CutSide, Gate, Request};
use crate::consistency::Admission;
use crate::ledger::{Entry, Fate, PushId};
use crate::optimizer::Update;
use crate::run::staleness_scaled;

/// How far a rate's version may be ahead of what this server has seen. Versions are global steps or count changes, so a
/// server is never far behind; a corrupt version would block all later rates.
const RATE_LEAD: u64 = 1 << 16;

/// Why a push is read but not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// The push has been counted before.
    Counted,
    /// The push was computed from parameters that a round has replaced.
    Stale,
    /// The run has had its last step.
    Over,
}

/// What is to be done with a push.
#[derive(Debug)]
pub enum Verdict {
    /// Apply the pieces that can be claimed, as they arrive.
    Apply {
        /// The update to apply them as.
        update: Update,
        /// How many updates old the parameters are that the push was computed from; `None` if the push was counted
        /// before and resumes where it was cut off.
        staleness: Option<u64>,
    },
    /// Keep the gradient for the round.
    Collect,
    /// Read the push, do nothing, and report that in the answer.
    Skip(Skip),
    /// Refuse the push: its process was declared dead.
    Fenced,
    /// Refuse the push: its numbers contradict what this server has reported. The text says how.
    Refused(String),
}

impl Gate {
    /// Decides what to do with a push that begins to arrive, with its note.
    pub fn admit(&mut self, request: &Request, note: String, now: Duration) -> Verdict {
        let push = request.push;
        if let Some(words) = self.contradiction(request) {
            return Verdict::Refused(words);
        }
        let fate = match self.ledger.enter(push) {
            Entry::Fenced => return Verdict::Fenced,
            Entry::OutOfOrder { expected } => {
                return Verdict::Refused(format!("push {} came where {expected} was expected", push.sequence));
            }
            Entry::New => {
                self.keep_note(push, note);
                self.keep_rate(request);
                Fate::Pending
            }
            Entry::Again(fate) => fate,
        };
        self.begun = true;
        self.announced.adopt(request.learning_rate);
        if !self.has_rounds() {
            self.learning_rate = self.announced;
        }
        match fate {
            Fate::Taken { .. } if self.consistency.has_rounds() => return Verdict::Skip(Skip::Counted),
            // A push that was cut off continues where it stopped, as the same step.
            Fate::Taken { step } => {
                return Verdict::Apply { update: self.push_update(step, request), staleness: None };
            }
            Fate::Pending | Fate::Dropped => {}
        }
        let version = self.consistency.version();
        match self.consistency.admit(request.push.worker, request.base) {
            Admission::Apply { step } => {
                self.ledger.settle(push, Fate::Taken { step });
                let staleness = version.saturating_sub(request.base);
                self.statistics.staleness += staleness;
                self.statistics.pushes += 1;
                self.count_step(now);
                Verdict::Apply { update: self.push_update(step, request), staleness: Some(staleness) }
            }
            Admission::Collect => Verdict::Collect,
            Admission::Stale => {
                self.drop_push(push);
                Verdict::Skip(Skip::Stale)
            }
            Admission::Over => Verdict::Skip(Skip::Over),
        }
    }

    /// Describes what a push of the living process claims that cannot be true.
    fn contradiction(&self, request: &Request) -> Option<String> {
        if !self.is_living(request) {
            return None;
        }
        let (version, base) = (self.version(), request.base);
        if base > version {
            return Some(format!("a push computed from version {base} where the newest is {version}"));
        }
        let newest = self.announced.version.max(version).saturating_add(RATE_LEAD);
        let rate = request.learning_rate.version;
        (rate > newest).then(|| format!("a learning rate of version {rate}, far beyond any step"))
    }

    /// The update that one push makes. Its staleness is the number of updates since its parameters were read; that does
    /// not change when a push that was cut off resumes later.
    fn push_update(&self, step: u64, request: &Request) -> Update {
        let update = self.update(step, 1.0);
        if !self.scales_by_staleness {
            return update;
        }
        let staleness = (step - 1).saturating_sub(request.base);
        Update { learning_rate: staleness_scaled(update.learning_rate, staleness), ..update }
    }

    /// Claims this piece of a push for the first caller, which must then apply it. Returns the side of the cut.
    pub fn claim(&mut self, request: &Request, piece: usize) -> Option<CutSide> {
        self.ledger.claim(request.push, piece).then(|| self.side(request))
    }

    /// Records that the last piece of a push has been applied, if this was not recorded before.
    pub fn applied(&mut self, request: &Request, pieces: usize) {
        if self.claim(request, pieces).is_some() {
            self.ledger.complete(request.push);
            self.consistency.applied(request.push.worker);
        }
    }

    pub(super) fn drop_push(&mut self, push: PushId) {
        if self.ledger.fate(push) != Some(Fate::Dropped) {
            self.ledger.settle(push, Fate::Dropped);
            self.statistics.dropped += 1;
        }
    }
}
