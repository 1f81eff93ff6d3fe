//! The long short-term memory cell without peepholes:
//!
//! i, j, f, o = x·W + h·U + b;  c' = c∘sigmoid(f + forget) + sigmoid(i)∘tanh(j);  h' = tanh(c')∘sigmoid(o)
//!
//! A row of gates is i, j, f, o.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::{Remaining, Sizes, Turned, all_contiguous, divide, of_step, project};
use crate::buffer::{contiguous, dimensions, floats, into_floats, tensor};
use crate::elementary::{flush, sigmoid, tanh};
use crate::matrix::{Matrix, MatrixMut, Old, multiply};
use crate::record::Saved;
use crate::vector::vectorised;

/// The hidden states after every step, followed by the last cell state, in one tensor [time + 1, batch, hidden].
pub(crate) fn forward(inputs: [FlexTensor; 6], forget_bias: f32) -> (FlexTensor, Lstm) {
    let [input, state, cell, input_weight, recurrent_weight, bias] = all_contiguous(inputs);
    let sizes = Sizes::of(&input, &input_weight, &recurrent_weight, 4);
    let Sizes { time, batch, hidden, .. } = sizes;
    assert_eq!(dimensions(&state), [batch, hidden], "the state is [batch, hidden]");
    assert_eq!(dimensions(&cell), [batch, hidden], "the cell state is [batch, hidden]");
    assert_eq!(dimensions(&bias), [4 * hidden], "the bias is [4 * hidden]");
    let mut bias = floats(&bias).to_vec();
    bias[2 * hidden..3 * hidden].iter_mut().for_each(|bias| *bias += forget_bias);
    let mut gates = project(sizes, &input, &input_weight);
    let mut states = vec![0.0; (time + 1) * batch * hidden];
    let mut cells = vec![0.0; time * batch * hidden];
    let (steps, last) = states.split_at_mut(time * batch * hidden);
    let share = sizes.share(sizes.least_rows());
    divide(&mut gates, batch, share, 4 * hidden)
        .into_par_iter()
        .zip(divide(steps, batch, share, hidden))
        .zip(divide(&mut cells, batch, share, hidden))
        .zip(floats(&state).par_chunks(share * hidden).zip(floats(&cell).par_chunks(share * hidden)))
        .for_each(|(((gates, states), cells), (mut state, mut cell))| {
            let recurrent = Matrix::new(floats(&recurrent_weight), 4 * hidden);
            for ((gates, next), next_cell) in gates.into_iter().zip(states).zip(cells) {
                multiply(MatrixMut::new(gates, 4 * hidden), Matrix::new(state, hidden), recurrent, Old::Add);
                activate(hidden, gates, &bias, cell, next_cell, next);
                (state, cell) = (next, next_cell);
            }
        });
    last.copy_from_slice(&cells[(time - 1) * batch * hidden..]);
    let states = tensor(states, [time + 1, batch, hidden]);
    let saved = Lstm {
        sizes,
        input,
        state,
        cell,
        input_weight,
        recurrent_weight,
        gates: tensor(gates, [time, batch, 4 * hidden]),
        states: states.clone(),
        cells: tensor(cells, [time, batch, hidden]),
    };
    (states, saved)
}

/// Computes the gates and states of a step from its sums.
fn activate(hidden: usize, gates: &mut [f32], bias: &[f32], cell: &[f32], next_cell: &mut [f32], next: &mut [f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (((gates, cell), next_cell), next) in gates
                .chunks_exact_mut(4 * hidden)
                .zip(cell.chunks_exact(hidden))
                .zip(next_cell.chunks_exact_mut(hidden))
                .zip(next.chunks_exact_mut(hidden))
            {
                gates.iter_mut().zip(bias).for_each(|(gate, bias)| *gate += bias);
                let (input, rest) = gates.split_at_mut(hidden);
                let (new, rest) = rest.split_at_mut(hidden);
                let (forget, output) = rest.split_at_mut(hidden);
                for at in [&mut *input, forget, output] {
                    at.iter_mut().for_each(|gate| *gate = sigmoid(*gate));
                }
                new.iter_mut().for_each(|new| *new = tanh(*new));
                for (((cell, next_cell), forget), (input, new)) in
                    cell.iter().zip(next_cell.iter_mut()).zip(&*forget).zip(input.iter().zip(&*new))
                {
                    *next_cell = cell * forget + input * new;
                }
                for ((next, cell), output) in next.iter_mut().zip(&*next_cell).zip(&*output) {
                    *next = tanh(*cell) * output;
                }
            }
        },
    );
}

/// The inputs, and the gates and states of every step.
#[derive(Clone, Debug)]
pub(crate) struct Lstm {
    sizes: Sizes,
    input: FlexTensor,
    state: FlexTensor,
    cell: FlexTensor,
    input_weight: FlexTensor,
    recurrent_weight: FlexTensor,
    gates: FlexTensor,
    states: FlexTensor,
    cells: FlexTensor,
}

impl Saved<6> for Lstm {
    fn gradients(self, output: FlexTensor, wanted: [bool; 6]) -> [Option<FlexTensor>; 6] {
        let sizes = self.sizes;
        let Sizes { time, batch, hidden, .. } = sizes;
        let output = contiguous(output);
        let (output, last) = floats(&output).split_at(time * batch * hidden);
        let mut gates = into_floats(self.gates);
        let gates = gates.as_mut_slice::<f32>().expect("converted to f32");
        let mut carried = vec![0.0; batch * hidden];
        let mut carried_cell = last.to_vec();
        let share = sizes.share(sizes.least_rows());
        let turned = Turned::new(sizes, &self.recurrent_weight);
        let cells = floats(&self.cells);
        divide(gates, batch, share, 4 * hidden)
            .into_par_iter()
            .zip(carried.par_chunks_mut(share * hidden).zip(carried_cell.par_chunks_mut(share * hidden)))
            .enumerate()
            .for_each(|(part, (gates, (carried, carried_cell)))| {
                let turned = turned.matrix();
                let rows = part * share * hidden..part * share * hidden + carried.len();
                for (time, gates) in gates.into_iter().enumerate().rev() {
                    let at = |values, time| of_step(values, time, batch * hidden, rows.clone());
                    let previous_cell = if time == 0 { at(floats(&self.cell), 0) } else { at(cells, time - 1) };
                    step_back(StepBack {
                        hidden,
                        gates,
                        carried,
                        carried_cell,
                        cell: at(cells, time),
                        previous_cell,
                        gradient: at(output, time),
                    });
                    multiply(MatrixMut::new(carried, hidden), Matrix::new(gates, 4 * hidden), turned, Old::Replace);
                }
            });
        let remaining = Remaining { sizes, gates };
        let recurrent_weight = wanted[4].then(|| {
            let mut weight = vec![0.0; hidden * 4 * hidden];
            remaining.recurrent_weight(&mut weight, 0..4 * hidden, floats(&self.state), floats(&self.states));
            tensor(weight, [hidden, 4 * hidden])
        });
        [
            wanted[0].then(|| remaining.input(&self.input_weight)),
            wanted[1].then(|| tensor(carried, [batch, hidden])),
            wanted[2].then(|| tensor(carried_cell, [batch, hidden])),
            wanted[3].then(|| remaining.input_weight(&self.input)),
            recurrent_weight,
            wanted[5].then(|| remaining.bias()),
        ]
    }
}

/// The backward pass of one step for some rows of the batch.
struct StepBack<'a> {
    hidden: usize,
    /// The gates; replaced by their gradients before activation.
    gates: &'a mut [f32],
    /// The gradient of the hidden state after the step, from later steps.
    carried: &'a mut [f32],
    /// The gradient of the cell state after the step; replaced by that of the cell state before.
    carried_cell: &'a mut [f32],
    cell: &'a [f32],
    previous_cell: &'a [f32],
    gradient: &'a [f32],
}

fn step_back(step: StepBack) {
    let StepBack { hidden, gates, carried, carried_cell, cell, previous_cell, gradient } = step;
    vectorised(
        #[inline(always)]
        || {
            for (((((gates, carried), carried_cell), cell), previous_cell), gradient) in gates
                .chunks_exact_mut(4 * hidden)
                .zip(carried.chunks_exact(hidden))
                .zip(carried_cell.chunks_exact_mut(hidden))
                .zip(cell.chunks_exact(hidden))
                .zip(previous_cell.chunks_exact(hidden))
                .zip(gradient.chunks_exact(hidden))
            {
                let (input, rest) = gates.split_at_mut(hidden);
                let (new, rest) = rest.split_at_mut(hidden);
                let (forget, output) = rest.split_at_mut(hidden);
                let gates = [input, new, forget, output];
                row_back(gates, carried_cell, [carried, cell, previous_cell, gradient]);
            }
        },
    );
}

/// Arguments of a function are known not to overlap, which the vectoriser needs.
#[inline(always)]
fn row_back(
    [input, new, forget, output]: [&mut [f32]; 4],
    carried_cell: &mut [f32],
    [carried, cell, previous_cell, gradient]: [&[f32]; 4],
) {
    for index in 0..carried_cell.len() {
        let (i, j, f, o) = (input[index], new[index], forget[index], output[index]);
        // Both gradients vanish over many steps.
        let state = flush(carried[index] + gradient[index]);
        let squashed = tanh(cell[index]);
        let inner = flush(carried_cell[index] + state * o * (1.0 - squashed * squashed));
        input[index] = inner * j * i * (1.0 - i);
        new[index] = inner * i * (1.0 - j * j);
        forget[index] = inner * previous_cell[index] * f * (1.0 - f);
        output[index] = state * squashed * o * (1.0 - o);
        carried_cell[index] = inner * f;
    }
}
