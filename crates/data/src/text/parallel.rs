//! Parallel text from files: two files whose lines are translations of each other for training, and two for
//! development.
//!
//! Text that has been read is cached as numbers, in a file whose name depends on the content of the sources, the sizes
//! of the vocabularies and the version of the tokeniser. Other content gets another file, and old ones may be deleted
//! at any time. This module must not print anything, or fail because of the cache: a damaged cache is rebuilt, and one
//! that cannot be written is skipped.

mod cache;
mod failure;
mod source;

use std::path::{Path, PathBuf};

pub use self::cache::CacheDamage;
use self::cache::Key;
pub use self::failure::{LoadEvent, ParallelError};
use self::source::{ContentHash, SourceLines};
use super::corpus::{Corpus, TalliedSentences, VocabularySizes};
use super::pairs::{Pairs, Sentences};
use super::vocabulary::{RESERVED, Vocabulary};

/// Two files whose lines are translations of each other. Each may be plain or compressed with gzip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePair {
    /// The sentences to translate.
    pub from: PathBuf,
    /// Their translations.
    pub to: PathBuf,
}

/// The files of a corpus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The training text.
    pub train: FilePair,
    /// The development text, if any.
    pub dev: Option<FilePair>,
}

/// Reads a corpus, from the cache in directory `cache` if possible. Events about the cache are passed to `report`.
///
/// Any number of processes may do so at once. The work is done on the current rayon pool.
///
/// # Errors
/// Fails if a file is missing, invalid or without words, or if the two files of a pair differ in their number of lines.
pub fn load(
    files: &Files,
    sizes: VocabularySizes,
    cache: Option<&Path>,
    report: &mut dyn FnMut(LoadEvent<'_>),
) -> Result<Corpus, ParallelError> {
    let smallest = sizes.from.min(sizes.to);
    if smallest <= RESERVED.len() {
        return Err(ParallelError::VocabularyTooSmall { size: smallest });
    }
    let Some(directory) = cache else {
        return Ok(build(files, sizes)?.0);
    };
    let key = Key::new(&hashes(files)?, sizes);
    let path = key.path_in(directory);
    match cache::read(&path, &key) {
        Ok(Some(corpus)) => {
            report(LoadEvent::CacheRead { path: &path });
            return Ok(corpus);
        }
        Ok(None) => {}
        Err(damage) => report(LoadEvent::CacheDamaged { path: &path, damage: &damage }),
    }
    // The sources may have changed since they were hashed: the name must match what was built.
    let (corpus, hashes) = build(files, sizes)?;
    let key = Key::new(&hashes, sizes);
    let path = key.path_in(directory);
    match cache::write(&path, &key, &corpus) {
        Ok(()) => report(LoadEvent::CacheWritten { path: &path }),
        Err(error) => report(LoadEvent::CacheNotWritten { path: &path, error: &error }),
    }
    Ok(corpus)
}

/// The hashes of all sources, in order.
fn hashes(files: &Files) -> Result<Vec<ContentHash>, ParallelError> {
    let pairs = [Some(&files.train), files.dev.as_ref()].into_iter().flatten();
    pairs.flat_map(|pair| [&pair.from, &pair.to]).map(|path| source::hash(path)).collect()
}

/// Reads the sources. Returns the corpus and the hashes of what was read.
fn build(files: &Files, sizes: VocabularySizes) -> Result<(Corpus, Vec<ContentHash>), ParallelError> {
    let (from, to) = rayon::join(|| tally(&files.train.from), || tally(&files.train.to));
    let ((from, from_hash), (to, to_hash)) = (from?, to?);
    check_counts(&files.train, from.len(), to.len())?;
    let ((from, train_from), (to, train_to)) =
        rayon::join(|| from.into_numbered(sizes.from), || to.into_numbered(sizes.to));
    let mut hashes = vec![from_hash, to_hash];
    let mut dev = Pairs::default();
    if let Some(files) = &files.dev {
        let (dev_from, dev_to) = rayon::join(|| encode(&files.from, &from), || encode(&files.to, &to));
        let ((dev_from, from_hash), (dev_to, to_hash)) = (dev_from?, dev_to?);
        check_counts(files, dev_from.len(), dev_to.len())?;
        dev = Pairs::new(dev_from, dev_to);
        hashes.extend([from_hash, to_hash]);
    }
    Ok((Corpus { from, to, train: Pairs::new(train_from, train_to), dev }, hashes))
}

/// Reads one side of the training text.
fn tally(path: &Path) -> Result<(TalliedSentences, ContentHash), ParallelError> {
    let mut lines = SourceLines::open(path)?;
    let mut sentences = TalliedSentences::default();
    while let Some(line) = lines.next()? {
        sentences.push(line);
    }
    if sentences.is_blank() {
        return Err(ParallelError::Blank { path: path.to_path_buf(), lines: sentences.len() });
    }
    Ok((sentences, lines.into_hash()))
}

/// Encodes one side of a text with an existing vocabulary.
fn encode(path: &Path, vocabulary: &Vocabulary) -> Result<(Sentences, ContentHash), ParallelError> {
    let mut lines = SourceLines::open(path)?;
    let mut sentences = Sentences::default();
    while let Some(line) = lines.next()? {
        sentences.push(vocabulary.encode(line));
    }
    if sentences.words().is_empty() {
        return Err(ParallelError::Blank { path: path.to_path_buf(), lines: sentences.len() });
    }
    Ok((sentences, lines.into_hash()))
}

fn check_counts(files: &FilePair, from_lines: usize, to_lines: usize) -> Result<(), ParallelError> {
    if from_lines == to_lines {
        return Ok(());
    }
    let FilePair { from, to } = files.clone();
    Err(ParallelError::CountsDiffer { from, from_lines, to, to_lines })
}
