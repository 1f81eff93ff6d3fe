//! Sentences as numbers, packed contiguously: millions of them need no allocation each.
//!
//! This module must not know what the numbers stand for.

/// Many sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sentences {
    ids: Vec<u32>,
    /// Where each sentence ends in `ids`.
    ends: Vec<usize>,
}

impl Sentences {
    /// Adds a sentence.
    pub fn push(&mut self, words: impl IntoIterator<Item = u32>) {
        self.ids.extend(words);
        self.ends.push(self.ids.len());
    }

    /// The number of sentences.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no sentences.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The words of one sentence.
    ///
    /// # Panics
    /// Panics if there is no such sentence.
    pub fn get(&self, index: usize) -> &[u32] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.ids[start..self.ends[index]]
    }

    /// All sentences in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The words of all sentences.
    pub fn words(&self) -> &[u32] {
        &self.ids
    }

    /// Sentences of these lengths, packed contiguously; `None` if the lengths do not add up to the number of words.
    pub(super) fn packed(words: Vec<u32>, lengths: impl Iterator<Item = usize>) -> Option<Self> {
        let mut end = 0_usize;
        let ends: Option<Vec<usize>> = lengths
            .map(|length| {
                end = end.checked_add(length)?;
                Some(end)
            })
            .collect();
        (end == words.len()).then_some(Self { ids: words, ends: ends? })
    }

    /// Replaces every word's number by its entry in `renumbered`.
    pub(super) fn renumber(&mut self, renumbered: &[u32]) {
        self.ids.iter_mut().for_each(|id| *id = renumbered[*id as usize]);
    }
}

impl<S: IntoIterator<Item = u32>> FromIterator<S> for Sentences {
    fn from_iter<I: IntoIterator<Item = S>>(sentences: I) -> Self {
        let mut collected = Self::default();
        sentences.into_iter().for_each(|sentence| collected.push(sentence));
        collected
    }
}

/// Sentences and their translations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    from: Sentences,
    to: Sentences,
}

impl Pairs {
    /// Pairs each sentence with the translation at the same index.
    ///
    /// # Panics
    /// Panics if the numbers of sentences differ.
    pub fn new(from: Sentences, to: Sentences) -> Self {
        assert_eq!(from.len(), to.len(), "every sentence has a translation");
        Self { from, to }
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.from.len()
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.from.is_empty()
    }

    /// A sentence and its translation.
    ///
    /// # Panics
    /// Panics if there is no such pair.
    pub fn get(&self, index: usize) -> (&[u32], &[u32]) {
        (self.from.get(index), self.to.get(index))
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u32], &[u32])> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The sentences to translate.
    pub fn from(&self) -> &Sentences {
        &self.from
    }

    /// Their translations.
    pub fn to(&self) -> &Sentences {
        &self.to
    }
}
