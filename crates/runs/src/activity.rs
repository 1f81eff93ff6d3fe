//! Whether the run of a directory is alive: judged by its lock, then by its claim on its checkpoints, and without either
//! by the age of its status.
//!
//! The lock is held by the launcher, by a run in one process, or by the coordinator's task in a cluster whose tasks were
//! started one by one. On some network file systems other machines do not see locks, and a run that took over another's
//! directory may have none.

use std::fs::TryLockError;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use windlass_checkpoint::Occupancy;
use windlass_page::LastStatus;

use crate::checkpoints;
use crate::files;
use crate::names::LOCK_FILE;

/// A live run writes its status every second; the clocks of other machines may be slightly off.
const STATUS_IS_FRESH_SECS: u64 = 15;

/// Whether a run is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Activity {
    /// The run is alive.
    Active {
        /// The process that runs it, in words.
        by: String,
    },
    /// It was run by a process of another machine that has not recorded an end.
    Unknown {
        /// That process, in words.
        by: String,
    },
    /// The run is not alive.
    Inactive,
}

/// Whether the run of a directory is alive, as far as that can be determined without waiting.
pub fn activity(directory: &Path) -> Activity {
    if is_locked(directory) {
        return Activity::Active { by: "a process of this machine holds its lock".to_owned() };
    }
    match checkpoints::occupancy(directory) {
        Ok(Some(Occupancy::Held(holder))) => Activity::Active { by: holder.describe() },
        Ok(Some(Occupancy::Elsewhere(holder))) => Activity::Unknown { by: holder.describe() },
        Ok(Some(Occupancy::Free)) => Activity::Inactive,
        Ok(None) | Err(_) => fresh_status(directory).map_or(Activity::Inactive, |by| Activity::Active { by }),
    }
}

/// The age of the status, in words, if it was written just now and records no end: the run is alive, or was a moment
/// ago.
pub(crate) fn fresh_status(directory: &Path) -> Option<String> {
    let LastStatus { written, exit_code, .. } = files::read_status(directory).ok().flatten()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let is_fresh = exit_code.is_none() && now.abs_diff(written) < STATUS_IS_FRESH_SECS;
    is_fresh.then(|| format!("its status was written {} s ago", now.saturating_sub(written)))
}

/// Whether a process holds the lock. Briefly takes a shared lock, which does not disturb others that only check.
fn is_locked(directory: &Path) -> bool {
    let Ok(file) = files::open(&directory.join(LOCK_FILE)) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

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
