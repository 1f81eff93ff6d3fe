//! What an operation saves from its forward pass, and how autodiff gets its gradients from that.
//!
//! Kernels work on slices of floats; only this file knows the graph.

use std::fmt::Debug;
use std::marker::PhantomData;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};

/// What the backward pass of an operation with `N` inputs needs.
pub(crate) trait Saved<const N: usize>: Clone + Debug + Send + 'static {
    /// Computes the gradients of the wanted inputs from the gradient of the output.
    fn gradients(self, output: FlexTensor, wanted: [bool; N]) -> [Option<FlexTensor>; N];
}

#[derive(Debug)]
struct Written<S>(PhantomData<S>);

impl<S: Saved<N>, const N: usize> Backward<Flex, N> for Written<S> {
    type State = S;

    fn backward(self, ops: Ops<S, N>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let output = gradients.consume::<Flex>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let inputs = ops.state.gradients(output, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(inputs) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                gradients.register::<Flex>(parent.id, gradient);
            }
        }
    }
}

/// Splits the inputs into their values and their nodes in the graph.
pub(crate) fn parts<C: CheckpointStrategy, const N: usize>(
    inputs: [FloatTensor<Autodiff<Flex, C>>; N],
) -> ([FlexTensor; N], [NodeGuard; N]) {
    let nodes = inputs.each_ref().map(|input| input.node());
    (inputs.map(|input| input.into_primitive()), nodes)
}

/// Returns the output as a node of the graph.
pub(crate) fn record<C: CheckpointStrategy, S: Saved<N>, const N: usize>(
    inputs: [NodeGuard; N],
    (output, saved): (FlexTensor, S),
) -> FloatTensor<Autodiff<Flex, C>> {
    match Backward::<Flex, N>::prepare::<C>(Written(PhantomData::<S>), inputs).compute_bound().stateful() {
        OpsKind::Tracked(prepared) => prepared.finish(saved, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}
