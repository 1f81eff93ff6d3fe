//! Softmax cross-entropy on the CPU: of scores, and of a linear layer's scores.
//!
//! Each row is read once. The saved values are not the softmax but e^(score − largest), with the row's sum subtracted
//! at the target class: the gradient of the scores is that, times one factor per row. So neither the division by the
//! sum nor the incoming gradient costs a pass over the scores, and behind a linear layer the factor is applied on the
//! narrow side.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::{contiguous, dimensions, floats, into_floats, tensor};
use crate::elementary::exp_or_zero;
use crate::matrix::{Matrix, product};
use crate::record::Saved;
use crate::vector::{largest, replace_and_sum, share, vectorised};

/// The cross-entropy of every row of scores.
pub(crate) fn forward([scores]: [FlexTensor; 1], classes: FlexTensor) -> (FlexTensor, CrossEntropy) {
    let [rows, width] = dimensions(&scores);
    let mut scores = into_floats(scores);
    let values = scores.as_mut_slice::<f32>().expect("converted to f32");
    let (losses, scales) = exponentials(values, width, None, &into_indices(classes));
    let saved = CrossEntropy { exponentials: FlexTensor::from_data(scores), scales: tensor(scales, [rows]) };
    (tensor(losses, [rows]), saved)
}

/// The cross-entropy of every row of hidden × weight + bias.
pub(crate) fn linear_forward(
    [hidden, weight, bias]: [FlexTensor; 3],
    classes: FlexTensor,
) -> (FlexTensor, LinearCrossEntropy) {
    let [rows, size] = dimensions(&hidden);
    let [_, width] = dimensions(&weight);
    let [hidden, weight, bias] = [hidden, weight, bias].map(contiguous);
    let mut scores = product(Matrix::new(floats(&hidden), size), Matrix::new(floats(&weight), width));
    let (losses, scales) = exponentials(&mut scores, width, Some(floats(&bias)), &into_indices(classes));
    let saved = LinearCrossEntropy {
        hidden,
        weight,
        exponentials: tensor(scores, [rows, width]),
        scales: tensor(scales, [rows]),
    };
    (tensor(losses, [rows]), saved)
}

/// The exponentials of the scores, and the factor of each row.
#[derive(Clone, Debug)]
pub(crate) struct CrossEntropy {
    exponentials: FlexTensor,
    scales: FlexTensor,
}

impl Saved<1> for CrossEntropy {
    fn gradients(self, gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        let [_, width] = dimensions(&self.exponentials);
        let factors = factors(gradient, &self.scales);
        let mut scores = into_floats(self.exponentials);
        scale_rows(scores.as_mut_slice::<f32>().expect("converted to f32"), width, &factors);
        [Some(FlexTensor::from_data(scores))]
    }
}

/// Like [`CrossEntropy`], with the linear layer that computed the scores.
#[derive(Clone, Debug)]
pub(crate) struct LinearCrossEntropy {
    hidden: FlexTensor,
    weight: FlexTensor,
    exponentials: FlexTensor,
    scales: FlexTensor,
}

impl Saved<3> for LinearCrossEntropy {
    fn gradients(self, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [rows, size] = dimensions(&self.hidden);
        let [_, width] = dimensions(&self.weight);
        let factors = factors(gradient, &self.scales);
        let exponentials = Matrix::new(floats(&self.exponentials), width);
        let hidden = wanted[0].then(|| {
            let mut hidden = product(exponentials, Matrix::new(floats(&self.weight), width).transposed());
            scale_rows(&mut hidden, size, &factors);
            tensor(hidden, [rows, size])
        });
        let weight = wanted[1].then(|| {
            let mut scaled = floats(&self.hidden).to_vec();
            scale_rows(&mut scaled, size, &factors);
            tensor(product(Matrix::new(&scaled, size).transposed(), exponentials), [size, width])
        });
        let bias = wanted[2].then(|| tensor(product(Matrix::new(&factors, rows), exponentials), [width]));
        [hidden, weight, bias]
    }
}

/// Turns scores into exponentials as described above. Returns the losses and the factors of the rows.
fn exponentials(scores: &mut [f32], width: usize, bias: Option<&[f32]>, classes: &[usize]) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(scores.len(), width * classes.len(), "one class a row of scores");
    let share = share(classes.len(), width);
    let mut losses = vec![0.0; classes.len()];
    let mut scales = vec![0.0; classes.len()];
    let parts = scores.par_chunks_mut(share * width).zip(classes.par_chunks(share));
    let results = losses.par_chunks_mut(share).zip(scales.par_chunks_mut(share));
    parts.zip(results).for_each(|((scores, classes), (losses, scales))| {
        let rows = scores.chunks_exact_mut(width).zip(classes);
        for ((row, class), (loss, scale)) in rows.zip(losses.iter_mut().zip(scales)) {
            (*loss, *scale) = exponential_row(row, bias, *class);
        }
    });
    (losses, scales)
}

fn exponential_row(row: &mut [f32], bias: Option<&[f32]>, class: usize) -> (f32, f32) {
    vectorised(
        #[inline(always)]
        || {
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
            }
            let largest = largest(row);
            let chosen = row[class] - largest;
            let sum = replace_and_sum(
                row,
                #[inline(always)]
                |score| exp_or_zero(score - largest),
            );
            row[class] -= sum;
            (sum.ln() - chosen, 1.0 / sum)
        },
    )
}

/// The factor of each row, times the incoming gradient of the row's loss.
pub(crate) fn factors(gradient: FlexTensor, scales: &FlexTensor) -> Vec<f32> {
    let gradient = contiguous(gradient);
    floats(&gradient).iter().zip(floats(scales)).map(|(gradient, scale)| gradient * scale).collect()
}

pub(crate) fn scale_rows(values: &mut [f32], width: usize, factors: &[f32]) {
    let share = share(factors.len(), width);
    values.par_chunks_mut(share * width).zip(factors.par_chunks(share)).for_each(|(values, factors)| {
        for (row, factor) in values.chunks_exact_mut(width).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    });
}

fn into_indices(classes: FlexTensor) -> Vec<usize> {
    classes.into_data().iter::<i64>().map(|class| class as usize).collect()
}
