//! Replicas at the other end of connections: joined workers compute for this process, which has the data and the loop.
//!
//! A [`Crew`] holds the workers and ensures that every share of a step is computed by one that is alive. [`InGraph`] is
//! the replica that the training loop sees.

mod counts;
mod crew;
mod in_graph;
mod keeping;
mod pieces;
mod seat;
mod share;
mod split;

pub(crate) use crew::AskError;
pub use crew::{Crew, CrewConfig};
pub use in_graph::{InGraph, InGraphConfig};
pub(crate) use share::in_words;

/// Why the joined workers could not compute a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrewError {
    /// Workers did not join, or rejoin, in time.
    #[error("gave up waiting for {0}")]
    GaveUp(String),
    /// A worker refuses this run permanently.
    #[error("{worker} refuses: {reason}")]
    Refused {
        /// The worker.
        worker: String,
        /// The reason.
        reason: String,
    },
    /// Workers join but are repeatedly lost.
    #[error("gave up: {0}")]
    Unreliable(String),
    /// A worker has answered with a value that is not finite.
    #[error("{worker}: {what}")]
    NotFinite {
        /// The worker.
        worker: String,
        /// Where the value is.
        what: String,
    },
    /// The process was told to stop, or the run is over.
    #[error("told to stop")]
    Interrupted,
}

#[cfg(test)]
mod tests;
