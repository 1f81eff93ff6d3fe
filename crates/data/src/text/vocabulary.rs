//! The words that a model knows and their numbers: the most frequent words of the training text.
//!
//! The first four numbers are reserved: padding, the start of a sentence, its end, and unknown words. This module must
//! not know files other than its own, or how words are found in a text.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::tokenise::{detokenise, tokenise};

/// Pads a sentence to the length of its batch; as a target it has no weight.
pub const PAD: u32 = 0;
/// The decoder's input before the first word.
pub const GO: u32 = 1;
/// The end of a sentence.
pub const EOS: u32 = 2;
/// Any unknown word.
pub const UNK: u32 = 3;

/// The tokens of the reserved numbers, in their order.
pub const RESERVED: [&str; 4] = ["_PAD", "_GO", "_EOS", "_UNK"];

/// Why a vocabulary could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// The file cannot be read or written.
    #[error("cannot access the vocabulary {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content is not a vocabulary.
    #[error("{} is not a vocabulary: {malformed}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The reason.
        malformed: Malformed,
    },
}

/// Why a text is not a valid vocabulary.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The text is not UTF-8.
    #[error("line {line} is not UTF-8")]
    NotUtf8 {
        /// The line, counted from 1.
        line: usize,
    },
    /// The text does not begin with the four reserved lines.
    #[error("line {line} is {got:?}, expected {expected}")]
    Reserved {
        /// The line, counted from 1.
        line: usize,
        /// The expected token.
        expected: &'static str,
        /// The actual line.
        got: String,
    },
    /// A line is not one token.
    #[error("line {line} is {got:?}, expected one word or mark without spaces")]
    NotAToken {
        /// The line, counted from 1.
        line: usize,
        /// The actual line.
        got: String,
    },
    /// A word occurs twice.
    #[error("line {line} has the word {word:?} of line {earlier} again")]
    Repeated {
        /// The line, counted from 1.
        line: usize,
        /// The line where it occurs first.
        earlier: usize,
        /// The word.
        word: String,
    },
}

/// Counts words, and numbers them in order of first occurrence.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    numbers: HashMap<Box<str>, u32>,
    counts: Vec<u64>,
}

impl Tally {
    /// Counts a word and returns its number, which is the number of distinct words seen before it.
    pub fn add(&mut self, word: &str) -> u32 {
        if let Some(&number) = self.numbers.get(word) {
            self.counts[number as usize] += 1;
            return number;
        }
        let number = u32::try_from(self.counts.len()).expect("a text has fewer than 2³² different words");
        self.numbers.insert(word.into(), number);
        self.counts.push(1);
        number
    }

    /// The number of distinct words seen.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether no word was seen.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// For each word, indexed by its number here, its number in `vocabulary`.
    pub(super) fn renumbered(&self, vocabulary: &Vocabulary) -> Vec<u32> {
        let mut renumbered = vec![UNK; self.len()];
        self.numbers.iter().for_each(|(word, &number)| renumbered[number as usize] = vocabulary.id(word));
        renumbered
    }

    fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.numbers.iter().map(|(word, &number)| (&**word, self.counts[number as usize]))
    }
}

/// Words and their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    words: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, u32>,
}

impl Vocabulary {
    /// The most frequent words; equally frequent ones in alphabetical order.
    ///
    /// `size` is the maximum, including the four reserved numbers. Words that are spelled like a reserved token are
    /// left out.
    pub fn by_frequency(tally: &Tally, size: usize) -> Self {
        let mut words: Vec<(&str, u64)> = tally.iter().filter(|(word, _)| !RESERVED.contains(word)).collect();
        words.sort_unstable_by(|(word, count), (other, others)| others.cmp(count).then_with(|| word.cmp(other)));
        words.truncate(size.saturating_sub(RESERVED.len()));
        Self::numbered(RESERVED.into_iter().chain(words.into_iter().map(|(word, _)| word)))
    }

    fn numbered<'a>(words: impl Iterator<Item = &'a str>) -> Self {
        let words: Vec<Arc<str>> = words.map(Arc::from).collect();
        // A word that is spelled like a reserved token is unknown.
        let known = words.iter().zip(0..).skip(RESERVED.len());
        let ids = known.map(|(word, id)| (Arc::clone(word), id)).collect();
        Self { words, ids }
    }

    /// The size, including the reserved numbers.
    pub fn size(&self) -> usize {
        self.words.len()
    }

    /// The number of a token; [`UNK`] if it is unknown.
    pub fn id(&self, token: &str) -> u32 {
        self.ids.get(token).copied().unwrap_or(UNK)
    }

    /// The token of a number; that of [`UNK`] if the number is unknown.
    pub fn token(&self, id: u32) -> &str {
        self.words.get(id as usize).map_or(RESERVED[UNK as usize], |word| word)
    }

    /// The numbers of a sentence's tokens.
    pub fn encode(&self, sentence: &str) -> Vec<u32> {
        tokenise(sentence).map(|token| self.id(&token)).collect()
    }

    /// The tokens up to the end of the sentence, without padding.
    pub fn decode(&self, ids: &[u32]) -> Vec<&str> {
        let sentence = ids.iter().take_while(|&&id| id != EOS);
        sentence.filter(|&&id| id != PAD && id != GO).map(|&id| self.token(id)).collect()
    }

    /// A readable sentence of these numbers.
    pub fn sentence(&self, ids: &[u32]) -> String {
        detokenise(&self.decode(ids))
    }

    /// Writes one token per line, atomically: no reader ever sees an incomplete file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), VocabularyError> {
        let written = windlass_files::write(path, &[self.to_text().as_bytes()]);
        written.map_err(|source| VocabularyError::File { path: path.to_path_buf(), source })
    }

    /// Reads a file written by [`Vocabulary::save`].
    ///
    /// # Errors
    /// Fails if the file cannot be read or is not a vocabulary.
    pub fn load(path: &Path) -> Result<Self, VocabularyError> {
        let bytes = fs::read(path).map_err(|source| VocabularyError::File { path: path.to_path_buf(), source })?;
        Self::from_text(&bytes).map_err(|malformed| VocabularyError::Malformed { path: path.to_path_buf(), malformed })
    }

    /// The text form, one token per line.
    pub fn to_text(&self) -> String {
        let mut text = String::with_capacity(self.words.iter().map(|word| word.len() + 1).sum());
        self.words.iter().for_each(|word| text.extend([word, "\n"]));
        text
    }

    /// Parses the text form, one token per line.
    ///
    /// # Errors
    /// Fails if the bytes are not a vocabulary.
    pub fn from_text(bytes: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            Malformed::NotUtf8 { line }
        })?;
        let lines: Vec<&str> = text.lines().collect();
        for (index, expected) in RESERVED.into_iter().enumerate() {
            let got = lines.get(index).copied().unwrap_or_default();
            if got != expected {
                return Err(Malformed::Reserved { line: index + 1, expected, got: got.to_owned() });
            }
        }
        let mut first_line = HashMap::with_capacity(lines.len());
        for (line, &word) in (1..).zip(&lines) {
            if !tokenise(word).eq([word]) {
                return Err(Malformed::NotAToken { line, got: word.to_owned() });
            }
            if let Some(earlier) = first_line.insert(word, line) {
                return Err(Malformed::Repeated { line, earlier, word: word.to_owned() });
            }
        }
        Ok(Self::numbered(lines.into_iter()))
    }
}
