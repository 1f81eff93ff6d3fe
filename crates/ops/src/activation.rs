//! Activations on the CPU, element by element.

use burn::backend::flex::FlexTensor;

use crate::buffer::{contiguous, floats, into_floats};
use crate::elementary;
use crate::record::Saved;
use crate::vector::{each_pair, each_piece, vectorised};

/// 1 / (1 + e^-x). Computed in place if Burn's buffer is not shared.
pub(crate) fn sigmoid([input]: [FlexTensor; 1]) -> (FlexTensor, Sigmoid) {
    let output = map(input, elementary::sigmoid);
    (output.clone(), Sigmoid { output })
}

/// The hyperbolic tangent.
pub(crate) fn tanh([input]: [FlexTensor; 1]) -> (FlexTensor, Tanh) {
    let output = map(input, elementary::tanh);
    (output.clone(), Tanh { output })
}

/// ln(1 + e^x).
pub(crate) fn softplus([input]: [FlexTensor; 1]) -> (FlexTensor, Softplus) {
    (map(input.clone(), elementary::softplus), Softplus { input })
}

/// The output: its own derivative needs nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Sigmoid {
    output: FlexTensor,
}

impl Saved<1> for Sigmoid {
    fn gradients(self, gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(combine(
            gradient,
            self.output,
            #[inline(always)]
            |gradient, output| elementary::flush(gradient * output * (1.0 - output)),
        ))]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Tanh {
    output: FlexTensor,
}

impl Saved<1> for Tanh {
    fn gradients(self, gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(combine(
            gradient,
            self.output,
            #[inline(always)]
            |gradient, output| gradient * (1.0 - output * output),
        ))]
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Softplus {
    input: FlexTensor,
}

impl Saved<1> for Softplus {
    fn gradients(self, gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(combine(
            gradient,
            self.input,
            #[inline(always)]
            |gradient, input| gradient * elementary::sigmoid(input),
        ))]
    }
}

#[inline(always)]
fn map(input: FlexTensor, function: impl Fn(f32) -> f32 + Send + Sync) -> FlexTensor {
    let mut data = into_floats(input);
    let values = data.as_mut_slice::<f32>().expect("converted to f32");
    each_piece(values, |values| {
        vectorised(
            #[inline(always)]
            || values.iter_mut().for_each(|value| *value = function(*value)),
        );
    });
    FlexTensor::from_data(data)
}

#[inline(always)]
fn combine(gradient: FlexTensor, with: FlexTensor, function: impl Fn(f32, f32) -> f32 + Sync) -> FlexTensor {
    let mut data = into_floats(gradient);
    let with = contiguous(with);
    let values = data.as_mut_slice::<f32>().expect("converted to f32");
    each_pair(values, floats(&with), |values, with| {
        vectorised(
            #[inline(always)]
            || values.iter_mut().zip(with).for_each(|(value, with)| *value = function(*value, *with)),
        );
    });
    FlexTensor::from_data(data)
}
