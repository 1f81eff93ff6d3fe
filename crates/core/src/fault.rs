//! Old faults, to be put back one at a time by a test that is to find them. Without the feature `faults`, which only the
//! simulation asks for, none can be.

/// A fault that was mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A server that holds nothing has a part in checkpoints.
    EmptyServerInCut,
    /// When a server and the chief are lost together, nobody else becomes chief.
    ChiefLostWithServer,
    /// Who was declared dead while it slept is not told, and does not join again.
    SleeperNotDismissed,
    /// Whoever still reads a cut that was given up takes the copies of the next one.
    TornSnapshot,
    /// A server that was told to stop and loses its connection comes back as another process, without its part of the last
    /// checkpoint.
    StoppedServerForgotten,
    /// While a run goes back to a checkpoint, workers that were told to stop are waited for.
    StoppedWorkersAwaited,
    /// A server that is lost while the last checkpoint of a run that went well is written ends the run.
    LostWhileSaving,
    /// A server that was told to stop and dies while the last checkpoint is written is not missed.
    StoppedServerNotMissed,
    /// A server that is lost while the last checkpoint is published is missed, though its part is written.
    NeededWhilePublished,
    /// A run that loses a server rolls back to the checkpoint that it began from, though it has published others.
    OlderCheckpointRestored,
    /// A worker that nobody has asked for is waited for when it comes and goes before the run begins.
    EarlyWorkerAwaited,
}

#[cfg(feature = "faults")]
thread_local! {
    static BACK: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Puts a fault back for this thread, or mends it again.
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
