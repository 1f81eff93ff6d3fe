//! The file names in a run directory.

use std::ffi::OsStr;

use windlass_page::STATUS_FILE;

/// All settings of the run.
pub const RUN_FILE: &str = "run.toml";
/// Locked while the run is alive.
pub const LOCK_FILE: &str = ".lock";
/// The run in numbers, written once it has finished.
pub const SUMMARY_FILE: &str = "summary.json";
/// The directory of checkpoints, unless they are stored elsewhere.
pub const CHECKPOINTS: &str = "checkpoints";
/// The loss and the scores over time.
pub const HISTORY_FILE: &str = "history.jsonl";
/// Where `launch` creates run directories by default.
pub const RUNS: &str = "runs";

/// Everything else that a run, or the comparison that started it, leaves under a fixed name. Earlier versions wrote
/// `translator.json`.
const OTHERS: [&str; 9] = [
    STATUS_FILE,
    "utilization.jsonl",
    "utilization.earlier.jsonl",
    "hang-report.txt",
    "tensorboard",
    "client.log",
    "compare.json",
    "compare.log",
    "translator.json",
];

/// Whether this is the name of an entry that a run creates in its directory.
pub(crate) fn is_of_a_run(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    [RUN_FILE, LOCK_FILE, SUMMARY_FILE, CHECKPOINTS, HISTORY_FILE].contains(&name)
        || OTHERS.contains(&name)
        || is_log_of_a_task(name)
        // A temporary file whose process was killed while writing it.
        || name.starts_with(".windlass-") && name.ends_with(".part")
}

/// Whether this is a name such as `ps-0.log`.
fn is_log_of_a_task(name: &str) -> bool {
    let task = name.strip_suffix(".log").and_then(|task| task.split_once('-'));
    task.is_some_and(|(job, index)| ["ps", "worker"].contains(&job) && index.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_leaves_is_told_from_what_it_does_not() {
        let is = |name: &str| is_of_a_run(OsStr::new(name));
        for name in
            [".lock", "run.toml", "status.json", "worker-12.log", "client.log", ".windlass-Ab3.part", "tensorboard"]
        {
            assert!(is(name), "{name}");
        }
        for name in [".git", "main.rs", "worker-.log", "server-0.log", "notes.log", "runs", ".windlass-notes"] {
            assert!(!is(name), "{name}");
        }
    }
}
