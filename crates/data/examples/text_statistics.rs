//! Statistics of parallel text: buckets, vocabulary, and the time to read it.
//!
//! `cargo run --release -p windlass-data --example text_statistics` for the built-in numbers, or with
//! `TRAIN_FROM TRAIN_TO DEV_FROM DEV_TO [VOCABULARY_SIZE [CACHE_DIRECTORY]]` for files.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use windlass_data::text::buckets::BUCKETS;
use windlass_data::text::parallel::{self, FilePair, Files};
use windlass_data::text::vocabulary::UNK;
use windlass_data::text::{BucketedPairs, Corpus, Pairs, Sentences, VocabularySizes, numbers};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let start = Instant::now();
    let corpus = match &arguments[..] {
        [] => built_in(),
        [train_from, train_to, dev_from, dev_to, more @ ..] => {
            let pair = |from: &String, to: &String| FilePair { from: PathBuf::from(from), to: PathBuf::from(to) };
            let files = Files { train: pair(train_from, train_to), dev: Some(pair(dev_from, dev_to)) };
            let size = more.first().map_or(40_000, |size| size.parse().expect("the vocabulary size is a whole number"));
            let sizes = VocabularySizes { from: size, to: size };
            match parallel::load(&files, sizes, more.get(1).map(Path::new), &mut |event| println!("{event}")) {
                Ok(corpus) => corpus,
                Err(error) => {
                    eprintln!("error: {error}");
                    return ExitCode::from(2);
                }
            }
        }
        _ => {
            eprintln!("error: expected no files or four of them");
            return ExitCode::from(2);
        }
    };
    println!("read in {:.3} s", start.elapsed().as_secs_f64());
    show(corpus);
    ExitCode::SUCCESS
}

fn built_in() -> Corpus {
    let text = numbers::corpus(1, numbers::Sizes::default());
    Corpus::of_text(&text.train, &text.dev, VocabularySizes::default())
}

fn show(corpus: Corpus) {
    println!("vocabularies: {} from, {} to", corpus.from.size(), corpus.to.size());
    for pair in (0..corpus.train.len()).step_by(corpus.train.len().div_ceil(8)) {
        let (from, to) = corpus.train.get(pair);
        println!("  {}\n    {:?}", corpus.from.sentence(from), corpus.from.decode(from));
        println!("  {}\n    {:?}", corpus.to.sentence(to), corpus.to.decode(to));
    }
    for (name, pairs) in [("train", corpus.train), ("dev", corpus.dev)] {
        let known = |sentences: &Sentences| {
            let words = sentences.words();
            let known = words.iter().filter(|&&word| word != UNK).count();
            format!("{} words, {:.2}% known", words.len(), 100.0 * known as f64 / words.len().max(1) as f64)
        };
        println!("{name}: from {}; to {}", known(pairs.from()), known(pairs.to()));
        println!("{name}: {}", bucketed(pairs).statistics());
    }
}

/// Sorts the pairs into buckets, and prints how long it takes to assemble a batch.
fn bucketed(pairs: Pairs) -> BucketedPairs {
    let start = Instant::now();
    let pairs = BucketedPairs::new(pairs, &BUCKETS);
    println!("sorted in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    if pairs.is_empty() {
        return pairs;
    }
    let samples: Vec<usize> = (0..64).map(|index| index * (pairs.len() / 64)).collect();
    let start = Instant::now();
    const BATCHES: usize = 1000;
    let words: usize = (0..BATCHES)
        .map(|batch| {
            let samples: Vec<usize> = samples.iter().map(|sample| (sample + batch * 7919) % pairs.len()).collect();
            pairs.batch(&samples).targets.len()
        })
        .sum();
    let each = start.elapsed().as_secs_f64() * 1e6 / BATCHES as f64;
    println!("a batch of 64: {each:.1} µs, {} steps of the decoder on average", words / BATCHES / 64);
    pairs
}
