//! Removing a run directory, unless its run lives or more than the run would go.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use windlass_checkpoint::Occupancy;

use crate::activity::{Activity, activity};
use crate::checkpoints;
use crate::error::RunsError;
use crate::find::{is_run_dir, must_be_run_dir, subdirectories};
use crate::names::LOCK_FILE;
use crate::run::Run;

/// A run directory that may be removed. As long as this is there, no other run begins in it.
#[derive(Debug)]
pub struct Removal {
    /// The run.
    pub run: Run,
    _lock: Option<File>,
}

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The directory.
    pub path: PathBuf,
    /// The room that it took.
    pub bytes: u64,
}

impl Removal {
    /// Checks that a run directory may be removed. A run that another machine may be running is watched for some seconds.
    ///
    /// # Errors
    /// If it is no run directory, its run lives, or it holds more than a run.
    pub fn prepare(path: &Path) -> Result<Self, RunsError> {
        if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(RunsError::NotADirectory { path: path.to_owned(), what: "a link to a directory" });
        }
        must_be_run_dir(path)?;
        if holds_working_directory(path) {
            return Err(RunsError::InUse { path: path.to_owned() });
        }
        if let Some(inner) = run_within(path)? {
            return Err(RunsError::HoldsOthers { path: path.to_owned(), inner });
        }
        let active = |by: String| RunsError::Active { path: path.to_owned(), by };
        let lock = lock(path).map_err(|()| active("a process of this machine holds its lock".to_owned()))?;
        if let Some(by) = living(path) {
            return Err(active(by));
        }
        Ok(Self { run: Run::read(path)?, _lock: lock })
    }

    /// Removes it.
    ///
    /// # Errors
    /// If not all of it can be removed.
    pub fn carry_out(self) -> Result<Removed, RunsError> {
        let Run { path, bytes, .. } = self.run;
        match fs::remove_dir_all(&path) {
            Ok(()) => Ok(Removed { path, bytes }),
            Err(error) => Err(RunsError::NotRemoved { path, error }),
        }
    }
}

/// Who runs it, if somebody does.
fn living(path: &Path) -> Option<String> {
    match activity(path) {
        // The lock is held here.
        Activity::Inactive => None,
        Activity::Active { .. } | Activity::Unknown { .. } => match checkpoints::watched_occupancy(path) {
            Ok(Some(Occupancy::Held(holder) | Occupancy::Elsewhere(holder))) => Some(holder.describe()),
            Ok(Some(Occupancy::Free) | None) => None,
            Err(error) => Some(format!("its checkpoints cannot be looked at: {error}")),
        },
    }
}

/// Takes the lock; fails if another process has it. A file system without locks has none to take.
fn lock(path: &Path) -> Result<Option<File>, ()> {
    let Ok(file) = File::options().write(true).open(path.join(LOCK_FILE)) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(()),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

fn holds_working_directory(path: &Path) -> bool {
    let canonical = |path: io::Result<PathBuf>| path.and_then(|path| path.canonicalize()).ok();
    let (path, working) = (canonical(Ok(path.to_owned())), canonical(std::env::current_dir()));
    path.zip(working).is_some_and(|(path, working)| working.starts_with(path))
}

/// A run in a directory below this one.
fn run_within(path: &Path) -> Result<Option<PathBuf>, RunsError> {
    for directory in subdirectories(path)? {
        if is_run_dir(&directory) {
            return Ok(Some(directory));
        }
        if let Some(found) = run_within(&directory)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
