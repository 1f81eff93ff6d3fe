//! Replicas at the other end of connections: joined workers that compute for this process, which has the data and the
//! loop.
//!
//! A [`Crew`] knows the workers and sees to it that every share of a step is computed by one that lives. [`InGraph`] is
//! the replica that the training loop sees.

mod counts;
mod crew;
mod in_graph;
mod keeping;
mod seat;
mod share;

pub(crate) use crew::Trouble;
pub use crew::{Crew, CrewConfig};
pub use in_graph::{InGraph, InGraphConfig};
pub(crate) use share::in_words;

/// Why no joined worker computes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrewError {
    /// None has come, or come back, in time.
    #[error("gave up waiting for {0}")]
    GaveUp(String),
    /// One will not compute this run, now or later.
    #[error("{worker} refuses: {reason}")]
    Refused {
        /// Which.
        worker: String,
        /// Why.
        reason: String,
    },
    /// Workers join but are repeatedly lost.
    #[error("gave up: {0}")]
    Unreliable(String),
    /// One has answered with a value that is not finite.
    #[error("{worker}: {what}")]
    NotFinite {
        /// Which.
        worker: String,
        /// What it is in.
        what: String,
    },
    /// The process was told to stop, or the run is over.
    #[error("told to stop")]
    Interrupted,
}

#[cfg(test)]
mod tests;
