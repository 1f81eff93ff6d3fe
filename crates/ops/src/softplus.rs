//! Softplus, with its derivative from the same exponential.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{Tensor, TensorData};

use crate::exponential::exp;
use crate::floats::Floats;

/// Softplus as a backend implements it.
#[backend_extension(Flex, Autodiff)]
pub trait SoftplusOps: Backend {
    /// ln(1 + e^x), element by element, and its derivative.
    fn fused_softplus(input: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// ln(1 + e^x), element by element.
pub fn softplus<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    let (output, _derivative) = Dispatch::fused_softplus(input.into_dispatch());
    Tensor::from_dispatch(output)
}

impl SoftplusOps for Flex {
    fn fused_softplus(input: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let shape = input.layout().shape().clone();
        let input = Floats::new(input);
        let (mut outputs, mut derivatives) = (vec![0.0; input.values().len()], vec![0.0; input.values().len()]);
        for ((output, derivative), x) in outputs.iter_mut().zip(&mut derivatives).zip(input.values()) {
            (*output, *derivative) = value_and_derivative(*x);
        }
        let tensor = |values| FloatTensor::<Self>::from_data(TensorData::new(values, shape.clone()));
        (tensor(outputs), tensor(derivatives))
    }
}

/// No branches and no calls, so that a loop over it becomes vector instructions. Not a number stays so.
#[inline(always)]
fn value_and_derivative(x: f32) -> (f32, f32) {
    let decay = exp(-x.abs());
    // ln(1 + d) = 2·artanh(s) with s = d / (2 + d), which is a third at the most: a short series will do.
    let s = decay / (2.0 + decay);
    let square = s * s;
    let series = 1.0 / 15.0;
    let series = series * square + 1.0 / 13.0;
    let series = series * square + 1.0 / 11.0;
    let series = series * square + 1.0 / 9.0;
    let series = series * square + 1.0 / 7.0;
    let series = series * square + 1.0 / 5.0;
    let series = series * square + 1.0 / 3.0;
    let logarithm = 2.0 * (s + s * square * series);
    let above = if x < 0.0 { 0.0 } else { x };
    let rising = 1.0 / (1.0 + decay);
    (above + logarithm, if x < 0.0 { decay * rising } else { rising })
}

#[derive(Debug)]
struct Softplus;

impl<B: Backend> Backward<B, 1> for Softplus {
    /// The derivative.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let derivative = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| B::float_mul(gradient, derivative));
    }
}

impl<B: SoftplusOps, C: CheckpointStrategy> SoftplusOps for Autodiff<B, C> {
    /// Second derivatives are not written: the derivative is a constant to what is recorded.
    fn fused_softplus(input: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (output, derivative) = B::fused_softplus(input.primitive().clone());
        let output = match Backward::<B, 1>::prepare::<C>(Softplus, [input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(derivative.clone(), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        };
        (output, FloatTensor::<Self>::new(derivative))
    }
}
