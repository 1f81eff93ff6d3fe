//! Recurrent layers, GRU or LSTM, over a whole sequence or one step at a time.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};
use windlass_ops::{GruParameters, LstmParameters, LstmState, gru, gru_cell, lstm, lstm_cell};

/// Added to the forget gate, so that a layer remembers before it has learned to.
const FORGET_BIAS: f32 = 1.0;

/// The units of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Gated recurrent units.
    Gru,
    /// Long short-term memory.
    Lstm,
}

impl Cell {
    /// How many products with its inputs a unit computes.
    pub(super) fn gates(self) -> usize {
        match self {
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// How many numbers a unit keeps from one step to the next.
    pub(super) fn states(self) -> usize {
        match self {
            Cell::Gru => 1,
            Cell::Lstm => 2,
        }
    }
}

/// A recurrent layer.
#[derive(Module, Debug)]
pub struct Layer {
    input_weight: Param<Tensor<2>>,
    recurrent_weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    #[module(skip)]
    cell: Cell,
}

/// A layer's state between steps, [batch, size] each.
#[derive(Clone, Debug)]
pub struct LayerState {
    /// The layer's output.
    pub hidden: Tensor<2>,
    /// The cell state of an LSTM.
    pub memory: Option<Tensor<2>>,
}

impl Layer {
    /// A layer before training. GRUs start with open gates.
    pub fn new(cell: Cell, input: usize, size: usize, device: &Device) -> Self {
        let gates = cell.gates();
        let weight = |rows: usize| {
            let shape = [rows, gates * size];
            Initializer::XavierUniform { gain: 1.0 }.init_with(shape, Some(rows), Some(size), device)
        };
        let bias = match cell {
            Cell::Gru => Tensor::cat(vec![Tensor::ones([2 * size], device), Tensor::zeros([size], device)], 0),
            Cell::Lstm => Tensor::zeros([gates * size], device),
        };
        Self { input_weight: weight(input), recurrent_weight: weight(size), bias: Param::from_tensor(bias), cell }
    }

    /// Returns the outputs [time, batch, size] for inputs [time, batch, input] from a state of zeros, and the last
    /// state.
    pub fn over(&self, input: Tensor<3>) -> (Tensor<3>, LayerState) {
        let [time, batch, _] = input.dims();
        let zeros = Tensor::zeros([batch, self.recurrent_weight.dims()[0]], &input.device());
        match self.gru() {
            Some(parameters) => {
                let states = gru(input, zeros, parameters);
                let hidden = states.clone().narrow(0, time - 1, 1).squeeze_dim(0);
                (states, LayerState { hidden, memory: None })
            }
            None => {
                let (states, last) = lstm(input, LstmState { hidden: zeros.clone(), cell: zeros }, self.lstm());
                (states, LayerState { hidden: last.hidden, memory: Some(last.cell) })
            }
        }
    }

    /// Returns the state after one more input [batch, input].
    pub fn step(&self, input: Tensor<2>, state: LayerState) -> LayerState {
        match (self.gru(), state.memory) {
            (Some(parameters), _) => LayerState { hidden: gru_cell(input, state.hidden, parameters), memory: None },
            (None, memory) => {
                let cell = memory.expect("long short-term memory remembers");
                let next = lstm_cell(input, LstmState { hidden: state.hidden, cell }, self.lstm());
                LayerState { hidden: next.hidden, memory: Some(next.cell) }
            }
        }
    }

    /// The layer's parameters, if it is a GRU.
    pub(super) fn gru(&self) -> Option<GruParameters> {
        (self.cell == Cell::Gru).then(|| GruParameters {
            input_weight: self.input_weight.val(),
            recurrent_weight: self.recurrent_weight.val(),
            bias: self.bias.val(),
        })
    }

    fn lstm(&self) -> LstmParameters {
        LstmParameters {
            input_weight: self.input_weight.val(),
            recurrent_weight: self.recurrent_weight.val(),
            bias: self.bias.val(),
            forget_bias: FORGET_BIAS,
        }
    }
}

impl LayerState {
    /// All tensors of the state.
    pub(super) fn tensors(&self) -> impl Iterator<Item = Tensor<2>> + '_ {
        [Some(&self.hidden), self.memory.as_ref()].into_iter().flatten().cloned()
    }

    /// The states of these rows of the batch, in this order.
    pub(super) fn select(self, rows: &Tensor<1, Int>) -> Self {
        let pick = |tensor: Tensor<2>| tensor.select(0, rows.clone());
        Self { hidden: pick(self.hidden), memory: self.memory.map(pick) }
    }
}
