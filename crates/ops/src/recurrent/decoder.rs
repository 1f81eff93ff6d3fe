//! A decoder of gated recurrent units with attention, over a whole sequence on the CPU.
//!
//! A step depends on the previous one through the states and the context, so nothing can be done for all steps at once;
//! but the rows of the batch are independent. A thread takes its rows from the first step to the last and back, without
//! waiting for others, and every weight gets its gradient in one product at the end. Step by step, each weight's
//! gradient would be computed, written and added up once per step.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::gru::{self, Step, StepBack};
use super::{Remaining, Sizes, all_contiguous, divide, of_step};
use crate::attention::{Row, attend, attend_back};
use crate::buffer::{contiguous, dimensions, floats, into_floats, tensor};
use crate::matrix::{Matrix, MatrixMut, Old, least_rows, multiply, product, transposed};
use crate::record::Saved;
use crate::vector::column_sums;

/// The number of input tensors of a decoder.
pub(crate) const INPUTS: usize = 11;

/// The inputs of a decoder, all contiguous.
#[derive(Clone, Debug)]
struct Given {
    sizes: Sizes,
    layers: usize,
    length: usize,
    /// [time, batch, hidden]
    words: FlexTensor,
    /// [batch, length, size]
    keys: FlexTensor,
    /// [batch, length, depth]
    values: FlexTensor,
    /// [layers, batch, hidden]
    first: FlexTensor,
    /// [depth, hidden]
    attended: FlexTensor,
    /// [layers, hidden, 3 * hidden]
    input_weights: FlexTensor,
    /// [layers, hidden, 3 * hidden]
    recurrent_weights: FlexTensor,
    /// [layers, 3 * hidden]
    biases: FlexTensor,
    /// [layers * hidden, size]
    query_weight: FlexTensor,
    /// [size]
    query_bias: FlexTensor,
    /// [size]
    direction: FlexTensor,
}

impl Given {
    fn new(inputs: [FlexTensor; INPUTS]) -> Self {
        let [
            words,
            keys,
            values,
            first,
            attended,
            input_weights,
            recurrent_weights,
            biases,
            query_weight,
            query_bias,
            direction,
        ] = all_contiguous(inputs);
        let [time, batch, hidden] = dimensions(&words);
        let [_, length, size] = dimensions(&keys);
        let [_, _, depth] = dimensions(&values);
        let [layers, _, _] = dimensions(&first);
        assert!(time > 0 && layers > 0, "a decoder has at least one step and one layer");
        assert_eq!(dimensions(&keys), [batch, length, size], "keys are [batch, length, size]");
        assert_eq!(dimensions(&values), [batch, length, depth], "values are [batch, length, depth]");
        assert_eq!(dimensions(&first), [layers, batch, hidden], "states are [batch, hidden]");
        assert_eq!(dimensions(&attended), [depth, hidden], "what is found is mapped by [depth, hidden]");
        for weights in [&input_weights, &recurrent_weights] {
            assert_eq!(dimensions(weights), [layers, hidden, 3 * hidden], "weights are [hidden, 3 * hidden]");
        }
        assert_eq!(dimensions(&biases), [layers, 3 * hidden], "biases are [3 * hidden]");
        assert_eq!(dimensions(&query_weight), [layers * hidden, size], "the query is of all layers' states");
        assert_eq!((dimensions(&query_bias), dimensions(&direction)), ([size], [size]), "v is [size]");
        let sizes = Sizes { time, batch, input: hidden, hidden, gates: 3 };
        Self {
            sizes,
            layers,
            length,
            words,
            keys,
            values,
            first,
            attended,
            input_weights,
            recurrent_weights,
            biases,
            query_weight,
            query_bias,
            direction,
        }
    }

    /// Rows of the batch for each thread.
    fn share(&self) -> usize {
        let (size, depth) = self.depths();
        let hidden = self.sizes.hidden;
        let of_attention = least_rows(hidden.min(size).min(depth), hidden.max(size).max(depth));
        self.sizes.share(self.sizes.least_rows().max(of_attention))
    }

    /// The sizes of a key and of a value.
    fn depths(&self) -> (usize, usize) {
        let ([_, _, size], [_, _, depth]) = (dimensions(&self.keys), dimensions(&self.values));
        (size, depth)
    }

    /// Returns one layer's part of stacked values.
    fn layer<'a>(&self, values: &'a [f32], layer: usize) -> &'a [f32] {
        let part = values.len() / self.layers;
        &values[layer * part..(layer + 1) * part]
    }
}

/// What the steps save, by layer where there are layers: [time, batch, ...] each.
struct Buffers {
    fed: Vec<f32>,
    gates: Vec<Vec<f32>>,
    resets: Vec<Vec<f32>>,
    states: Vec<Vec<f32>>,
    queries: Vec<f32>,
    weights: Vec<f32>,
    found: Vec<f32>,
}

/// [`Buffers`] for some rows of the batch: a slice for every step.
struct Part<'a> {
    fed: Vec<&'a mut [f32]>,
    gates: Vec<Vec<&'a mut [f32]>>,
    resets: Vec<Vec<&'a mut [f32]>>,
    states: Vec<Vec<&'a mut [f32]>>,
    queries: Vec<&'a mut [f32]>,
    weights: Vec<&'a mut [f32]>,
    found: Vec<&'a mut [f32]>,
}

impl Buffers {
    fn new(given: &Given) -> Self {
        let Sizes { time, batch, hidden, .. } = given.sizes;
        let (size, depth) = given.depths();
        let zeros = |width: usize| vec![0.0; time * batch * width];
        let by_layer = |width: usize| (0..given.layers).map(|_| zeros(width)).collect();
        Self {
            fed: zeros(hidden),
            gates: by_layer(3 * hidden),
            resets: by_layer(hidden),
            states: by_layer(hidden),
            queries: zeros(size),
            weights: zeros(given.length),
            found: zeros(depth),
        }
    }

    fn divide(&mut self, given: &Given, share: usize) -> Vec<Part<'_>> {
        let Sizes { batch, hidden, .. } = given.sizes;
        let (size, depth) = given.depths();
        let mut gates = divide_layers(&mut self.gates, batch, share, 3 * hidden);
        let mut resets = divide_layers(&mut self.resets, batch, share, hidden);
        let mut states = divide_layers(&mut self.states, batch, share, hidden);
        let mut fed = divide(&mut self.fed, batch, share, hidden).into_iter();
        let mut queries = divide(&mut self.queries, batch, share, size).into_iter();
        let mut weights = divide(&mut self.weights, batch, share, given.length).into_iter();
        let mut found = divide(&mut self.found, batch, share, depth).into_iter();
        let part = |_| {
            Some(Part {
                fed: fed.next()?,
                gates: gates.iter_mut().filter_map(Iterator::next).collect(),
                resets: resets.iter_mut().filter_map(Iterator::next).collect(),
                states: states.iter_mut().filter_map(Iterator::next).collect(),
                queries: queries.next()?,
                weights: weights.next()?,
                found: found.next()?,
            })
        };
        (0..batch.div_ceil(share)).filter_map(part).collect()
    }
}

/// Returns an iterator over the parts of each layer.
fn divide_layers(
    layers: &mut [Vec<f32>],
    batch: usize,
    share: usize,
    width: usize,
) -> Vec<std::vec::IntoIter<Vec<&mut [f32]>>> {
    layers.iter_mut().map(|values| divide(values, batch, share, width).into_iter()).collect()
}

/// Returns the top state and the context for every step and row, [time, batch, hidden + depth].
pub(crate) fn forward(inputs: [FlexTensor; INPUTS]) -> (FlexTensor, Decoder) {
    let given = Given::new(inputs);
    let Sizes { time, batch, hidden, .. } = given.sizes;
    let (size, depth) = given.depths();
    let mut buffers = Buffers::new(&given);
    let share = given.share();
    let parts = buffers.divide(&given, share);
    parts.into_par_iter().enumerate().for_each(|(index, part)| part.run(&given, index * share));
    let mut said = Vec::with_capacity(time * batch * (hidden + depth));
    let top = buffers.states[given.layers - 1].chunks_exact(hidden);
    for (state, found) in top.zip(buffers.found.chunks_exact(depth)) {
        said.extend_from_slice(state);
        said.extend_from_slice(found);
    }
    let of = |values: Vec<f32>, width: usize| tensor(values, [time, batch, width]);
    let all = |layers: Vec<Vec<f32>>, width: usize| layers.into_iter().map(|values| of(values, width)).collect();
    let saved = Decoder {
        fed: of(buffers.fed, hidden),
        gates: all(buffers.gates, 3 * hidden),
        resets: all(buffers.resets, hidden),
        states: all(buffers.states, hidden),
        queries: of(buffers.queries, size),
        weights: of(buffers.weights, given.length),
        found: of(buffers.found, depth),
        given,
    };
    (of(said, hidden + depth), saved)
}

impl Part<'_> {
    /// Runs all steps of the rows from `first_row` on.
    fn run(mut self, given: &Given, first_row: usize) {
        let Sizes { time, batch, hidden, .. } = given.sizes;
        let (size, depth) = given.depths();
        let rows = self.fed[0].len() / hidden;
        let of_rows = |width: usize| first_row * width..(first_row + rows) * width;
        let attended = Matrix::new(floats(&given.attended), hidden);
        let query_weight = Matrix::new(floats(&given.query_weight), size);
        for at in 0..time {
            self.fed[at].copy_from_slice(of_step(floats(&given.words), at, batch * hidden, of_rows(hidden)));
            if at > 0 {
                multiply(
                    MatrixMut::new(self.fed[at], hidden),
                    Matrix::new(self.found[at - 1], depth),
                    attended,
                    Old::Add,
                );
            }
            for layer in 0..given.layers {
                let (below, states) = self.states.split_at_mut(layer);
                let input: &[f32] = below.last().map_or(&*self.fed[at], |below| &*below[at]);
                let gates = &mut *self.gates[layer][at];
                let weight = Matrix::new(given.layer(floats(&given.input_weights), layer), 3 * hidden);
                multiply(MatrixMut::new(gates, 3 * hidden), Matrix::new(input, hidden), weight, Old::Replace);
                let (earlier, next) = states[0].split_at_mut(at);
                let first = &given.layer(floats(&given.first), layer)[of_rows(hidden)];
                let previous: &[f32] = earlier.last().map_or(first, |previous| &**previous);
                let step = Step { hidden, gates, resets: &mut *self.resets[layer][at], next: &mut *next[0], previous };
                let recurrent = Matrix::new(given.layer(floats(&given.recurrent_weights), layer), 3 * hidden);
                gru::step(step, recurrent, given.layer(floats(&given.biases), layer));
                let old = if layer == 0 { Old::Replace } else { Old::Add };
                let part = query_weight.rows(layer * hidden..(layer + 1) * hidden);
                multiply(MatrixMut::new(self.queries[at], size), Matrix::new(&*next[0], hidden), part, old);
            }
            for row in 0..rows {
                let query = &mut self.queries[at][row * size..(row + 1) * size];
                query.iter_mut().zip(floats(&given.query_bias)).for_each(|(query, bias)| *query += bias);
                let weights = &mut self.weights[at][row * given.length..(row + 1) * given.length];
                let found = &mut self.found[at][row * depth..(row + 1) * depth];
                attend(weights, found, given.row(first_row + row, query));
            }
        }
    }
}

impl Given {
    /// Returns the attention's inputs for one row of the batch.
    fn row<'a>(&'a self, row: usize, query: &'a [f32]) -> Row<'a> {
        let (size, depth) = self.depths();
        Row {
            keys: &floats(&self.keys)[row * self.length * size..(row + 1) * self.length * size],
            values: &floats(&self.values)[row * self.length * depth..(row + 1) * self.length * depth],
            query,
            direction: floats(&self.direction),
        }
    }
}

/// The inputs, and what every step has saved.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    given: Given,
    fed: FlexTensor,
    gates: Vec<FlexTensor>,
    resets: Vec<FlexTensor>,
    states: Vec<FlexTensor>,
    queries: FlexTensor,
    weights: FlexTensor,
    found: FlexTensor,
}

/// The weights transposed in memory, as every step of the backward pass multiplies by them.
struct Turned {
    attended: Vec<f32>,
    input: Vec<Vec<f32>>,
    recurrent: Vec<Vec<f32>>,
    query: Vec<f32>,
}

/// Gradients of some rows of the batch.
struct PartBack<'a> {
    /// The gates, replaced by their gradients.
    gates: Vec<Vec<&'a mut [f32]>>,
    words: Vec<&'a mut [f32]>,
    queries: Vec<&'a mut [f32]>,
    keys: &'a mut [f32],
    values: &'a mut [f32],
    /// The gradient of each layer's state before the first step.
    carried: Vec<&'a mut [f32]>,
}

impl Decoder {
    /// Goes through all steps backwards, for the rows from `first_row` on. Returns the gradient of v from each row.
    fn back(&self, mut part: PartBack<'_>, turned: &Turned, output: &[f32], first_row: usize) -> Vec<f32> {
        let given = &self.given;
        let Sizes { time, batch, hidden, .. } = given.sizes;
        let (size, depth) = given.depths();
        let (rows, length, width) = (part.words[0].len() / hidden, given.length, hidden + depth);
        let of_rows = |width: usize| first_row * width..(first_row + rows) * width;
        let mut direction = vec![0.0; rows * size];
        let (mut found, mut gradient) = (vec![0.0; rows * depth], vec![0.0; rows * hidden]);
        let (mut below, mut scratch) = (vec![0.0; rows * hidden], vec![0.0; rows * hidden]);
        for at in (0..time).rev() {
            let output = of_step(output, at, batch * width, of_rows(width));
            let queries = of_step(floats(&self.queries), at, batch * size, of_rows(size));
            let weights = of_step(floats(&self.weights), at, batch * length, of_rows(length));
            for (row, output) in output.chunks_exact(width).enumerate() {
                let found = &mut found[row * depth..(row + 1) * depth];
                found.iter_mut().zip(&output[hidden..]).for_each(|(found, output)| *found += output);
                below[row * hidden..(row + 1) * hidden].copy_from_slice(&output[..hidden]);
                let of_row = given.row(first_row + row, &queries[row * size..(row + 1) * size]);
                let keys = &mut part.keys[row * length * size..(row + 1) * length * size];
                let values = &mut part.values[row * length * depth..(row + 1) * length * depth];
                let query = &mut part.queries[at][row * size..(row + 1) * size];
                let weights = &weights[row * length..(row + 1) * length];
                let direction = &mut direction[row * size..(row + 1) * size];
                attend_back(of_row, weights, found, [keys, values, query, direction]);
            }
            for layer in (0..given.layers).rev() {
                let query_weight = Matrix::new(&turned.query, given.layers * hidden);
                let query_weight = query_weight.columns(layer * hidden..(layer + 1) * hidden);
                // The gradient comes from the layer above, or from the output for the top layer, and from the query.
                std::mem::swap(&mut gradient, &mut below);
                multiply(
                    MatrixMut::new(&mut gradient, hidden),
                    Matrix::new(part.queries[at], size),
                    query_weight,
                    Old::Add,
                );
                let states = floats(&self.states[layer]);
                let previous = match at {
                    0 => &given.layer(floats(&given.first), layer)[of_rows(hidden)],
                    _ => of_step(states, at - 1, batch * hidden, of_rows(hidden)),
                };
                let gates = &mut *part.gates[layer][at];
                let carried = &mut *part.carried[layer];
                let step = StepBack { hidden, gates, carried, scratch: &mut scratch, previous, gradient: &gradient };
                gru::step_back(step, Matrix::new(&turned.recurrent[layer], hidden));
                let gates = Matrix::new(part.gates[layer][at], 3 * hidden);
                multiply(
                    MatrixMut::new(&mut below, hidden),
                    gates,
                    Matrix::new(&turned.input[layer], hidden),
                    Old::Replace,
                );
            }
            part.words[at].copy_from_slice(&below);
            let attended = Matrix::new(&turned.attended, depth);
            multiply(MatrixMut::new(&mut found, depth), Matrix::new(&below, hidden), attended, Old::Replace);
        }
        direction
    }

    /// Returns a layer's gradients of the input weights, the recurrent weights and the bias, from those of its gates.
    fn layer_weights(&self, layer: usize, gates: &[f32]) -> [Vec<f32>; 3] {
        let given = &self.given;
        let Sizes { batch, hidden, .. } = given.sizes;
        let remaining = Remaining { sizes: given.sizes, gates };
        let input = if layer == 0 { &self.fed } else { &self.states[layer - 1] };
        let input = Matrix::new(floats(input), hidden).transposed();
        let mut recurrent = vec![0.0; hidden * 3 * hidden];
        let first = given.layer(floats(&given.first), layer);
        remaining.recurrent_weight(&mut recurrent, 0..2 * hidden, first, floats(&self.states[layer]));
        let (first, later) = floats(&self.resets[layer]).split_at(batch * hidden);
        remaining.recurrent_weight(&mut recurrent, 2 * hidden..3 * hidden, first, later);
        [product(input, Matrix::new(gates, 3 * hidden)), recurrent, column_sums(gates, 3 * hidden)]
    }

    fn turned(&self) -> Turned {
        let given = &self.given;
        let hidden = given.sizes.hidden;
        let layers = |weights: &FlexTensor| {
            (0..given.layers).map(|layer| transposed(given.layer(floats(weights), layer), 3 * hidden)).collect()
        };
        Turned {
            attended: transposed(floats(&given.attended), hidden),
            input: layers(&given.input_weights),
            recurrent: layers(&given.recurrent_weights),
            query: transposed(floats(&given.query_weight), given.depths().0),
        }
    }
}

impl Saved<INPUTS> for Decoder {
    fn gradients(mut self, output: FlexTensor, _wanted: [bool; INPUTS]) -> [Option<FlexTensor>; INPUTS] {
        let output = contiguous(output);
        let mut gates: Vec<_> = std::mem::take(&mut self.gates).into_iter().map(into_floats).collect();
        let mut gates: Vec<&mut [f32]> =
            gates.iter_mut().map(|gates| gates.as_mut_slice::<f32>().expect("converted to f32")).collect();
        let given = &self.given;
        let Sizes { time, batch, hidden, .. } = given.sizes;
        let ((size, depth), layers, length) = (given.depths(), given.layers, given.length);
        let mut words = vec![0.0; time * batch * hidden];
        let mut queries = vec![0.0; time * batch * size];
        let mut keys = vec![0.0; batch * length * size];
        let mut values = vec![0.0; batch * length * depth];
        let mut first = vec![0.0; layers * batch * hidden];
        let share = given.share();
        let mut parts: Vec<PartBack<'_>> = divide(&mut words, batch, share, hidden)
            .into_iter()
            .zip(divide(&mut queries, batch, share, size))
            .zip(keys.chunks_mut(share * length * size).zip(values.chunks_mut(share * length * depth)))
            .map(|((words, queries), (keys, values))| PartBack {
                gates: Vec::new(),
                words,
                queries,
                keys,
                values,
                carried: Vec::new(),
            })
            .collect();
        for (gates, first) in gates.iter_mut().zip(first.chunks_mut(batch * hidden)) {
            let of_layer = divide(gates, batch, share, 3 * hidden).into_iter().zip(first.chunks_mut(share * hidden));
            for (part, (gates, carried)) in parts.iter_mut().zip(of_layer) {
                part.gates.push(gates);
                part.carried.push(carried);
            }
        }
        let turned = self.turned();
        let directions: Vec<Vec<f32>> = parts
            .into_par_iter()
            .enumerate()
            .map(|(index, part)| self.back(part, &turned, floats(&output), index * share))
            .collect();
        let weights: Vec<[Vec<f32>; 3]> =
            gates.iter().enumerate().map(|(layer, gates)| self.layer_weights(layer, gates)).collect();
        let stacked = |kind: usize| weights.iter().flat_map(|layer| &layer[kind]).copied().collect::<Vec<f32>>();
        let by_states = |layer: usize| {
            product(Matrix::new(floats(&self.states[layer]), hidden).transposed(), Matrix::new(&queries, size))
        };
        // The first step has no previous context.
        let earlier = Matrix::new(&floats(&self.found)[..(time - 1) * batch * depth], depth).transposed();
        let attended = match time {
            1 => vec![0.0; depth * hidden],
            _ => product(earlier, Matrix::new(&words[batch * hidden..], hidden)),
        };
        [
            tensor(words, [time, batch, hidden]),
            tensor(keys, [batch, length, size]),
            tensor(values, [batch, length, depth]),
            tensor(first, [layers, batch, hidden]),
            tensor(attended, [depth, hidden]),
            tensor(stacked(0), [layers, hidden, 3 * hidden]),
            tensor(stacked(1), [layers, hidden, 3 * hidden]),
            tensor(stacked(2), [layers, 3 * hidden]),
            tensor((0..layers).flat_map(by_states).collect(), [layers * hidden, size]),
            tensor(column_sums(&queries, size), [size]),
            tensor(column_sums(&directions.concat(), size), [size]),
        ]
        .map(Some)
    }
}
