//! Recurrent layers on the CPU, over a whole sequence: [time, batch, size], so that each step is contiguous in memory.
//!
//! Whatever does not depend on the previous step is done for all steps at once: the projection of the inputs, and in
//! the backward pass every weight's gradient. In the recurrence itself, each thread takes its own rows of the batch
//! from the first step to the last, without waiting for the other threads.

pub(crate) mod decoder;
pub(crate) mod gru;
pub(crate) mod lstm;

use std::ops::Range;

use burn::backend::flex::FlexTensor;

use crate::buffer::{contiguous, dimensions, floats, tensor};
use crate::matrix::{Matrix, MatrixMut, Old, even_share, least_rows, multiply_large, product, transposed};
use crate::vector::column_sums;

/// A thread's matrix products run at full speed for multiples of this number of rows.
const TILE: usize = 4;
/// Below this many multiplications over all steps, one thread is faster.
const FEW: usize = 1 << 21;

/// The sizes of a layer and its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) time: usize,
    pub(crate) batch: usize,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
    /// The width of a row of gates, in multiples of the hidden size.
    pub(crate) gates: usize,
}

impl Sizes {
    /// Reads the sizes from the input, its weights and the recurrent weights, which must agree.
    fn of(input: &FlexTensor, input_weight: &FlexTensor, recurrent_weight: &FlexTensor, gates: usize) -> Self {
        let [time, batch, size] = dimensions(input);
        let [hidden, width] = dimensions(recurrent_weight);
        assert_eq!(dimensions(input_weight), [size, width], "input weights are [input, gates * hidden]");
        assert!(time > 0, "a sequence has at least one step");
        assert_eq!(width, gates * hidden, "recurrent weights are [hidden, gates * hidden]");
        Self { time, batch, input: size, hidden, gates }
    }

    fn width(&self) -> usize {
        self.gates * self.hidden
    }

    /// Rows of the batch for each thread: at least `least`, so that the products have the same bits as those of all
    /// rows.
    fn share(&self, least: usize) -> usize {
        let most = self.time * self.batch * self.hidden * self.width() / FEW;
        even_share(self.batch, rayon::current_num_threads().min(most), TILE, least)
    }

    /// The least number of rows for the products of a step.
    fn least_rows(&self) -> usize {
        least_rows(self.hidden, self.width())
    }
}

/// Divides a buffer of all steps by rows of the batch: for each share of the batch, its piece of every step.
fn divide(values: &mut [f32], batch: usize, share: usize, width: usize) -> Vec<Vec<&mut [f32]>> {
    let mut parts: Vec<Vec<&mut [f32]>> = (0..batch.div_ceil(share)).map(|_| Vec::new()).collect();
    for step in values.chunks_mut(batch * width) {
        for (part, piece) in parts.iter_mut().zip(step.chunks_mut(share * width)) {
            part.push(piece);
        }
    }
    parts
}

/// Returns some rows of one step from a buffer of all steps.
fn of_step(values: &[f32], time: usize, step: usize, rows: Range<usize>) -> &[f32] {
    &values[time * step..][rows]
}

/// Computes the remaining gradients once those of the gates before activation are known for every step.
struct Remaining<'a> {
    sizes: Sizes,
    gates: &'a [f32],
}

impl Remaining<'_> {
    fn input(&self, input_weight: &FlexTensor) -> FlexTensor {
        let Sizes { time, batch, input, .. } = self.sizes;
        let width = self.sizes.width();
        let weight = Matrix::new(floats(input_weight), width).transposed();
        tensor(product(Matrix::new(self.gates, width), weight), [time, batch, input])
    }

    fn input_weight(&self, input: &FlexTensor) -> FlexTensor {
        let width = self.sizes.width();
        let input = Matrix::new(floats(input), self.sizes.input).transposed();
        tensor(product(input, Matrix::new(self.gates, width)), [self.sizes.input, width])
    }

    /// Computes the gradient of some columns of the recurrent weights. The states before each step are `first` and then
    /// `later`.
    fn recurrent_weight(&self, target: &mut [f32], columns: Range<usize>, first: &[f32], later: &[f32]) {
        let Sizes { batch, hidden, .. } = self.sizes;
        let width = self.sizes.width();
        let (initial, rest) = self.gates.split_at(batch * width);
        let states = Matrix::new(&later[..rest.len() / width * hidden], hidden).transposed();
        let first = Matrix::new(first, hidden).transposed();
        let mut multiply = |states, gates, old| {
            let gates = Matrix::new(gates, width).columns(columns.clone());
            multiply_large(MatrixMut::new(target, width).columns(columns.clone()), states, gates, old);
        };
        multiply(first, initial, Old::Replace);
        if !rest.is_empty() {
            multiply(states, rest, Old::Add);
        }
    }

    fn bias(&self) -> FlexTensor {
        let width = self.sizes.width();
        tensor(column_sums(self.gates, width), [width])
    }
}

/// The recurrent weights transposed, as every step of the backward pass multiplies by them.
struct Turned<'a> {
    weight: &'a [f32],
    width: usize,
    /// A transposed copy in memory, which pays off from the second step on.
    copy: Option<Vec<f32>>,
}

impl<'a> Turned<'a> {
    fn new(sizes: Sizes, weight: &'a FlexTensor) -> Self {
        let (weight, width) = (floats(weight), sizes.width());
        Self { weight, width, copy: (sizes.time > 1).then(|| transposed(weight, width)) }
    }

    fn matrix(&self) -> Matrix<'_> {
        match &self.copy {
            Some(copy) => Matrix::new(copy, self.weight.len() / self.width),
            None => Matrix::new(self.weight, self.width).transposed(),
        }
    }
}

/// Makes all inputs contiguous.
fn all_contiguous<const N: usize>(inputs: [FlexTensor; N]) -> [FlexTensor; N] {
    inputs.map(contiguous)
}

/// input × weight for all steps at once.
fn project(sizes: Sizes, input: &FlexTensor, weight: &FlexTensor) -> Vec<f32> {
    product(Matrix::new(floats(input), sizes.input), Matrix::new(floats(weight), sizes.width()))
}
