//! Convolution of images with a bias and ReLU, in one pass, with a hand-written backward pass.
//!
//! Burn's backward pass of a convolution consists of other convolutions, which take many times longer than necessary
//! for few channels and many images. Here one image at a time is unrolled into the columns of a matrix that stays in
//! the cache, so that a convolution and each of its gradients is one small matrix product.

mod shape;

use burn::backend::flex::FlexTensor;
use rayon::prelude::*;

use self::shape::{IMAGES_PER_PIECE, Shape};
use crate::buffer::{Floats, tensor};
use crate::matrix::{Matrix, MatrixMut, Old, multiply};
use crate::record::Saved;

/// `relu(convolution(input, weight) + bias)`, with the same stride and padding in both directions.
pub(crate) fn forward(
    [input, weight, bias]: [FlexTensor; 3],
    stride: usize,
    padding: usize,
) -> (FlexTensor, ConvolutionRelu) {
    let (input, weight, bias) = (Floats::new(input), Floats::new(weight), Floats::new(bias));
    let shape = Shape::new(input.shape(), weight.shape(), stride, padding);
    assert_eq!(bias.values().len(), shape.filters, "values of the bias");
    let mut output = vec![0.0; shape.images * shape.output()];
    let pieces = output.par_chunks_mut(IMAGES_PER_PIECE * shape.output());
    let inputs = input.values().par_chunks(IMAGES_PER_PIECE * shape.input());
    pieces.zip(inputs).for_each(|(outputs, inputs)| {
        let mut columns = vec![0.0; shape.columns()];
        for (output, input) in outputs.chunks_exact_mut(shape.output()).zip(inputs.chunks_exact(shape.input())) {
            shape.unroll(input, &mut columns);
            let (weight, columns) =
                (Matrix::new(weight.values(), shape.depth()), Matrix::new(&columns, shape.places()));
            multiply(MatrixMut::new(output, shape.places()), weight, columns, Old::Replace);
            for (plane, bias) in output.chunks_exact_mut(shape.places()).zip(bias.values()) {
                plane.iter_mut().for_each(|value| *value = relu(*value + bias));
            }
        }
    });
    let output = tensor(output, [shape.images, shape.filters, shape.out_height, shape.out_width]);
    (output.clone(), ConvolutionRelu { shape, input, weight, output: Floats::new(output) })
}

#[derive(Clone, Debug)]
pub(crate) struct ConvolutionRelu {
    shape: Shape,
    input: Floats,
    weight: Floats,
    output: Floats,
}

impl Saved<3> for ConvolutionRelu {
    fn gradients(self, gradient: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let gradient = Floats::new(gradient);
        let (weight, bias) = if wanted[1] || wanted[2] {
            let (weight, bias) = self.of_weight_and_bias(&gradient);
            (Some(weight), Some(bias))
        } else {
            (None, None)
        };
        [wanted[0].then(|| self.of_input(&gradient)), weight, bias]
    }
}

impl ConvolutionRelu {
    fn of_input(&self, gradient: &Floats) -> FlexTensor {
        let shape = &self.shape;
        let mut result = vec![0.0; shape.images * shape.input()];
        let pieces = result.par_chunks_mut(IMAGES_PER_PIECE * shape.input());
        pieces.zip(shape.pieces(&self.output, gradient)).for_each(|(results, piece)| {
            let (mut passed, mut columns) = (vec![0.0; shape.output()], vec![0.0; shape.columns()]);
            for (result, (output, gradient)) in results.chunks_exact_mut(shape.input()).zip(shape.images(piece)) {
                pass(output, gradient, &mut passed);
                let weight = Matrix::new(self.weight.values(), shape.depth()).transposed();
                let target = MatrixMut::new(&mut columns, shape.places());
                multiply(target, weight, Matrix::new(&passed, shape.places()), Old::Replace);
                shape.roll(&columns, result);
            }
        });
        tensor(result, self.input.shape::<4>())
    }

    fn of_weight_and_bias(&self, gradient: &Floats) -> (FlexTensor, FlexTensor) {
        let shape = &self.shape;
        let inputs = self.input.values().par_chunks(IMAGES_PER_PIECE * shape.input());
        let sums = inputs.zip(shape.pieces(&self.output, gradient)).map(|(inputs, piece)| {
            let (mut weights, mut biases) = (vec![0.0; shape.filters * shape.depth()], vec![0.0; shape.filters]);
            let (mut passed, mut columns) = (vec![0.0; shape.output()], vec![0.0; shape.columns()]);
            for (input, (output, gradient)) in inputs.chunks_exact(shape.input()).zip(shape.images(piece)) {
                pass(output, gradient, &mut passed);
                shape.unroll(input, &mut columns);
                let columns = Matrix::new(&columns, shape.places()).transposed();
                let target = MatrixMut::new(&mut weights, shape.depth());
                multiply(target, Matrix::new(&passed, shape.places()), columns, Old::Add);
                for (bias, plane) in biases.iter_mut().zip(passed.chunks_exact(shape.places())) {
                    *bias += plane.iter().sum::<f32>();
                }
            }
            (weights, biases)
        });
        let sums: Vec<_> = sums.collect();
        let (mut weights, mut biases) = (vec![0.0; shape.filters * shape.depth()], vec![0.0; shape.filters]);
        for (weight, bias) in sums {
            weights.iter_mut().zip(weight).for_each(|(sum, value)| *sum += value);
            biases.iter_mut().zip(bias).for_each(|(sum, value)| *sum += value);
        }
        (tensor(weights, self.weight.shape::<4>()), tensor(biases, [shape.filters]))
    }
}

/// ReLU that preserves NaN.
#[inline(always)]
fn relu(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

/// Passes a gradient back through ReLU.
fn pass(output: &[f32], gradient: &[f32], passed: &mut [f32]) {
    for ((passed, output), gradient) in passed.iter_mut().zip(output).zip(gradient) {
        *passed = if *output > 0.0 { *gradient } else { 0.0 };
    }
}
