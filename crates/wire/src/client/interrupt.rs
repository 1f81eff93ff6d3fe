//! What ends the waits of a client.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use windlass_core::ledger::Incarnation;

use super::ClientError;

/// What a worker's session learns that ends the waits of its client, or makes it look after its connections.
#[derive(Debug, Default)]
pub struct Interrupt {
    stop: AtomicBool,
    over: AtomicBool,
    incarnation: AtomicU64,
    welcomes: AtomicU64,
}

impl Interrupt {
    /// Ends the waits of every client that holds this: the process is told to stop.
    pub fn set(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// True once the process was told to stop.
    pub fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the waits of every client that holds this: the run is over, and no request that still waits will be
    /// answered.
    pub fn run_is_over(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// True once nothing is to be waited for any more: the process was told to stop, or the run is over.
    pub fn ends_all_waits(&self) -> bool {
        self.is_set() || self.over.load(Ordering::Relaxed)
    }

    /// Notes that the coordinator has welcomed this process as an incarnation: a client of an earlier one has nothing
    /// to wait for any more, and connections from before may lead nowhere.
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
