//! A corpus in one file, so that its vocabularies and numbers always come from the same build.
//!
//! ```text
//! magic       8 bytes    "WINDTEXT"
//! key        32 bytes    what it was built from
//! checksum   32 bytes    SHA-256 of all that follows
//! 2 vocabularies         bytes: u64, then one token a line
//! 4 × sentences          sentences: u64, words: u64, words of each sentence: u32…, all words: u32…
//! ```
//!
//! Numbers are little-endian. The training sentences come before the development sentences, `from` before `to`. Nothing
//! in the file is trusted before it is checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use thiserror::Error;

use super::source::ContentHash;
use crate::text::corpus::{Corpus, VocabularySizes};
use crate::text::pairs::{Pairs, Sentences};
use crate::text::tokenise;
use crate::text::vocabulary::{Malformed, Vocabulary};

const MAGIC: &[u8; 8] = b"WINDTEXT";

/// Must be incremented when the layout above changes.
const FORMAT: u32 = 1;

/// Why a cache cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CacheDamage {
    /// The file cannot be read.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// The file is not a cache, or belongs to another text.
    #[error("it is not a cache file of this text")]
    Foreign,
    /// The content has changed since it was written.
    #[error("its checksum is wrong")]
    Checksum,
    /// A vocabulary is malformed.
    #[error("invalid vocabulary: {0}")]
    Vocabulary(#[from] Malformed),
    /// The content is not a corpus.
    #[error("invalid corpus")]
    Content,
}

/// Identifies the sources of a corpus.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn new(sources: &[ContentHash], sizes: VocabularySizes) -> Self {
        let mut digest = Sha256::new();
        digest.update(FORMAT.to_le_bytes());
        digest.update(tokenise::VERSION.to_le_bytes());
        digest.update((sizes.from as u64).to_le_bytes());
        digest.update((sizes.to as u64).to_le_bytes());
        sources.iter().for_each(|hash| digest.update(hash));
        Self(digest.finalize().into())
    }

    pub(super) fn path_in(&self, directory: &Path) -> PathBuf {
        let name: String = self.0[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        directory.join(format!("text-{name}.ids"))
    }
}

/// Writes a corpus atomically. Creates the directory if necessary.
pub(super) fn write(path: &Path, key: &Key, corpus: &Corpus) -> io::Result<()> {
    let mut content = Vec::new();
    for vocabulary in [&corpus.from, &corpus.to] {
        let text = vocabulary.to_text();
        content.extend((text.len() as u64).to_le_bytes());
        content.extend(text.as_bytes());
    }
    for sentences in [corpus.train.from(), corpus.train.to(), corpus.dev.from(), corpus.dev.to()] {
        content.extend((sentences.len() as u64).to_le_bytes());
        content.extend((sentences.words().len() as u64).to_le_bytes());
        content.extend(sentences.iter().flat_map(|sentence| (sentence.len() as u32).to_le_bytes()));
        content.extend(sentences.words().iter().flat_map(|word| word.to_le_bytes()));
    }
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    windlass_files::write(path, &[MAGIC, &key.0, &Sha256::digest(&content), &content])
}

/// Reads the corpus with this key; `None` if there is no such file.
pub(super) fn read(path: &Path, key: &Key) -> Result<Option<Corpus>, CacheDamage> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut content = CacheReader(&bytes);
    if content.take(MAGIC.len()) != Some(MAGIC) || content.take(key.0.len()) != Some(&key.0) {
        return Err(CacheDamage::Foreign);
    }
    let checksum = content.take(32);
    if checksum != Some(&Sha256::digest(content.0)) {
        return Err(CacheDamage::Checksum);
    }
    content.corpus().map(Some)
}

/// The part of a cache that has not been read yet.
struct CacheReader<'a>(&'a [u8]);

impl<'a> CacheReader<'a> {
    fn corpus(mut self) -> Result<Corpus, CacheDamage> {
        let (from, to) = (self.vocabulary()?, self.vocabulary()?);
        let train = self.pairs(&from, &to).ok_or(CacheDamage::Content)?;
        let dev = self.pairs(&from, &to).ok_or(CacheDamage::Content)?;
        if !self.0.is_empty() {
            return Err(CacheDamage::Content);
        }
        Ok(Corpus { from, to, train, dev })
    }

    fn vocabulary(&mut self) -> Result<Vocabulary, CacheDamage> {
        let text = self.length().and_then(|length| self.take(length)).ok_or(CacheDamage::Content)?;
        Ok(Vocabulary::from_text(text)?)
    }

    fn pairs(&mut self, from: &Vocabulary, to: &Vocabulary) -> Option<Pairs> {
        let (from, to) = (self.sentences(from)?, self.sentences(to)?);
        (from.len() == to.len()).then(|| Pairs::new(from, to))
    }

    fn sentences(&mut self, vocabulary: &Vocabulary) -> Option<Sentences> {
        let (sentences, words) = (self.length()?, self.length()?);
        let lengths = self.numbers(sentences)?;
        let ids: Vec<u32> = self.numbers(words)?.collect();
        let known = ids.iter().all(|&id| (id as usize) < vocabulary.size());
        known.then(|| Sentences::packed(ids, lengths.map(|length| length as usize)))?
    }

    fn length(&mut self) -> Option<usize> {
        let bytes = self.take(8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    }

    fn numbers(&mut self, count: usize) -> Option<impl Iterator<Item = u32> + use<'a>> {
        let bytes = self.take(count.checked_mul(4)?)?;
        Some(bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.0.split_at_checked(length)?;
        self.0 = left;
        Some(taken)
    }
}
