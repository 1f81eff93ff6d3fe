//! A file of sentences, read line by line and decompressed if necessary, and the hash of its bytes.
//!
//! Only one line is kept in memory. This module must not know what a line means.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use sha2::{Digest, Sha256};

use super::ParallelError;

/// The maximum length of a line in bytes; no sentence comes near it.
pub(super) const LONGEST_LINE: usize = 1 << 20;

const BUFFER: usize = 1 << 16;

/// Identifies the content of a file.
pub(super) type ContentHash = [u8; 32];

/// The hash of a whole file.
pub(super) fn hash(path: &Path) -> Result<ContentHash, ParallelError> {
    let mut file = open(path)?;
    let hashed = io::copy(&mut file, &mut io::sink());
    hashed.map_err(|source| ParallelError::Read { path: path.to_path_buf(), source })?;
    Ok(file.into_inner().hash.finalize().into())
}

/// The lines of a file.
pub(super) struct SourceLines {
    path: PathBuf,
    bytes: Bytes,
    lines: usize,
    line: Vec<u8>,
}

/// The decompressed bytes of a file.
enum Bytes {
    Plain(BufReader<HashedFile>),
    Gzip(Box<BufReader<MultiGzDecoder<BufReader<HashedFile>>>>),
}

impl SourceLines {
    pub(super) fn open(path: &Path) -> Result<Self, ParallelError> {
        let mut file = open(path)?;
        let begin = file.fill_buf().map_err(|source| ParallelError::Read { path: path.to_path_buf(), source })?;
        let bytes = if begin.starts_with(&[0x1f, 0x8b]) {
            Bytes::Gzip(Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(file))))
        } else {
            Bytes::Plain(file)
        };
        Ok(Self { path: path.to_path_buf(), bytes, lines: 0, line: Vec::new() })
    }

    /// The next line, without its line ending.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ParallelError> {
        self.line.clear();
        let limit = LONGEST_LINE as u64 + 1;
        let read = match &mut self.bytes {
            Bytes::Plain(reader) => reader.take(limit).read_until(b'\n', &mut self.line),
            Bytes::Gzip(reader) => reader.take(limit).read_until(b'\n', &mut self.line),
        };
        match read {
            Ok(0) => return Ok(None),
            Ok(_) => self.lines += 1,
            Err(source) => return Err(self.unreadable(source)),
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.len() > LONGEST_LINE {
            return Err(ParallelError::LineTooLong { path: self.path.clone(), line: self.lines });
        }
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let byte = error.valid_up_to() + 1;
                Err(ParallelError::NotUtf8 { path: self.path.clone(), line: self.lines, byte })
            }
        }
    }

    /// The hash of the whole file, once every line has been read.
    pub(super) fn into_hash(self) -> ContentHash {
        let file = match self.bytes {
            Bytes::Plain(reader) => reader.into_inner(),
            Bytes::Gzip(reader) => reader.into_inner().into_inner().into_inner(),
        };
        file.hash.finalize().into()
    }

    fn unreadable(&self, source: io::Error) -> ParallelError {
        let path = self.path.clone();
        let damage = [ErrorKind::InvalidData, ErrorKind::InvalidInput, ErrorKind::UnexpectedEof];
        if matches!(self.bytes, Bytes::Gzip(_)) && damage.contains(&source.kind()) {
            ParallelError::Gzip { path, lines: self.lines, source }
        } else {
            ParallelError::Read { path, source }
        }
    }
}

/// A file that hashes everything read from it.
struct HashedFile {
    file: File,
    hash: Sha256,
}

impl Read for HashedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

fn open(path: &Path) -> Result<BufReader<HashedFile>, ParallelError> {
    let file = File::open(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => ParallelError::Missing { path: path.to_path_buf() },
        _ => ParallelError::Read { path: path.to_path_buf(), source },
    })?;
    Ok(BufReader::with_capacity(BUFFER, HashedFile { file, hash: Sha256::new() }))
}
