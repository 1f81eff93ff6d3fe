//! Half the squared error, summed, with its gradient: the difference, which the sum is made of anyway.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::Tensor;

use crate::floats::{Floats, tensor};

/// Values that are summed in single precision, each lane on its own.
const CHUNK: usize = 1024;
const LANES: usize = 16;

/// The squared error as a backend implements it.
#[backend_extension(Flex, Autodiff)]
pub trait SquaredErrorOps: Backend {
    /// Half the sum of the squared differences of rows, and the differences.
    fn half_squared_error(
        output: FloatTensor<Self>,
        target: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of the output, from the differences and the gradient of the error.
    fn half_squared_error_backward(difference: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// ½Σ(output − target)². The target is a constant: it gets no gradient.
///
/// # Panics
/// If the shapes differ.
pub fn half_squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let (error, _difference) = Dispatch::half_squared_error(output.into_dispatch(), target.into_dispatch());
    Tensor::from_dispatch(error)
}

impl SquaredErrorOps for Flex {
    fn half_squared_error(
        output: FloatTensor<Self>,
        target: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (output, target) = (Floats::new(output), Floats::new(target));
        assert_eq!(output.shape::<2>(), target.shape::<2>(), "shapes of the output and of the target");
        let difference: Vec<f32> =
            output.values().iter().zip(target.values()).map(|(output, target)| output - target).collect();
        let error = (0.5 * sum_of_squares(&difference)) as f32;
        (tensor(vec![error], [1]), tensor(difference, output.shape::<2>()))
    }

    fn half_squared_error_backward(difference: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let (difference, gradient) = (Floats::new(difference), Floats::new(gradient));
        let factor = gradient.values()[0];
        let result = difference.values().iter().map(|difference| factor * difference).collect();
        tensor(result, difference.shape::<2>())
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let of_chunk = |chunk: &[f32]| {
        let mut lanes = [0.0f32; LANES];
        let (whole, rest) = chunk.as_chunks::<LANES>();
        for values in whole {
            lanes.iter_mut().zip(values).for_each(|(lane, value)| *lane += value * value);
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, value)| *lane += value * value);
        lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>()
    };
    values.chunks(CHUNK).map(of_chunk).sum()
}

#[derive(Debug)]
struct HalfSquaredError;

impl<B: SquaredErrorOps> Backward<B, 1> for HalfSquaredError {
    /// The difference.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let difference = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            B::half_squared_error_backward(difference, gradient)
        });
    }
}

impl<B: SquaredErrorOps, C: CheckpointStrategy> SquaredErrorOps for Autodiff<B, C> {
    fn half_squared_error(
        output: FloatTensor<Self>,
        target: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (error, difference) = B::half_squared_error(output.primitive().clone(), target.primitive().clone());
        let error = match Backward::<B, 1>::prepare::<C>(HalfSquaredError, [output.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(difference.clone(), error),
            OpsKind::UnTracked(prepared) => prepared.finish(error),
        };
        (error, FloatTensor::<Self>::new(difference))
    }

    /// Second derivatives are not written: this is a constant to what is recorded.
    fn half_squared_error_backward(difference: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let gradient = B::half_squared_error_backward(difference.primitive().clone(), gradient.primitive().clone());
        FloatTensor::<Self>::new(gradient)
    }
}
