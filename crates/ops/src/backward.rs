//! The operations on the plain backend, and their gradients.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Flex};

use crate::{FusedOps, activation, loss};

impl FusedOps for Flex {
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self> {
        activation::sigmoid(input)
    }

    fn fused_cross_entropy(
        scores: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        loss::forward(scores, classes)
    }

    fn fused_cross_entropy_backward(
        softmax: FloatTensor<Self>,
        classes: IntTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        loss::backward(softmax, classes, gradient)
    }
}

#[derive(Debug)]
struct Sigmoid;

impl<B: Backend> Backward<B, 1> for Sigmoid {
    /// The output: its own derivative needs nothing else.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let output = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| B::sigmoid_backward(output, gradient));
    }
}

#[derive(Debug)]
struct CrossEntropy;

impl<B: FusedOps> Backward<B, 1> for CrossEntropy {
    type State = (FloatTensor<B>, IntTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (softmax, classes) = ops.state;
        unary::<B, _>(ops.parents, ops.node, gradients, |gradient| {
            B::fused_cross_entropy_backward(softmax, classes, gradient)
        });
    }
}

impl<B: FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let output = B::fused_sigmoid(input.primitive().clone());
        match Backward::<B, 1>::prepare::<C>(Sigmoid, [input.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(output.clone(), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    fn fused_cross_entropy(
        scores: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (loss, softmax) = B::fused_cross_entropy(scores.primitive().clone(), classes.clone());
        let loss = match Backward::<B, 1>::prepare::<C>(CrossEntropy, [scores.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => prepared.finish((softmax.clone(), classes), loss),
            OpsKind::UnTracked(prepared) => prepared.finish(loss),
        };
        (loss, FloatTensor::<Self>::new(softmax))
    }

    /// Second derivatives are not written: this is a constant to what is recorded.
    fn fused_cross_entropy_backward(
        softmax: FloatTensor<Self>,
        classes: IntTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let scores =
            B::fused_cross_entropy_backward(softmax.primitive().clone(), classes, gradient.primitive().clone());
        FloatTensor::<Self>::new(scores)
    }
}
