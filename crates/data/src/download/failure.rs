//! Errors of a download: of one attempt, and of the whole.
//!
//! Also decides which failures are worth retrying, but does not retry.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a data set could not be downloaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// The data set is unknown.
    #[error("there is no data set {name:?} to download, expected one of: {known}")]
    UnknownDataset {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The address of a mirror is invalid.
    #[error("cannot download from {url:?}, expected an address such as https://example.org/mnist/")]
    BaseUrl {
        /// The address.
        url: String,
    },
    /// The directory cannot be created.
    #[error("cannot create directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the same name with different content exists.
    #[error("{} already exists with different content: expected sha-256 {expected}, got {got}\nhint: remove it or choose another directory", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// The expected checksum.
        expected: String,
        /// The actual checksum.
        got: String,
    },
    /// Another process is downloading the same file to the same place.
    #[error("{} is being written by another download\nhint: wait for it, or stop it", path.display())]
    Busy {
        /// The partial file.
        path: PathBuf,
    },
    /// No mirror had a correct copy.
    #[error("cannot download {file}: {}\nhint: name another mirror with --base-url, or copy the file to {}", list(failures), directory.display())]
    NoMirror {
        /// The file's name.
        file: String,
        /// The target directory.
        directory: PathBuf,
        /// The failure at each mirror, in order.
        failures: Vec<MirrorFailure>,
    },
}

/// How the last attempt at a mirror failed.
#[derive(Debug, Error)]
#[error("{url}: {error}")]
pub struct MirrorFailure {
    /// The address of the file there.
    pub url: String,
    /// Why it failed.
    pub error: AttemptError,
}

fn list(failures: &[MirrorFailure]) -> String {
    let failures: Vec<String> = failures.iter().map(MirrorFailure::to_string).collect();
    failures.join("; ")
}

/// Why one request for a file failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttemptError {
    /// There was no response.
    #[error("no answer: {0}")]
    NoAnswer(Box<ureq::Error>),
    /// The server answered, but not with the file.
    #[error("the server answered with status {0}, expected 200 or 206")]
    Status(u16),
    /// The server did not resume where an earlier attempt ended, or sent another range.
    #[error("the server did not resume from byte {from}")]
    Range {
        /// The byte to resume from.
        from: u64,
    },
    /// The connection ended or stalled before the file did.
    #[error("the connection broke: expected {expected} bytes, got {got}{}", reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default())]
    CutShort {
        /// The file's size in bytes.
        expected: u64,
        /// Bytes present now.
        got: u64,
        /// The system's error, unless the connection simply ended.
        reason: Option<io::Error>,
    },
    /// The server has a file of another size.
    #[error("the server has a different file: expected {expected} bytes, got {got}")]
    Size {
        /// The expected size in bytes.
        expected: u64,
        /// Bytes announced or sent.
        got: u64,
    },
    /// The file is complete, but its content is wrong.
    #[error("wrong checksum: expected sha-256 {expected}, got {got}")]
    Checksum {
        /// The expected checksum.
        expected: String,
        /// The actual checksum.
        got: String,
        /// Whether an earlier attempt downloaded its beginning.
        resumed: bool,
    },
}

impl AttemptError {
    /// Whether the same request may succeed a little later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            AttemptError::NoAnswer(error) => matches!(
                **error,
                ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_)
            ),
            AttemptError::Status(status) => matches!(status, 408 | 429 | 500..=599),
            AttemptError::Range { .. } | AttemptError::CutShort { .. } => true,
            AttemptError::Size { .. } => false,
            // The beginning may belong to another file: the next attempt starts from zero.
            AttemptError::Checksum { resumed, .. } => *resumed,
        }
    }
}
