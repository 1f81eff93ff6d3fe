//! A custom model that can be divided: two layers that classify two interleaved spirals, each of them a stage.
//!
//! `cargo run --release --example staged_model -- launch spirals --place input=/task:0,output=/task:1 --microbatches 2`
//!
//! Besides the model, this takes one line in `Model` and the `Staged` implementation below.
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::tensor::activation::tanh;
use windlass::prelude::*;
use windlass::{Activation, Feeds, Stage, StageInput, Staged, Staging};

struct Spirals(Vec<([f32; 2], i64)>);

#[derive(clap::Args, Debug, Clone)]
struct Flags {}

#[derive(Module, Debug)]
struct Network {
    input: Linear,
    output: Linear,
}

impl Model for Spirals {
    const NAME: &'static str = "spirals";
    const ABOUT: &'static str = "tell two interleaved spirals apart, in two stages";
    type Flags = Flags;
    type Network = Network;
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn defaults(_flags: &Flags) -> Defaults {
        Defaults { learning_rate: 0.003, batch_size: 50, steps: Some(4000), ..Defaults::default() }
    }

    fn load(_flags: &Flags, _setup: &Setup) -> anyhow::Result<Self> {
        let point = |index: usize| {
            let (class, along) = ((index % 2) as i64, (index / 2) as f32 / 500.0);
            let angle = std::f32::consts::TAU * (along + class as f32 / 2.0);
            ([along * angle.cos(), along * angle.sin()], class)
        };
        Ok(Self((0..1000).map(point).collect()))
    }

    fn network(&self, device: &Device) -> Network {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Network { input: layer(2, 32), output: layer(32, 2) }
    }

    fn samples(&self) -> usize {
        self.0.len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Self::Batch> {
        let (points, classes): (Vec<_>, Vec<_>) = samples.iter().map(|sample| self.0[*sample]).unzip();
        let points = TensorData::new(points.concat(), [samples.len(), 2]);
        Ok((Tensor::from_data(points, device), Tensor::from_data(&classes[..], device)))
    }

    fn loss(&self, network: &Network, (points, classes): Self::Batch) -> Tensor<1> {
        loss(network, hidden(network, points), classes)
    }

    fn evaluate(&self, network: &Network, device: &Device) -> anyhow::Result<Metrics> {
        let all: Vec<usize> = (0..self.samples()).collect();
        let (points, classes) = self.batch(&all, device, &mut windlass::rand::make_rng())?;
        let scores = network.output.forward(hidden(network, points));
        Ok(Metrics::new().fraction("training_accuracy", accuracy(scores, classes)))
    }

    fn staging() -> Option<Staging<Self>> {
        Some(Staging::declared())
    }
}

fn hidden(network: &Network, points: Tensor<2>) -> Tensor<2> {
    tanh(network.input.forward(points))
}

fn loss(network: &Network, hidden: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&hidden.device()).forward(network.output.forward(hidden), classes)
}

impl Staged for Spirals {
    fn stages(&self) -> Vec<Stage> {
        vec![Stage::new("input").with("input"), Stage::new("output").with("output").after("input")]
    }

    fn feed(&self, (points, classes): Self::Batch, feeds: &mut Feeds) -> anyhow::Result<()> {
        feeds.to("input", points)?;
        feeds.to("output", classes)
    }

    fn forward(&self, network: &Network, stage: &str, mut input: StageInput) -> anyhow::Result<Vec<Activation>> {
        Ok(vec![match stage {
            "input" => hidden(network, input.feed()?).into(),
            _ => loss(network, input.tensor()?, input.feed()?).into(),
        }])
    }
}

fn main() -> std::process::ExitCode {
    Program::new().with::<Spirals>().run()
}
