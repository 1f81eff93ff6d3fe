//! What can go wrong with a run directory.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why nothing can be said of, or done with, a directory.
#[derive(Debug, Error)]
pub enum RunsError {
    /// There is nothing of that name.
    #[error("there is no directory {}", .path.display())]
    Missing {
        /// The name.
        path: PathBuf,
    },
    /// It is a file, or a link.
    #[error("{} is {what}", .path.display())]
    NotADirectory {
        /// Its name.
        path: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// It may not be read.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It has none of the files that a run leaves.
    #[error("{} is not a run directory: {why}", .path.display())]
    NotARun {
        /// The directory.
        path: PathBuf,
        /// How that is known.
        why: String,
    },
    /// Its run lives, or may live.
    #[error("the run in {} is active: {by}", .path.display())]
    Active {
        /// The directory.
        path: PathBuf,
        /// Who runs it.
        by: String,
    },
    /// Other runs would be removed with it.
    #[error("{} holds other runs, such as {}", .path.display(), .inner.display())]
    HoldsOthers {
        /// The directory.
        path: PathBuf,
        /// One of the runs in it.
        inner: PathBuf,
    },
    /// Files would be removed with it that no run has left.
    #[error("{} holds more than a run: {}", .path.display(), .entry.display())]
    HoldsMore {
        /// The directory.
        path: PathBuf,
        /// The first of those files or directories.
        entry: PathBuf,
    },
    /// Nothing says whether its run lives.
    #[error("cannot tell whether the run in {} is active: {why}", .path.display())]
    Unclear {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// It is where somebody works.
    #[error("{} is, or holds, the working directory", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be removed.
    #[error("cannot remove {}: {error}", .path.display())]
    NotRemoved {
        /// The directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl RunsError {
    /// What to do about it.
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
