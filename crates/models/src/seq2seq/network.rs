//! The whole network: embeddings, encoder, attention decoder and output layer, and the loss of a batch.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use windlass_ops::{SampledSoftmax, linear_cross_entropy};

use super::batch::{Choice, StepBatch};
use super::cells::{Cell, Layer, LayerState};
use super::decoder::{Decoder, Encoded};

/// The parameters that are accessed by row: one row per word.
pub(super) const TABLES: [&str; 4] = ["from_embedding", "to_embedding", "output_weight", "output_bias"];

/// The sizes that determine the shapes of all parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Layers of the encoder, and of the decoder.
    pub layers: usize,
    /// Units of a layer, of an embedding and of the attention.
    pub size: usize,
    /// The kind of recurrent cell.
    pub cell: Cell,
    /// The number of words of the source language.
    pub from_words: usize,
    /// The number of words of the target language.
    pub to_words: usize,
}

/// The network.
#[derive(Module, Debug)]
pub struct Translator {
    from_embedding: Param<Tensor<2>>,
    encoder: Vec<Layer>,
    to_embedding: Param<Tensor<2>>,
    decoder: Decoder,
    output_weight: Param<Tensor<2>>,
    output_bias: Param<Tensor<2>>,
}

impl Translator {
    /// A network before training.
    pub fn new(shape: &Shape, device: &Device) -> Self {
        let Shape { layers, size, cell, from_words, to_words } = *shape;
        // Variance 1, as the inputs of a network should have.
        let spread = f64::sqrt(3.0);
        let embedding = |words: usize| {
            Param::from_tensor(Tensor::random([words, size], Distribution::Uniform(-spread, spread), device))
        };
        Self {
            from_embedding: embedding(from_words),
            encoder: (0..layers).map(|_| Layer::new(cell, size, size, device)).collect(),
            to_embedding: embedding(to_words),
            decoder: Decoder::new(shape, device),
            output_weight: Initializer::XavierUniform { gain: 1.0 }.init_with(
                [to_words, size],
                Some(size),
                Some(to_words),
                device,
            ),
            output_bias: Param::from_tensor(Tensor::zeros([to_words, 1], device)),
        }
    }

    /// Encodes sentences: `words` are indices into the embedding, time step by time step, of this many sentences.
    pub fn encode(&self, words: &[u32], sentences: usize) -> Encoded {
        let (outputs, states) = self.read(words, sentences);
        self.decoder.attend_to(outputs, states)
    }

    /// Like [`Translator::encode`], but without the decoder's part: the encoder's outputs [time, batch, size] and its
    /// last states.
    pub(super) fn read(&self, words: &[u32], sentences: usize) -> (Tensor<3>, Vec<LayerState>) {
        let table = self.from_embedding.val();
        let (device, size) = (table.device(), table.dims()[1]);
        let mut outputs = table.select(0, places(words, &device)).reshape([words.len() / sentences, sentences, size]);
        let mut states = Vec::with_capacity(self.encoder.len());
        for layer in &self.encoder {
            let (next, state) = layer.over(outputs);
            outputs = next;
            states.push(state);
        }
        (outputs, states)
    }

    /// The loss of a batch: the mean over the words of each sentence, and over the sentences.
    pub fn loss(&self, batch: &StepBatch) -> Tensor<1> {
        let encoded = self.encode(&batch.encoder_inputs, batch.sentences);
        let hidden = self.decode(&encoded, &batch.decoder_inputs, &batch.counted);
        self.weighted_loss(hidden, &batch.choice, &batch.weights)
    }

    /// Returns the input of the output layer for those of the decoder's outputs that count, given these input words.
    pub(super) fn decode(&self, encoded: &Encoded, words: &[u32], counted: &[u32]) -> Tensor<2> {
        let device = self.to_embedding.device();
        // A word that occurs often is mapped only once.
        let taken_in = self.decoder.take_in(self.to_embedding.val()).select(0, places(words, &device));
        self.decoder.output(self.decoder.over(taken_in, encoded).select(0, places(counted, &device)))
    }

    /// The loss of the decoder's outputs.
    pub(super) fn weighted_loss(&self, hidden: Tensor<2>, choice: &Choice, weights: &[f32]) -> Tensor<1> {
        let weights = Tensor::<1>::from_data(TensorData::new(weights.to_vec(), [weights.len()]), &hidden.device());
        (self.losses(hidden, choice) * weights).sum()
    }

    fn losses(&self, hidden: Tensor<2>, choice: &Choice) -> Tensor<1> {
        let device = hidden.device();
        let (weight, bias) = (self.output_weight.val(), self.output_bias.val().squeeze_dim::<1>(1));
        match choice {
            Choice::Full { right } => linear_cross_entropy(hidden, weight.transpose(), bias, places(right, &device)),
            Choice::Sampled { right, right_places, candidates, candidate_places } => {
                let pick = |rows: &[u32]| {
                    let rows = places(rows, &device);
                    (weight.clone().select(0, rows.clone()), bias.clone().select(0, rows))
                };
                let (right_weights, right_bias) = pick(right_places);
                let (candidate_weights, candidate_bias) = pick(candidate_places);
                SampledSoftmax { right_weights, right_bias, candidate_weights, candidate_bias }
                    .loss(hidden, candidates, right)
            }
        }
    }

    /// The decoder.
    pub(super) fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Maps words [any, size] to the input of the decoder's cells.
    pub(super) fn take_in(&self, words: &[u32]) -> Tensor<2> {
        let table = self.to_embedding.val();
        let device = table.device();
        self.decoder.take_in(table.select(0, places(words, &device)))
    }

    /// The scores [any, words] of all words after the decoder's [`said`](super::decoder::DecoderState::said).
    pub(super) fn scores(&self, said: Tensor<2>) -> Tensor<2> {
        let bias: Tensor<2> = self.output_bias.val().transpose();
        self.decoder.output(said).matmul(self.output_weight.val().transpose()) + bias
    }
}

/// Converts row numbers to a tensor.
pub(super) fn places(rows: &[u32], device: &Device) -> Tensor<1, Int> {
    let rows: Vec<i64> = rows.iter().map(|row| i64::from(*row)).collect();
    let count = rows.len();
    Tensor::from_data(TensorData::new(rows, [count]), device)
}
