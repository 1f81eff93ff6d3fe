//! What travels between workers and shards: a value is the set of pushes that are in it, so that it can be seen which are.

use windlass_core::admission::Request;
use windlass_core::ledger::{Incarnation, PushId};

/// A push as it is seen in values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pushed {
    /// Whose it is.
    pub worker: u32,
    /// Of which process, and its number there.
    pub push: (Incarnation, u64),
    /// Which of the worker's batches it was computed from.
    pub batch: u64,
}

/// The pushes that are in a block.
pub type Values = Vec<Pushed>;

/// A request as it travels: what the gate asks, and which batch a push is of.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// What decisions depend on.
    pub request: Request,
    /// The batch of a push.
    pub batch: u64,
}

impl Asked {
    /// As it is seen in values.
    pub fn pushed(&self) -> Pushed {
        let PushId { worker, incarnation, sequence } = self.request.push;
        Pushed { worker: worker.0, push: (incarnation, sequence), batch: self.batch }
    }
}

/// What an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// Values of now; a push is in them.
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
    /// What it is.
    pub kind: AnswerKind,
    /// True once the last step has been applied.
    pub over: bool,
    /// True if versions are rounds.
    pub rounds: bool,
    /// The version of the values.
    pub version: u64,
}

/// What arrives on a stream.
#[derive(Debug, Clone, Copy)]
pub enum Frame {
    /// A request begins.
    Request(Asked),
    /// The next piece of its values.
    Piece,
}
