//! Errors of writing events.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why an event could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BoardError {
    /// The directory for event files cannot be created or listed.
    #[error("cannot use directory {} for event files: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The event file cannot be created.
    #[error("cannot create event file {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Events could not be written. The buffered events are lost, the file stays valid, and later writes may succeed.
    #[error("cannot write to event file {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A picture is not a PNG file.
    #[error("cannot write image {tag:?} to {}: not a PNG file", path.display())]
    NotPng {
        /// The file.
        path: PathBuf,
        /// The image's name.
        tag: String,
    },
    /// A value has no name.
    #[error("cannot write a value with an empty tag to {}", path.display())]
    EmptyTag {
        /// The file.
        path: PathBuf,
    },
    /// The name of a value is too long for TensorBoard to request.
    #[error("cannot write tag {start:?}… of {length} bytes to {}, the longest is {limit}", path.display())]
    LongTag {
        /// The file.
        path: PathBuf,
        /// The beginning of the tag.
        start: String,
        /// The tag's length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
}
