//! Tests every fused operation against its composed form, and its gradients against finite differences.

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData, Tolerance};

use crate::*;

/// Pseudorandom values that are the same on every machine.
fn values<const D: usize>(seed: usize, shape: [usize; D], device: &Device) -> Tensor<D> {
    let count = shape.iter().product();
    let mut state = (seed as u32).wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    Tensor::from_data(TensorData::new((0..count).map(next).collect::<Vec<f32>>(), shape), device)
}

fn classes(rows: usize, width: usize, device: &Device) -> Tensor<1, Int> {
    let classes: Vec<i64> = (0..rows).map(|row| ((row * 7 + 3) % width) as i64).collect();
    Tensor::from_data(TensorData::new(classes, [rows]), device)
}

/// A scalar whose gradient differs from element to element.
fn scalar<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    let weights = values(99, output.dims(), &output.device().inner());
    (output.clone() * (output * 0.5 + Tensor::from_inner(weights))).sum()
}

fn numbers(tensor: Tensor<1>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// An operation on several flat inputs, reduced to a scalar.
struct Check<'a> {
    shapes: &'a [&'a [usize]],
    fused: &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>,
    composed: &'a dyn Fn(&[Tensor<1>]) -> Tensor<1>,
}

impl Check<'_> {
    fn inputs(&self) -> Vec<Tensor<1>> {
        let device = Device::flex().autodiff();
        let flat = |(seed, shape): (usize, &&[usize])| values(seed, [shape.iter().product()], &device).require_grad();
        self.shapes.iter().enumerate().map(flat).collect()
    }

    fn gradients(&self, function: &dyn Fn(&[Tensor<1>]) -> Tensor<1>) -> (Tensor<1>, Vec<Tensor<1>>) {
        let inputs = self.inputs();
        let output = function(&inputs);
        let gradients = output.backward();
        let each = inputs.iter().map(|input| input.grad(&gradients).expect("every input has a gradient")).collect();
        (output.inner(), each)
    }

    /// Checks that fused and composed agree, forwards and backwards.
    fn equals_the_composed_form(&self) {
        let tolerance = Tolerance::<f32>::rel_abs(2e-4, 2e-5);
        let (output, gradients) = self.gradients(self.fused);
        let (expected, expected_gradients) = self.gradients(self.composed);
        output.into_data().assert_approx_eq(&expected.into_data(), tolerance);
        for (gradient, expected) in gradients.into_iter().zip(expected_gradients) {
            gradient.into_data().assert_approx_eq(&expected.into_data(), tolerance);
        }
    }

    /// Central differences in single precision are accurate to about three digits.
    fn agrees_with_finite_differences(&self) {
        let device = Device::flex();
        let (_, gradients) = self.gradients(self.fused);
        let plain: Vec<Tensor<1>> = self.inputs().into_iter().map(Tensor::inner).collect();
        let step = 1e-2;
        for (position, gradient) in gradients.into_iter().enumerate() {
            let start = numbers(plain[position].clone());
            for (index, gradient) in numbers(gradient).into_iter().enumerate() {
                let at = |offset: f32| {
                    let mut moved = start.clone();
                    moved[index] += offset;
                    let mut inputs = plain.clone();
                    let count = moved.len();
                    inputs[position] = Tensor::from_data(TensorData::new(moved, [count]), &device);
                    numbers((self.fused)(&inputs))[0]
                };
                let difference = (at(step) - at(-step)) / (2.0 * step);
                let allowed = 3e-3 * (1.0 + gradient.abs());
                assert!(
                    (difference - gradient).abs() < allowed,
                    "input {position}, element {index}: {difference} by differences, {gradient} written"
                );
            }
        }
    }
}

/// Checks a recurrent layer with small inputs, and with inputs large enough for several threads.
fn on_both_sizes(check: impl Fn(usize, usize, usize, usize, bool)) {
    check(3, 2, 3, 5, true);
    check(10, 37, 19, 64, false);
}

/// A scale for weights as in real networks: with larger weights the states are chaotic, and mere rounding grows from
/// step to step.
fn scale(hidden: usize) -> f32 {
    1.0 / (hidden as f32).sqrt()
}

#[test]
fn activations_equal_the_composed_form() {
    use burn::tensor::activation;
    type Function = fn(Tensor<1>) -> Tensor<1>;
    let pairs: [(Function, Function); 3] = [
        (sigmoid, activation::sigmoid),
        (tanh, activation::tanh),
        (softplus, |input| activation::softplus(input, 1.0)),
    ];
    for (fused, composed) in pairs {
        for count in [7, 100_000] {
            let check = Check {
                shapes: &[&[count]],
                fused: &|inputs| scalar(fused(inputs[0].clone() * 3.0)) / count as f32,
                composed: &|inputs| scalar(composed(inputs[0].clone() * 3.0)) / count as f32,
            };
            check.equals_the_composed_form();
            if count < 10 {
                check.agrees_with_finite_differences();
            }
        }
    }
}

#[test]
fn cross_entropy_equals_the_composed_form() {
    for (rows, width) in [(6, 5), (70, 3001)] {
        let right = |inputs: &[Tensor<1>]| classes(rows, width, &inputs[0].device());
        let scores = |inputs: &[Tensor<1>]| inputs[0].clone().reshape([rows, width]) * 4.0;
        let check = Check {
            shapes: &[&[rows, width]],
            fused: &|inputs| scalar(cross_entropy(scores(inputs), right(inputs))),
            composed: &|inputs| scalar(composed::cross_entropy(scores(inputs), right(inputs))),
        };
        check.equals_the_composed_form();
        if rows < 10 {
            check.agrees_with_finite_differences();
        }
    }
}

#[test]
fn linear_cross_entropy_equals_the_composed_form() {
    for (rows, size, width) in [(4, 3, 5), (70, 33, 3001)] {
        let run = |inputs: &[Tensor<1>], function: fn(Tensor<2>, Tensor<2>, Tensor<1>, Tensor<1, Int>) -> Tensor<1>| {
            let hidden = inputs[0].clone().reshape([rows, size]);
            let weight = inputs[1].clone().reshape([size, width]);
            scalar(function(hidden, weight, inputs[2].clone(), classes(rows, width, &inputs[0].device())))
        };
        let check = Check {
            shapes: &[&[rows, size], &[size, width], &[width]],
            fused: &|inputs| run(inputs, linear_cross_entropy),
            composed: &|inputs| run(inputs, composed::linear_cross_entropy),
        };
        check.equals_the_composed_form();
        if rows < 10 {
            check.agrees_with_finite_differences();
        }
    }
}

#[test]
fn sampled_cross_entropy_equals_the_composed_form() {
    type Function = fn(Tensor<2>, SampledSoftmax, Tensor<1, Int>) -> Tensor<1>;
    for (rows, size, candidates) in [(4, 3, 5), (300, 33, 501)] {
        let run = |inputs: &[Tensor<1>], function: Function| {
            let softmax = SampledSoftmax {
                right_weights: inputs[1].clone().reshape([rows, size]),
                right_bias: inputs[2].clone(),
                candidate_weights: inputs[3].clone().reshape([candidates, size]),
                candidate_bias: inputs[4].clone(),
            };
            // The target class of every third row is among the candidates.
            let hits: Vec<i64> =
                (0..rows).map(|row| if row % 3 == 0 { (row % candidates) as i64 } else { -1 }).collect();
            let hits = Tensor::from_data(TensorData::new(hits, [rows]), &inputs[0].device());
            scalar(function(inputs[0].clone().reshape([rows, size]), softmax, hits))
        };
        let check = Check {
            shapes: &[&[rows, size], &[rows, size], &[rows], &[candidates, size], &[candidates]],
            fused: &|inputs| run(inputs, sampled::sampled_cross_entropy),
            composed: &|inputs| run(inputs, composed::sampled_cross_entropy),
        };
        check.equals_the_composed_form();
        if rows < 10 {
            check.agrees_with_finite_differences();
        }
    }
}

#[test]
fn gru_over_a_sequence_equals_the_composed_form() {
    on_both_sizes(|time, batch, size, hidden, small| {
        let run = |inputs: &[Tensor<1>], function: fn(Tensor<3>, Tensor<2>, GruParameters) -> Tensor<3>| {
            let parameters = GruParameters {
                input_weight: inputs[2].clone().reshape([size, 3 * hidden]) * scale(hidden),
                recurrent_weight: inputs[3].clone().reshape([hidden, 3 * hidden]) * scale(hidden),
                bias: inputs[4].clone(),
            };
            let state = inputs[1].clone().reshape([batch, hidden]);
            scalar(function(inputs[0].clone().reshape([time, batch, size]), state, parameters))
        };
        let check = Check {
            shapes: &[
                &[time, batch, size],
                &[batch, hidden],
                &[size, 3 * hidden],
                &[hidden, 3 * hidden],
                &[3 * hidden],
            ],
            fused: &|inputs| run(inputs, gru),
            composed: &|inputs| run(inputs, composed::gru),
        };
        check.equals_the_composed_form();
        if small {
            check.agrees_with_finite_differences();
        }
    });
}

/// All outputs of the layer are checked: the states, the last of them again, and the cell.
#[test]
fn lstm_over_a_sequence_equals_the_composed_form() {
    type Layer = fn(Tensor<3>, LstmState, LstmParameters) -> (Tensor<3>, Tensor<2>);
    on_both_sizes(|time, batch, size, hidden, small| {
        let run = |inputs: &[Tensor<1>], function: Layer| {
            let parameters = LstmParameters {
                input_weight: inputs[3].clone().reshape([size, 4 * hidden]) * scale(hidden),
                recurrent_weight: inputs[4].clone().reshape([hidden, 4 * hidden]) * scale(hidden),
                bias: inputs[5].clone(),
                forget_bias: 1.0,
            };
            let state = LstmState {
                hidden: inputs[1].clone().reshape([batch, hidden]),
                cell: inputs[2].clone().reshape([batch, hidden]),
            };
            let (states, cell) = function(inputs[0].clone().reshape([time, batch, size]), state, parameters);
            scalar(states) + scalar(cell)
        };
        let fused: Layer = |input, state, parameters| {
            let (states, last) = lstm(input, state, parameters);
            (states, last.cell)
        };
        let check = Check {
            shapes: &[
                &[time, batch, size],
                &[batch, hidden],
                &[batch, hidden],
                &[size, 4 * hidden],
                &[hidden, 4 * hidden],
                &[4 * hidden],
            ],
            fused: &|inputs| run(inputs, fused),
            composed: &|inputs| run(inputs, composed::lstm),
        };
        check.equals_the_composed_form();
        if small {
            check.agrees_with_finite_differences();
        }
    });
}

#[test]
fn cells_called_step_by_step_equal_the_sequence() {
    let device = Device::flex();
    let (time, batch, size, hidden) = (4, 3, 5, 6);
    let input: Tensor<3> = values(1, [time, batch, size], &device);
    let first: Tensor<2> = values(2, [batch, hidden], &device);
    let step = |time: usize| input.clone().narrow(0, time, 1).squeeze_dim::<2>(0);
    let tolerance = Tolerance::<f32>::rel_abs(1e-5, 1e-6);

    let parameters = GruParameters {
        input_weight: values(3, [size, 3 * hidden], &device),
        recurrent_weight: values(4, [hidden, 3 * hidden], &device),
        bias: values(5, [3 * hidden], &device),
    };
    let states = gru(input.clone(), first.clone(), parameters.clone());
    let last = (0..time).fold(first.clone(), |state, time| gru_cell(step(time), state, parameters.clone()));
    let expected = states.narrow(0, time - 1, 1).squeeze_dim::<2>(0);
    last.into_data().assert_approx_eq(&expected.into_data(), tolerance);

    let parameters = LstmParameters {
        input_weight: values(6, [size, 4 * hidden], &device),
        recurrent_weight: values(7, [hidden, 4 * hidden], &device),
        bias: values(8, [4 * hidden], &device),
        forget_bias: 1.0,
    };
    let first = LstmState { hidden: first.clone(), cell: first };
    let (_, expected) = lstm(input.clone(), first.clone(), parameters.clone());
    let last = (0..time).fold(first, |state, time| lstm_cell(step(time), state, parameters.clone()));
    last.hidden.into_data().assert_approx_eq(&expected.hidden.into_data(), tolerance);
    last.cell.into_data().assert_approx_eq(&expected.cell.into_data(), tolerance);
}

#[test]
fn attention_equals_the_composed_form() {
    type Function = fn(Tensor<3>, Tensor<3>, Tensor<2>, Tensor<1>) -> (Tensor<2>, Tensor<2>);
    for (batch, length, size, depth) in [(3, 4, 5, 2), (30, 12, 40, 50)] {
        let run = |inputs: &[Tensor<1>], function: Function| {
            let keys = inputs[0].clone().reshape([batch, length, size]);
            let values = inputs[1].clone().reshape([batch, length, depth]);
            function(keys, values, inputs[2].clone().reshape([batch, size]), inputs[3].clone())
        };
        let check = Check {
            shapes: &[&[batch, length, size], &[batch, length, depth], &[batch, size], &[size]],
            fused: &|inputs| scalar(run(inputs, attention).0),
            composed: &|inputs| scalar(run(inputs, composed::attention).0),
        };
        check.equals_the_composed_form();
        if batch < 10 {
            check.agrees_with_finite_differences();
        }
        let inputs = check.inputs();
        let (weights, expected) = (run(&inputs, attention).1, run(&inputs, composed::attention).1);
        weights.into_data().assert_approx_eq(&expected.into_data(), Tolerance::<f32>::rel_abs(1e-5, 1e-6));
    }
}

#[test]
fn a_decoder_over_a_sequence_equals_the_composed_form() {
    type Function = fn(Tensor<3>, Attended, Vec<Tensor<2>>, GruDecoderParameters) -> Tensor<3>;
    for (time, batch, length, hidden, size, depth) in [(3, 2, 3, 4, 5, 2), (1, 2, 1, 3, 3, 3), (6, 37, 7, 64, 40, 50)] {
        let run = |inputs: &[Tensor<1>], function: Function| {
            let matrix = |at: usize, rows: usize| {
                let width = inputs[at].dims()[0] / rows;
                inputs[at].clone().reshape([rows, width]) * scale(hidden)
            };
            let layer = |at: usize| GruParameters {
                input_weight: matrix(at, hidden),
                recurrent_weight: matrix(at + 1, hidden),
                bias: inputs[at + 2].clone(),
            };
            let parameters = GruDecoderParameters {
                layers: vec![layer(5), layer(8)],
                attended: matrix(11, depth),
                query_weight: matrix(12, 2 * hidden),
                query_bias: inputs[13].clone(),
                direction: inputs[14].clone(),
            };
            let attended = Attended {
                keys: inputs[1].clone().reshape([batch, length, size]),
                values: inputs[2].clone().reshape([batch, length, depth]),
            };
            let states = [3, 4].map(|at| inputs[at].clone().reshape([batch, hidden])).to_vec();
            scalar(function(inputs[0].clone().reshape([time, batch, hidden]), attended, states, parameters))
        };
        let (weight, bias) = (&[hidden, 3 * hidden][..], &[3 * hidden][..]);
        let check = Check {
            shapes: &[
                &[time, batch, hidden],
                &[batch, length, size],
                &[batch, length, depth],
                &[batch, hidden],
                &[batch, hidden],
                weight,
                weight,
                bias,
                weight,
                weight,
                bias,
                &[depth, hidden],
                &[2 * hidden, size],
                &[size],
                &[size],
            ],
            fused: &|inputs| run(inputs, gru_decoder),
            composed: &|inputs| run(inputs, composed::gru_decoder),
        };
        check.equals_the_composed_form();
        if batch < 10 {
            check.agrees_with_finite_differences();
        }
    }
}

#[test]
fn inputs_that_are_views_give_the_same_as_copies() {
    let device = Device::flex();
    let wide: Tensor<3> = values(1, [5, 3, 8], &device);
    let view = wide.swap_dims(0, 1).narrow(2, 2, 4);
    let copy = Tensor::<3>::from_data(view.clone().into_data(), &device);
    let parameters = GruParameters {
        input_weight: values::<2>(2, [18, 4], &device).transpose(),
        recurrent_weight: values(3, [6, 18], &device),
        bias: values(4, [18], &device),
    };
    let state: Tensor<2> = values(5, [5, 6], &device);
    let from_view = gru(view, state.clone(), parameters.clone());
    let from_copy = gru(copy, state, parameters);
    assert_eq!(from_view.into_data(), from_copy.into_data());
}

/// Backends other than the CPU's take it too, by the same condition.
#[test]
fn double_precision_takes_the_composed_form() {
    let device = Device::flex();
    let parameters = GruParameters {
        input_weight: values(2, [4, 18], &device),
        recurrent_weight: values(3, [6, 18], &device),
        bias: values(4, [18], &device),
    };
    let double = GruParameters {
        input_weight: parameters.input_weight.clone().cast(FloatDType::F64),
        recurrent_weight: parameters.recurrent_weight.clone().cast(FloatDType::F64),
        bias: parameters.bias.clone().cast(FloatDType::F64),
    };
    let input: Tensor<3> = values(1, [3, 5, 4], &device);
    let state: Tensor<2> = values(5, [5, 6], &device);
    let precise = gru(input.clone().cast(FloatDType::F64), state.clone().cast(FloatDType::F64), double);
    assert_eq!(precise.dtype(), DType::F64);
    let tolerance = Tolerance::<f32>::rel_abs(1e-5, 1e-6);
    let single = gru(input, state, parameters);
    single.into_data().assert_approx_eq(&precise.cast(FloatDType::F32).into_data(), tolerance);
}

#[test]
fn inputs_that_need_no_gradient_get_none() {
    let device = Device::flex().autodiff();
    let hidden: Tensor<2> = values(1, [4, 3], &device);
    let weight = values::<2>(2, [3, 5], &device).require_grad();
    let loss = linear_cross_entropy(hidden.clone(), weight.clone(), values(3, [5], &device), classes(4, 5, &device));
    let gradients = loss.sum().backward();
    assert!(hidden.grad(&gradients).is_none());
    assert!(weight.grad(&gradients).is_some());
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_recurrent_layer() {
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let device = Device::flex().autodiff();
            let weight = values::<2>(4, [64, 192], &device).require_grad();
            let parameters = GruParameters {
                input_weight: values(3, [16, 192], &device),
                recurrent_weight: weight.clone(),
                bias: values(5, [192], &device),
            };
            let states = gru(values(1, [12, 48, 16], &device), values(2, [48, 64], &device), parameters);
            let gradients = scalar(states.clone()).backward();
            (states.inner().into_data(), weight.grad(&gradients).unwrap().into_data())
        })
    };
    assert_eq!(run(1), run(2));
    assert_eq!(run(1), run(3));
}

#[test]
fn what_is_not_a_number_stays_so() {
    let device = Device::flex();
    let input = Tensor::<1>::from_data(TensorData::from([f32::NAN, 1e30, -1e30, 0.0]), &device);
    let output = numbers(sigmoid(input));
    assert!(output[0].is_nan());
    assert_eq!(output[1..], [1.0, output[2], 0.5]);
    assert!(output[2] < 1e-37);
    let scores = Tensor::<2>::from_data(TensorData::from([[f32::NAN, 1.0]]), &device);
    let class = Tensor::<1, Int>::from_data(TensorData::from([1i64]), &device);
    assert!(numbers(cross_entropy(scores, class)).into_iter().all(f32::is_nan));
}
