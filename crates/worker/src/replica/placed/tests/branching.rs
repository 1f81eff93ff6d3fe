//! A model in stages that branch. It has rows, running statistics, constants and dropout.

use anyhow::bail;
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use rand::rngs::StdRng;

use crate::metrics::Metrics;
use crate::model::{Activation, Defaults, Feeds, Model, Setup, Stage, StageInput, Staged, Staging};

const ROWS: usize = 6;

/// A trunk that feeds two branches, which meet again together with the trunk's own outputs.
#[derive(Default, Clone)]
pub(super) struct Branching {
    pub(super) dropout: f64,
    pub(super) has_norm: bool,
    pub(super) is_summed: bool,
    /// A sample that makes the right branch fail.
    pub(super) fails_on: Option<f32>,
    /// The head takes a parameter that belongs to the trunk.
    pub(super) is_greedy: bool,
    /// The loss is finite, but its gradients are not.
    pub(super) has_kink: bool,
    /// Its batches feed a stage that does not exist.
    pub(super) feeds_nobody: bool,
}

#[derive(Module, Debug)]
pub(super) struct Network {
    head: Linear,
    words: Param<Tensor<2>>,
    trunk: Linear,
    norm: BatchNorm,
    dropout: Dropout,
    scale: Param<Tensor<1>>,
    left: Linear,
    right: Linear,
}

#[derive(clap::Args, Debug, Clone)]
pub(super) struct NoFlags {}

pub(super) struct Samples {
    points: Tensor<2>,
    targets: Tensor<2>,
    places: Vec<u32>,
    rows: Vec<u32>,
}

crate::travels!(Samples { points, targets, places, rows });

impl Branching {
    fn trunk(&self, network: &Network, points: Tensor<2>, places: &[u32]) -> Tensor<2> {
        let places: Vec<i64> = places.iter().map(|place| i64::from(*place)).collect();
        let words = network.words.val().select(0, Tensor::from_data(&places[..], &points.device()));
        let features = network.trunk.forward(points + words);
        let features = if self.has_norm { network.norm.forward(features) } else { features };
        network.dropout.forward(features).tanh()
    }

    fn right(&self, network: &Network, features: Tensor<2>) -> Tensor<2> {
        network.right.forward(features) * network.scale.val().unsqueeze::<2>()
    }

    fn head(&self, network: &Network, parts: [Tensor<2>; 3], targets: Tensor<2>) -> Tensor<1> {
        let parts = Tensor::cat(parts.to_vec(), 1);
        // The slope of the square root at zero is infinite.
        let kink = self.has_kink.then(|| (parts.clone().powi_scalar(2).sum() * 0.0).sqrt());
        let losses = (network.head.forward(parts) - targets).powi_scalar(2);
        let loss = if self.is_summed { losses.sum() } else { losses.mean() };
        if let Some(kink) = kink { loss + kink } else { loss }
    }
}

impl Model for Branching {
    const NAME: &'static str = "branching";
    const ABOUT: &'static str = "";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = Samples;

    fn defaults(_flags: &NoFlags) -> Defaults {
        Defaults::default()
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self::default())
    }

    fn network(&self, device: &Device) -> Network {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Network {
            head: linear(8, 1),
            words: Param::from_tensor(Tensor::random([ROWS, 2], Distribution::Default, device)),
            trunk: linear(2, 4),
            norm: BatchNormConfig::new(4).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            scale: Param::from_tensor(Tensor::from_data([0.5, -2.0], device)).no_grad(),
            left: linear(4, 2),
            right: linear(4, 2),
        }
    }

    fn samples(&self) -> usize {
        20
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Samples> {
        let mut rows: Vec<u32> = samples.iter().map(|sample| (sample % ROWS) as u32).collect();
        let words = rows.clone();
        rows.sort_unstable();
        rows.dedup();
        let places = words.iter().map(|word| rows.binary_search(word).unwrap() as u32).collect();
        let points: Vec<f32> = samples.iter().flat_map(|sample| [*sample as f32, (sample % 3) as f32]).collect();
        let targets: Vec<f32> = samples.iter().map(|sample| (sample % 5) as f32).collect();
        Ok(Samples {
            points: Tensor::from_data(TensorData::new(points, [samples.len(), 2]), device),
            targets: Tensor::from_data(TensorData::new(targets, [samples.len(), 1]), device),
            places,
            rows,
        })
    }

    fn loss(&self, network: &Network, batch: Samples) -> Tensor<1> {
        let features = self.trunk(network, batch.points, &batch.places);
        let (left, right) = (network.left.forward(features.clone()), self.right(network, features.clone()));
        self.head(network, [features, left, right], batch.targets)
    }

    fn loss_is_summed(&self) -> bool {
        self.is_summed
    }

    fn evaluate(&self, network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        let sum = network.head.weight.val().sum() + network.words.val().sum();
        Ok(Metrics::new().loss("sum", sum.into_data().iter::<f64>().sum()))
    }

    fn row_parameters(&self) -> &[&str] {
        &["words"]
    }

    fn rows(&self, batch: &Samples) -> Vec<Vec<u32>> {
        vec![batch.rows.clone()]
    }

    fn staging() -> Option<Staging<Self>> {
        Some(Staging::declared())
    }
}

impl Staged for Branching {
    fn stages(&self) -> Vec<Stage> {
        vec![
            Stage::new("trunk").with("words").with("trunk").with("norm"),
            Stage::new("left").with("left").after("trunk"),
            Stage::new("right").with("right").with("scale").after("trunk"),
            Stage::new("head").with("head").after("trunk").after("left").after("right"),
        ]
    }

    fn feed(&self, batch: Samples, feeds: &mut Feeds) -> anyhow::Result<()> {
        feeds.to("trunk", (batch.points.clone(), batch.places))?;
        feeds.to(if self.feeds_nobody { "nobody" } else { "right" }, batch.points)?;
        feeds.to("head", batch.targets)
    }

    fn forward(&self, network: &Network, stage: &str, mut input: StageInput) -> anyhow::Result<Vec<Activation>> {
        Ok(match stage {
            "trunk" => {
                let (points, places): (Tensor<2>, Vec<u32>) = input.feed()?;
                vec![self.trunk(network, points, &places).into()]
            }
            "left" => vec![network.left.forward(input.tensor::<2>()?).into()],
            "right" => {
                let points = input.feed::<Tensor<2>>()?.into_data();
                if points.iter::<f32>().any(|value| Some(value) == self.fails_on) {
                    bail!("does not like a sample");
                }
                vec![self.right(network, input.tensor()?).into()]
            }
            _ => {
                let parts = [input.tensor()?, input.tensor()?, input.tensor()?];
                let loss = self.head(network, parts, input.feed()?);
                vec![
                    if self.is_greedy { loss + network.trunk.bias.as_ref().unwrap().val().mean() } else { loss }.into(),
                ]
            }
        })
    }
}
