//! The fused operations as an extension of Burn's CPU backend, with and without autodiff.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, Flex, backend_extension};

use crate::record::{parts, record};
use crate::recurrent::{decoder, gru, lstm};
use crate::{activation, attention, convolution, loss, sampled_loss, sampler, squared_error};

/// The fused operations. Shapes and meanings are those of this crate's public functions.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait FusedOps: Backend {
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self>;

    fn fused_tanh(input: FloatTensor<Self>) -> FloatTensor<Self>;

    fn fused_softplus(input: FloatTensor<Self>) -> FloatTensor<Self>;

    fn fused_cross_entropy(scores: FloatTensor<Self>, classes: IntTensor<Self>) -> FloatTensor<Self>;

    fn fused_linear_cross_entropy(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    #[allow(clippy::too_many_arguments)]
    fn fused_sampled_cross_entropy(
        hidden: FloatTensor<Self>,
        right_weights: FloatTensor<Self>,
        right_bias: FloatTensor<Self>,
        candidate_weights: FloatTensor<Self>,
        candidate_bias: FloatTensor<Self>,
        hits: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    fn fused_gru(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    /// The hidden states after every step, followed by the last cell state, in one tensor.
    #[allow(clippy::too_many_arguments)]
    fn fused_lstm(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        cell: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        forget_bias: f32,
    ) -> FloatTensor<Self>;

    fn fused_attention(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The parameters of all layers are stacked.
    #[allow(clippy::too_many_arguments)]
    fn fused_gru_decoder(
        words: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        states: FloatTensor<Self>,
        attended: FloatTensor<Self>,
        input_weights: FloatTensor<Self>,
        recurrent_weights: FloatTensor<Self>,
        biases: FloatTensor<Self>,
        query_weight: FloatTensor<Self>,
        query_bias: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> FloatTensor<Self>;

    fn fused_half_squared_error(output: FloatTensor<Self>, target: FloatTensor<Self>) -> FloatTensor<Self>;

    fn fused_convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self>;

    fn fused_affine_sample(images: FloatTensor<Self>, transforms: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl FusedOps for Flex {
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self> {
        activation::sigmoid([input]).0
    }

    fn fused_tanh(input: FloatTensor<Self>) -> FloatTensor<Self> {
        activation::tanh([input]).0
    }

    fn fused_softplus(input: FloatTensor<Self>) -> FloatTensor<Self> {
        activation::softplus([input]).0
    }

    fn fused_cross_entropy(scores: FloatTensor<Self>, classes: IntTensor<Self>) -> FloatTensor<Self> {
        loss::forward([scores], classes).0
    }

    fn fused_linear_cross_entropy(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        loss::linear_forward([hidden, weight, bias], classes).0
    }

    fn fused_sampled_cross_entropy(
        hidden: FloatTensor<Self>,
        right_weights: FloatTensor<Self>,
        right_bias: FloatTensor<Self>,
        candidate_weights: FloatTensor<Self>,
        candidate_bias: FloatTensor<Self>,
        hits: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        sampled_loss::forward([hidden, right_weights, right_bias, candidate_weights, candidate_bias], hits).0
    }

    fn fused_gru(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        gru::forward([input, state, input_weight, recurrent_weight, bias]).0
    }

    fn fused_lstm(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        cell: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        forget_bias: f32,
    ) -> FloatTensor<Self> {
        lstm::forward([input, state, cell, input_weight, recurrent_weight, bias], forget_bias).0
    }

    fn fused_attention(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (context, saved) = attention::forward([keys, values, query, direction]);
        (context, saved.weights)
    }

    fn fused_gru_decoder(
        words: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        states: FloatTensor<Self>,
        attended: FloatTensor<Self>,
        input_weights: FloatTensor<Self>,
        recurrent_weights: FloatTensor<Self>,
        biases: FloatTensor<Self>,
        query_weight: FloatTensor<Self>,
        query_bias: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        decoder::forward([
            words,
            keys,
            values,
            states,
            attended,
            input_weights,
            recurrent_weights,
            biases,
            query_weight,
            query_bias,
            direction,
        ])
        .0
    }

    fn fused_half_squared_error(output: FloatTensor<Self>, target: FloatTensor<Self>) -> FloatTensor<Self> {
        squared_error::forward([output], target).0
    }

    fn fused_convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        convolution::forward([input, weight, bias], stride, padding).0
    }

    fn fused_affine_sample(images: FloatTensor<Self>, transforms: FloatTensor<Self>) -> FloatTensor<Self> {
        sampler::forward([images, transforms]).0
    }
}

impl<C: CheckpointStrategy> FusedOps for Autodiff<Flex, C> {
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input]);
        record::<C, _, _>(nodes, activation::sigmoid(inputs))
    }

    fn fused_tanh(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input]);
        record::<C, _, _>(nodes, activation::tanh(inputs))
    }

    fn fused_softplus(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input]);
        record::<C, _, _>(nodes, activation::softplus(inputs))
    }

    fn fused_cross_entropy(scores: FloatTensor<Self>, classes: IntTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([scores]);
        record::<C, _, _>(nodes, loss::forward(inputs, classes))
    }

    fn fused_linear_cross_entropy(
        hidden: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([hidden, weight, bias]);
        record::<C, _, _>(nodes, loss::linear_forward(inputs, classes))
    }

    fn fused_sampled_cross_entropy(
        hidden: FloatTensor<Self>,
        right_weights: FloatTensor<Self>,
        right_bias: FloatTensor<Self>,
        candidate_weights: FloatTensor<Self>,
        candidate_bias: FloatTensor<Self>,
        hits: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([hidden, right_weights, right_bias, candidate_weights, candidate_bias]);
        record::<C, _, _>(nodes, sampled_loss::forward(inputs, hits))
    }

    fn fused_gru(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input, state, input_weight, recurrent_weight, bias]);
        record::<C, _, _>(nodes, gru::forward(inputs))
    }

    fn fused_lstm(
        input: FloatTensor<Self>,
        state: FloatTensor<Self>,
        cell: FloatTensor<Self>,
        input_weight: FloatTensor<Self>,
        recurrent_weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        forget_bias: f32,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input, state, cell, input_weight, recurrent_weight, bias]);
        record::<C, _, _>(nodes, lstm::forward(inputs, forget_bias))
    }

    /// Autodiff treats the weights as constant: gradients flow only through the context.
    fn fused_attention(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (inputs, nodes) = parts::<C, _>([keys, values, query, direction]);
        let (context, saved) = attention::forward(inputs);
        let weights = FloatTensor::<Self>::new(saved.weights.clone());
        (record::<C, _, _>(nodes, (context, saved)), weights)
    }

    fn fused_gru_decoder(
        words: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        states: FloatTensor<Self>,
        attended: FloatTensor<Self>,
        input_weights: FloatTensor<Self>,
        recurrent_weights: FloatTensor<Self>,
        biases: FloatTensor<Self>,
        query_weight: FloatTensor<Self>,
        query_bias: FloatTensor<Self>,
        direction: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([
            words,
            keys,
            values,
            states,
            attended,
            input_weights,
            recurrent_weights,
            biases,
            query_weight,
            query_bias,
            direction,
        ]);
        record::<C, _, _>(nodes, decoder::forward(inputs))
    }

    fn fused_half_squared_error(output: FloatTensor<Self>, target: FloatTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([output]);
        record::<C, _, _>(nodes, squared_error::forward(inputs, target.into_primitive()))
    }

    fn fused_convolution_relu(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        stride: usize,
        padding: usize,
    ) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([input, weight, bias]);
        record::<C, _, _>(nodes, convolution::forward(inputs, stride, padding))
    }

    fn fused_affine_sample(images: FloatTensor<Self>, transforms: FloatTensor<Self>) -> FloatTensor<Self> {
        let (inputs, nodes) = parts::<C, _>([images, transforms]);
        record::<C, _, _>(nodes, sampler::forward(inputs))
    }
}
