//! Old faults, put back one at a time by a test that has to find them. Without the feature `faults`, which only the
//! simulation asks for, none can be.

/// A fault that was fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A server that holds nothing has a part in checkpoints.
    EmptyServerInCut,
    /// When a server and the chief are lost together, no other worker becomes chief.
    ChiefLostWithServer,
    /// A process that was declared dead while it was suspended is not told, and does not rejoin.
    SleeperNotDismissed,
    /// A thread that still reads an abandoned cut takes the copies of the next one.
    TornSnapshot,
    /// A server that was told to stop and loses its connection comes back as another process, without its part of the last
    /// checkpoint.
    StoppedServerForgotten,
    /// While a run rolls back, workers that were told to stop are waited for.
    StoppedWorkersAwaited,
    /// A server that is lost while the last checkpoint of a run that went well is written ends the run.
    LostWhileSaving,
    /// A server that was told to stop and dies while the last checkpoint is written is not missed.
    StoppedServerNotMissed,
    /// A server that is lost while the last checkpoint is published is missed, though its part is written.
    NeededWhilePublished,
    /// A run that loses a server rolls back to the checkpoint that it began from, though it has published others.
    OlderCheckpointRestored,
    /// With an open number of workers, one that joins and leaves before the run begins is waited for.
    EarlyWorkerAwaited,
}

#[cfg(feature = "faults")]
thread_local! {
    static BACK: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Puts a fault back for this thread, or fixes it again.
#[cfg(feature = "faults")]
pub fn put_back(fault: Option<Fault>) {
    BACK.set(fault);
}

/// True if this fault has been put back.
#[cfg(feature = "faults")]
pub fn is_back(fault: Fault) -> bool {
    BACK.get() == Some(fault)
}

/// True if this fault has been put back.
#[cfg(not(feature = "faults"))]
pub const fn is_back(_: Fault) -> bool {
    false
}
