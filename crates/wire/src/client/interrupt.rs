//! Signals that end a client's waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_core::ledger::Incarnation;

use super::ClientError;

/// What a worker's session reports to its client: reasons to end its waits or to check its connections.
#[derive(Debug, Default)]
pub struct Interrupt {
    stop: AtomicBool,
    over: AtomicBool,
    incarnation: AtomicU64,
    welcomes: AtomicU64,
}

impl Interrupt {
    /// Ends the waits of every client that shares this: the process was told to stop.
    pub fn set(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True once the process was told to stop.
    pub fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the waits of every client that shares this: the run is over, and outstanding requests will not be answered.
    pub fn run_is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// True once every wait should end: the process was told to stop, or the run is over.
    pub fn ends_all_waits(&self) -> bool {
        self.is_set() || self.over.load(Ordering::Relaxed)
    }

    /// Records that the coordinator has welcomed this process as an incarnation. A client of an earlier incarnation
    /// stops waiting, and connections made before may be dead.
    pub fn welcomed(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.0, Ordering::Relaxed);
        // Release: a thread that sees this welcome also sees its incarnation.
        self.welcomes.fetch_add(1, Ordering::Release);
    }

    /// How often the coordinator has welcomed this process.
    pub(super) fn welcomes(&self) -> u64 {
        self.welcomes.load(Ordering::Acquire)
    }

    /// Why a client that connected as this incarnation should stop waiting, if it should.
    pub(super) fn check(&self, incarnation: Incarnation) -> Result<(), ClientError> {
        if self.ends_all_waits() {
            Err(ClientError::Interrupted)
        } else if self.incarnation.load(Ordering::Relaxed) > incarnation.0 {
            Err(ClientError::Rejoined)
        } else {
            Ok(())
        }
    }
}
