//! How a run ends: its exit code and the reason. When it ends is decided elsewhere.

/// How a run ended, for every process's exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The exit code.
    pub exit_code: u8,
    /// The reason, if the run was not successful.
    pub reason: String,
}

impl Outcome {
    /// Training ended successfully.
    pub fn done() -> Self {
        Self { exit_code: 0, reason: String::new() }
    }

    /// A process was told to stop.
    pub fn told_to_stop() -> Self {
        Self { exit_code: exit_code::TERMINATED, reason: "told to stop".to_owned() }
    }
}

/// The phrase in the reason of a run whose last checkpoint could not be written.
pub const NOT_SAVED: &str = "the last checkpoint could not be written";

/// Exit codes of a task that did not succeed, as users see them.
pub mod exit_code {
    /// An internal failure that is not the user's fault.
    pub const INTERNAL: u8 = 1;
    /// Bad usage or configuration.
    pub const USAGE: u8 = 2;
    /// The loss is no longer a number.
    pub const NUMERIC: u8 = 3;
    /// The checkpoint does not fit the run, or the last one could not be written.
    pub const CHECKPOINT: u8 = 4;
    /// Gave up waiting for a peer.
    pub const PEERS: u8 = 5;
    /// Drained after SIGTERM.
    pub const TERMINATED: u8 = 143;
}
