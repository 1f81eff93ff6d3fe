//! Reads idx files, the format of MNIST and its relatives, plain or compressed with gzip.
//!
//! Everything in the file is checked before it is trusted: nothing here panics on a bad file, or allocates more than
//! the file can hold. This module must not know what the numbers mean or how files are named; compressed files are
//! recognised by their first bytes.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

/// The maximum size of an array in bytes: twenty times the training images of MNIST.
pub const LARGEST_ARRAY: u64 = 1 << 30;

/// The only supported element type: unsigned bytes.
const UNSIGNED_BYTE: u8 = 0x08;

/// Deflate expands one byte to at most this many.
const LARGEST_EXPANSION: u64 = 1032;

/// An array of bytes, as stored in an idx file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The length of each dimension, slowest-varying first.
    pub dimensions: Vec<usize>,
    /// The elements; their number is the product of the dimensions.
    pub bytes: Vec<u8>,
}

/// Why an idx file could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IdxError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file looks like gzip but does not decompress.
    #[error("the gzip data in {} is damaged: {source}\nhint: remove the file and download it again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// The decompressor's error.
        source: io::Error,
    },
    /// The first bytes are not those of an idx file.
    #[error("{} is not an idx file: it begins with {magic}, expected 00 00 08 {rank:02x}, or 1f 8b for gzip\nhint: was a web page saved in its place? download it again", path.display())]
    NotIdx {
        /// The file.
        path: PathBuf,
        /// The first bytes, in hexadecimal.
        magic: String,
        /// The expected number of dimensions.
        rank: usize,
    },
    /// The elements are not bytes.
    #[error("{} holds elements of type 0x{got:02x}, expected 0x08 (unsigned bytes)", path.display())]
    ElementType {
        /// The file.
        path: PathBuf,
        /// The type in the file.
        got: u8,
    },
    /// The array has another number of dimensions.
    #[error("{} has rank {got}, expected {expected}\nhint: images have rank 3 and labels rank 1; are the two files swapped?", path.display())]
    Rank {
        /// The file.
        path: PathBuf,
        /// The requested rank.
        expected: usize,
        /// The rank in the file.
        got: usize,
    },
    /// The header announces an array larger than any data set needs.
    #[error("{} announces an array of {dimensions:?}, expected at most {LARGEST_ARRAY} bytes\nhint: the file is damaged; download it again", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The dimensions in the header.
        dimensions: Vec<u32>,
    },
    /// The file ends before the array does.
    #[error("{} is cut short: expected {expected} bytes, got {got}{}\nhint: remove the file and download it again", path.display(), of_gzip(*gzip))]
    CutShort {
        /// The file.
        path: PathBuf,
        /// The expected bytes of header and elements.
        expected: u64,
        /// The actual number of bytes.
        got: u64,
        /// Whether bytes are counted after decompression.
        gzip: bool,
    },
    /// The file has bytes after the array.
    #[error("{} has trailing bytes: expected {expected} bytes{}\nhint: remove the file and download it again", path.display(), of_gzip(*gzip))]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// The expected bytes of header and elements.
        expected: u64,
        /// Whether bytes are counted after decompression.
        gzip: bool,
    },
}

fn of_gzip(gzip: bool) -> &'static str {
    if gzip { " once decompressed" } else { "" }
}

/// Reads the array of bytes in `path`, which must have `rank` dimensions.
///
/// # Errors
/// Fails if the file cannot be read or is not exactly one idx array of that rank.
pub fn read(path: &Path, rank: usize) -> Result<Array, IdxError> {
    let unreadable = |source| IdxError::Read { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(unreadable)?;
    let stored = file.metadata().map_err(unreadable)?.len();
    let mut file = BufReader::with_capacity(1 << 16, file);
    let gzip = file.fill_buf().map_err(unreadable)?.starts_with(&[0x1f, 0x8b]);
    if gzip {
        let capacity = stored.saturating_mul(LARGEST_EXPANSION);
        Input::new(path, MultiGzDecoder::new(file), gzip, capacity).array(rank)
    } else {
        Input::new(path, file, gzip, stored).array(rank)
    }
}

/// A file being read, decompressed if necessary.
struct Input<'a, R> {
    path: &'a Path,
    reader: R,
    gzip: bool,
    /// The maximum number of bytes that the file can hold.
    capacity: u64,
}

impl<'a, R: Read> Input<'a, R> {
    fn new(path: &'a Path, reader: R, gzip: bool, capacity: u64) -> Self {
        Self { path, reader, gzip, capacity }
    }

    fn array(mut self, rank: usize) -> Result<Array, IdxError> {
        self.check_magic(rank)?;
        let header = 4 + 4 * rank as u64;
        let dimensions = self.up_to(header - 4)?;
        if (dimensions.len() as u64) < header - 4 {
            return Err(self.cut_short(header, 4 + dimensions.len() as u64));
        }
        let dimensions: Vec<u32> = dimensions.as_chunks().0.iter().map(|&bytes| u32::from_be_bytes(bytes)).collect();
        let size = dimensions
            .iter()
            .try_fold(1u64, |size, &length| size.checked_mul(u64::from(length)))
            .filter(|&size| size <= LARGEST_ARRAY);
        let Some(size) = size else {
            return Err(IdxError::TooLarge { path: self.path.to_path_buf(), dimensions });
        };
        let bytes = self.up_to(size)?;
        if (bytes.len() as u64) < size {
            return Err(self.cut_short(header + size, header + bytes.len() as u64));
        }
        // This read also makes gzip verify its checksum.
        if !self.up_to(1)?.is_empty() {
            return Err(IdxError::TrailingBytes {
                path: self.path.to_path_buf(),
                expected: header + size,
                gzip: self.gzip,
            });
        }
        Ok(Array { dimensions: dimensions.into_iter().map(|length| length as usize).collect(), bytes })
    }

    fn check_magic(&mut self, rank: usize) -> Result<(), IdxError> {
        let path = || self.path.to_path_buf();
        let magic = self.up_to(4)?;
        match magic[..] {
            [0, 0, UNSIGNED_BYTE, got] if usize::from(got) == rank => Ok(()),
            [0, 0, UNSIGNED_BYTE, got] => Err(IdxError::Rank { path: path(), expected: rank, got: usize::from(got) }),
            [0, 0, got @ (0x09 | 0x0b..=0x0e), _] => Err(IdxError::ElementType { path: path(), got }),
            _ => Err(IdxError::NotIdx { path: path(), magic: hexadecimal(&magic), rank }),
        }
    }

    /// Reads `length` bytes, or all that are left if fewer.
    fn up_to(&mut self, length: u64) -> Result<Vec<u8>, IdxError> {
        let mut bytes = Vec::with_capacity(length.min(self.capacity) as usize);
        match self.reader.by_ref().take(length).read_to_end(&mut bytes) {
            Ok(_) => Ok(bytes),
            Err(source) => Err(self.unreadable(source)),
        }
    }

    fn unreadable(&self, source: io::Error) -> IdxError {
        let path = self.path.to_path_buf();
        let damage = [ErrorKind::InvalidData, ErrorKind::InvalidInput, ErrorKind::UnexpectedEof];
        if self.gzip && damage.contains(&source.kind()) {
            IdxError::Gzip { path, source }
        } else {
            IdxError::Read { path, source }
        }
    }

    fn cut_short(&self, expected: u64, got: u64) -> IdxError {
        IdxError::CutShort { path: self.path.to_path_buf(), expected, got, gzip: self.gzip }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing (the file is empty)".to_owned();
    }
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}
