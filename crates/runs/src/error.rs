//! What can go wrong with a run directory.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a run directory cannot be read or removed.
#[derive(Debug, Error)]
pub enum RunsError {
    /// The path does not exist.
    #[error("there is no directory {}", .path.display())]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The path is a file, or a link.
    #[error("{} is {what}", .path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The directory has none of the files that a run leaves.
    #[error("{} is not a run directory: {why}", .path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// Why it is not a run directory.
        why: String,
    },
    /// Its run is alive, or may be.
    #[error("the run in {} is active: {by}", .path.display())]
    Active {
        /// The directory.
        path: PathBuf,
        /// The process that runs it, in words.
        by: String,
    },
    /// Removing the directory would remove other runs, too.
    #[error("{} holds other runs, such as {}", .path.display(), .inner.display())]
    HoldsOthers {
        /// The directory.
        path: PathBuf,
        /// One of the runs in it.
        inner: PathBuf,
    },
    /// Removing the directory would remove files that no run has left.
    #[error("{} holds more than a run: {}", .path.display(), .entry.display())]
    HoldsMore {
        /// The directory.
        path: PathBuf,
        /// The first of those files or directories.
        entry: PathBuf,
    },
    /// It cannot be determined whether the run is alive.
    #[error("cannot tell whether the run in {} is active: {why}", .path.display())]
    Unclear {
        /// The directory.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The directory is, or contains, the current working directory.
    #[error("{} is, or holds, the working directory", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be removed.
    #[error("cannot remove {}: {error}", .path.display())]
    NotRemoved {
        /// The directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

impl RunsError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Missing { .. } | Self::NotARun { .. } => {
                Some("`runs list DIR` shows the run directories below a directory")
            }
            Self::Active { .. } => Some("end the run first"),
            Self::HoldsOthers { .. } => Some("remove those first, or move them"),
            Self::HoldsMore { .. } => Some("move that elsewhere first, or remove the files of the run by hand"),
            Self::Unclear { .. } => Some("if the run has ended, remove the directory by hand"),
            Self::InUse { .. } => Some("change to another directory first"),
            Self::NotADirectory { .. } | Self::Unreadable { .. } | Self::NotRemoved { .. } => None,
        }
    }
}
