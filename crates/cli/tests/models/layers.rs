//! A model with every kind of layer that is more than trained weights: one that is frozen, one with running statistics
//! and one that draws random numbers. Its tests are in `tests/cli/layers.rs`.

use windlass::rand::rngs::StdRng;
use windlass::{Defaults, FlagRole, Metrics, Model, Setup};
use windlass::{anyhow, burn, clap};

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation::tanh};

const POINTS: usize = 1000;
const FEATURES: usize = 24;

/// Points within and around a circle, far from the origin: classifying them requires their statistics.
struct Layers {
    points: Vec<([f32; 2], i64)>,
    flags: Flags,
}

#[derive(clap::Args, Debug, Clone)]
struct Flags {
    /// The share of units that are dropped
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    dropout: f64,
    /// What stays as it is
    #[arg(long, value_name = "WHAT", default_value = "first", value_parser = ["nothing", "first", "all"])]
    freeze: String,
    /// Have every batch be the same samples, whichever were asked for
    #[arg(long)]
    one_batch: bool,
}

#[derive(Module, Debug)]
struct Network {
    features: Linear,
    norm: BatchNorm,
    /// Which features are used, and in which order.
    order: Param<Tensor<1, Int>>,
    dropout: Dropout,
    hidden: Linear,
    last: Linear,
}

impl Network {
    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        let features = self.norm.forward(self.features.forward(points)).select(1, self.order.val());
        self.last.forward(tanh(self.hidden.forward(self.dropout.forward(tanh(features)))))
    }
}

impl Model for Layers {
    const NAME: &'static str = "layers";
    const ABOUT: &'static str = "tell points within a circle from those around it";
    type Flags = Flags;
    type Network = Network;
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn defaults(_flags: &Flags) -> Defaults {
        Defaults { learning_rate: 0.01, batch_size: 50, steps: Some(1000), ..Defaults::default() }
    }

    fn load(flags: &Flags, _setup: &Setup) -> anyhow::Result<Self> {
        let point = |index: usize| {
            // Turning by the golden angle distributes the points evenly.
            let (radius, angle) = ((index as f32 / POINTS as f32).sqrt(), index as f32 * 2.399_963);
            ([5.0 + 3.0 * radius * angle.cos(), -4.0 + 3.0 * radius * angle.sin()], i64::from(radius > 0.7))
        };
        Ok(Self { points: (0..POINTS).map(point).collect(), flags: flags.clone() })
    }

    fn network(&self, device: &Device) -> Network {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        let features = layer(2, FEATURES);
        let freeze = self.flags.freeze.as_str();
        let order: Vec<i64> = (0..FEATURES as i64).rev().collect();
        let network = Network {
            features: if freeze == "first" { features.no_grad() } else { features },
            norm: BatchNormConfig::new(FEATURES).init(device),
            order: Param::initialized(burn::module::ParamId::new(), Tensor::from_data(order.as_slice(), device)),
            dropout: DropoutConfig::new(self.flags.dropout).init(),
            hidden: layer(FEATURES, 24),
            last: layer(24, 2),
        };
        if freeze == "all" { network.freeze() } else { network }
    }

    fn flag_role(_name: &str) -> FlagRole {
        FlagRole::Training
    }

    fn samples(&self) -> usize {
        self.points.len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Self::Batch> {
        let first: Vec<usize> = (0..samples.len()).collect();
        Ok(self.points(if self.flags.one_batch { &first } else { samples }, device))
    }

    fn loss(&self, network: &Network, (points, classes): Self::Batch) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&points.device()).forward(network.forward(points), classes)
    }

    fn evaluate(&self, network: &Network, device: &Device) -> anyhow::Result<Metrics> {
        let every_sample: Vec<usize> = (0..POINTS).collect();
        let (points, classes) = self.points(&every_sample, device);
        let scores = network.forward(points);
        let right = scores.clone().argmax(1).squeeze_dim::<1>(1).equal(classes.clone()).int().sum();
        let loss = CrossEntropyLossConfig::new().init(device).forward(scores, classes);
        Ok(Metrics::new()
            .fraction("accuracy", right.into_data().iter::<f64>().sum::<f64>() / POINTS as f64)
            .loss("loss", loss.into_data().iter::<f64>().sum()))
    }
}

impl Layers {
    fn points(&self, samples: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let places: Vec<f32> = samples.iter().flat_map(|sample| self.points[*sample].0).collect();
        let classes: Vec<i64> = samples.iter().map(|sample| self.points[*sample].1).collect();
        let places = Tensor::from_data(TensorData::new(places, [samples.len(), 2]), device);
        (places, Tensor::from_data(TensorData::new(classes, [samples.len()]), device))
    }
}

fn main() -> std::process::ExitCode {
    windlass::Program::new().with::<Layers>().run()
}
