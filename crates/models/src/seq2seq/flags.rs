//! The flags of `seq2seq`, and the validated settings.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{bail, ensure};
use windlass_data::text::parallel::{FilePair, Files};
use windlass_data::text::{Bucket, VocabularySizes};
use windlass_worker::model::Setup;

use super::cells::Cell;

/// The flags of `seq2seq`. Those of TensorFlow's translation tutorial are understood too.
#[derive(Debug, Clone, clap::Args)]
pub struct Seq2SeqFlags {
    /// Layers of the encoder and of the decoder
    #[arg(long, alias = "num-layers", value_name = "N", default_value_t = 2)]
    pub layers: usize,
    /// Units per layer, per embedding and in the attention
    #[arg(long, value_name = "UNITS", default_value_t = 200)]
    pub size: usize,
    /// Recurrent cell: GRU or LSTM
    #[arg(long, value_enum, default_value_t = Cell::Gru)]
    pub cell: Cell,
    /// Source vocabulary size; 4 entries are reserved
    #[arg(long, alias = "from-vocab-size", value_name = "WORDS", default_value_t = 40_000)]
    pub from_vocabulary: usize,
    /// Target vocabulary size; 4 entries are reserved
    #[arg(long, alias = "to-vocab-size", value_name = "WORDS", default_value_t = 40_000)]
    pub to_vocabulary: usize,
    /// Negative samples per step, if the target vocabulary is larger (--samples of autoencoder and stn is a picture)
    #[arg(long, alias = "num-samples", value_name = "WORDS", default_value_t = 512)]
    pub samples: usize,
    /// Multiply the learning rate by this when the loss is above that of the last three reports
    #[arg(long, alias = "learning-rate-decay-factor", value_name = "FACTOR", default_value_t = 0.99)]
    pub learning_rate_decay: f32,
    /// Steps of a worker between reports [default: 200, or 50 in the self-test]
    #[arg(long, alias = "steps-per-checkpoint", value_name = "STEPS")]
    pub report_every: Option<u64>,
    /// Maximum words in each side of a sentence pair, shortest bucket first, as in 5,10 10,15
    #[arg(long, value_name = "FROM,TO", num_args = 1.., value_parser = bucket, default_values = ["5,10", "10,15", "20,25", "40,50"])]
    pub buckets: Vec<Bucket>,
    /// Transfer the whole embeddings and output layer every step, instead of only the rows that a batch needs
    #[arg(long)]
    pub dense_tables: bool,
    /// Maximum number of held-out pairs to translate when scoring
    #[arg(long, value_name = "PAIRS", default_value_t = 1000)]
    pub score_pairs: usize,
    /// Train a tiny network on synthetic sentences, to check that everything works
    #[arg(long, conflicts_with_all = ["train_from", "train_to", "dev_from", "dev_to"])]
    pub self_test: bool,
    /// Training text, one sentence per line, plain or gzip [default: built-in numbers in words]
    #[arg(long, alias = "from-train-data", value_name = "FILE", requires = "train_to")]
    pub train_from: Option<PathBuf>,
    /// Its translation, line by line
    #[arg(long, alias = "to-train-data", value_name = "FILE", requires = "train_from")]
    pub train_to: Option<PathBuf>,
    /// Development set
    #[arg(long, alias = "from-dev-data", value_name = "FILE", requires = "dev_to", requires = "train_from")]
    pub dev_from: Option<PathBuf>,
    /// Its translation, line by line
    #[arg(long, alias = "to-dev-data", value_name = "FILE", requires = "dev_from")]
    pub dev_to: Option<PathBuf>,
    /// Where to cache tokenised text
    #[arg(long, value_name = "DIR", default_value = "runs/text-cache")]
    pub text_cache: PathBuf,
}

/// The source of the sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// Built-in numbers in words.
    BuiltIn,
    /// A few meaningless sentences.
    MadeUp,
    /// Files with parallel text.
    Files(Files),
}

/// The validated flags.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) layers: usize,
    pub(super) size: usize,
    pub(super) cell: Cell,
    pub(super) vocabularies: VocabularySizes,
    pub(super) samples: usize,
    pub(super) decay: f32,
    pub(super) report_every: u64,
    pub(super) buckets: Vec<Bucket>,
    pub(super) dense_tables: bool,
    pub(super) score_pairs: usize,
    pub(super) source: Source,
    pub(super) text_cache: PathBuf,
    pub(super) seed: u64,
}

impl Settings {
    pub(super) fn new(flags: &Seq2SeqFlags, setup: &Setup) -> anyhow::Result<Self> {
        if let Some(directory) = &setup.data_dir {
            bail!(
                "seq2seq does not use --data-dir {}\nhint: name the files with --train-from and --train-to",
                directory.display()
            );
        }
        for (flag, value) in [("--layers", flags.layers), ("--size", flags.size), ("--samples", flags.samples)] {
            ensure!(value > 0, "{flag} must be at least 1");
        }
        for (flag, words) in [("--from-vocabulary", flags.from_vocabulary), ("--to-vocabulary", flags.to_vocabulary)] {
            ensure!(words > 4, "{flag} is {words}, but must be at least 5: 4 entries are reserved");
        }
        let decay = flags.learning_rate_decay;
        ensure!(decay > 0.0 && decay <= 1.0, "--learning-rate-decay is {decay}, but must be above 0 and at most 1");
        let report_every = flags.report_every.unwrap_or(if flags.self_test { 50 } else { 200 });
        ensure!(report_every > 0, "--report-every must be at least 1");
        for pair in flags.buckets.windows(2) {
            let (short, long) = (pair[0], pair[1]);
            ensure!(
                short.from <= long.from && short.to <= long.to && short != long,
                "--buckets go from short to long, but {long} comes after {short}"
            );
        }
        let settings = Self {
            layers: flags.layers,
            size: flags.size,
            cell: flags.cell,
            vocabularies: VocabularySizes { from: flags.from_vocabulary, to: flags.to_vocabulary },
            samples: flags.samples,
            decay,
            report_every,
            buckets: flags.buckets.clone(),
            dense_tables: flags.dense_tables,
            score_pairs: flags.score_pairs,
            source: source(flags),
            text_cache: flags.text_cache.clone(),
            seed: setup.seed,
        };
        Ok(if flags.self_test { settings.tiny() } else { settings })
    }

    /// What the self-test trains: small enough for a second, and using every part.
    fn tiny(self) -> Self {
        let buckets = vec![Bucket::new(4, 6), Bucket::new(7, 9)];
        Self { layers: 2, size: 32, samples: 8, buckets, ..self }
    }
}

fn source(flags: &Seq2SeqFlags) -> Source {
    let pair = |from: &Option<PathBuf>, to: &Option<PathBuf>| {
        from.clone().zip(to.clone()).map(|(from, to)| FilePair { from, to })
    };
    match pair(&flags.train_from, &flags.train_to) {
        Some(train) => Source::Files(Files { train, dev: pair(&flags.dev_from, &flags.dev_to) }),
        None if flags.self_test => Source::MadeUp,
        None => Source::BuiltIn,
    }
}

fn bucket(text: &str) -> Result<Bucket, String> {
    let side = |text: &str| usize::from_str(text.trim()).ok().filter(|words| *words > 1);
    let sides = text.split_once(',').and_then(|(from, to)| Some((side(from)?, side(to)?)));
    // The end of a sentence counts as a word of its translation.
    let sides = sides.filter(|(_, to)| *to > 2);
    sides
        .map(|(from, to)| Bucket::new(from, to))
        .ok_or_else(|| "a bucket is FROM,TO, such as 5,10, with FROM at least 2 and TO at least 3".to_owned())
}

#[cfg(test)]
mod tests {
    use windlass_data::text::buckets::BUCKETS;

    use super::*;

    #[test]
    fn buckets_are_read_as_they_are_written() {
        assert_eq!(bucket("5,10"), Ok(Bucket::new(5, 10)));
        for text in ["5", "5;10", "1,10", "5,2", "5,-10", "5,10,15", ""] {
            assert!(bucket(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_default_buckets_are_the_tutorials() {
        let texts = ["5,10", "10,15", "20,25", "40,50"];
        assert_eq!(texts.map(|text| bucket(text).unwrap()), BUCKETS);
    }
}
