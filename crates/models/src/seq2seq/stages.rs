//! The translator in three stages, `encoder`, `decoder` and `output`, each with the word table that it uses.

use anyhow::bail;
use burn::tensor::Tensor;
use windlass_worker::model::{Activation, Feeds, Stage, StageInput, Staged};

use super::Seq2Seq;
use super::batch::{Choice, StepBatch};
use super::cells::LayerState;
use super::network::Translator;

impl Staged for Seq2Seq {
    fn stages(&self) -> Vec<Stage> {
        vec![
            Stage::new("encoder").with("from_embedding").with("encoder"),
            Stage::new("decoder").with("to_embedding").with("decoder").after("encoder"),
            Stage::new("output").with("output_weight").with("output_bias").after("decoder"),
        ]
    }

    fn feed(&self, batch: StepBatch, feeds: &mut Feeds) -> anyhow::Result<()> {
        feeds.to("encoder", (batch.encoder_inputs, batch.sentences))?;
        feeds.to("decoder", (batch.decoder_inputs, batch.counted))?;
        feeds.to("output", (batch.choice, batch.weights))
    }

    fn forward(&self, network: &Translator, stage: &str, mut input: StageInput) -> anyhow::Result<Vec<Activation>> {
        Ok(match stage {
            "encoder" => {
                let (words, sentences): (Vec<u32>, usize) = input.feed()?;
                let (outputs, states) = network.read(&words, sentences);
                let states = states.iter().flat_map(LayerState::tensors).map(Activation::from);
                std::iter::once(outputs.into()).chain(states).collect()
            }
            "decoder" => {
                let (words, counted): (Vec<u32>, Vec<u32>) = input.feed()?;
                let outputs: Tensor<3> = input.tensor()?;
                let states = std::iter::from_fn(|| (input.left() > 0).then(|| self.state(&mut input)));
                let states = states.collect::<anyhow::Result<Vec<LayerState>>>()?;
                let encoded = network.decoder().attend_to(outputs, states);
                vec![network.decode(&encoded, &words, &counted).into()]
            }
            "output" => {
                let (choice, weights): (Choice, Vec<f32>) = input.feed()?;
                vec![network.weighted_loss(input.tensor()?, &choice, &weights).into()]
            }
            _ => bail!("there is no such part of the network"),
        })
    }
}

impl Seq2Seq {
    /// Reads the state of the next layer from the encoder's output.
    fn state(&self, input: &mut StageInput) -> anyhow::Result<LayerState> {
        let hidden = input.tensor()?;
        let memory = (self.settings.cell.states() > 1).then(|| input.tensor()).transpose()?;
        Ok(LayerState { hidden, memory })
    }
}
