//! The errors of checkpoints, worded for the person who has to fix them.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::ops::Range;

use thiserror::Error;
use windlass_core::parameter::ParameterSpec;

use crate::id::CheckpointId;

/// Why a checkpoint cannot be written, found or restored.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The location cannot be opened.
    #[error("cannot keep checkpoints in `{location}`: {reason}")]
    BadLocation {
        /// As it was given.
        location: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The disk is full.
    #[error("no space left in `{location}` for `{object}`: free some, or keep fewer checkpoints")]
    Full {
        /// The store.
        location: String,
        /// What was being written.
        object: String,
    },
    /// The store may be read but not written.
    #[error("`{location}` does not allow writing `{object}`: {reason}")]
    NotWritable {
        /// The store.
        location: String,
        /// What was being written.
        object: String,
        /// The error of the store.
        reason: String,
    },
    /// The directory or its contents have gone since the run began.
    #[error("`{location}` has changed since this run started: has it been removed, emptied or unmounted?")]
    Vanished {
        /// The store.
        location: String,
    },
    /// The store does not allow reading, listing or removing.
    #[error("cannot {action} `{object}` in `{location}`: {reason}")]
    Denied {
        /// The store.
        location: String,
        /// The operation.
        action: &'static str,
        /// The object.
        object: String,
        /// The error of the store.
        reason: String,
    },
    /// The store failed in another way.
    #[error("cannot {action} `{object}` in `{location}`: {reason}")]
    Store {
        /// The store.
        location: String,
        /// The operation.
        action: &'static str,
        /// The object.
        object: String,
        /// The error of the store.
        reason: String,
    },
    /// There is no such checkpoint.
    #[error("there is no checkpoint {id} in `{location}`")]
    NotFound {
        /// The store.
        location: String,
        /// The id that was asked for.
        id: CheckpointId,
    },
    /// There is no usable checkpoint.
    #[error("there is no whole checkpoint in `{location}`")]
    NoneWhole {
        /// The store.
        location: String,
    },
    /// There are checkpoints, and none of them can be used.
    #[error(
        "{} damaged (the newest, {newest}: {error}); `windlass checkpoint verify {location}` shows what is \
         wrong with them; pass --resume never to start from scratch and keep them",
        if *.count == 1 { format!("the only checkpoint in `{location}` is") } else { format!("all {count} checkpoints in `{location}` are") }
    )]
    AllDamaged {
        /// The store.
        location: String,
        /// How many there are.
        count: usize,
        /// The newest checkpoint.
        newest: CheckpointId,
        /// What is wrong with it.
        error: Box<CheckpointError>,
    },
    /// Another run, which is still alive, writes its checkpoints here.
    #[error(
        "`{location}` is in use by another run: {holder} has held it since {} UTC; end that run first, or force \
         it with --take-over, which ends that run",
        time(*.since)
    )]
    Held {
        /// The store.
        location: String,
        /// The holder.
        holder: String,
        /// Since when, in seconds since 1970.
        since: u64,
    },
    /// A manifest that cannot be read.
    #[error("`{object}` is not a manifest: {reason}")]
    BadManifest {
        /// The manifest.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A manifest was written by a later version of this program.
    #[error("`{object}` has format {format}, and this version reads up to {supported}: upgrade windlass")]
    LaterFormat {
        /// The manifest.
        object: String,
        /// Its format.
        format: u64,
        /// The last format this version reads.
        supported: u32,
    },
    /// A part is not as it was written.
    #[error("`{object}` {damage}")]
    Damaged {
        /// The part.
        object: String,
        /// What is wrong with it.
        damage: Damage,
    },
    /// Another coordinator has taken over.
    #[error("generation {newest} has taken over from generation {generation}, which can no longer publish")]
    Fenced {
        /// The generation that was refused.
        generation: u64,
        /// The newest that was claimed.
        newest: u64,
    },
    /// The manifest of this attempt is there already.
    #[error("checkpoint {id} has already been published")]
    AlreadyPublished {
        /// The attempt.
        id: CheckpointId,
    },
    /// The run continued from an earlier checkpoint before this one was published.
    #[error("checkpoint {id} was abandoned: the run continues from an earlier one")]
    GivenUp {
        /// The attempt.
        id: CheckpointId,
    },
    /// The checkpoint is of another model.
    #[error("checkpoint {id} does not fit: {}", describe_misfit(*.index, .expected.as_deref(), .found.as_deref()))]
    DoesNotFit {
        /// The checkpoint.
        id: CheckpointId,
        /// The position of the first parameter that differs.
        index: usize,
        /// That parameter of the model, if it has one.
        expected: Option<Box<ParameterSpec>>,
        /// That parameter of the checkpoint, if it has one.
        found: Option<Box<ParameterSpec>>,
    },
    /// The checkpoint's optimizer state is of no use to this optimizer.
    #[error(
        "checkpoint {id} holds the state of `{found}`, not of `{expected}`: train with `{found}`, or pass --resume never"
    )]
    OptimizerDiffers {
        /// The checkpoint.
        id: CheckpointId,
        /// The optimizer of the run.
        expected: &'static str,
        /// The optimizer of the checkpoint.
        found: &'static str,
    },
    /// The data written to a part do not match its layout.
    #[error("`{object}` {reason}")]
    WrongContents {
        /// The part.
        object: String,
        /// How it differs.
        reason: String,
    },
    /// A file of exported values cannot be written.
    #[error("cannot export to `{path}`: {source}")]
    Export {
        /// The file.
        path: String,
        /// The cause.
        source: io::Error,
    },
}

impl CheckpointError {
    /// True if this checkpoint is damaged, so that an older one should be tried.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::BadManifest { .. } | Self::Damaged { .. })
    }

    /// How to continue without this checkpoint, if it is damaged.
    pub fn hint(&self) -> Option<&'static str> {
        self.is_damage().then_some("`windlass checkpoint list` shows the others; name the .json file of one of them")
    }

    /// Returns the error and its hint, if there is one, in one sentence.
    pub fn with_hint(&self) -> String {
        self.hint().map_or_else(|| self.to_string(), |hint| format!("{self}; {hint}"))
    }

    /// True if the failure may be temporary, or may be fixed while tasks wait.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Full { .. } | Self::Store { .. })
    }

    /// Converts the system's error on opening or creating a directory. A disk that fails temporarily does not make the
    /// location invalid.
    pub(crate) fn opening(location: &str, error: &io::Error) -> Self {
        let (location, object) = (location.to_owned(), "/".to_owned());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { location, object },
            io::ErrorKind::NotADirectory
            | io::ErrorKind::AlreadyExists
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::InvalidFilename
            | io::ErrorKind::InvalidInput => {
                let reason = format!("{error}; give a directory that can be created and written");
                Self::BadLocation { location, reason }
            }
            _ => Self::Store { location, action: "open", object, reason: error.to_string() },
        }
    }

    /// Converts the store's error on writing to a case that the user can act upon.
    pub(crate) fn writing(location: &str, object: &str, error: object_store::Error) -> Self {
        let (location, object, reason) = (location.to_owned(), object.to_owned(), innermost(&error));
        let refused =
            matches!(error, object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. });
        match io_kind(&error) {
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Self::Full { location, object },
            Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                Self::NotWritable { location, object, reason }
            }
            _ if refused => Self::NotWritable { location, object, reason },
            Some(io::ErrorKind::NotFound) => Self::Vanished { location },
            _ => Self::Store { location, action: "write", object, reason },
        }
    }

    /// Converts the store's error on reading, listing or removing.
    pub(crate) fn store(location: &str, action: &'static str, object: &str, error: &object_store::Error) -> Self {
        let (location, object, reason) = (location.to_owned(), object.to_owned(), innermost(error));
        match is_denied(error) {
            true => Self::Denied { location, action, object, reason },
            false => Self::Store { location, action, object, reason },
        }
    }
}

/// What is wrong with a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// The part is missing.
    Missing,
    /// The part's size differs from what was written.
    WrongSize {
        /// The size when it was written.
        expected: u64,
        /// The current size.
        found: u64,
    },
    /// Some bytes differ from what was written.
    Edited {
        /// The bytes of the chunk whose checksum differs.
        bytes: Range<u64>,
    },
    /// The header cannot be read.
    Header {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Missing => write!(formatter, "is missing"),
            Damage::WrongSize { expected, found: 0 } => write!(formatter, "is empty instead of {expected} bytes long"),
            Damage::WrongSize { expected, found } if found < expected => {
                write!(formatter, "is truncated: {found} of {expected} bytes")
            }
            Damage::WrongSize { expected, found } => write!(formatter, "has {found} bytes instead of {expected}"),
            Damage::Edited { bytes } => {
                write!(formatter, "was changed after it was written: bytes {}..{} differ", bytes.start, bytes.end)
            }
            Damage::Header { reason } => write!(formatter, "has an unreadable header: {reason}"),
        }
    }
}

fn describe_misfit(index: usize, expected: Option<&ParameterSpec>, found: Option<&ParameterSpec>) -> String {
    let shape = ParameterSpec::describe;
    match (expected, found) {
        (Some(expected), Some(found)) if expected.name == found.name => {
            format!("`{}` is {} in the model and {} in the checkpoint", expected.name, shape(expected), shape(found))
        }
        (Some(expected), Some(found)) => format!(
            "parameter {index} is `{}` {} in the model and `{}` {} in the checkpoint",
            expected.name,
            shape(expected),
            found.name,
            shape(found)
        ),
        (Some(expected), None) => format!("the checkpoint lacks `{}` {}", expected.name, shape(expected)),
        (None, Some(found)) => format!("the model has no `{}` {}", found.name, shape(found)),
        (None, None) => "the tables differ".to_owned(),
    }
}

/// Seconds since 1970 as a date and a time of day.
fn time(seconds: u64) -> String {
    chrono::DateTime::from_timestamp(seconds as i64, 0)
        .map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%d %H:%M:%S").to_string())
}

/// Returns the kind of the system error at the root of a store's error, if there is one.
fn io_kind(error: &object_store::Error) -> Option<io::ErrorKind> {
    causes(error).find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind)
}

/// True if the store denies access, which is not a temporary failure.
fn is_denied(error: &object_store::Error) -> bool {
    let refused =
        matches!(error, object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. });
    refused || io_kind(error) == Some(io::ErrorKind::PermissionDenied)
}

/// The store's most precise text: its outer errors repeat the inner ones.
fn innermost(error: &object_store::Error) -> String {
    let outer = error.to_string();
    match causes(error).last().map(ToString::to_string) {
        Some(inner) if !outer.contains(&inner) => format!("{outer}: {inner}"),
        _ => outer,
    }
}

fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
