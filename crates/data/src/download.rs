//! Downloads a data set: which files, from which mirrors, and how often to try.
//!
//! A file gets its own name only once its checksum is verified; until then it is `NAME.part`, from which a later
//! attempt resumes. This module must not replace a file it did not write, print anything, or wait without a limit.

mod failure;
mod sources;
mod transfer;

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

pub use self::failure::{AttemptError, DownloadError, MirrorFailure};
pub use self::sources::{RemoteFile, Source};
use self::transfer::Transfer;

/// Timeouts and numbers of attempts.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// How long to wait for a connection, including name resolution.
    pub connect: Duration,
    /// How long to wait for the response to begin, and then for each further piece of it.
    pub read: Duration,
    /// Attempts per mirror; a missing file is requested only once.
    pub attempts: u32,
    /// The wait after the first failed attempt; it doubles with each further one.
    pub backoff: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            attempts: 4,
            backoff: Duration::from_millis(500),
        }
    }
}

/// An event during a download, for progress reports.
#[derive(Debug)]
#[non_exhaustive]
pub enum DownloadEvent<'a> {
    /// The file already exists and is correct.
    Present {
        /// The file's name.
        file: &'a str,
    },
    /// Part of the file is present; the first such event of a resumed file is above 0.
    Received {
        /// The file's name.
        file: &'a str,
        /// Bytes present so far; falls back to 0 if the file has to be restarted.
        received: u64,
        /// The file's size in bytes.
        total: u64,
    },
    /// An attempt failed.
    Failed {
        /// The file's name.
        file: &'a str,
        /// The address of the request.
        url: &'a str,
        /// Why it failed.
        error: &'a AttemptError,
        /// How long until the next attempt at this mirror; `None` if it is given up.
        wait: Option<Duration>,
    },
    /// The file is complete and verified, and has its final name.
    Finished {
        /// The file's name.
        file: &'a str,
    },
}

/// Counts of files in a download.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DownloadCounts {
    /// Files that already existed.
    pub present: usize,
    /// Files that were downloaded.
    pub downloaded: usize,
}

/// Downloads `dataset` into `directory`, from `base_url` if given and otherwise from the public mirrors. Events are
/// passed to `report`.
///
/// The environment's `ALL_PROXY`, `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` are respected.
///
/// # Errors
/// Fails if the data set is unknown, a different file of the same name exists, the directory cannot be written, or no
/// mirror has a correct copy of some file.
pub fn download(
    dataset: &str,
    directory: &Path,
    base_url: Option<&str>,
    report: &mut dyn FnMut(DownloadEvent<'_>),
) -> Result<DownloadCounts, DownloadError> {
    let mut source = Source::named(dataset)?;
    if let Some(base_url) = base_url {
        source.mirrors = vec![base_url.to_owned()];
    }
    download_from(&source, directory, &RetryPolicy::default(), report)
}

/// Downloads the files of any source: see [`download`].
///
/// # Errors
/// Fails like [`download`].
pub fn download_from(
    source: &Source,
    directory: &Path,
    patience: &RetryPolicy,
    report: &mut dyn FnMut(DownloadEvent<'_>),
) -> Result<DownloadCounts, DownloadError> {
    source.check()?;
    fs::create_dir_all(directory)
        .map_err(|source| DownloadError::Directory { path: directory.to_path_buf(), source })?;
    // Check all files before the first request: nothing is fetched if another file has one of their names.
    let mut missing = Vec::new();
    for file in &source.files {
        if is_present(file, &directory.join(&file.name))? {
            report(DownloadEvent::Present { file: &file.name });
        } else {
            missing.push(file);
        }
    }
    for file in &missing {
        let transfers = source.mirrors.iter();
        let transfers = transfers.map(|mirror| Transfer::new(file, mirror, directory, patience));
        if let Err(failures) = first_success(transfers, patience, report)? {
            return Err(DownloadError::NoMirror {
                file: file.name.clone(),
                directory: directory.to_path_buf(),
                failures,
            });
        }
        report(DownloadEvent::Finished { file: &file.name });
    }
    Ok(DownloadCounts { present: source.files.len() - missing.len(), downloaded: missing.len() })
}

/// Whether the correct file exists. Fails if a different file has its name.
fn is_present(file: &RemoteFile, path: &Path) -> Result<bool, DownloadError> {
    let unreadable = |source| DownloadError::File { path: path.to_path_buf(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unreadable(error)),
        Ok(_) => {}
    }
    let got = sources::digest_of(path).map_err(unreadable)?;
    if got == file.sha256 {
        return Ok(true);
    }
    Err(DownloadError::InTheWay { path: path.to_path_buf(), expected: file.sha256.clone(), got })
}

/// Tries the mirrors of a file in order until one succeeds.
fn first_success<'a>(
    transfers: impl Iterator<Item = Transfer<'a>>,
    patience: &RetryPolicy,
    report: &mut dyn FnMut(DownloadEvent<'_>),
) -> Result<Result<(), Vec<MirrorFailure>>, DownloadError> {
    let mut failures = Vec::new();
    for transfer in transfers {
        match try_repeatedly(&transfer, patience, report)? {
            Ok(()) => return Ok(Ok(())),
            Err(error) => failures.push(MirrorFailure { url: transfer.url, error }),
        }
    }
    Ok(Err(failures))
}

/// Tries one mirror as often as the policy and the kind of failure allow.
fn try_repeatedly(
    transfer: &Transfer<'_>,
    patience: &RetryPolicy,
    report: &mut dyn FnMut(DownloadEvent<'_>),
) -> Result<Result<(), AttemptError>, DownloadError> {
    let mut attempt = 1;
    loop {
        let Err(error) = transfer.run(report)? else {
            return Ok(Ok(()));
        };
        let again = attempt < patience.attempts && error.may_pass();
        let wait = again.then(|| patience.backoff * 2u32.saturating_pow(attempt - 1));
        report(DownloadEvent::Failed { file: &transfer.file.name, url: &transfer.url, error: &error, wait });
        let Some(wait) = wait else {
            return Ok(Err(error));
        };
        std::thread::sleep(wait);
        attempt += 1;
    }
}
