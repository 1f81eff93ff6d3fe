//! Finds translations: greedily, word by word, or with a beam search for the likeliest whole sentence.
//!
//! The network has its whole tables. Padding and the start of a sentence are never emitted.

use burn::tensor::Tensor;
use burn::tensor::activation::log_softmax;
use windlass_data::text::vocabulary::{EOS, GO, PAD};
use windlass_data::text::{Batch, Bucket};

use super::decoder::{DecoderState, Encoded};
use super::network::{Translator, places};

/// A translation found by a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// The translated words, without the end of the sentence.
    pub words: Vec<u32>,
    /// The logarithm of its probability.
    pub log_probability: f64,
    /// For each of these words, the attention on each word of the source sentence; what is missing from 1 went to
    /// padding.
    pub attention: Vec<Vec<f32>>,
    /// Whether the sentence ended, rather than reaching the limit of its bucket.
    pub is_whole: bool,
}

/// The settings of a beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beam {
    /// How many translations are followed at the same time.
    pub width: usize,
    /// How much long translations are favoured: scores are divided by ((5 + length) / 6) to this power. At 0, the score
    /// is the probability alone.
    pub length_penalty: f64,
}

/// Translates sentences of one bucket, choosing the likeliest word after the previous ones each time.
///
/// # Panics
/// Panics if a sentence does not fit the bucket.
pub fn greedy(network: &Translator, bucket: Bucket, sentences: &[&[u32]]) -> Vec<Translation> {
    let mut search = Search::new(network, bucket, sentences);
    let mut found: Vec<Translation> = sentences.iter().map(|_| Translation::empty()).collect();
    let mut words = vec![GO; sentences.len()];
    for _ in 0..bucket.decoder_steps() {
        let said = search.say(&words);
        for (row, translation) in found.iter_mut().enumerate().filter(|(_, translation)| !translation.is_whole) {
            let (word, log_probability) = said
                .choices(row)
                .fold((EOS, f64::NEG_INFINITY), |best, choice| if choice.1 > best.1 { choice } else { best });
            translation.extend(word, log_probability, said.attention(row, sentences[row].len()));
            words[row] = word;
        }
        if found.iter().all(|translation| translation.is_whole) {
            break;
        }
    }
    found
}

/// Returns the likeliest translations of a sentence that a beam search finds, best first: those that ended, or if none
/// did, the unfinished ones.
///
/// # Panics
/// Panics if the sentence does not fit the bucket, or the beam has no width.
pub fn beam(network: &Translator, bucket: Bucket, sentence: &[u32], beam: Beam) -> Vec<Translation> {
    assert!(beam.width > 0, "a beam has a width");
    let mut search = Search::new(network, bucket, &[sentence]);
    let mut live = vec![Translation::empty()];
    let mut whole: Vec<Translation> = Vec::new();
    for _ in 0..bucket.decoder_steps() {
        let last: Vec<u32> = live.iter().map(|translation| *translation.words.last().unwrap_or(&GO)).collect();
        let said = search.say(&last);
        let mut next: Vec<(usize, u32, f64)> = Vec::new();
        for (row, translation) in live.iter().enumerate() {
            next.extend(said.choices(row).map(|(word, more)| (row, word, translation.log_probability + more)));
        }
        next.sort_by(|one, other| other.2.total_cmp(&one.2));
        next.truncate(beam.width);
        let (ended, goes_on): (Vec<_>, Vec<_>) = next.into_iter().partition(|(_, word, _)| *word == EOS);
        let extended = |(row, word, total): &(usize, u32, f64)| {
            let mut translation = live[*row].clone();
            translation.extend(*word, total - translation.log_probability, said.attention(*row, sentence.len()));
            translation
        };
        whole.extend(ended.iter().map(extended));
        whole.sort_by(|one, other| beam.score(other).total_cmp(&beam.score(one)));
        whole.truncate(beam.width);
        let parents: Vec<u32> = goes_on.iter().map(|(row, _, _)| *row as u32).collect();
        live = goes_on.iter().map(extended).collect();
        if live.is_empty() || (whole.len() == beam.width && !beam.may_improve(&whole, &live)) {
            break;
        }
        search.follow(&parents);
    }
    if whole.is_empty() { live } else { whole }
}

impl Beam {
    fn score(&self, translation: &Translation) -> f64 {
        let length = translation.words.len() as f64 + 1.0;
        translation.log_probability / ((5.0 + length) / 6.0).powf(self.length_penalty)
    }

    /// Whether an unfinished translation could still beat the worst finished one. Probabilities only fall.
    fn may_improve(&self, whole: &[Translation], live: &[Translation]) -> bool {
        let worst = whole.last().map_or(f64::NEG_INFINITY, |translation| self.score(translation));
        self.length_penalty > 0.0 || live.iter().any(|translation| translation.log_probability > worst)
    }
}

impl Translation {
    fn empty() -> Self {
        Self { words: Vec::new(), log_probability: 0.0, attention: Vec::new(), is_whole: false }
    }

    fn extend(&mut self, word: u32, log_probability: f64, attention: Vec<f32>) {
        self.log_probability += log_probability;
        if word == EOS {
            self.is_whole = true;
        } else {
            self.words.push(word);
            self.attention.push(attention);
        }
    }
}

/// Unfinished translations, one per row.
struct Search<'a> {
    network: &'a Translator,
    encoded: Encoded,
    state: DecoderState,
    /// The number of encoder steps.
    time: usize,
}

impl<'a> Search<'a> {
    fn new(network: &'a Translator, bucket: Bucket, sentences: &[&[u32]]) -> Self {
        let pairs: Vec<(&[u32], &[u32])> = sentences.iter().map(|sentence| (*sentence, &[][..])).collect();
        let batch = Batch::new(bucket, &pairs);
        let encoded = network.encode(&batch.encoder_inputs, batch.rows);
        Self { network, state: encoded.start(), encoded, time: bucket.encoder_steps() }
    }

    /// Feeds these words to the decoder, and returns what may come next.
    fn say(&mut self, words: &[u32]) -> Said {
        let word = self.network.take_in(words);
        let (state, weights) = self.network.decoder().step(word, &self.encoded, self.state.clone());
        let log_probabilities = floats(log_softmax(self.network.scores(state.said()), 1));
        self.state = state;
        let vocabulary = log_probabilities.len() / words.len();
        Said { log_probabilities, vocabulary, weights: floats(weights), time: self.time }
    }

    /// Continues from these rows; a row may occur several times.
    fn follow(&mut self, parents: &[u32]) {
        let device = self.encoded.device();
        self.state = self.state.clone().select(&places(parents, &device));
        if self.encoded.rows() != parents.len() {
            self.encoded = self.encoded.clone().repeat(parents.len());
        }
    }
}

/// The possible continuations of every row.
struct Said {
    log_probabilities: Vec<f32>,
    vocabulary: usize,
    weights: Vec<f32>,
    time: usize,
}

impl Said {
    /// The words that may come next, and the logarithms of their probabilities.
    fn choices(&self, row: usize) -> impl Iterator<Item = (u32, f64)> + '_ {
        let row = &self.log_probabilities[row * self.vocabulary..][..self.vocabulary];
        let words = (0..).zip(row).filter(|(word, _)| ![PAD, GO].contains(word));
        words.map(|(word, log_probability)| (word, f64::from(*log_probability)))
    }

    /// The attention on each word of the sentence. Sentences are read backwards, after their padding.
    fn attention(&self, row: usize, words: usize) -> Vec<f32> {
        let row = &self.weights[row * self.time..][..self.time];
        row.iter().rev().take(words).copied().collect()
    }
}

fn floats(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
