//! The sentences for training, for monitoring it, and for scoring the network.

use anyhow::Context;
use tracing::{info, warn};
use windlass_data::text::numbers::{self, Sizes};
use windlass_data::text::{BucketedPairs, Corpus, Pairs, Sentences, TextPair, Vocabulary, VocabularySizes, parallel};
use windlass_worker::model::Fingerprint;

use super::flags::{Settings, Source};

/// The largest number of words in those built-in numbers that are used for scoring.
const SCORED_WORDS: usize = 10;
/// The words of the made-up language; below, the number of its sentences.
const MADE_UP_WORDS: [&str; 8] = ["ba", "de", "fi", "go", "ku", "la", "me", "no"];
const MADE_UP_PAIRS: usize = 96;

/// All data of the two languages.
pub(super) struct Text {
    pub(super) from: Vocabulary,
    pub(super) to: Vocabulary,
    pub(super) train: BucketedPairs,
    /// For monitoring the training.
    pub(super) dev: BucketedPairs,
    /// For scoring the network.
    pub(super) scored: BucketedPairs,
}

impl Text {
    pub(super) fn load(settings: &Settings) -> anyhow::Result<Self> {
        let (corpus, scored) = match &settings.source {
            Source::BuiltIn => built_in(settings.seed, settings.vocabularies),
            Source::MadeUp => made_up(settings.vocabularies),
            Source::Files(files) => {
                let mut tell = |event: parallel::LoadEvent<'_>| {
                    if event.is_warning() { warn!("{event}") } else { info!("{event}") }
                };
                let cache = Some(settings.text_cache.as_path());
                // The error's text already includes that of its cause.
                let read = parallel::load(files, settings.vocabularies, cache, &mut tell);
                let corpus = read.map_err(anyhow::Error::msg).context("read the text")?;
                let scored = corpus.dev.clone();
                (corpus, scored)
            }
        };
        let bucketed = |pairs: Pairs| BucketedPairs::new(pairs, &settings.buckets);
        let text = Self {
            from: corpus.from,
            to: corpus.to,
            train: bucketed(corpus.train),
            dev: bucketed(corpus.dev),
            scored: bucketed(first(&scored, settings.score_pairs)),
        };
        info!("vocabularies of {} and {} words", text.from.size(), text.to.size());
        info!("train: {}; dev: {}", text.train.statistics(), text.dev.statistics());
        anyhow::ensure!(
            !text.train.is_empty(),
            "none of the pairs to train on fits a bucket\nhint: the longest is {}; give longer ones with --buckets",
            settings.buckets.last().map(ToString::to_string).unwrap_or_default()
        );
        Ok(text)
    }
}

impl Text {
    /// Only the vocabularies, for a process that computes on another's batches.
    pub(super) fn without_sentences(from: Vocabulary, to: Vocabulary, settings: &Settings) -> Self {
        let none = || BucketedPairs::new(Pairs::default(), &settings.buckets);
        Self { from, to, train: none(), dev: none(), scored: none() }
    }

    /// The fingerprint of the training pairs, as numbers.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        let pairs = self.train.pairs();
        // Lengths are included, or a word could move from one sentence to the next unnoticed.
        let lengths: Vec<u32> = pairs.iter().flat_map(|(from, to)| [from.len() as u32, to.len() as u32]).collect();
        let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let numbers = [pairs.from().words(), pairs.to().words(), &lengths];
        Fingerprint::of_all(numbers.into_iter().flat_map(|numbers| numbers.chunks(1 << 14)).map(bytes))
    }
}

fn built_in(seed: u64, vocabularies: VocabularySizes) -> (Corpus, Pairs) {
    info!("no --train-from: using built-in numbers in words, drawn from seed {seed}");
    let text = numbers::corpus(seed, Sizes::default());
    let corpus = Corpus::of_text(&text.train, &text.dev, vocabularies);
    let scored = corpus.encode(&text.test);
    let short = scored.iter().filter(|(from, _)| from.len() <= SCORED_WORDS);
    let (from, to): (Vec<&[u32]>, Vec<&[u32]>) = short.unzip();
    (corpus, paired(&from, &to))
}

/// Sentences whose translation is the same words backwards. Nothing is held out: the test is to learn them.
fn made_up(vocabularies: VocabularySizes) -> (Corpus, Pairs) {
    let pair = |index: usize| {
        let length = 1 + index % 5;
        let words: Vec<&str> = (0..length).map(|at| MADE_UP_WORDS[(index * 7 + at * (index / 5 + 3)) % 8]).collect();
        let said: Vec<&str> = words.iter().rev().copied().collect();
        TextPair { from: words.join(" "), to: said.join(" ") }
    };
    let pairs: Vec<TextPair> = (0..MADE_UP_PAIRS).map(pair).collect();
    let corpus = Corpus::of_text(&pairs, &pairs, vocabularies);
    let scored = corpus.train.clone();
    (corpus, scored)
}

fn first(pairs: &Pairs, count: usize) -> Pairs {
    let (from, to): (Vec<&[u32]>, Vec<&[u32]>) = pairs.iter().take(count).unzip();
    paired(&from, &to)
}

fn paired(from: &[&[u32]], to: &[&[u32]]) -> Pairs {
    let packed = |side: &[&[u32]]| side.iter().map(|words| words.iter().copied()).collect::<Sentences>();
    Pairs::new(packed(from), packed(to))
}
