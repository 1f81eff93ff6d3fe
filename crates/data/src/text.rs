//! Parallel text for translation, from sentences to batches of numbers, and scores of translations.
//!
//! A corpus is built in ([`numbers`]) or read from files ([`parallel`]). Its sentences are split into words
//! ([`tokenise`]), numbered by a [`vocabulary`], and grouped into batches of similar length ([`buckets`]). The two
//! sides of a pair are always called `from` and `to`.

pub mod batch;
pub mod bleu;
pub mod buckets;
pub mod corpus;
pub mod numbers;
pub mod pairs;
pub mod parallel;
pub mod score;
pub mod tokenise;
pub mod vocabulary;

pub use batch::Batch;
pub use bleu::Bleu;
pub use buckets::{Bucket, BucketedPairs};
pub use corpus::{Corpus, TextPair, VocabularySizes};
pub use pairs::{Pairs, Sentences};
pub use vocabulary::Vocabulary;
