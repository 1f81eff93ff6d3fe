//! Cross-entropy of one target score per row against the scores of shared candidates, on the CPU.
//!
//! As in the full softmax, the saved scores are e^(score − largest), and one factor per row does the rest.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::{contiguous, dimensions, floats, tensor};
use crate::elementary::exp_or_zero;
use crate::loss::{factors, scale_rows};
use crate::matrix::{Matrix, product};
use crate::record::Saved;
use crate::vector::{largest, replace_and_sum, share, sum, vectorised};

/// The loss of every row, from hidden, target weights and bias, candidate weights and bias, and the index of the
/// candidate that each row leaves out (or a negative number).
pub(crate) fn forward(inputs: [FlexTensor; 5], hits: FlexTensor) -> (FlexTensor, Sampled) {
    let [hidden, right_weights, right_bias, candidate_weights, candidate_bias] = inputs.map(contiguous);
    let [rows, size] = dimensions(&hidden);
    let [width] = dimensions(&candidate_bias);
    assert_eq!(dimensions(&right_weights), [rows, size], "right weights are [rows, size]");
    assert_eq!(dimensions(&right_bias), [rows], "the right bias is [rows]");
    assert_eq!(dimensions(&candidate_weights), [width, size], "candidate weights are [candidates, size]");
    let hits: Vec<i64> = hits.into_data().iter::<i64>().collect();
    let candidates = Matrix::new(floats(&candidate_weights), size).transposed();
    let mut scores = product(Matrix::new(floats(&hidden), size), candidates);
    // For each row: the loss, the factor, and the derivative with respect to the target score.
    let mut results = vec![[0.0; 3]; rows];
    let share = share(rows, width + size);
    scores.par_chunks_mut(share * width).zip(results.par_chunks_mut(share)).enumerate().for_each(
        |(part, (scores, results))| {
            for (index, (scores, result)) in scores.chunks_exact_mut(width).zip(results).enumerate() {
                let row = part * share + index;
                let hidden = &floats(&hidden)[row * size..][..size];
                let weights = &floats(&right_weights)[row * size..][..size];
                let right = floats(&right_bias)[row];
                let hit = usize::try_from(hits[row]).ok();
                *result = score_row(scores, floats(&candidate_bias), (hidden, weights, right), hit);
            }
        },
    );
    let column = |at: usize| tensor(results.iter().map(|result| result[at]).collect(), [rows]);
    let saved = Sampled {
        hidden,
        right_weights,
        candidate_weights,
        exponentials: tensor(scores, [rows, width]),
        scales: column(1),
        right: column(2),
    };
    (column(0), saved)
}

fn score_row(
    scores: &mut [f32],
    bias: &[f32],
    (hidden, weights, right): (&[f32], &[f32], f32),
    hit: Option<usize>,
) -> [f32; 3] {
    vectorised(
        #[inline(always)]
        || {
            let right = right + sum(hidden.len(), |index| hidden[index] * weights[index]);
            scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
            if let Some(hit) = hit {
                scores[hit] = f32::MIN;
            }
            let largest = largest(scores);
            let largest = if right > largest { right } else { largest };
            let others = replace_and_sum(
                scores,
                #[inline(always)]
                |score| exp_or_zero(score - largest),
            );
            let total = others + exp_or_zero(right - largest);
            [total.ln() - (right - largest), 1.0 / total, -others / total]
        },
    )
}

/// The inputs, the exponentials, and the derivative of each loss with respect to its target score.
#[derive(Clone, Debug)]
pub(crate) struct Sampled {
    hidden: FlexTensor,
    right_weights: FlexTensor,
    candidate_weights: FlexTensor,
    exponentials: FlexTensor,
    scales: FlexTensor,
    right: FlexTensor,
}

impl Saved<5> for Sampled {
    fn gradients(self, gradient: FlexTensor, wanted: [bool; 5]) -> [Option<FlexTensor>; 5] {
        let [rows, size] = dimensions(&self.hidden);
        let [_, width] = dimensions(&self.exponentials);
        let gradient = contiguous(gradient);
        let right: Vec<f32> =
            floats(&gradient).iter().zip(floats(&self.right)).map(|(gradient, right)| gradient * right).collect();
        let factors = factors(gradient, &self.scales);
        let exponentials = Matrix::new(floats(&self.exponentials), width);
        let scaled = |values: &FlexTensor, factors: &[f32]| {
            let mut scaled = floats(values).to_vec();
            scale_rows(&mut scaled, size, factors);
            scaled
        };
        let hidden = wanted[0].then(|| {
            let mut hidden = product(exponentials, Matrix::new(floats(&self.candidate_weights), size));
            scale_rows(&mut hidden, size, &factors);
            let direct = scaled(&self.right_weights, &right);
            hidden.iter_mut().zip(direct).for_each(|(hidden, direct)| *hidden += direct);
            tensor(hidden, [rows, size])
        });
        let candidate_weights = wanted[3].then(|| {
            let hidden = scaled(&self.hidden, &factors);
            tensor(product(exponentials.transposed(), Matrix::new(&hidden, size)), [width, size])
        });
        [
            hidden,
            wanted[1].then(|| tensor(scaled(&self.hidden, &right), [rows, size])),
            wanted[2].then(|| tensor(right.clone(), [rows])),
            candidate_weights,
            wanted[4].then(|| tensor(product(Matrix::new(&factors, rows), exponentials), [width])),
        ]
    }
}
