//! Convolution of images with a bias and ReLU, in one pass, with a written backward pass.
//!
//! Burn's backward pass of a convolution is made of other convolutions, which for a few channels and many images
//! take many times as long as they need. Here one image at a time is unrolled into the columns of a matrix that
//! stays in the cache, so that a convolution and each of its gradients is one small product of matrices.

mod shape;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;
use rayon::prelude::*;

use self::shape::{IMAGES_PER_PIECE, Shape};
use crate::buffer::{Floats, tensor};
use crate::matrix::{Matrix, MatrixMut, Old, multiply};

/// Convolution as a backend implements it.
#[backend_extension(Flex, Autodiff)]
pub trait ConvolutionOps: Backend {
    /// `relu(convolution(input, weight) + bias)`, with a stride and padding the same in both directions.
    fn convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self>;

    /// The gradient of the input, from the weight, the output and the output's gradient; the input gives its shape.
    fn convolution_relu_input_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self>;

    /// The gradients of weight and bias.
    fn convolution_relu_weight_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// `relu(convolution(input, weight) + bias)`. The input is images × channels × height × width, the weight is output
/// channels × input channels × height × width, as in Burn; stride and padding are the same in both directions.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn convolution_relu(
    input: Tensor<4>,
    weight: Tensor<4>,
    bias: Tensor<1>,
    stride: usize,
    padding: usize,
) -> Tensor<4> {
    let (input, weight, bias) = (input.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(Dispatch::convolution_relu(input, weight, bias, stride, padding))
}

impl ConvolutionOps for Flex {
    fn convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
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
        tensor(output, [shape.images, shape.filters, shape.out_height, shape.out_width])
    }

    fn convolution_relu_input_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        let (input, weight) = (Floats::new(input), Floats::new(weight));
        let (output, gradient) = (Floats::new(output), Floats::new(gradient));
        let shape = Shape::new(input.shape(), weight.shape(), stride, padding);
        let mut result = vec![0.0; shape.images * shape.input()];
        let pieces = result.par_chunks_mut(IMAGES_PER_PIECE * shape.input());
        pieces.zip(shape.pieces(&output, &gradient)).for_each(|(results, piece)| {
            let (mut passed, mut columns) = (vec![0.0; shape.output()], vec![0.0; shape.columns()]);
            for (result, (output, gradient)) in results.chunks_exact_mut(shape.input()).zip(shape.images(piece)) {
                pass(output, gradient, &mut passed);
                let weight = Matrix::new(weight.values(), shape.depth()).transposed();
                let target = MatrixMut::new(&mut columns, shape.places());
                multiply(target, weight, Matrix::new(&passed, shape.places()), Old::Replace);
                shape.roll(&columns, result);
            }
        });
        tensor(result, input.shape::<4>())
    }

    fn convolution_relu_weight_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (input, weight) = (Floats::new(input), Floats::new(weight));
        let (output, gradient) = (Floats::new(output), Floats::new(gradient));
        let shape = Shape::new(input.shape(), weight.shape(), stride, padding);
        let inputs = input.values().par_chunks(IMAGES_PER_PIECE * shape.input());
        let sums = inputs.zip(shape.pieces(&output, &gradient)).map(|(inputs, piece)| {
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
        (tensor(weights, weight.shape::<4>()), tensor(biases, [shape.filters]))
    }
}

/// Not a number stays so.
#[inline(always)]
fn relu(value: f32) -> f32 {
    if value < 0.0 { 0.0 } else { value }
}

/// What of a gradient goes back through ReLU.
fn pass(output: &[f32], gradient: &[f32], passed: &mut [f32]) {
    for ((passed, output), gradient) in passed.iter_mut().zip(output).zip(gradient) {
        *passed = if *output > 0.0 { *gradient } else { 0.0 };
    }
}

#[derive(Debug)]
struct ConvolutionRelu;

impl<B: ConvolutionOps> Backward<B, 3> for ConvolutionRelu {
    /// Input, weight and output, stride and padding.
    type State = ([FloatTensor<B>; 3], usize, usize);

    fn backward(self, ops: Ops<Self::State, 3>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let ([input, weight, output], stride, padding) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        let [input_node, weight_node, bias_node] = ops.parents;
        if weight_node.is_some() || bias_node.is_some() {
            let (weights, biases) = B::convolution_relu_weight_backward(
                input.clone(),
                weight.clone(),
                output.clone(),
                gradient.clone(),
                stride,
                padding,
            );
            for (node, gradient) in [(weight_node, weights), (bias_node, biases)] {
                if let Some(node) = node {
                    gradients.register::<B>(node.id, gradient);
                }
            }
        }
        if let Some(node) = input_node {
            let gradient = B::convolution_relu_input_backward(input, weight, output, gradient, stride, padding);
            gradients.register::<B>(node.id, gradient);
        }
    }
}

impl<B: ConvolutionOps, C: CheckpointStrategy> ConvolutionOps for Autodiff<B, C> {
    fn convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        let [values, weights, biases] = [&input, &weight, &bias].map(|tensor| tensor.primitive().clone());
        let output = B::convolution_relu(values.clone(), weights.clone(), biases, stride, padding);
        let nodes = [input.node(), weight.node(), bias.node()];
        match Backward::<B, 3>::prepare::<C>(ConvolutionRelu, nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(([values, weights, output.clone()], stride, padding), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    /// Second derivatives are not written: this is a constant to what is recorded.
    fn convolution_relu_input_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        let [input, weight, output, gradient] =
            [input, weight, output, gradient].map(|tensor| tensor.primitive().clone());
        FloatTensor::<Self>::new(B::convolution_relu_input_backward(input, weight, output, gradient, stride, padding))
    }

    /// Nor are they here.
    fn convolution_relu_weight_backward(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let [input, weight, output, gradient] =
            [input, weight, output, gradient].map(|tensor| tensor.primitive().clone());
        let (weight, bias) = B::convolution_relu_weight_backward(input, weight, output, gradient, stride, padding);
        (FloatTensor::<Self>::new(weight), FloatTensor::<Self>::new(bias))
    }
}
