//! The description of a translator besides its values: shapes, buckets and vocabularies, as a file that stays with the
//! run.

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use windlass_data::text::vocabulary::Malformed;
use windlass_data::text::{Bucket, Vocabulary};

use super::interpreter::Interpreter;
use super::load::MissingValues;
use super::network::{Shape, Translator};

/// The name of the file in the run directory.
pub const TRANSLATOR_FILE: &str = "translator.json";

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    pub(super) shape: Shape,
    buckets: Vec<(usize, usize)>,
    from: Vec<String>,
    to: Vec<String>,
}

/// Why a network cannot be built from a file and values.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// The file is not a valid description.
    #[error("it does not describe a translator: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// A list of words is not a vocabulary.
    #[error("it has no vocabulary: {0}")]
    Vocabulary(#[from] Malformed),
    /// The file contradicts itself.
    #[error("its vocabularies have {from} and {to} words, and its network {} and {}", shape.from_words, shape.to_words)]
    Words {
        /// Words of one vocabulary.
        from: usize,
        /// Words of the other vocabulary.
        to: usize,
        /// The shape of the network.
        shape: Shape,
    },
    /// The file has no usable buckets.
    #[error("it has no buckets, or one without length")]
    Buckets,
    /// The file belongs to another network than the values.
    #[error("it belongs to another network: {0}")]
    Values(#[from] MissingValues),
}

impl Saved {
    pub(super) fn new(shape: Shape, buckets: &[Bucket], from: &Vocabulary, to: &Vocabulary) -> Self {
        let words = |vocabulary: &Vocabulary| vocabulary.to_text().lines().map(str::to_owned).collect();
        let buckets = buckets.iter().map(|bucket| (bucket.from, bucket.to)).collect();
        Self { shape, buckets, from: words(from), to: words(to) }
    }
}

/// The two vocabularies of a description.
pub(super) fn vocabularies(description: &str) -> Result<(Vocabulary, Vocabulary), SavedError> {
    let Saved { from, to, .. } = serde_json::from_str(description)?;
    Ok((vocabulary(&from)?, vocabulary(&to)?))
}

fn vocabulary(words: &[String]) -> Result<Vocabulary, Malformed> {
    Vocabulary::from_text(words.join("\n").as_bytes())
}

impl Interpreter {
    /// Builds a translator from a run's description in [`TRANSLATOR_FILE`], and these values by name.
    pub fn new(
        description: &str,
        values: impl Fn(&str) -> Option<Vec<f32>>,
        device: &Device,
    ) -> Result<Self, SavedError> {
        let Saved { shape, buckets, from, to } = serde_json::from_str(description)?;
        let (from, to) = (vocabulary(&from)?, vocabulary(&to)?);
        if (shape.from_words, shape.to_words) != (from.size(), to.size()) {
            return Err(SavedError::Words { from: from.size(), to: to.size(), shape });
        }
        if buckets.is_empty() || buckets.iter().any(|(from, to)| *from < 2 || *to < 2) {
            return Err(SavedError::Buckets);
        }
        shape.check(&values)?;
        Ok(Self {
            network: Translator::with_values(&shape, values, device)?,
            from,
            to,
            buckets: buckets.into_iter().map(|(from, to)| Bucket::new(from, to)).collect(),
        })
    }
}
