//! A whole corpus as a model uses it: training pairs, development pairs, and the two vocabularies.
//!
//! This module must not know where the text comes from.

use super::pairs::{Pairs, Sentences};
use super::tokenise::tokenise;
use super::vocabulary::{Tally, Vocabulary};

/// A sentence and its translation, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPair {
    /// The sentence to translate.
    pub from: String,
    /// Its translation.
    pub to: String,
}

/// The maximum size of each vocabulary, including the reserved numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocabularySizes {
    /// The maximum for the source language.
    pub from: usize,
    /// The maximum for the target language.
    pub to: usize,
}

impl Default for VocabularySizes {
    fn default() -> Self {
        Self { from: 40_000, to: 40_000 }
    }
}

/// A corpus as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corpus {
    /// The vocabulary of the source language.
    pub from: Vocabulary,
    /// The vocabulary of the target language.
    pub to: Vocabulary,
    /// The training pairs.
    pub train: Pairs,
    /// The development pairs, for scores during training.
    pub dev: Pairs,
}

impl Corpus {
    /// Numbers the words of a text. The vocabularies come from the training pairs alone.
    pub fn of_text(train: &[TextPair], dev: &[TextPair], sizes: VocabularySizes) -> Self {
        let mut from = TalliedSentences::default();
        let mut to = TalliedSentences::default();
        for pair in train {
            from.push(&pair.from);
            to.push(&pair.to);
        }
        let (from, train_from) = from.into_numbered(sizes.from);
        let (to, train_to) = to.into_numbered(sizes.to);
        let dev = encode(dev, &from, &to);
        Self { from, to, train: Pairs::new(train_from, train_to), dev }
    }

    /// Encodes more text with the existing vocabularies.
    pub fn encode(&self, pairs: &[TextPair]) -> Pairs {
        encode(pairs, &self.from, &self.to)
    }
}

fn encode(pairs: &[TextPair], from: &Vocabulary, to: &Vocabulary) -> Pairs {
    Pairs::new(
        pairs.iter().map(|pair| from.encode(&pair.from)).collect(),
        pairs.iter().map(|pair| to.encode(&pair.to)).collect(),
    )
}

/// Sentences whose words are still being counted. Their numbers become final once all sentences have been seen.
#[derive(Default)]
pub(super) struct TalliedSentences {
    tally: Tally,
    sentences: Sentences,
}

impl TalliedSentences {
    pub(super) fn push(&mut self, sentence: &str) {
        self.sentences.push(tokenise(sentence).map(|token| self.tally.add(&token)));
    }

    pub(super) fn len(&self) -> usize {
        self.sentences.len()
    }

    /// Whether no word was seen.
    pub(super) fn is_blank(&self) -> bool {
        self.tally.is_empty()
    }

    pub(super) fn into_numbered(mut self, size: usize) -> (Vocabulary, Sentences) {
        let vocabulary = Vocabulary::by_frequency(&self.tally, size);
        self.sentences.renumber(&self.tally.renumbered(&vocabulary));
        (vocabulary, self.sentences)
    }
}
