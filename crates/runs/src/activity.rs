//! Whether the run of a directory lives: by the lock that it holds, and by its claim on its checkpoints.
//!
//! The lock is that of the launcher, or of a run in one process. A cluster whose tasks were started one by one has only
//! the claim, and so has a run that took over another's directory.

use std::fs::{File, TryLockError};
use std::path::Path;

use serde::Serialize;
use windlass_checkpoint::Occupancy;

use crate::checkpoints;
use crate::names::LOCK_FILE;

/// Whether a run lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Activity {
    /// It lives.
    Active {
        /// Who runs it, in words.
        by: String,
    },
    /// It was run by a process of another machine, which has not said that it ended.
    Unknown {
        /// That process, in words.
        by: String,
    },
    /// It does not.
    Inactive,
}

/// Whether the run of a directory lives, as far as that can be told at once.
pub fn activity(directory: &Path) -> Activity {
    if is_locked(directory) {
        return Activity::Active { by: "a process of this machine holds its lock".to_owned() };
    }
    match checkpoints::occupancy(directory) {
        Some(Occupancy::Held(holder)) => Activity::Active { by: holder.describe() },
        Some(Occupancy::Elsewhere(holder)) => Activity::Unknown { by: holder.describe() },
        Some(Occupancy::Free) | None => Activity::Inactive,
    }
}

/// Whether a process holds the lock. The look takes a shared lock for a moment, which nobody who only looks minds.
fn is_locked(directory: &Path) -> bool {
    let Ok(file) = File::open(directory.join(LOCK_FILE)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_active_for_as_long_as_its_lock_is_held() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(activity(directory.path()), Activity::Inactive);
        let lock = File::create(directory.path().join(LOCK_FILE)).unwrap();
        assert_eq!(activity(directory.path()), Activity::Inactive, "a lock that was left behind");
        lock.try_lock().unwrap();
        assert!(matches!(activity(directory.path()), Activity::Active { .. }));
        drop(lock);
        assert_eq!(activity(directory.path()), Activity::Inactive);
    }

    #[test]
    fn looking_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        activity(directory.path());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
