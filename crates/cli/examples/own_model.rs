//! A model of one's own: two interleaved spirals, told apart by a small network.
//!
//! This file is all it takes to train in one process, on a cluster, in every mode:
//! `cargo run --release --example own_model -- launch spirals --mode sync --workers 3`
//!
//! As the `src/main.rs` of a crate of its own it needs one dependency: `windlass = { path = "…/windlass/crates/cli" }`.

use windlass::optimizer::{Adam, Optimizer};
use windlass::{Defaults, Metrics, Model, Setup};
use windlass::{anyhow, burn, clap}; // by these names the derives of Burn and clap look for them

use burn::module::Module;
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation::tanh};

struct Spirals {
    points: Vec<([f32; 2], i64)>,
}

#[derive(clap::Args, Debug, Clone)]
struct Flags {
    /// How often the spirals go round
    #[arg(long, value_name = "TURNS", default_value_t = 1.5)]
    turns: f32,
}

#[derive(Module, Debug)]
struct Network {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Network {
    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        self.last.forward(tanh(self.second.forward(tanh(self.first.forward(points)))))
    }
}

impl Model for Spirals {
    const NAME: &'static str = "spirals";
    const ABOUT: &'static str = "tell two interleaved spirals apart";
    type Flags = Flags;
    type Network = Network;
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn defaults(_flags: &Flags) -> Defaults {
        let optimizer = Optimizer::Adam(Adam::default());
        Defaults { optimizer, learning_rate: 0.003, batch_size: 50, steps: Some(4000), epochs: None, shuffle: true }
    }

    fn load(flags: &Flags, _setup: &Setup) -> anyhow::Result<Self> {
        let point = |index: usize| {
            let (class, along) = ((index % 2) as i64, (index / 2) as f32 / 500.0);
            let angle = std::f32::consts::TAU * (flags.turns * along + class as f32 / 2.0);
            ([along * angle.cos(), along * angle.sin()], class)
        };
        Ok(Self { points: (0..1000).map(point).collect() })
    }

    fn network(&self, device: &Device) -> Network {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Network { first: layer(2, 32), second: layer(32, 32), last: layer(32, 2) }
    }

    fn samples(&self) -> usize {
        self.points.len()
    }

    fn batch(&self, samples: &[usize], device: &Device) -> Self::Batch {
        let places: Vec<f32> = samples.iter().flat_map(|sample| self.points[*sample].0).collect();
        let classes: Vec<i64> = samples.iter().map(|sample| self.points[*sample].1).collect();
        let places = Tensor::from_data(TensorData::new(places, [samples.len(), 2]), device);
        (places, Tensor::from_data(TensorData::new(classes, [samples.len()]), device))
    }

    fn loss(&self, network: &Network, (points, classes): Self::Batch) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&points.device()).forward(network.forward(points), classes)
    }

    fn evaluate(&self, network: &Network, device: &Device) -> Metrics {
        let (points, classes) = self.batch(&(0..self.points.len()).collect::<Vec<_>>(), device);
        let right = network.forward(points).argmax(1).squeeze_dim::<1>(1).equal(classes).int().sum();
        Metrics::default()
            .with("training_accuracy", right.into_data().iter::<f64>().sum::<f64>() / self.points.len() as f64)
    }
}

/// With the system's allocator a step of a small network takes twice as long.
#[global_allocator]
static ALLOCATOR: windlass::Allocator = windlass::Allocator;

fn main() -> std::process::ExitCode {
    windlass::Program::new().with::<Spirals>().run()
}
