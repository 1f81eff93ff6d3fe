//! Errors of parallel text, and events about its cache.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::cache::CacheDamage;
use super::source::LONGEST_LINE;

/// Why parallel text could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// The file does not exist.
    #[error("there is no file {}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file looks like gzip but does not decompress.
    #[error("the gzip data in {} is damaged after line {lines}: {source}\nhint: make or download the file again", path.display())]
    Gzip {
        /// The file.
        path: PathBuf,
        /// The number of complete lines before the damage.
        lines: usize,
        /// The decompressor's error.
        source: io::Error,
    },
    /// A line is not UTF-8.
    #[error("{} line {line}, byte {byte} is not UTF-8\nhint: convert it: iconv -f latin1 -t utf-8", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The first invalid byte of the line, counted from 1.
        byte: usize,
    },
    /// A line is too long for a sentence.
    #[error("{} line {line} has more than {LONGEST_LINE} bytes, expected one sentence per line", path.display())]
    LineTooLong {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// The file contains no words.
    #[error("{} has no words in its {lines} lines, expected one sentence per line", path.display())]
    Blank {
        /// The file.
        path: PathBuf,
        /// The number of lines.
        lines: usize,
    },
    /// The files cannot be translations of each other.
    #[error("{} has {from_lines} lines but {} has {to_lines}, expected the same number\nhint: line N of one must be the translation of line N of the other", from.display(), to.display())]
    CountsDiffer {
        /// The file of sentences to translate.
        from: PathBuf,
        /// Its number of lines.
        from_lines: usize,
        /// The file of translations.
        to: PathBuf,
        /// Its number of lines.
        to_lines: usize,
    },
    /// A vocabulary would have no words.
    #[error("a vocabulary of {size} has no room for words, expected at least 5: the first 4 are reserved")]
    VocabularyTooSmall {
        /// The requested size.
        size: usize,
    },
}

/// An event about the cache. None of them keeps a corpus from being read.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadEvent<'a> {
    /// The corpus came from the cache.
    CacheRead {
        /// The file.
        path: &'a Path,
    },
    /// The corpus was built, and has been written to the cache.
    CacheWritten {
        /// The file.
        path: &'a Path,
    },
    /// The cache is damaged, and the corpus will be rebuilt.
    CacheDamaged {
        /// The file.
        path: &'a Path,
        /// The damage.
        damage: &'a CacheDamage,
    },
    /// The corpus was built, but could not be written to the cache.
    CacheNotWritten {
        /// The file.
        path: &'a Path,
        /// The system's error.
        error: &'a io::Error,
    },
}

impl LoadEvent<'_> {
    /// Whether the event deserves a warning.
    pub fn is_warning(&self) -> bool {
        matches!(self, Self::CacheDamaged { .. } | Self::CacheNotWritten { .. })
    }
}

impl fmt::Display for LoadEvent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CacheRead { path } => write!(formatter, "read the text from the cache {}", path.display()),
            Self::CacheWritten { path } => write!(formatter, "cached the text in {}", path.display()),
            Self::CacheDamaged { path, damage } => {
                write!(formatter, "the cache {} is built again: {damage}", path.display())
            }
            Self::CacheNotWritten { path, error } => {
                write!(formatter, "cannot write the cache {}: {error}", path.display())
            }
        }
    }
}
