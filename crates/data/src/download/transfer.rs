//! One request for one file, into its partial file and, if all is correct, on to its final name.
//!
//! Resumes where the partial file ends if the server supports that. Never retries: that is up to the caller.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use ureq::http::{Response, Uri, header};
use ureq::{Agent, Body};

use super::sources::{absorb, hexadecimal};
use super::{AttemptError, DownloadError, DownloadEvent, RemoteFile, RetryPolicy};

/// How many bytes are read from a connection at once.
const PIECE: usize = 1 << 16;

/// A file to fetch from one mirror.
pub(super) struct Transfer<'a> {
    pub(super) url: String,
    pub(super) file: &'a RemoteFile,
    path: PathBuf,
    part: PathBuf,
    agent: Agent,
}

/// A local error ends the download; a mirror's error ends only this attempt.
type AttemptResult<T> = Result<Result<T, AttemptError>, DownloadError>;

impl<'a> Transfer<'a> {
    pub(super) fn new(file: &'a RemoteFile, mirror: &str, directory: &Path, patience: &RetryPolicy) -> Self {
        let url = format!("{}/{}", mirror.trim_end_matches('/'), file.name);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .user_agent(concat!("windlass/", env!("CARGO_PKG_VERSION")))
            // The files are stored compressed, and their checksums are of the compressed bytes.
            .accept_encoding("identity")
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.read))
            .timeout_per_read(Some(patience.read));
        if is_this_machine(&url) {
            config = config.proxy(None);
        }
        Self {
            file,
            path: directory.join(&file.name),
            part: directory.join(format!("{}.part", file.name)),
            agent: config.build().into(),
            url,
        }
    }

    /// Makes one request. If that completes the file, verifies it and gives it its final name.
    pub(super) fn run(&self, report: &mut dyn FnMut(DownloadEvent<'_>)) -> AttemptResult<()> {
        let mut part = PartialFile::open(&self.part, self.file.bytes)?;
        let resumed = part.length > 0;
        if part.length < self.file.bytes
            && let Err(error) = self.receive(&mut part, report)?
        {
            part.remove_if_empty()?;
            return Ok(Err(error));
        }
        self.finish(part, resumed)
    }

    fn receive(&self, part: &mut PartialFile, report: &mut dyn FnMut(DownloadEvent<'_>)) -> AttemptResult<()> {
        let mut request = self.agent.get(&self.url);
        if part.length > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", part.length));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Err(AttemptError::NoAnswer(Box::new(error)))),
        };
        match response.status().as_u16() {
            200 => part.restart()?,
            206 if begins_at(&response) == Some(part.length) => {}
            206 | 416 if part.length > 0 => {
                let from = part.length;
                part.restart()?;
                return Ok(Err(AttemptError::Range { from }));
            }
            status => return Ok(Err(AttemptError::Status(status))),
        }
        self.copy(response.into_body(), part, report)
    }

    fn copy(&self, body: Body, part: &mut PartialFile, report: &mut dyn FnMut(DownloadEvent<'_>)) -> AttemptResult<()> {
        let expected = self.file.bytes;
        if let Some(length) = body.content_length()
            && part.length.saturating_add(length) != expected
        {
            let got = part.length.saturating_add(length);
            part.restart()?;
            return Ok(Err(AttemptError::Size { expected, got }));
        }
        let mut reader = body.into_reader();
        let mut piece = vec![0; PIECE];
        loop {
            report(DownloadEvent::Received { file: &self.file.name, received: part.length, total: expected });
            let reason = match reader.read(&mut piece) {
                Ok(0) if part.length == expected => return Ok(Ok(())),
                Ok(0) => None,
                Ok(count) => {
                    part.append(&piece[..count])?;
                    if part.length > expected {
                        let got = part.length;
                        part.restart()?;
                        return Ok(Err(AttemptError::Size { expected, got }));
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Some(error),
            };
            let got = part.length;
            return Ok(Err(AttemptError::CutShort { expected, got, reason }));
        }
    }

    fn finish(&self, part: PartialFile, resumed: bool) -> AttemptResult<()> {
        let failed = |source| DownloadError::File { path: self.part.clone(), source };
        let got = hexadecimal(part.digest);
        if got != self.file.sha256 {
            fs::remove_file(&self.part).map_err(failed)?;
            return Ok(Err(AttemptError::Checksum { expected: self.file.sha256.clone(), got, resumed }));
        }
        part.file.sync_all().map_err(failed)?;
        fs::rename(&self.part, &self.path).map_err(failed)?;
        Ok(Ok(()))
    }
}

/// The partial file, locked against other processes, and the digest of its contents.
struct PartialFile {
    path: PathBuf,
    file: File,
    length: u64,
    digest: Sha256,
}

impl PartialFile {
    /// Opens what an earlier attempt left, and discards it only if it is longer than the whole file.
    fn open(path: &Path, whole: u64) -> Result<Self, DownloadError> {
        let mut part = Self {
            file: File::options()
                .read(true)
                .append(true)
                .create(true)
                .open(path)
                .map_err(|source| DownloadError::File { path: path.to_path_buf(), source })?,
            path: path.to_path_buf(),
            length: 0,
            digest: Sha256::new(),
        };
        // Some network file systems do not support locks; the checksum still guards the result there.
        if let Err(TryLockError::WouldBlock) = part.file.try_lock() {
            return Err(DownloadError::Busy { path: part.path });
        }
        part.length = part.file.metadata().map_err(|source| part.failed(source))?.len();
        if part.length > whole {
            part.restart()?;
        }
        absorb(&mut part.digest, &mut part.file).map_err(|source| part.failed(source))?;
        Ok(part)
    }

    fn restart(&mut self) -> Result<(), DownloadError> {
        self.file.set_len(0).map_err(|source| self.failed(source))?;
        self.file.seek(SeekFrom::Start(0)).map_err(|source| self.failed(source))?;
        self.length = 0;
        self.digest = Sha256::new();
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), DownloadError> {
        self.file.write_all(bytes).map_err(|source| self.failed(source))?;
        self.length += bytes.len() as u64;
        self.digest.update(bytes);
        Ok(())
    }

    fn remove_if_empty(&self) -> Result<(), DownloadError> {
        if self.length > 0 {
            return Ok(());
        }
        fs::remove_file(&self.path).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: std::io::Error) -> DownloadError {
        DownloadError::File { path: self.path.clone(), source }
    }
}

/// The first byte of the range in a partial response: 100 for `bytes 100-199/200`.
fn begins_at(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (first, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    first.trim().parse().ok()
}

/// Whether the address is on this machine, where a proxy could not reach it.
fn is_this_machine(url: &str) -> bool {
    let address: Result<Uri, _> = url.parse();
    address.is_ok_and(|address| matches!(address.host(), Some("localhost" | "127.0.0.1" | "[::1]")))
}
