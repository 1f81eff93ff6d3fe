//! Operations fused for the CPU, with hand-written backward passes.
//!
//! Burn composes these from many passes over memory, with scalar exponentials; here each is one pass of vector
//! instructions on all threads of the caller's rayon pool. They extend Burn's `Flex` backend and its autodiff. On every
//! other backend, and for types other than `f32`, the same functions compose Burn's operations.

mod activation;
mod attention;
mod backend;
mod buffer;
mod composed;
mod convolution;
mod elementary;
mod loss;
mod matrix;
mod record;
mod recurrent;
mod sampled;
mod sampled_loss;
mod sampler;
mod squared_error;
#[cfg(test)]
mod tests;
mod vector;

use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{DType, Int, Tensor};

use backend::FusedOps;
pub use sampled::{Candidates, LogUniformSampler, SampledSoftmax};

/// 1 / (1 + e^-x), element by element.
pub fn sigmoid<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    if !is_fused(&input) {
        return burn::tensor::activation::sigmoid(input);
    }
    Tensor::from_dispatch(Dispatch::fused_sigmoid(input.into_dispatch()))
}

/// The hyperbolic tangent, element by element.
pub fn tanh<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    if !is_fused(&input) {
        return burn::tensor::activation::tanh(input);
    }
    Tensor::from_dispatch(Dispatch::fused_tanh(input.into_dispatch()))
}

/// ln(1 + e^x), element by element.
pub fn softplus<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    if !is_fused(&input) {
        return burn::tensor::activation::softplus(input, 1.0);
    }
    Tensor::from_dispatch(Dispatch::fused_softplus(input.into_dispatch()))
}

/// The softmax cross-entropy of every row of scores with the row's target class.
pub fn cross_entropy(scores: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    if !is_fused(&scores) {
        return composed::cross_entropy(scores, classes);
    }
    Tensor::from_dispatch(Dispatch::fused_cross_entropy(scores.into_dispatch(), classes.into_dispatch()))
}

/// The softmax cross-entropy of hidden × weight + bias, for wide outputs: it passes over the scores only once.
///
/// `hidden` is [rows, size], `weight` [size, classes], `bias` `[classes]`.
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    weight: Tensor<2>,
    bias: Tensor<1>,
    classes: Tensor<1, Int>,
) -> Tensor<1> {
    if !is_fused(&hidden) {
        return composed::linear_cross_entropy(hidden, weight, bias, classes);
    }
    Tensor::from_dispatch(Dispatch::fused_linear_cross_entropy(
        hidden.into_dispatch(),
        weight.into_dispatch(),
        bias.into_dispatch(),
        classes.into_dispatch(),
    ))
}

/// The parameters of a layer of gated recurrent units, with gates in the order reset, update, candidate.
#[derive(Clone, Debug)]
pub struct GruParameters {
    /// [input, 3 * hidden]
    pub input_weight: Tensor<2>,
    /// [hidden, 3 * hidden]
    pub recurrent_weight: Tensor<2>,
    /// [3 * hidden]; the first two thirds usually start at 1.
    pub bias: Tensor<1>,
}

/// The states [time, batch, hidden] after every step of inputs [time, batch, input], from an initial state [batch,
/// hidden]. The last of them is the final state.
///
/// The reset gate is applied before the recurrent product, as in TensorFlow's `GRUCell`:
/// c = tanh(x·W + (r∘h)·U + b), h' = u∘h + (1 − u)∘c.
pub fn gru(input: Tensor<3>, state: Tensor<2>, parameters: GruParameters) -> Tensor<3> {
    if !is_fused(&input) {
        return composed::gru(input, state, parameters);
    }
    Tensor::from_dispatch(Dispatch::fused_gru(
        input.into_dispatch(),
        state.into_dispatch(),
        parameters.input_weight.into_dispatch(),
        parameters.recurrent_weight.into_dispatch(),
        parameters.bias.into_dispatch(),
    ))
}

/// The state [batch, hidden] after one step with input [batch, input].
pub fn gru_cell(input: Tensor<2>, state: Tensor<2>, parameters: GruParameters) -> Tensor<2> {
    gru(input.unsqueeze(), state, parameters).squeeze_dim(0)
}

/// The parameters of an LSTM layer, with gates in the order input, new, forget, output.
#[derive(Clone, Debug)]
pub struct LstmParameters {
    /// [input, 4 * hidden]
    pub input_weight: Tensor<2>,
    /// [hidden, 4 * hidden]
    pub recurrent_weight: Tensor<2>,
    /// [4 * hidden]
    pub bias: Tensor<1>,
    /// Added to the forget gate before activation; usually 1.
    pub forget_bias: f32,
}

/// The two states of an LSTM layer, [batch, hidden] each.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The output of the layer.
    pub hidden: Tensor<2>,
    /// The memory of the layer.
    pub cell: Tensor<2>,
}

/// The hidden states [time, batch, hidden] after every step of inputs [time, batch, input], and the final state.
///
/// As TensorFlow's `BasicLSTMCell`: c' = c∘sigmoid(f + forget bias) + sigmoid(i)∘tanh(j), h' = tanh(c')∘sigmoid(o).
pub fn lstm(input: Tensor<3>, state: LstmState, parameters: LstmParameters) -> (Tensor<3>, LstmState) {
    let time = input.dims()[0];
    let (states, cell) = if is_fused(&input) {
        let states = Tensor::<3>::from_dispatch(Dispatch::fused_lstm(
            input.into_dispatch(),
            state.hidden.into_dispatch(),
            state.cell.into_dispatch(),
            parameters.input_weight.into_dispatch(),
            parameters.recurrent_weight.into_dispatch(),
            parameters.bias.into_dispatch(),
            parameters.forget_bias,
        ));
        (states.clone().narrow(0, 0, time), states.narrow(0, time, 1).squeeze_dim(0))
    } else {
        composed::lstm(input, state, parameters)
    };
    let hidden = states.clone().narrow(0, time - 1, 1).squeeze_dim(0);
    (states, LstmState { hidden, cell })
}

/// The state after one step with input [batch, input].
pub fn lstm_cell(input: Tensor<2>, state: LstmState, parameters: LstmParameters) -> LstmState {
    lstm(input.unsqueeze(), state, parameters).1
}

/// Additive attention of queries [batch, size] over keys [batch, length, size] and values [batch, length, depth]:
/// weights = softmax over the length of v·tanh(key + query), context = the values weighted by them.
///
/// Returns the context [batch, depth] and the weights [batch, length]; no gradient flows through the weights.
pub fn attention(keys: Tensor<3>, values: Tensor<3>, query: Tensor<2>, direction: Tensor<1>) -> (Tensor<2>, Tensor<2>) {
    if !is_fused(&keys) {
        let (context, weights) = composed::attention(keys, values, query, direction);
        return (context, weights.detach());
    }
    let (context, weights) = Dispatch::fused_attention(
        keys.into_dispatch(),
        values.into_dispatch(),
        query.into_dispatch(),
        direction.into_dispatch(),
    );
    (Tensor::from_dispatch(context), Tensor::from_dispatch(weights))
}

/// What a decoder attends to.
#[derive(Clone, Debug)]
pub struct Attended {
    /// [batch, length, size]: compared with the query.
    pub keys: Tensor<3>,
    /// [batch, length, depth]: averaged into the context.
    pub values: Tensor<3>,
}

/// The parameters of a decoder of gated recurrent units with attention.
#[derive(Clone, Debug)]
pub struct GruDecoderParameters {
    /// The layers, with as many inputs as units.
    pub layers: Vec<GruParameters>,
    /// [depth, hidden]: projects the previous step's context, which is added to the input of a step.
    pub attended: Tensor<2>,
    /// [layers * hidden, size]: computes the query from the states of all layers.
    pub query_weight: Tensor<2>,
    /// `[size]`
    pub query_bias: Tensor<1>,
    /// `[size]`: v of the attention.
    pub direction: Tensor<1>,
}

/// The outputs of a decoder for inputs [time, batch, hidden], from a state [batch, hidden] of each layer: for every
/// step the top state and the context, [time, batch, hidden + depth].
pub fn gru_decoder(
    input: Tensor<3>,
    attended: Attended,
    states: Vec<Tensor<2>>,
    parameters: GruDecoderParameters,
) -> Tensor<3> {
    if !is_fused(&input) {
        return composed::gru_decoder(input, attended, states, parameters);
    }
    let layers = parameters.layers;
    let matrices = |pick: fn(&GruParameters) -> Tensor<2>| Tensor::stack::<3>(layers.iter().map(pick).collect(), 0);
    let input_weights = matrices(|layer| layer.input_weight.clone());
    let recurrent_weights = matrices(|layer| layer.recurrent_weight.clone());
    let biases = Tensor::stack::<2>(layers.iter().map(|layer| layer.bias.clone()).collect(), 0);
    Tensor::from_dispatch(Dispatch::fused_gru_decoder(
        input.into_dispatch(),
        attended.keys.into_dispatch(),
        attended.values.into_dispatch(),
        Tensor::stack::<3>(states, 0).into_dispatch(),
        parameters.attended.into_dispatch(),
        input_weights.into_dispatch(),
        recurrent_weights.into_dispatch(),
        biases.into_dispatch(),
        parameters.query_weight.into_dispatch(),
        parameters.query_bias.into_dispatch(),
        parameters.direction.into_dispatch(),
    ))
}

/// ½Σ(output − target)². The target is a constant: it gets no gradient.
///
/// # Panics
/// Panics if the shapes differ.
pub fn half_squared_error(output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    if !is_fused(&output) {
        return composed::half_squared_error(output, target);
    }
    Tensor::from_dispatch(Dispatch::fused_half_squared_error(output.into_dispatch(), target.into_dispatch()))
}

/// `relu(convolution(input, weight) + bias)`. The input is images × channels × height × width, the weight is output
/// channels × input channels × height × width, as in Burn; stride and padding are the same in both directions.
///
/// # Panics
/// Panics if the shapes do not match.
pub fn convolution_relu(
    input: Tensor<4>,
    weight: Tensor<4>,
    bias: Tensor<1>,
    stride: usize,
    padding: usize,
) -> Tensor<4> {
    if !is_fused(&input) {
        return composed::convolution_relu(input, weight, bias, stride, padding);
    }
    let (input, weight, bias) = (input.into_dispatch(), weight.into_dispatch(), bias.into_dispatch());
    Tensor::from_dispatch(Dispatch::fused_convolution_relu(input, weight, bias, stride, padding))
}

/// Samples every image through its transform, at the image's own size.
///
/// Images are images × channels × height × width. A transform is six numbers in two rows of three: the pixel at (x, y)
/// shows the image at (a·x + b·y + c, d·x + e·y + f). Coordinates go from −1 in the middle of the first pixel to 1 in
/// the middle of the last, so 1 0 0 0 1 0 changes nothing. Outside the image, everything is zero.
///
/// # Panics
/// Panics if there are not six numbers for every image.
pub fn affine_sample(images: Tensor<4>, transforms: Tensor<2>) -> Tensor<4> {
    if !is_fused(&images) {
        return composed::affine_sample(images, transforms);
    }
    Tensor::from_dispatch(Dispatch::fused_affine_sample(images.into_dispatch(), transforms.into_dispatch()))
}

/// Whether the fused operations support this tensor.
fn is_fused<const D: usize>(tensor: &Tensor<D>) -> bool {
    tensor.dtype() == DType::F32 && matches!(tensor.device().inner().as_dispatch(), DispatchDevice::Flex(_))
}
