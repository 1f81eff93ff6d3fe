//! The built-in corpus: numbers in words, and sums and lists of them, English to French.
//!
//! It lets translation models train without a download, and shows whether they learn: French has its own word order and
//! exceptions (`quatre-vingt-dix-sept`, `vingt et un`, `deux cents` but `deux cent mille`), and the translation of a
//! held-out number is either right or wrong. Plain numbers have up to 19 words, so `A plus B equals C`,
//! `A minus B equals C` and `A and then B and then C` fill the longest bucket.
//!
//! A corpus depends only on its seed. This module must not read files, the clock or other randomness.

mod phrase;
mod words;

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use self::phrase::Phrase;
pub use self::words::{english, french};
use super::buckets::{BUCKETS, first_fit, first_fit_to_translate};
use super::corpus::TextPair;
use crate::randomness::Randomness;

/// The largest number in the corpus.
pub const LARGEST: u64 = 999_999_999_999;

/// How many of every twenty pairs are drawn for each bucket: three in five sources have up to nine words, and every
/// bucket gets its share.
const SHARES: [u64; BUCKETS.len()] = [5, 7, 5, 3];

/// How often a duplicate pair is redrawn. Short sentences do run out; then one is repeated.
const TRIES: usize = 64;

/// The number of pairs in each part of a corpus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Training pairs.
    pub train: usize,
    /// Development pairs, for scores during training.
    pub dev: usize,
    /// Test pairs, for the final scores.
    pub test: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { train: 50_000, dev: 1_000, test: 1_000 }
    }
}

/// The three parts of a corpus.
///
/// A sentence always belongs to the same part, whatever the seed, so a held-out source is never trained on. Numbers
/// below a hundred are always in the training part, because they are the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NumberSplit {
    /// For training.
    Train,
    /// For scores during training.
    Dev,
    /// For the final scores.
    Test,
}

impl NumberSplit {
    /// The part that a sentence belongs to: one sentence in sixteen is for dev, and one for test.
    pub fn of(source: &str) -> Self {
        if !source.contains(' ') {
            return Self::Train;
        }
        match Sha256::digest(source)[0] % 16 {
            0 => Self::Dev,
            1 => Self::Test,
            _ => Self::Train,
        }
    }
}

/// A whole corpus as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberText {
    /// Training pairs.
    pub train: Vec<TextPair>,
    /// Development pairs, for scores during training.
    pub dev: Vec<TextPair>,
    /// Test pairs, for the final scores.
    pub test: Vec<TextPair>,
}

/// The corpus of a seed, drawn on the current rayon pool.
pub fn corpus(seed: u64, sizes: Sizes) -> NumberText {
    let (train, (dev, test)) = rayon::join(
        || pairs(seed, NumberSplit::Train, sizes.train),
        || (pairs(seed, NumberSplit::Dev, sizes.dev), pairs(seed, NumberSplit::Test, sizes.test)),
    );
    NumberText { train, dev, test }
}

/// The first `count` pairs of one part. They are distinct as long as there are enough.
pub fn pairs(seed: u64, part: NumberSplit, count: usize) -> Vec<TextPair> {
    let mut randomness = Randomness::of_key([seed, part as u64]);
    let mut seen = HashSet::with_capacity(count);
    let mut pairs = Vec::with_capacity(count);
    while pairs.len() < count {
        let bucket = bucket(&mut randomness);
        let mut pair = pair(&mut randomness, part, bucket);
        for _ in 1..TRIES {
            if !seen.contains(&pair.from) {
                break;
            }
            pair = self::pair(&mut randomness, part, bucket);
        }
        seen.insert(pair.from.clone());
        pairs.push(pair);
    }
    pairs
}

/// Draws the bucket of the next pair.
fn bucket(randomness: &mut Randomness) -> usize {
    let ticket = randomness.below_u64(SHARES.iter().sum());
    (0..SHARES.len()).position(|bucket| ticket < SHARES[..=bucket].iter().sum()).expect("a ticket is below the sum")
}

/// Draws a pair of this part for this bucket.
fn pair(randomness: &mut Randomness, part: NumberSplit, bucket: usize) -> TextPair {
    loop {
        let phrase = Phrase::draw(randomness);
        // Most phrases are of another length: check before writing them out.
        let from_words = phrase.english_count();
        if first_fit_to_translate(&BUCKETS, from_words) != Some(bucket) {
            continue;
        }
        let (from, to) = (phrase.english(), phrase.french());
        let to_words = to.split(' ').count();
        if NumberSplit::of(&from) == part && first_fit(&BUCKETS, from_words, to_words) == Some(bucket) {
            return TextPair { from, to };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokenise::tokenise;
    use super::*;

    fn bucket_counts(pairs: &[TextPair]) -> [usize; BUCKETS.len()] {
        let mut counts = [0; BUCKETS.len()];
        for pair in pairs {
            let bucket = first_fit(&BUCKETS, tokenise(&pair.from).count(), tokenise(&pair.to).count());
            counts[bucket.expect("every pair fits a bucket")] += 1;
        }
        counts
    }

    #[test]
    fn a_seed_has_one_corpus_and_a_longer_one_begins_with_it() {
        let first = pairs(7, NumberSplit::Train, 300);
        assert_eq!(pairs(7, NumberSplit::Train, 600)[..300], first);
        assert_ne!(pairs(8, NumberSplit::Train, 300), first);
    }

    #[test]
    fn no_source_is_in_two_parts_whatever_the_seeds() {
        let train = pairs(1, NumberSplit::Train, 5_000);
        let held_out = [pairs(2, NumberSplit::Dev, 1_000), pairs(3, NumberSplit::Test, 1_000)];
        let sources: [HashSet<&str>; 3] =
            [&train, &held_out[0], &held_out[1]].map(|pairs| pairs.iter().map(|pair| &*pair.from).collect());
        assert!(sources[0].is_disjoint(&sources[1]));
        assert!(sources[0].is_disjoint(&sources[2]));
        assert!(sources[1].is_disjoint(&sources[2]));
        assert_eq!(sources.map(|sources| sources.len()), [5_000, 1_000, 1_000], "no pair comes twice");
    }

    #[test]
    fn every_bucket_has_its_share_of_every_part() {
        for part in [NumberSplit::Train, NumberSplit::Dev, NumberSplit::Test] {
            let counts = bucket_counts(&pairs(1, part, 4_000));
            for (count, share) in counts.into_iter().zip(SHARES) {
                let expected = 4_000 * share as usize / 20;
                assert!(count.abs_diff(expected) < 150, "{part:?}: {counts:?}");
            }
        }
    }

    #[test]
    fn the_longest_sources_fill_the_last_bucket() {
        let pairs = pairs(1, NumberSplit::Train, 4_000);
        let longest = pairs.iter().map(|pair| tokenise(&pair.from).count()).max();
        assert!(longest >= Some(36), "{longest:?}");
    }

    #[test]
    fn every_word_of_held_out_pairs_is_trained_on() {
        let words = |pairs: &[TextPair]| -> HashSet<String> {
            let sentences = pairs.iter().flat_map(|pair| [&pair.from, &pair.to]);
            sentences.flat_map(|sentence| tokenise(sentence)).map(String::from).collect()
        };
        let train = words(&pairs(1, NumberSplit::Train, 5_000));
        let held_out = words(&[pairs(1, NumberSplit::Dev, 1_000), pairs(1, NumberSplit::Test, 1_000)].concat());
        assert_eq!(held_out.difference(&train).collect::<Vec<_>>(), Vec::<&String>::new());
    }
}
