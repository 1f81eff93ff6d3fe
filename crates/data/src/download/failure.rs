//! What can go wrong in a download: in one try, and as a whole.
//!
//! Also decides which failures may pass by themselves. It must not act on that.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a data set could not be downloaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DownloadError {
    /// There is no such data set.
    #[error("there is no data set {name:?} to download, expected one of: {known}")]
    UnknownDataset {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The address of a mirror is not one.
    #[error("cannot download from {url:?}, expected an address such as https://example.org/mnist/")]
    BaseUrl {
        /// The address.
        url: String,
    },
    /// The directory cannot be made.
    #[error("cannot create directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("cannot use {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file of that name but with another content is there.
    #[error("{} already exists with different content: expected sha-256 {expected}, got {got}\nhint: remove it or choose another directory", path.display())]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// The checksum it should have.
        expected: String,
        /// The checksum it has.
        got: String,
    },
    /// Another process is downloading the same file to the same place.
    #[error("{} is being written by another download\nhint: wait for it, or stop it", path.display())]
    Busy {
        /// The partial file.
        path: PathBuf,
    },
    /// No mirror had a right copy.
    #[error("cannot download {file}: {}\nhint: name another mirror with --base-url, or copy the file to {}", list(failures), directory.display())]
    NoMirror {
        /// Name of the file.
        file: String,
        /// Where it should have gone.
        directory: PathBuf,
        /// What happened at each mirror in turn.
        failures: Vec<MirrorFailure>,
    },
}

/// How the last try at a mirror failed.
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
    /// No answer came.
    #[error("no answer: {0}")]
    NoAnswer(Box<ureq::Error>),
    /// The server answered, but not with the file.
    #[error("the server answered with status {0}, expected 200 or 206")]
    Status(u16),
    /// The server would not go on from where an earlier try ended, or sent another range.
    #[error("the server did not resume from byte {from}")]
    Range {
        /// Where it should have gone on.
        from: u64,
    },
    /// The connection ended or stalled before the file did.
    #[error("the connection broke: expected {expected} bytes, got {got}{}", reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default())]
    CutShort {
        /// Bytes of the whole file.
        expected: u64,
        /// Bytes there are now.
        got: u64,
        /// What the system said, if it was not a plain end.
        reason: Option<io::Error>,
    },
    /// The server has a file of another size.
    #[error("the server has a different file: expected {expected} bytes, got {got}")]
    Size {
        /// Bytes of the whole file.
        expected: u64,
        /// Bytes announced or sent.
        got: u64,
    },
    /// The file is complete but wrong.
    #[error("wrong checksum: expected sha-256 {expected}, got {got}")]
    Checksum {
        /// The checksum it should have.
        expected: String,
        /// The checksum it had.
        got: String,
        /// Whether its beginning came from an earlier try.
        resumed: bool,
    },
}

impl AttemptError {
    /// Whether the same request may do better a little later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            AttemptError::NoAnswer(error) => matches!(
                **error,
                ureq::Error::Io(_) | ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed | ureq::Error::Protocol(_)
            ),
            AttemptError::Status(status) => matches!(status, 408 | 429 | 500..=599),
            AttemptError::Range { .. } | AttemptError::CutShort { .. } => true,
            AttemptError::Size { .. } => false,
            // The beginning may have been of another file: the next try is from nothing.
            AttemptError::Checksum { resumed, .. } => *resumed,
        }
    }
}
