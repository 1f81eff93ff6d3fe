//! A custom model: a small network that classifies two interleaved spirals.
//!
//! This file is all it takes to train in one process, on a cluster, in every mode:
//! `cargo run --release --example own_model -- launch spirals --mode sync --workers 3`
//!
//! As the `src/main.rs` of its own crate it needs one dependency: `windlass = { path = "…/windlass/crates/cli" }`.
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::tensor::activation::tanh;
use windlass::prelude::*; // with `burn` itself, and with `clap` and `anyhow`

struct Spirals(Vec<([f32; 2], i64)>);

#[derive(clap::Args, Debug, Clone)]
struct Flags {
    /// Number of turns of each spiral
    #[arg(long, value_name = "TURNS", default_value_t = 1.5)]
    turns: f32,
}

#[derive(Module, Debug)]
struct Network {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Network {
    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.hidden.iter().fold(points, |input, layer| tanh(layer.forward(input))))
    }
}

impl Model for Spirals {
    const NAME: &'static str = "spirals";
    const ABOUT: &'static str = "tell two interleaved spirals apart";
    type Flags = Flags;
    type Network = Network;
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn defaults(_flags: &Flags) -> Defaults {
        Defaults { learning_rate: 0.003, batch_size: 50, steps: Some(4000), ..Defaults::default() }
    }

    fn load(flags: &Flags, _setup: &Setup) -> anyhow::Result<Self> {
        let point = |index: usize| {
            let (class, along) = ((index % 2) as i64, (index / 2) as f32 / 500.0);
            let angle = std::f32::consts::TAU * (flags.turns * along + class as f32 / 2.0);
            ([along * angle.cos(), along * angle.sin()], class)
        };
        Ok(Self((0..1000).map(point).collect()))
    }

    fn network(&self, device: &Device) -> Network {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Network { hidden: vec![layer(2, 32), layer(32, 32)], output: layer(32, 2) }
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
        CrossEntropyLossConfig::new().init(&points.device()).forward(network.forward(points), classes)
    }

    fn evaluate(&self, network: &Network, device: &Device) -> anyhow::Result<Metrics> {
        let all: Vec<usize> = (0..self.samples()).collect();
        let (points, classes) = self.batch(&all, device, &mut windlass::rand::make_rng())?;
        Ok(Metrics::new().fraction("training_accuracy", accuracy(network.forward(points), classes)))
    }
}

fn main() -> std::process::ExitCode {
    Program::new().with::<Spirals>().run()
}
