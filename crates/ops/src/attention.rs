//! Additive attention on the CPU: softmax over positions of v·tanh(key + query), and the values weighted by it.
//!
//! The backward pass recomputes the hyperbolic tangents: that is faster than writing and reading them, and a decoder
//! would have to keep them for each of its steps.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use crate::buffer::{contiguous, dimensions, floats, tensor};
use crate::elementary::{exp_or_zero, tanh};
use crate::record::Saved;
use crate::vector::{column_sums, largest, replace_and_sum, share, sum, vectorised};

/// What an element of a key costs, in plain passes over a float.
const COST: usize = 8;

/// The context of every row of the batch, from keys, values, queries and v. The weights are among the saved values.
pub(crate) fn forward(inputs: [FlexTensor; 4]) -> (FlexTensor, Attention) {
    let [keys, values, query, direction] = inputs.map(contiguous);
    let [batch, length, size] = dimensions(&keys);
    let [_, _, depth] = dimensions(&values);
    assert_eq!(dimensions(&values), [batch, length, depth], "values are [batch, length, depth]");
    assert_eq!(dimensions(&query), [batch, size], "the query is [batch, size]");
    assert_eq!(dimensions(&direction), [size], "v is [size]");
    let mut weights = vec![0.0; batch * length];
    let mut context = vec![0.0; batch * depth];
    let share = share(batch, length * size * COST);
    let direction_values = floats(&direction);
    weights
        .par_chunks_mut(share * length)
        .zip(context.par_chunks_mut(share * depth))
        .zip(floats(&keys).par_chunks(share * length * size).zip(floats(&query).par_chunks(share * size)))
        .zip(floats(&values).par_chunks(share * length * depth))
        .for_each(|(((weights, context), (keys, query)), values)| {
            let rows = weights.chunks_exact_mut(length).zip(context.chunks_exact_mut(depth));
            let sources = keys.chunks_exact(length * size).zip(query.chunks_exact(size));
            for (((weights, context), (keys, query)), values) in
                rows.zip(sources).zip(values.chunks_exact(length * depth))
            {
                attend(weights, context, Row { keys, values, query, direction: direction_values });
            }
        });
    let weights = tensor(weights, [batch, length]);
    (tensor(context, [batch, depth]), Attention { keys, values, query, direction, weights })
}

/// The attention's inputs for one row of the batch.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) keys: &'a [f32],
    pub(crate) values: &'a [f32],
    pub(crate) query: &'a [f32],
    pub(crate) direction: &'a [f32],
}

/// Computes the weights of one row of the batch and adds to its context.
pub(crate) fn attend(weights: &mut [f32], context: &mut [f32], row: Row) {
    let Row { keys, values, query, direction } = row;
    vectorised(
        #[inline(always)]
        || {
            for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(query.len())) {
                *weight = sum(
                    query.len(),
                    #[inline(always)]
                    |index| direction[index] * tanh(key[index] + query[index]),
                );
            }
            let largest = largest(weights);
            let total = replace_and_sum(
                weights,
                #[inline(always)]
                |score| exp_or_zero(score - largest),
            );
            for (weight, value) in weights.iter_mut().zip(values.chunks_exact(context.len())) {
                *weight /= total;
                context.iter_mut().zip(value).for_each(|(context, value)| *context += *weight * value);
            }
        },
    );
}

/// The inputs and the weights.
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    keys: FlexTensor,
    values: FlexTensor,
    query: FlexTensor,
    direction: FlexTensor,
    pub(crate) weights: FlexTensor,
}

impl Saved<4> for Attention {
    fn gradients(self, output: FlexTensor, wanted: [bool; 4]) -> [Option<FlexTensor>; 4] {
        let [batch, length, size] = dimensions(&self.keys);
        let [_, depth] = dimensions(&output);
        let output = contiguous(output);
        let mut keys = vec![0.0; batch * length * size];
        let mut values = vec![0.0; if wanted[1] { batch * length * depth } else { 0 }];
        let mut query = vec![0.0; batch * size];
        // One for each row, then added up in the order of rows: the sum does not depend on how rows are divided among
        // threads.
        let mut directions = vec![0.0; batch * size];
        let share = share(batch, length * size * COST);
        let piece = if wanted[1] { length * depth } else { 0 };
        let mut pieces = values.chunks_mut((share * piece).max(1));
        let pieces: Vec<&mut [f32]> = (0..batch.div_ceil(share)).map(|_| pieces.next().unwrap_or_default()).collect();
        keys.par_chunks_mut(share * length * size)
            .zip(pieces)
            .zip(query.par_chunks_mut(share * size).zip(directions.par_chunks_mut(share * size)))
            .enumerate()
            .for_each(|(part, ((keys, values), (query, directions)))| {
                for row in 0..query.len() / size {
                    let values = &mut values[row * piece..(row + 1) * piece];
                    let keys = &mut keys[row * length * size..(row + 1) * length * size];
                    let query = &mut query[row * size..(row + 1) * size];
                    let direction = &mut directions[row * size..(row + 1) * size];
                    let row = part * share + row;
                    let output = &floats(&output)[row * depth..][..depth];
                    let weights = &floats(&self.weights)[row * length..][..length];
                    attend_back(self.row(row), weights, output, [keys, values, query, direction]);
                }
            });
        [
            wanted[0].then(|| tensor(keys, [batch, length, size])),
            wanted[1].then(|| tensor(values, [batch, length, depth])),
            wanted[2].then(|| tensor(query, [batch, size])),
            wanted[3].then(|| tensor(column_sums(&directions, size), [size])),
        ]
    }
}

impl Attention {
    fn row(&self, row: usize) -> Row<'_> {
        let ([_, length, size], [_, _, depth]) = (dimensions(&self.keys), dimensions(&self.values));
        Row {
            keys: &floats(&self.keys)[row * length * size..][..length * size],
            values: &floats(&self.values)[row * length * depth..][..length * depth],
            query: &floats(&self.query)[row * size..][..size],
            direction: floats(&self.direction),
        }
    }
}

/// Adds the gradients of one row of the batch to the existing ones. The gradient of the values may be left out.
pub(crate) fn attend_back(
    row: Row,
    weights: &[f32],
    output: &[f32],
    [keys, values, query, direction]: [&mut [f32]; 4],
) {
    let (size, depth) = (query.len(), output.len());
    vectorised(
        #[inline(always)]
        || {
            let mut scores: Vec<f32> = row
                .values
                .chunks_exact(depth)
                .map(
                    #[inline(always)]
                    |value| sum(depth, |index| value[index] * output[index]),
                )
                .collect();
            let mean: f32 = scores.iter().zip(weights).map(|(score, weight)| score * weight).sum();
            scores.iter_mut().zip(weights).for_each(|(score, weight)| *score = (*score - mean) * weight);
            for (value, weight) in values.chunks_exact_mut(depth).zip(weights) {
                value.iter_mut().zip(output).for_each(|(value, output)| *value += weight * output);
            }
            let old = [row.query, row.direction];
            for ((key, old_key), score) in keys.chunks_exact_mut(size).zip(row.keys.chunks_exact(size)).zip(&scores) {
                position_back(key, query, direction, [old_key, old[0], old[1]], *score);
            }
        },
    );
}

/// The gradients of one position. Arguments of a function are known not to overlap, which the vectoriser needs.
#[inline(always)]
fn position_back(
    key: &mut [f32],
    query: &mut [f32],
    direction: &mut [f32],
    [old_key, old_query, old_direction]: [&[f32]; 3],
    score: f32,
) {
    let size = key.len();
    let (query, direction) = (&mut query[..size], &mut direction[..size]);
    let (old_key, old_query, old_direction) = (&old_key[..size], &old_query[..size], &old_direction[..size]);
    for index in 0..size {
        let squashed = tanh(old_key[index] + old_query[index]);
        let inner = score * old_direction[index] * (1.0 - squashed * squashed);
        key[index] += inner;
        query[index] += inner;
        direction[index] += score * squashed;
    }
}
