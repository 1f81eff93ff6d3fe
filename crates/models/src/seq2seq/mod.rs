//! `seq2seq`: translation with an encoder and an attention decoder, as in TensorFlow's translation tutorial.
//!
//! Sentences are padded to the length of their bucket. With a large vocabulary, the loss compares the correct word with
//! a sample of the others, and a step moves only those rows of the embeddings and the output layer that its batch
//! needs. Random choices in a step derive from the seed and the samples of its batch, never from a shared generator.

mod batch;
mod cells;
pub mod decode;
mod decoder;
mod flags;
pub mod interpreter;
mod load;
mod network;
mod overfitting;
mod reports;
mod saved;
mod score;
mod stages;
#[cfg(test)]
mod tests;
mod text;

use anyhow::Context;
use burn::tensor::{Device, Tensor};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use windlass_core::optimizer::{Adam, Optimizer};
use windlass_worker::model::{Defaults, Fingerprint, FlagRole, MetricKind, Metrics, Model, Reports, Setup, Staging};

use batch::{Batching, StepBatch};
pub use cells::Cell;
pub use flags::Seq2SeqFlags;
use flags::Settings;
pub use load::MissingValues;
use network::TABLES;
pub use network::{Shape, Translator};
use reports::Judge;
use saved::Saved;
pub use saved::{SavedError, TRANSLATOR_FILE};
use text::Text;

/// As in the tutorial.
const CLIP_NORM: f32 = 5.0;
/// The number of pairs per bucket that a report scores.
const HELD_OUT_PAIRS: usize = 64;

/// Translates.
pub struct Seq2Seq {
    settings: Settings,
    text: Text,
    batching: Batching,
}

impl Seq2Seq {
    fn of(settings: Settings, text: Text) -> Self {
        let to_words = text.to.size();
        let batching = Batching {
            to_words,
            samples: (to_words > settings.samples).then_some(settings.samples),
            by_rows: !settings.dense_tables,
        };
        Self { settings, text, batching }
    }

    fn shape(&self) -> Shape {
        let Settings { layers, size, cell, .. } = self.settings;
        Shape { layers, size, cell, from_words: self.text.from.size(), to_words: self.text.to.size() }
    }
}

impl Model for Seq2Seq {
    const NAME: &'static str = "seq2seq";
    const ABOUT: &'static str = "translate with an attention-based encoder-decoder";
    type Flags = Seq2SeqFlags;
    type Network = Translator;
    type Batch = StepBatch;

    fn defaults(flags: &Seq2SeqFlags) -> Defaults {
        let adam = Optimizer::Adam(Adam::default());
        let (optimizer, learning_rate, batch_size, steps) = match &flags.train_from {
            _ if flags.self_test => (adam, 0.01, 16, Some(300)),
            // Numbers are learned in a few minutes.
            None => (adam, 0.002, 64, Some(2000)),
            // As in the tutorial.
            Some(_) => (Optimizer::Sgd, 0.5, 64, None),
        };
        Defaults { optimizer, learning_rate, batch_size, steps, clip_norm: Some(CLIP_NORM), ..Defaults::default() }
    }

    fn flag_role(name: &str) -> FlagRole {
        match name {
            "samples" | "learning-rate-decay" | "report-every" => FlagRole::Training,
            "train-from" | "train-to" | "dev-from" | "dev-to" => FlagRole::Input,
            "score-pairs" | "text-cache" => FlagRole::Output,
            _ => FlagRole::Network,
        }
    }

    fn load(flags: &Seq2SeqFlags, setup: &Setup) -> anyhow::Result<Self> {
        let settings = Settings::new(flags, setup)?;
        let text = Text::load(&settings)?;
        Ok(Self::of(settings, text))
    }

    fn without_data(flags: &Seq2SeqFlags, setup: &Setup, files: &[(String, String)]) -> anyhow::Result<Self> {
        let settings = Settings::new(flags, setup)?;
        let file = files.iter().find(|(name, _)| name == TRANSLATOR_FILE);
        let (_, described) = file.with_context(|| format!("{TRANSLATOR_FILE} with the vocabularies is missing"))?;
        let (from, to) = saved::vocabularies(described)?;
        Ok(Self::of(settings.clone(), Text::without_sentences(from, to, &settings)))
    }

    fn network(&self, device: &Device) -> Translator {
        Translator::new(&self.shape(), device)
    }

    fn data_fingerprint(&self) -> Option<Fingerprint> {
        Some(self.text.fingerprint())
    }

    fn samples(&self) -> usize {
        self.text.train.len()
    }

    fn batch(&self, samples: &[usize], _device: &Device, _random: &mut StdRng) -> anyhow::Result<StepBatch> {
        let draw = mixed(self.settings.seed, samples.iter().map(|sample| *sample as u64));
        Ok(self.batching.batch(&self.text.train.batch(samples), draw))
    }

    fn loss(&self, network: &Translator, batch: StepBatch) -> Tensor<1> {
        network.loss(&batch)
    }

    fn evaluate(&self, network: &Translator, _device: &Device) -> anyhow::Result<Metrics> {
        let metrics = score::perplexities(network, &self.text, self.settings.score_pairs);
        Ok(score::translations(network, &self.text, metrics))
    }

    fn row_parameters(&self) -> &[&str] {
        if self.batching.by_rows { &TABLES } else { &[] }
    }

    fn rows(&self, batch: &StepBatch) -> Vec<Vec<u32>> {
        match &batch.rows {
            Some([from, to, output]) => vec![from.clone(), to.clone(), output.clone(), output.clone()],
            None => Vec::new(),
        }
    }

    fn staging() -> Option<Staging<Self>> {
        Some(Staging::declared())
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let saved = Saved::new(self.shape(), &self.settings.buckets, &self.text.from, &self.text.to);
        vec![(TRANSLATOR_FILE, serde_json::to_string(&saved).unwrap_or_default())]
    }

    fn reports(&self) -> Option<Reports> {
        // Over a sample of the words this is a different score, lower than the one over all words in `eval`.
        let score = if self.batching.samples.is_some() { "sampled perplexity" } else { "perplexity" };
        let policy = Box::new(Judge::new(self.settings.decay, score));
        Some(Reports { every: self.settings.report_every, score, kind: MetricKind::Perplexity, policy })
    }

    /// Returns one batch per bucket, with the loss used in training: sampled if that is.
    fn held_out(&self, draw: u64, _device: &Device) -> anyhow::Result<Vec<(String, Option<StepBatch>)>> {
        let dev = &self.text.dev;
        let part = |bucket: usize| {
            let members = dev.samples_of(bucket);
            let draw = mixed(self.settings.seed, [draw, bucket as u64].into_iter());
            let mut random = StdRng::seed_from_u64(draw);
            let samples = (0..HELD_OUT_PAIRS).map(|_| random.random_range(members.clone()));
            let batch = (!members.is_empty()).then(|| dev.batch(&samples.collect::<Vec<_>>()));
            (format!("bucket {bucket}"), batch.map(|batch| self.batching.batch(&batch, draw)))
        };
        Ok((0..dev.buckets().len()).map(part).collect())
    }
}

/// Mixes several numbers into one seed for a separate generator (FNV-1a, word by word).
fn mixed(seed: u64, parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, part| (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3))
}
