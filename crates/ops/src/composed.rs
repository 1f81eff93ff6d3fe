//! The same operations composed from Burn's own. Backends other than the CPU's run these, and the fused operations are
//! tested against them.

use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::grid::affine_grid_2d;
use burn::tensor::module::conv2d;
use burn::tensor::ops::{ConvOptions, GridSampleOptions, GridSamplePaddingMode, InterpolateMode};
use burn::tensor::{Int, Tensor, activation};

use crate::{Attended, GruDecoderParameters, GruParameters, LstmParameters, LstmState, SampledSoftmax};

pub(crate) fn cross_entropy(scores: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    log_softmax(scores, 1).gather(1, classes.unsqueeze_dim(1)).neg().squeeze_dim(1)
}

pub(crate) fn linear_cross_entropy(
    hidden: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    classes: Tensor<1, Int>,
) -> Tensor<1> {
    cross_entropy(hidden.matmul(weight) + bias.unsqueeze(), classes)
}

pub(crate) fn sampled_cross_entropy(hidden: Tensor<2>, softmax: SampledSoftmax, hits: Tensor<1, Int>) -> Tensor<1> {
    let device = hidden.device();
    let rows = hidden.dims()[0];
    let candidates = softmax.candidate_bias.dims()[0] as i64;
    let right = (hidden.clone() * softmax.right_weights).sum_dim(1) + softmax.right_bias.unsqueeze_dim(1);
    let others = hidden.matmul(softmax.candidate_weights.transpose()) + softmax.candidate_bias.unsqueeze();
    let places = Tensor::<1, Int>::arange(0..candidates, &device).unsqueeze_dim::<2>(0).repeat_dim(0, rows);
    let others = others.mask_fill(places.equal(hits.unsqueeze_dim(1)), f32::MIN);
    cross_entropy(Tensor::cat(vec![right, others], 1), Tensor::zeros([rows], &device))
}

pub(crate) fn gru(input: Tensor<3>, state: Tensor<2>, parameters: GruParameters) -> Tensor<3> {
    let GruParameters { input_weight, recurrent_weight, bias } = parameters;
    let [time, batch, size] = input.dims();
    let hidden = state.dims()[1];
    let projected = input.reshape([time * batch, size]).matmul(input_weight) + bias.unsqueeze();
    let mut state = state;
    let mut states = Vec::with_capacity(time);
    for step in 0..time {
        let projected = projected.clone().narrow(0, step * batch, batch);
        let both = projected.clone().narrow(1, 0, 2 * hidden)
            + state.clone().matmul(recurrent_weight.clone().narrow(1, 0, 2 * hidden));
        let both = activation::sigmoid(both);
        let (reset, update) = (both.clone().narrow(1, 0, hidden), both.narrow(1, hidden, hidden));
        let candidate = projected.narrow(1, 2 * hidden, hidden)
            + (reset * state.clone()).matmul(recurrent_weight.clone().narrow(1, 2 * hidden, hidden));
        let candidate = activation::tanh(candidate);
        state = candidate.clone() + update * (state - candidate);
        states.push(state.clone());
    }
    Tensor::stack(states, 0)
}

pub(crate) fn lstm(input: Tensor<3>, state: LstmState, parameters: LstmParameters) -> (Tensor<3>, Tensor<2>) {
    let LstmParameters { input_weight, recurrent_weight, bias, forget_bias } = parameters;
    let [time, batch, size] = input.dims();
    let LstmState { mut hidden, mut cell } = state;
    let width = hidden.dims()[1];
    let projected = input.reshape([time * batch, size]).matmul(input_weight) + bias.unsqueeze();
    let mut states = Vec::with_capacity(time);
    for step in 0..time {
        let gates = projected.clone().narrow(0, step * batch, batch) + hidden.matmul(recurrent_weight.clone());
        let gate = |index: usize| gates.clone().narrow(1, index * width, width);
        let forget = activation::sigmoid(gate(2) + forget_bias);
        cell = cell * forget + activation::sigmoid(gate(0)) * activation::tanh(gate(1));
        hidden = activation::tanh(cell.clone()) * activation::sigmoid(gate(3));
        states.push(hidden.clone());
    }
    (Tensor::stack(states, 0), cell)
}

pub(crate) fn attention(
    keys: Tensor<3>,
    values: Tensor<3>,
    query: Tensor<2>,
    direction: Tensor<1>,
) -> (Tensor<2>, Tensor<2>) {
    let squashed = activation::tanh(keys + query.unsqueeze_dim(1));
    let scores = (squashed * direction.unsqueeze()).sum_dim(2).squeeze_dim::<2>(2);
    let weights = softmax(scores, 1);
    let context = weights.clone().unsqueeze_dim::<3>(1).matmul(values).squeeze_dim(1);
    (context, weights)
}

pub(crate) fn gru_decoder(
    input: Tensor<3>,
    attended: Attended,
    mut states: Vec<Tensor<2>>,
    parameters: GruDecoderParameters,
) -> Tensor<3> {
    let [time, batch, _] = input.dims();
    let [_, _, depth] = attended.values.dims();
    let mut found = Tensor::zeros([batch, depth], &input.device());
    let mut said = Vec::with_capacity(time);
    for step in 0..time {
        let word = input.clone().narrow(0, step, 1).squeeze_dim::<2>(0);
        let mut fed = word + found.matmul(parameters.attended.clone());
        for (layer, state) in parameters.layers.iter().zip(&mut states) {
            fed = gru(fed.unsqueeze(), state.clone(), layer.clone()).squeeze_dim(0);
            *state = fed.clone();
        }
        let query = Tensor::cat(states.clone(), 1).matmul(parameters.query_weight.clone());
        let query = query + parameters.query_bias.clone().unsqueeze();
        found = attention(attended.keys.clone(), attended.values.clone(), query, parameters.direction.clone()).0;
        said.push(Tensor::cat(vec![fed, found.clone()], 1));
    }
    Tensor::stack(said, 0)
}

pub(crate) fn half_squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let difference = output - target;
    (difference.clone() * difference).sum() * 0.5
}

pub(crate) fn convolution_relu(
    input: Tensor<4>,
    weight: Tensor<4>,
    bias: Tensor<1>,
    stride: usize,
    padding: usize,
) -> Tensor<4> {
    let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
    activation::relu(conv2d(input, weight, Some(bias), options))
}

pub(crate) fn affine_sample(images: Tensor<4>, transforms: Tensor<2>) -> Tensor<4> {
    let count = images.dims()[0];
    let seen = affine_grid_2d(transforms.reshape([count, 2, 3]), images.dims());
    let options = GridSampleOptions::new(InterpolateMode::Bilinear)
        .with_padding_mode(GridSamplePaddingMode::Zeros)
        .with_align_corners(true);
    images.grid_sample_2d(seen, options)
}
