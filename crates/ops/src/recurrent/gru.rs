//! The gated recurrent unit, with its reset gate applied before the recurrent product:
//!
//! r, u = sigmoid(x·W + h·U + b);  c = tanh(x·W + (r∘h)·U + b);  h' = u∘h + (1 − u)∘c
//!
//! A row of gates is r, u, c.

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use super::{Remaining, Sizes, Turned, all_contiguous, divide, of_step, project};
use crate::buffer::{contiguous, dimensions, floats, into_floats, tensor};
use crate::elementary::{flush, sigmoid, tanh};
use crate::matrix::{Matrix, MatrixMut, Old, multiply};
use crate::record::Saved;
use crate::vector::vectorised;

/// The states after every step, from the inputs, the initial state and the parameters.
pub(crate) fn forward(inputs: [FlexTensor; 5]) -> (FlexTensor, Gru) {
    let [input, state, input_weight, recurrent_weight, bias] = all_contiguous(inputs);
    let sizes = Sizes::of(&input, &input_weight, &recurrent_weight, 3);
    let Sizes { time, batch, hidden, .. } = sizes;
    assert_eq!(dimensions(&state), [batch, hidden], "the state is [batch, hidden]");
    assert_eq!(dimensions(&bias), [3 * hidden], "the bias is [3 * hidden]");
    let mut gates = project(sizes, &input, &input_weight);
    let mut states = vec![0.0; time * batch * hidden];
    let mut resets = vec![0.0; time * batch * hidden];
    let share = sizes.share(sizes.least_rows());
    divide(&mut gates, batch, share, 3 * hidden)
        .into_par_iter()
        .zip(divide(&mut states, batch, share, hidden))
        .zip(divide(&mut resets, batch, share, hidden))
        .zip(floats(&state).par_chunks(share * hidden))
        .for_each(|(((gates, states), resets), first)| {
            let recurrent = Matrix::new(floats(&recurrent_weight), 3 * hidden);
            let mut previous = first;
            for ((gates, next), resets) in gates.into_iter().zip(states).zip(resets) {
                step(Step { hidden, gates, resets, next, previous }, recurrent, floats(&bias));
                previous = next;
            }
        });
    let states = tensor(states, [time, batch, hidden]);
    let saved = Gru {
        sizes,
        input,
        state,
        input_weight,
        recurrent_weight,
        gates: tensor(gates, [time, batch, 3 * hidden]),
        states: states.clone(),
        resets: tensor(resets, [time, batch, hidden]),
    };
    (states, saved)
}

/// One step of some rows of the batch.
pub(super) struct Step<'a, 'b> {
    pub(super) hidden: usize,
    pub(super) gates: &'a mut [f32],
    /// The previous state times the reset gate.
    pub(super) resets: &'a mut [f32],
    pub(super) next: &'b mut [f32],
    pub(super) previous: &'b [f32],
}

pub(super) fn step(step: Step, recurrent: Matrix, bias: &[f32]) {
    let Step { hidden, gates, resets, next, previous } = step;
    let (both, candidate) = (0..2 * hidden, 2 * hidden..3 * hidden);
    let target = MatrixMut::new(gates, 3 * hidden).columns(both.clone());
    multiply(target, Matrix::new(previous, hidden), recurrent.columns(both), Old::Add);
    let rows = || previous.chunks_exact(hidden);
    vectorised(
        #[inline(always)]
        || {
            for ((gates, resets), previous) in
                gates.chunks_exact_mut(3 * hidden).zip(resets.chunks_exact_mut(hidden)).zip(rows())
            {
                for (gate, bias) in gates[..2 * hidden].iter_mut().zip(bias) {
                    *gate = sigmoid(*gate + bias);
                }
                for ((reset, gate), previous) in resets.iter_mut().zip(&*gates).zip(previous) {
                    *reset = gate * previous;
                }
            }
        },
    );
    let target = MatrixMut::new(gates, 3 * hidden).columns(candidate.clone());
    multiply(target, Matrix::new(resets, hidden), recurrent.columns(candidate), Old::Add);
    vectorised(
        #[inline(always)]
        || {
            for ((gates, next), previous) in
                gates.chunks_exact_mut(3 * hidden).zip(next.chunks_exact_mut(hidden)).zip(rows())
            {
                let (update, candidate) = gates[hidden..].split_at_mut(hidden);
                let bias = &bias[2 * hidden..];
                for (((next, candidate), bias), (update, previous)) in
                    next.iter_mut().zip(candidate).zip(bias).zip(update.iter().zip(previous))
                {
                    *candidate = tanh(*candidate + bias);
                    *next = *candidate + update * (previous - *candidate);
                }
            }
        },
    );
}

/// The inputs, and the gates and states of every step.
#[derive(Clone, Debug)]
pub(crate) struct Gru {
    sizes: Sizes,
    input: FlexTensor,
    state: FlexTensor,
    input_weight: FlexTensor,
    recurrent_weight: FlexTensor,
    gates: FlexTensor,
    states: FlexTensor,
    resets: FlexTensor,
}

impl Saved<5> for Gru {
    fn gradients(self, output: FlexTensor, wanted: [bool; 5]) -> [Option<FlexTensor>; 5] {
        let sizes = self.sizes;
        let Sizes { batch, hidden, .. } = sizes;
        let output = contiguous(output);
        let mut gates = into_floats(self.gates);
        let gates = gates.as_mut_slice::<f32>().expect("converted to f32");
        let mut carried = vec![0.0; batch * hidden];
        let share = sizes.share(sizes.least_rows());
        let turned = Turned::new(sizes, &self.recurrent_weight);
        divide(gates, batch, share, 3 * hidden)
            .into_par_iter()
            .zip(carried.par_chunks_mut(share * hidden))
            .enumerate()
            .for_each(|(part, (gates, carried))| {
                let turned = turned.matrix();
                let rows = part * share * hidden..part * share * hidden + carried.len();
                let mut scratch = vec![0.0; carried.len()];
                for (time, gates) in gates.into_iter().enumerate().rev() {
                    let at = |values, time| of_step(values, time, batch * hidden, rows.clone());
                    let previous =
                        if time == 0 { at(floats(&self.state), 0) } else { at(floats(&self.states), time - 1) };
                    let gradient = at(floats(&output), time);
                    step_back(StepBack { hidden, gates, carried, scratch: &mut scratch, previous, gradient }, turned);
                }
            });
        let remaining = Remaining { sizes, gates };
        let recurrent_weight = wanted[3].then(|| {
            let mut weight = vec![0.0; hidden * 3 * hidden];
            remaining.recurrent_weight(&mut weight, 0..2 * hidden, floats(&self.state), floats(&self.states));
            let (first, later) = floats(&self.resets).split_at(batch * hidden);
            remaining.recurrent_weight(&mut weight, 2 * hidden..3 * hidden, first, later);
            tensor(weight, [hidden, 3 * hidden])
        });
        [
            wanted[0].then(|| remaining.input(&self.input_weight)),
            wanted[1].then(|| tensor(carried, [batch, hidden])),
            wanted[2].then(|| remaining.input_weight(&self.input)),
            recurrent_weight,
            wanted[4].then(|| remaining.bias()),
        ]
    }
}

/// The backward pass of one step for some rows of the batch.
pub(super) struct StepBack<'a> {
    pub(super) hidden: usize,
    /// The gates; replaced by their gradients before activation.
    pub(super) gates: &'a mut [f32],
    /// The gradient of the state after the step, from later steps; replaced by that of the state before.
    pub(super) carried: &'a mut [f32],
    pub(super) scratch: &'a mut [f32],
    pub(super) previous: &'a [f32],
    pub(super) gradient: &'a [f32],
}

pub(super) fn step_back(step: StepBack, turned: Matrix) {
    let StepBack { hidden, gates, carried, scratch, previous, gradient } = step;
    vectorised(
        #[inline(always)]
        || {
            for (((gates, carried), previous), gradient) in gates
                .chunks_exact_mut(3 * hidden)
                .zip(carried.chunks_exact_mut(hidden))
                .zip(previous.chunks_exact(hidden))
                .zip(gradient.chunks_exact(hidden))
            {
                let (update, candidate) = gates[hidden..].split_at_mut(hidden);
                for (((update, candidate), carried), (previous, gradient)) in
                    update.iter_mut().zip(candidate).zip(carried).zip(previous.iter().zip(gradient))
                {
                    let (u, c) = (*update, *candidate);
                    // The gradient vanishes over many steps.
                    let state = flush(*carried + gradient);
                    *carried = state * u;
                    *update = state * (previous - c) * u * (1.0 - u);
                    *candidate = state * (1.0 - u) * (1.0 - c * c);
                }
            }
        },
    );
    let candidate = Matrix::new(gates, 3 * hidden).columns(2 * hidden..3 * hidden);
    multiply(MatrixMut::new(scratch, hidden), candidate, turned.rows(2 * hidden..3 * hidden), Old::Replace);
    vectorised(
        #[inline(always)]
        || {
            for (((gates, carried), previous), scratch) in gates
                .chunks_exact_mut(3 * hidden)
                .zip(carried.chunks_exact_mut(hidden))
                .zip(previous.chunks_exact(hidden))
                .zip(scratch.chunks_exact(hidden))
            {
                let reset = &mut gates[..hidden];
                for ((reset, carried), (previous, scratch)) in
                    reset.iter_mut().zip(carried).zip(previous.iter().zip(scratch))
                {
                    let r = *reset;
                    *carried += scratch * r;
                    *reset = scratch * previous * r * (1.0 - r);
                }
            }
        },
    );
    let both = Matrix::new(gates, 3 * hidden).columns(0..2 * hidden);
    multiply(MatrixMut::new(carried, hidden), both, turned.rows(0..2 * hidden), Old::Add);
}
