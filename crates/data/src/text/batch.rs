//! Pairs of one bucket as the numbers that an encoder and a decoder take as input.
//!
//! Everything is time-major: the number of row `r` at step `t` is at `t * rows + r`, so that what a recurrent network
//! needs for one step is contiguous. This module must not know tensors.

use super::buckets::Bucket;
use super::vocabulary::{EOS, GO, PAD};

/// A batch of sentences and translations of similar length.
///
/// | | row of the sentence `a b` and its translation `x y z`, in the bucket (4,7) |
/// |---|---|
/// | `encoder_inputs` | `PAD PAD b a` |
/// | `decoder_inputs` | `GO x y z EOS PAD` |
/// | `targets` | `x y z EOS PAD PAD` |
/// | `weights` | `1 1 1 1 0 0` |
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The bucket of all rows.
    pub bucket: Bucket,
    /// How many pairs there are.
    pub rows: usize,
    /// The sentences, padded and then reversed: [`Bucket::encoder_steps`] × `rows`.
    pub encoder_inputs: Vec<u32>,
    /// The inputs of the decoder: [`Bucket::decoder_steps`] × `rows`.
    pub decoder_inputs: Vec<u32>,
    /// The expected outputs of the decoder: its inputs, one step ahead.
    pub targets: Vec<u32>,
    /// 1 for a target that counts and 0 for padding.
    pub weights: Vec<f32>,
}

impl Batch {
    /// A batch of pairs. To translate, pass sentences with empty translations.
    ///
    /// # Panics
    /// Panics if a pair does not fit the bucket.
    pub fn new(bucket: Bucket, pairs: &[(&[u32], &[u32])]) -> Self {
        let rows = pairs.len();
        let (encoder, decoder) = (bucket.encoder_steps(), bucket.decoder_steps());
        let mut batch = Self {
            bucket,
            rows,
            encoder_inputs: vec![PAD; encoder * rows],
            decoder_inputs: vec![PAD; decoder * rows],
            targets: vec![PAD; decoder * rows],
            weights: vec![0.0; decoder * rows],
        };
        for (row, (from, to)) in pairs.iter().enumerate() {
            assert!(bucket.fits(from.len(), to.len()), "{} and {} words fit {bucket}", from.len(), to.len());
            for (step, &word) in (0..encoder).rev().zip(*from) {
                batch.encoder_inputs[step * rows + row] = word;
            }
            let said = || to.iter().copied().chain([EOS]);
            for (step, word) in (0..decoder).zip([GO].into_iter().chain(said())) {
                batch.decoder_inputs[step * rows + row] = word;
            }
            for (step, word) in said().enumerate() {
                batch.targets[step * rows + row] = word;
                batch.weights[step * rows + row] = 1.0;
            }
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row of a time-major vector.
    fn row<T: Copy>(values: &[T], rows: usize, row: usize) -> Vec<T> {
        values.iter().copied().skip(row).step_by(rows).collect()
    }

    #[test]
    fn rows_are_padded_reversed_and_shifted() {
        let (a, b, x, y, z) = (10, 11, 20, 21, 22);
        let batch = Batch::new(Bucket::new(4, 7), &[(&[a, b], &[x, y, z]), (&[b], &[x])]);
        assert_eq!(row(&batch.encoder_inputs, 2, 0), [PAD, PAD, b, a]);
        assert_eq!(row(&batch.decoder_inputs, 2, 0), [GO, x, y, z, EOS, PAD]);
        assert_eq!(row(&batch.targets, 2, 0), [x, y, z, EOS, PAD, PAD]);
        assert_eq!(row(&batch.weights, 2, 0), [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(row(&batch.encoder_inputs, 2, 1), [PAD, PAD, PAD, b]);
        assert_eq!(row(&batch.decoder_inputs, 2, 1), [GO, x, EOS, PAD, PAD, PAD]);
        assert_eq!(row(&batch.weights, 2, 1), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_longest_pair_that_fits_fills_every_step() {
        let batch = Batch::new(Bucket::new(3, 4), &[(&[10, 11], &[20, 21])]);
        assert_eq!(batch.encoder_inputs, [PAD, 11, 10]);
        assert_eq!(batch.decoder_inputs, [GO, 20, 21]);
        assert_eq!(batch.targets, [20, 21, EOS]);
        assert_eq!(batch.weights, [1.0; 3]);
    }

    #[test]
    fn a_sentence_to_translate_has_no_words_to_say() {
        let batch = Batch::new(Bucket::new(3, 4), &[(&[10], &[])]);
        assert_eq!(batch.encoder_inputs, [PAD, PAD, 10]);
        assert_eq!(batch.decoder_inputs, [GO, EOS, PAD]);
    }
}
