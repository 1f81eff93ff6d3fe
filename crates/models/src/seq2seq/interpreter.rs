//! Translates text, with the network, the two vocabularies and the buckets together.

use windlass_data::text::buckets::first_fit_to_translate;
use windlass_data::text::tokenise::{detokenise, tokenise};
use windlass_data::text::vocabulary::UNK;
use windlass_data::text::{Bucket, Vocabulary};

use super::decode::{Beam, Translation, beam, greedy};
use super::network::Translator;

/// Everything needed to translate a sentence. The network has its whole tables.
pub struct Interpreter {
    /// The network.
    pub network: Translator,
    /// The vocabulary of the source language.
    pub from: Vocabulary,
    /// The vocabulary of the target language.
    pub to: Vocabulary,
    /// The lengths that the network was trained with.
    pub buckets: Vec<Bucket>,
}

/// A translated sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct Interpreted {
    /// The source sentence, split into words.
    pub source: Vec<String>,
    /// The translation as readable text.
    pub text: String,
    /// The translation in words.
    pub words: Vec<String>,
    /// The translation as found, with the attention of each word.
    pub translation: Translation,
}

/// Why a sentence cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// The sentence is empty.
    #[error("the sentence has no words")]
    Blank,
    /// No bucket is long enough.
    #[error("the sentence has {words} words, and the network was trained with fewer than {longest}")]
    TooLong {
        /// Words of the sentence.
        words: usize,
        /// The length of the longest bucket.
        longest: usize,
    },
}

impl Interpreter {
    /// Translates a sentence, greedily or with a beam search. A word that is not in the vocabulary is replaced by the
    /// source word with the most attention: often it is a name.
    pub fn translate(&self, sentence: &str, search: Option<Beam>) -> Result<Interpreted, InterpretError> {
        let source: Vec<String> = tokenise(sentence).map(String::from).collect();
        if source.is_empty() {
            return Err(InterpretError::Blank);
        }
        let numbers: Vec<u32> = source.iter().map(|token| self.from.id(token)).collect();
        let bucket = first_fit_to_translate(&self.buckets, numbers.len()).ok_or_else(|| InterpretError::TooLong {
            words: numbers.len(),
            longest: self.buckets.iter().map(|bucket| bucket.from).max().unwrap_or(0),
        })?;
        let bucket = self.buckets[bucket];
        let found = match search {
            Some(search) => beam(&self.network, bucket, &numbers, search),
            None => greedy(&self.network, bucket, &[&numbers]),
        };
        let translation = found.into_iter().next().expect("a search finds a translation");
        let words: Vec<String> = self.words(&translation, &source);
        let text = detokenise(&words.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(Interpreted { source, text, words, translation })
    }

    pub(super) fn words(&self, translation: &Translation, source: &[String]) -> Vec<String> {
        let word = |(word, attention): (&u32, &Vec<f32>)| {
            let most = attention.iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
            match most {
                Some((at, _)) if *word == UNK => source[at].clone(),
                _ => self.to.token(*word).to_owned(),
            }
        };
        translation.words.iter().zip(&translation.attention).map(word).collect()
    }
}
