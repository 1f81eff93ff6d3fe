//! What the files of a run directory are called.

/// All settings of the run.
pub const RUN_FILE: &str = "run.toml";
/// Locked for as long as the run lives.
pub const LOCK_FILE: &str = ".lock";
/// The run in numbers, once it has come to its end.
pub const SUMMARY_FILE: &str = "summary.json";
/// Where checkpoints are, unless they are kept elsewhere.
pub const CHECKPOINTS: &str = "checkpoints";
/// Where `launch` makes run directories, unless it is told otherwise.
pub const RUNS: &str = "runs";
