//! Removes a run directory, unless its run is alive or the directory holds other files: files that no run writes belong
//! to the user and are never removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use windlass_checkpoint::Occupancy;

use crate::activity::fresh_status;
use crate::checkpoints;
use crate::error::RunsError;
use crate::find::{is_run_dir, must_be_run_dir, subdirectories};
use crate::names::{self, LOCK_FILE};
use crate::run::Run;

/// A run directory that may be removed. While this exists, no other run can begin in it.
#[derive(Debug)]
pub struct Removal {
    /// The run.
    pub run: Run,
    /// The location of its checkpoints if they are outside the directory and therefore remain.
    pub remaining: Option<String>,
    _lock: Option<File>,
}

/// A run directory that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The directory.
    pub path: PathBuf,
    /// The disk space that it took.
    pub bytes: u64,
}

impl Removal {
    /// Checks that a run directory may be removed. A run that may be alive on another machine is watched for some
    /// seconds.
    ///
    /// # Errors
    /// Fails if it is not a run directory, its run is alive or may be, or it holds more than a run.
    pub fn prepare(path: &Path) -> Result<Self, RunsError> {
        // With a trailing slash, a link would be followed.
        let path: &Path = &path.components().collect::<PathBuf>();
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
        // Read before the lock is taken: our own lock would make the run look alive.
        let run = Run::read(path)?;
        let active = |by: String| RunsError::Active { path: path.to_owned(), by };
        let lock = lock(path).map_err(|()| active("a process of this machine holds its lock".to_owned()))?;
        let living = living(path).map_err(|why| RunsError::Unclear { path: path.to_owned(), why })?;
        if let Some(by) = living {
            return Err(active(by));
        }
        if let Some(entry) = entry_of_another(path, Path::new(&run.checkpoints_in))? {
            return Err(RunsError::HoldsMore { path: path.to_owned(), entry });
        }
        let remaining = is_elsewhere(&run).then(|| run.checkpoints_in.clone());
        Ok(Self { run, remaining, _lock: lock })
    }

    /// Removes the directory.
    ///
    /// # Errors
    /// Fails if not all of it can be removed.
    pub fn carry_out(self) -> Result<Removed, RunsError> {
        let Run { path, bytes, .. } = self.run;
        match fs::remove_dir_all(&path) {
            Ok(()) => Ok(Removed { path, bytes }),
            Err(error) => Err(RunsError::NotRemoved { path, error }),
        }
    }
}

/// The process that runs it, if any, judged by everything but the lock, which is held here; an error says why that
/// cannot be determined.
fn living(path: &Path) -> Result<Option<String>, String> {
    match checkpoints::watched_occupancy(path) {
        Ok(Some(Occupancy::Held(holder) | Occupancy::Elsewhere(holder))) => Ok(Some(holder.describe())),
        Ok(Some(Occupancy::Free)) => Ok(None),
        Ok(None) => Ok(fresh_status(path)),
        Err(error) => Err(format!("its checkpoints cannot be looked at: {error}")),
    }
}

/// The first entry, by name, that neither belongs to a run nor holds this run's checkpoints.
fn entry_of_another(path: &Path, checkpoints: &Path) -> Result<Option<PathBuf>, RunsError> {
    let unreadable = |error| RunsError::Unreadable { path: path.to_owned(), error };
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>).map_err(unreadable)?;
    let is_same = |entry: &Path| checkpoints.canonicalize().is_ok_and(|store| entry.canonicalize().ok() == Some(store));
    let others = entries.iter().filter(|entry| !names::is_of_a_run(&entry.file_name()));
    Ok(others.map(fs::DirEntry::path).filter(|entry| !is_same(entry)).min())
}

/// Whether the checkpoints of a run are outside its directory, or only linked from it.
fn is_elsewhere(run: &Run) -> bool {
    let (directory, store) = (run.path.canonicalize(), Path::new(&run.checkpoints_in).canonicalize());
    match (directory, store) {
        (Ok(directory), Ok(store)) => !store.starts_with(directory),
        _ => run.checkpoints_in.contains("://"),
    }
}

/// Takes the lock; fails if another process holds it. Returns `None` on a file system without locks.
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

/// Finds a run directory below this one.
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
