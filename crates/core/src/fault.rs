//! Old faults, reintroduced one at a time by a test that has to find them. This needs the feature `faults`, which only
//! the simulation enables.

/// A fault that was fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A server that holds nothing takes part in checkpoints.
    EmptyServerInCut,
    /// When a server and the chief are lost together, no other worker becomes chief.
    ChiefLostWithServer,
    /// A process that was declared dead while it was suspended is not told, and does not rejoin.
    SleeperNotDismissed,
    /// A thread that still reads an abandoned cut takes the copies of the next one.
    TornSnapshot,
    /// A server that was told to stop and loses its connection returns as a new process, without its part of the last
    /// checkpoint.
    StoppedServerForgotten,
    /// A run that rolls back waits for workers that were told to stop.
    StoppedWorkersAwaited,
    /// A server that is lost while a successful run writes its last checkpoint ends the run.
    LostWhileSaving,
    /// The death of a server that was told to stop goes unnoticed while the last checkpoint is written.
    StoppedServerNotMissed,
    /// The loss of a server matters while the last checkpoint is published, though the server's part is written.
    NeededWhilePublished,
    /// A run that loses a server rolls back to the checkpoint that it started from, though it has published newer ones.
    OlderCheckpointRestored,
    /// With an open number of workers, the run waits for a worker that joined and left before it began.
    EarlyWorkerAwaited,
}

#[cfg(feature = "faults")]
thread_local! {
    static BACK: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Reintroduces a fault for this thread, or removes it with `None`.
#[cfg(feature = "faults")]
pub fn put_back(fault: Option<Fault>) {
    BACK.set(fault);
}

/// True if this fault has been reintroduced.
#[cfg(feature = "faults")]
pub fn is_back(fault: Fault) -> bool {
    BACK.get() == Some(fault)
}

/// True if this fault has been reintroduced.
#[cfg(not(feature = "faults"))]
pub const fn is_back(_: Fault) -> bool {
    false
}
