//! The decoder: recurrent layers that attend to the encoder's outputs with one additive attention head.
//!
//! A step works as in TensorFlow's attention decoder: the cells' input is a linear map of the word and the previous
//! step's attention; the attention is softmax(vᵀ tanh(W·encoded + U·states)); the output is a linear map of the top
//! cells and the attention. The first attention is zero.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use windlass_ops::{Attended, GruDecoderParameters, GruParameters, attention, gru_decoder};

use super::cells::{Layer, LayerState};
use super::network::Shape;

/// The decoder's parameters. A linear map of two inputs is kept as two maps, one for each input, which is equivalent.
#[derive(Module, Debug)]
pub struct Decoder {
    layers: Vec<Layer>,
    word: Linear,
    attended: Linear,
    key: Linear,
    query: Linear,
    direction: Param<Tensor<1>>,
    output: Linear,
}

/// The encoder's results for a batch.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// [batch, time, size]: the keys of the attention.
    keys: Tensor<3>,
    /// [batch, time, size]: the values of the attention.
    values: Tensor<3>,
    /// The encoder's last states, from which the decoder starts.
    states: Vec<LayerState>,
}

/// The decoder's state between steps.
#[derive(Clone, Debug)]
pub struct DecoderState {
    layers: Vec<LayerState>,
    /// [batch, size]: the last result of the attention.
    found: Tensor<2>,
}

impl Decoder {
    /// A decoder before training.
    pub fn new(shape: &Shape, device: &Device) -> Self {
        let size = shape.size;
        let states = size * shape.layers * shape.cell.states();
        let linear = |input: usize, output: usize| linear(input, output, device);
        let without_bias = |input: usize| Linear { bias: None, ..linear(input, size) };
        Self {
            layers: (0..shape.layers).map(|_| Layer::new(shape.cell, size, size, device)).collect(),
            word: linear(size, size),
            attended: without_bias(size),
            key: without_bias(size),
            query: linear(states, size),
            direction: xavier_vector(size, device),
            output: linear(2 * size, size),
        }
    }

    /// Prepares for attending to the encoder's outputs [time, batch, size].
    pub fn attend_to(&self, outputs: Tensor<3>, states: Vec<LayerState>) -> Encoded {
        let [time, batch, size] = outputs.dims();
        let values = outputs.swap_dims(0, 1).reshape([batch * time, size]);
        let keys = self.key.forward(values.clone());
        Encoded { keys: keys.reshape([batch, time, size]), values: values.reshape([batch, time, size]), states }
    }

    /// Maps words [any, size] to the input of the cells.
    pub fn take_in(&self, words: Tensor<2>) -> Tensor<2> {
        self.word.forward(words)
    }

    /// Returns the state after one more word [batch, size] from [`Decoder::take_in`], and the attention weights [batch,
    /// time].
    pub fn step(&self, word: Tensor<2>, encoded: &Encoded, state: DecoderState) -> (DecoderState, Tensor<2>) {
        let mut input = word + self.attended.forward(state.found);
        let mut layers = Vec::with_capacity(self.layers.len());
        for (layer, state) in self.layers.iter().zip(state.layers) {
            let state = layer.step(input, state);
            input = state.hidden.clone();
            layers.push(state);
        }
        let states: Vec<Tensor<2>> = layers.iter().flat_map(LayerState::tensors).collect();
        let query = self.query.forward(Tensor::cat(states, 1));
        let (found, weights) = attention(encoded.keys.clone(), encoded.values.clone(), query, self.direction.val());
        (DecoderState { layers, found }, weights)
    }

    /// Returns [`said`](DecoderState::said) after each of the words from [`Decoder::take_in`], by time step.
    pub fn over(&self, words: Tensor<2>, encoded: &Encoded) -> Tensor<2> {
        let [batch, _, size] = encoded.values.dims();
        let time = words.dims()[0] / batch;
        let layers: Option<Vec<GruParameters>> = self.layers.iter().map(Layer::gru).collect();
        let Some(layers) = layers else {
            let mut state = encoded.start();
            let step = |step: usize| {
                let word = words.clone().narrow(0, step * batch, batch);
                state = self.step(word, encoded, state.clone()).0;
                state.said()
            };
            return Tensor::cat((0..time).map(step).collect(), 0);
        };
        let parameters = GruDecoderParameters {
            layers,
            attended: self.attended.weight.val(),
            query_weight: self.query.weight.val(),
            query_bias: self.query.bias.as_ref().expect("the query has a bias").val(),
            direction: self.direction.val(),
        };
        let attended = Attended { keys: encoded.keys.clone(), values: encoded.values.clone() };
        let states = encoded.states.iter().map(|state| state.hidden.clone()).collect();
        let said = gru_decoder(words.reshape([time, batch, size]), attended, states, parameters);
        said.reshape([time * batch, 2 * size])
    }

    /// Maps [`DecoderState::said`] [any, 2 · size] to the input of the output layer [any, size].
    pub fn output(&self, said: Tensor<2>) -> Tensor<2> {
        self.output.forward(said)
    }
}

impl Encoded {
    /// The state in which decoding starts.
    pub fn start(&self) -> DecoderState {
        let [batch, _, size] = self.values.dims();
        DecoderState { layers: self.states.clone(), found: Tensor::zeros([batch, size], &self.values.device()) }
    }

    /// The number of sentences.
    pub(super) fn rows(&self) -> usize {
        self.values.dims()[0]
    }

    pub(super) fn device(&self) -> Device {
        self.values.device()
    }

    /// The first sentence, repeated this many times.
    pub(super) fn repeat(self, times: usize) -> Self {
        let rows = Tensor::<1, Int>::zeros([times], &self.keys.device());
        Self {
            keys: self.keys.select(0, rows.clone()),
            values: self.values.select(0, rows.clone()),
            states: self.states.into_iter().map(|state| state.select(&rows)).collect(),
        }
    }
}

impl DecoderState {
    /// [batch, 2 · size]: the outputs of the top cells, and the last result of the attention.
    pub fn said(&self) -> Tensor<2> {
        let top = self.layers.last().expect("a decoder has a layer");
        Tensor::cat(vec![top.hidden.clone(), self.found.clone()], 1)
    }

    /// The states of these rows of the batch, in this order.
    pub(super) fn select(self, rows: &Tensor<1, Int>) -> Self {
        Self {
            layers: self.layers.into_iter().map(|state| state.select(rows)).collect(),
            found: self.found.select(0, rows.clone()),
        }
    }
}

fn linear(input: usize, output: usize, device: &Device) -> Linear {
    let initializer = Initializer::XavierUniform { gain: 1.0 };
    let mut linear = LinearConfig::new(input, output).with_initializer(initializer).init(device);
    linear.bias = Some(Param::from_tensor(Tensor::zeros([output], device)));
    linear
}

fn xavier_vector(size: usize, device: &Device) -> Param<Tensor<1>> {
    Initializer::XavierUniform { gain: 1.0 }.init_with([size], Some(size), Some(1), device)
}
