//! When a push may be applied and when its worker may continue: the three consistency models as state machines.
//!
//! Each server runs one of these for its own shard, so no step needs a second round trip to agree on anything. A state
//! machine only decides: it holds no gradients, no locks and no clock. The server applies what [`Consistency::admit`]
//! allows, reports it with [`Consistency::applied`], and sends a worker's answer when [`Consistency::waits_for`]
//! returns `None`.

mod asynchronous;
mod bounded;
mod synchronous;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Pushes;
use crate::cluster::WorkerId;

pub use asynchronous::Asynchronous;
pub use bounded::BoundedStaleness;
pub use synchronous::Synchronous;

/// How the pushes of several workers become updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Mode {
    /// Every push is applied as it arrives.
    Async,
    /// One update per round: the mean of the round's gradients.
    Sync {
        /// The number of gradients in a round. If there are more workers, the rest are backups. `None`: all workers.
        replicas_to_aggregate: Option<u32>,
    },
    /// Every push is applied as it arrives, but no worker runs more than `staleness` steps ahead of the slowest.
    Ssp {
        /// How many steps the fastest worker may be ahead of the slowest.
        staleness: u64,
    },
}

impl Mode {
    /// The name of this mode in flags.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Async => "async",
            Mode::Sync { .. } => "sync",
            Mode::Ssp { .. } => "ssp",
        }
    }
}

/// What to do with a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Apply it now; it is update number `step` of this shard.
    Apply {
        /// The number of this update, counted from one.
        step: u64,
    },
    /// Keep the gradient for the open round, and report it with [`Consistency::applied`] once it is complete.
    Collect,
    /// Drop it: it was computed from parameters that a finished round has replaced.
    Stale,
    /// Drop it: the run has reached its last step.
    Over,
}

/// A consistency model at work on one shard.
#[derive(Debug)]
pub enum Consistency {
    /// See [`Mode::Async`].
    Async(Asynchronous),
    /// See [`Mode::Sync`].
    Sync(Synchronous),
    /// See [`Mode::Ssp`].
    Ssp(BoundedStaleness),
}

impl Consistency {
    /// Starts a model with the workers that are expected from the first step; it ends after `limit` updates.
    pub fn new(mode: Mode, workers: &[WorkerId], limit: Option<u64>) -> Self {
        match mode {
            Mode::Async => Consistency::Async(Asynchronous::new(limit)),
            Mode::Sync { replicas_to_aggregate } => {
                Consistency::Sync(Synchronous::new(workers, replicas_to_aggregate, limit))
            }
            Mode::Ssp { staleness } => Consistency::Ssp(BoundedStaleness::new(workers, staleness, limit)),
        }
    }

    /// Resumes from restored parameters of this version.
    pub fn resume_at(&mut self, version: u64) {
        match self {
            Consistency::Async(state) => state.resume_at(version),
            Consistency::Sync(state) => state.resume_at(version),
            Consistency::Ssp(state) => state.resume_at(version),
        }
    }

    /// Adds a worker that joins in the middle of a run, at this clock.
    pub fn join(&mut self, worker: WorkerId, clock: u64) {
        if let Consistency::Ssp(state) = self {
            state.join(worker, clock);
        }
    }

    /// The clock at which a worker that joins now is to start, on all servers.
    pub fn clock(&self) -> u64 {
        match self {
            Consistency::Ssp(state) => state.slowest(),
            _ => 0,
        }
    }

    /// Removes from `pushes` those that are only in the open round and not yet in the parameters.
    pub fn without_open_round(&self, pushes: &mut Pushes) {
        if let Consistency::Sync(state) = self {
            for (_, (_, sequence)) in pushes.iter_mut().filter(|(worker, _)| state.has(**worker)) {
                *sequence = sequence.saturating_sub(1);
            }
        }
    }

    /// Decides about a push that `worker` computed from parameters of version `base`.
    pub fn admit(&mut self, worker: WorkerId, base: u64) -> Admission {
        match self {
            Consistency::Async(state) => state.admit(),
            Consistency::Sync(state) => state.admit(worker, base),
            Consistency::Ssp(state) => state.admit(worker),
        }
    }

    /// Records that an admitted push has arrived completely. True if that completes a round, which the caller must then
    /// apply and end with [`Consistency::end_round`].
    pub fn applied(&mut self, worker: WorkerId) -> bool {
        match self {
            Consistency::Async(_) => false,
            Consistency::Sync(state) => state.collected(worker),
            Consistency::Ssp(state) => {
                state.advance(worker);
                false
            }
        }
    }

    /// Ends the synchronous round whose update has been applied.
    pub fn end_round(&mut self) {
        if let Consistency::Sync(state) = self {
            state.end_round();
        }
    }

    /// The workers that `worker`, having pushed from version `base`, has to wait for before it may continue. `None` if
    /// it may continue now; an empty list if it waits for a round that is just being applied.
    pub fn waits_for(&self, worker: WorkerId, base: u64) -> Option<Vec<WorkerId>> {
        match self {
            Consistency::Async(_) => None,
            Consistency::Sync(state) => state.waits_for(base.saturating_add(1)),
            Consistency::Ssp(state) => state.waits_for(worker),
        }
    }

    /// Handles a worker's request for parameters of at least this version, which other servers already have: until then
    /// it contributes to no round here. True if that completes a round, as in [`Consistency::applied`].
    pub fn skip_to(&mut self, worker: WorkerId, version: u64) -> bool {
        match self {
            Consistency::Sync(state) if state.version() < version => state.leave(worker),
            _ => false,
        }
    }

    /// The workers that have to push before the parameters reach a version, in the form of [`Consistency::waits_for`].
    pub fn waits_for_version(&self, version: u64) -> Option<Vec<WorkerId>> {
        match self {
            Consistency::Sync(state) => state.waits_for(version),
            _ => None,
        }
    }

    /// True if versions are rounds, in which all servers are meant to advance together.
    pub fn has_rounds(&self) -> bool {
        matches!(self, Consistency::Sync(_))
    }

    /// Records that a worker has finished or died. True if that completes a round, as in [`Consistency::applied`].
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        match self {
            Consistency::Async(_) => false,
            Consistency::Sync(state) => state.leave(worker),
            Consistency::Ssp(state) => {
                state.leave(worker);
                false
            }
        }
    }

    /// The version of the parameters: how many updates they have had.
    pub fn version(&self) -> u64 {
        match self {
            Consistency::Async(state) => state.step(),
            Consistency::Sync(state) => state.version(),
            Consistency::Ssp(state) => state.step(),
        }
    }

    /// True once the last step has been applied.
    pub fn is_over(&self) -> bool {
        match self {
            Consistency::Async(state) => state.is_over(),
            Consistency::Sync(state) => state.is_over(),
            Consistency::Ssp(state) => state.is_over(),
        }
    }
}
