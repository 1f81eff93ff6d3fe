//! The messages between workers and shards. A value is the set of pushes that it contains, so that checks can see them.

use windlass_core::admission::Request;
use windlass_core::ledger::{Incarnation, PushId};

/// A push as it appears in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pushed {
    /// The worker.
    pub worker: u32,
    /// The worker's process, and the number of the push in it.
    pub push: (Incarnation, u64),
    /// The worker's batch that the push was computed from.
    pub batch: u64,
}

/// The pushes in a block.
pub type Values = Vec<Pushed>;

/// A request as sent: the gate's request, and the batch of a push.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// The properties that decisions depend on.
    pub request: Request,
    /// The batch of a push.
    pub batch: u64,
}

impl Asked {
    /// The push as it appears in values.
    pub fn pushed(&self) -> Pushed {
        let PushId { worker, incarnation, sequence } = self.request.push;
        Pushed { worker: worker.0, push: (incarnation, sequence), batch: self.batch }
    }
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// The current values, which include the push.
    Values,
    /// The push was dropped as stale.
    Stale,
    /// The push came after the last step.
    Over,
    /// The process was declared dead.
    Fenced,
    /// The request was refused.
    Refused,
}

/// An answer.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The kind of the answer.
    pub kind: AnswerKind,
    /// True once the last step has been applied.
    pub over: bool,
    /// True if versions are rounds.
    pub rounds: bool,
    /// The version of the values.
    pub version: u64,
}

/// The frames that arrive on a stream.
#[derive(Debug, Clone, Copy)]
pub enum Frame {
    /// A request begins.
    Request(Asked),
    /// The next piece of its values.
    Piece,
}
