//! The form of a batch that a step computes on: the table rows that it touches, and all words as positions among those.

use burn::tensor::Device;
use rand::SeedableRng;
use rand::rngs::StdRng;
use windlass_data::text::Batch;
use windlass_ops::{Candidates, LogUniformSampler};
use windlass_worker::travel::{Parcel, Travel, TravelError};

/// A batch and the rows that it touches.
#[derive(Clone, Debug)]
pub struct StepBatch {
    pub(super) sentences: usize,
    /// Positions in the embedding of the source language, by time step.
    pub(super) encoder_inputs: Vec<u32>,
    /// Positions in the embedding of the target language, by time step.
    pub(super) decoder_inputs: Vec<u32>,
    /// The decoder's outputs that count: those that are not padding.
    pub(super) counted: Vec<u32>,
    /// The weights of those outputs in the loss.
    pub(super) weights: Vec<f32>,
    /// The targets of those outputs.
    pub(super) choice: Choice,
    /// The rows of the two embeddings and of the output layer; `None` if the step has whole tables.
    pub(super) rows: Option<[Vec<u32>; 3]>,
}

windlass_worker::travels!(StepBatch { sentences, encoder_inputs, decoder_inputs, counted, weights, choice, rows });

/// The correct words, and the words that they compete with.
#[derive(Clone, Debug)]
pub(super) enum Choice {
    /// All words.
    Full { right: Vec<u32> },
    /// A sample of negative words. Places are rows of the output layer.
    Sampled { right: Vec<usize>, right_places: Vec<u32>, candidates: Candidates, candidate_places: Vec<u32> },
}

impl Travel for Choice {
    fn pack(self, parcel: &mut Parcel) -> Result<(), TravelError> {
        let (sampled, full) = match self {
            Self::Full { right } => (None, right),
            Self::Sampled { right, right_places, candidates, candidate_places } => {
                let (tries, range) = candidates.tries_and_range();
                (Some((right, candidate_places, candidates.classes, tries, range)), right_places)
            }
        };
        (sampled, full).pack(parcel)
    }

    fn unpack(parcel: &mut Parcel, device: &Device) -> Result<Self, TravelError> {
        type Sampled = (Vec<usize>, Vec<u32>, Vec<usize>, u64, usize);
        let (sampled, places) = <(Option<Sampled>, Vec<u32>)>::unpack(parcel, device)?;
        Ok(match sampled {
            None => Self::Full { right: places },
            Some((right, candidate_places, classes, tries, range)) => Self::Sampled {
                right,
                right_places: places,
                candidates: Candidates::drawn(classes, tries, range),
                candidate_places,
            },
        })
    }
}

/// The settings for making batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batching {
    /// The number of words of the target language.
    pub(super) to_words: usize,
    /// The number of negative samples; `None` for all words.
    pub(super) samples: Option<usize>,
    /// Whether a step has only the rows that its batch touches.
    pub(super) by_rows: bool,
}

impl Batching {
    /// Makes the batch of a step. Random choices depend only on `draw`.
    pub(super) fn batch(&self, batch: &Batch, draw: u64) -> StepBatch {
        let counted: Vec<u32> =
            (0..).zip(&batch.weights).filter(|(_, weight)| **weight > 0.0).map(|(at, _)| at).collect();
        let right: Vec<u32> = counted.iter().map(|at| batch.targets[*at as usize]).collect();
        let weights = sentence_means(batch, &counted);
        let from = self.table(&batch.encoder_inputs);
        let to = self.table(&batch.decoder_inputs);
        let (choice, output) = self.choice(right, draw);
        StepBatch {
            sentences: batch.rows,
            encoder_inputs: from.places(&batch.encoder_inputs),
            decoder_inputs: to.places(&batch.decoder_inputs),
            counted,
            weights,
            choice,
            rows: self.by_rows.then_some([from.0, to.0, output.0]),
        }
    }

    fn choice(&self, right: Vec<u32>, draw: u64) -> (Choice, Rows) {
        let Some(samples) = self.samples else {
            // With all rows present, a word's position is its number.
            return (Choice::Full { right }, Rows((0..self.to_words as u32).collect()));
        };
        let candidates = LogUniformSampler::new(self.to_words).sample(samples, &mut StdRng::seed_from_u64(draw));
        let candidate_rows: Vec<u32> = candidates.classes.iter().map(|class| *class as u32).collect();
        let output = self.table(&[&right[..], &candidate_rows].concat());
        let choice = Choice::Sampled {
            right_places: output.places(&right),
            candidate_places: output.places(&candidate_rows),
            right: right.into_iter().map(|word| word as usize).collect(),
            candidates,
        };
        (choice, output)
    }

    fn table(&self, words: &[u32]) -> Rows {
        if !self.by_rows {
            return Rows(Vec::new());
        }
        let mut rows = words.to_vec();
        rows.sort_unstable();
        rows.dedup();
        Rows(rows)
    }
}

/// The rows of a table that a step has, in ascending order; empty if it has the whole table.
struct Rows(Vec<u32>);

impl Rows {
    /// The positions of these words.
    fn places(&self, words: &[u32]) -> Vec<u32> {
        if self.0.is_empty() {
            return words.to_vec();
        }
        let place = |word: &u32| self.0.binary_search(word).expect("every word of the batch has its row") as u32;
        words.iter().map(place).collect()
    }
}

/// The weights with which the sum over words is the mean over sentences of the mean over each sentence's words.
fn sentence_means(batch: &Batch, counted: &[u32]) -> Vec<f32> {
    let sentence = |at: &u32| *at as usize % batch.rows;
    let mut words = vec![0.0; batch.rows];
    counted.iter().for_each(|at| words[sentence(at)] += 1.0);
    counted.iter().map(|at| 1.0 / (words[sentence(at)] * batch.rows as f32)).collect()
}

#[cfg(test)]
mod tests {
    use windlass_data::text::Bucket;
    use windlass_data::text::vocabulary::{EOS, GO, PAD};

    use super::*;

    fn batch() -> Batch {
        Batch::new(Bucket::new(3, 5), &[(&[9, 7], &[8, 6]), (&[7], &[8])])
    }

    fn batching(samples: Option<usize>, by_rows: bool) -> Batching {
        Batching { to_words: 1000, samples, by_rows }
    }

    #[test]
    fn words_are_numbered_by_their_place_among_the_rows() {
        let made = batching(None, true).batch(&batch(), 1);
        let [from, to, output] = made.rows.clone().unwrap();
        assert_eq!(from, [PAD, 7, 9]);
        assert_eq!(to, [PAD, GO, EOS, 6, 8]);
        assert_eq!(output.len(), 1000);
        let read = |rows: &[u32], places: &[u32]| places.iter().map(|at| rows[*at as usize]).collect::<Vec<_>>();
        assert_eq!(read(&from, &made.encoder_inputs), batch().encoder_inputs);
        assert_eq!(read(&to, &made.decoder_inputs), batch().decoder_inputs);
    }

    #[test]
    fn without_rows_words_keep_their_numbers() {
        let made = batching(Some(10), false).batch(&batch(), 1);
        assert_eq!((made.encoder_inputs, made.decoder_inputs), (batch().encoder_inputs, batch().decoder_inputs));
        assert!(made.rows.is_none());
    }

    #[test]
    fn padding_does_not_count_and_every_sentence_weighs_the_same() {
        let made = batching(None, true).batch(&batch(), 1);
        let Choice::Full { right } = &made.choice else { panic!("nothing is sampled") };
        // By time step: 8 8, 6 EOS, EOS PAD.
        assert_eq!((&made.counted[..], &right[..]), (&[0, 1, 2, 3, 4][..], &[8, 8, 6, EOS, EOS][..]));
        let sums = [0, 1].map(|sentence| {
            let own = made.counted.iter().zip(&made.weights).filter(|(at, _)| **at as usize % 2 == sentence);
            own.map(|(_, weight)| *weight).sum::<f32>()
        });
        assert_eq!(sums, [0.5, 0.5]);
    }

    #[test]
    fn a_draw_has_one_sample_whose_rows_and_the_right_ones_are_all_there() {
        let made = batching(Some(20), true).batch(&batch(), 5);
        let Choice::Sampled { right, right_places, candidates, candidate_places } = &made.choice else {
            panic!("a vocabulary of 1000 is sampled")
        };
        let [_, _, output] = made.rows.clone().unwrap();
        assert!(output.is_sorted_by(|row, next| row < next) && output.len() < 25);
        let words = |places: &[u32]| places.iter().map(|at| output[*at as usize] as usize).collect::<Vec<_>>();
        assert_eq!(&words(right_places), right);
        assert_eq!(words(candidate_places), candidates.classes);
        let sample = |draw| match batching(Some(20), true).batch(&batch(), draw).choice {
            Choice::Sampled { candidates, .. } => candidates.classes,
            Choice::Full { .. } => panic!("a vocabulary of 1000 is sampled"),
        };
        assert_eq!(sample(5), candidates.classes);
        assert_ne!(sample(6), candidates.classes);
    }
}
