//! `mnist`: a 784-100-10 network that recognises handwritten digits, in two well-known variants.

use anyhow::Context;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use windlass_core::optimizer::{Adam, Optimizer};
use windlass_data::{ImageSet, Images, mnist};
use windlass_ops::{cross_entropy, sigmoid};
use windlass_worker::model::{
    Activation, Defaults, Feeds, Fingerprint, Metrics, Model, Setup, Stage, StageInput, Staged, Staging,
};

use crate::truncated_normal::truncated_normal;
use crate::{classifier, digits};

const PIXELS: usize = mnist::SIDE * mnist::SIDE;
const CLASSES: usize = mnist::CLASSES as usize;
/// Images scored at a time.
const EVALUATION_BATCH: usize = 1000;
/// The last stage.
const OUTPUT: &str = "output";

/// Recognises handwritten digits.
pub struct Mnist {
    flags: MnistFlags,
    images: ImageSet,
}

/// The flags of `mnist`.
#[derive(Debug, Clone, clap::Args)]
pub struct MnistFlags {
    /// Activation, initial weights, loss and optimizer
    #[arg(long, value_enum, default_value_t = Variant::Relu)]
    pub variant: Variant,
    /// Units per hidden layer, separated by commas
    #[arg(long, value_name = "UNITS", value_delimiter = ',', default_value = "100")]
    pub hidden: Vec<usize>,
}

impl MnistFlags {
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.hidden.contains(&0), "--hidden has a layer of 0 units");
        Ok(())
    }
}

/// The two networks that people ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// ReLU, truncated normal weights, loss summed over the batch, Adam.
    Relu,
    /// Sigmoid, weights from N(0, 1), mean loss, SGD.
    Sigmoid,
}

/// Fully connected layers.
#[derive(Module, Debug)]
pub struct Perceptron {
    layers: Vec<Linear>,
    #[module(skip)]
    sigmoid: bool,
}

impl Perceptron {
    /// Returns a row of scores for every image.
    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        (0..self.layers.len()).fold(images, |input, layer| self.layer(layer, input))
    }

    /// The output of one layer. Only the last layer has no activation function.
    fn layer(&self, layer: usize, input: Tensor<2>) -> Tensor<2> {
        let output = self.layers[layer].forward(input);
        match () {
            () if layer + 1 == self.layers.len() => output,
            () if self.sigmoid => sigmoid(output),
            () => relu(output),
        }
    }
}

impl Model for Mnist {
    const NAME: &'static str = "mnist";
    const ABOUT: &'static str = "classify handwritten digits with a 784-100-10 network";
    type Flags = MnistFlags;
    type Network = Perceptron;
    type Batch = (Tensor<2>, Tensor<1, Int>);

    fn defaults(flags: &MnistFlags) -> Defaults {
        let (optimizer, learning_rate, steps, epochs) = match flags.variant {
            Variant::Relu => (Optimizer::Adam(Adam::default()), 0.01, Some(10_000), None),
            Variant::Sigmoid => (Optimizer::Sgd, 0.001, None, Some(100)),
        };
        Defaults { optimizer, learning_rate, steps, epochs, ..Defaults::default() }
    }

    fn load(flags: &MnistFlags, setup: &Setup) -> anyhow::Result<Self> {
        flags.check()?;
        let images = digits::load(setup)?;
        Ok(Self { flags: flags.clone(), images })
    }

    fn without_data(flags: &MnistFlags, _setup: &Setup, _files: &[(String, String)]) -> anyhow::Result<Self> {
        flags.check()?;
        Ok(Self { flags: flags.clone(), images: digits::none(mnist::SIDE) })
    }

    fn network(&self, device: &Device) -> Perceptron {
        let mut sizes = vec![PIXELS];
        sizes.extend(&self.flags.hidden);
        sizes.push(CLASSES);
        let layer = |size: &[usize]| {
            let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
            let mut layer = LinearConfig::new(size[0], size[1]).with_initializer(normal).init(device);
            if self.flags.variant == Variant::Relu {
                layer.weight = truncated_normal([size[0], size[1]], 1.0 / (size[0] as f64).sqrt(), device);
            }
            layer.bias = Some(Param::from_tensor(Tensor::zeros([size[1]], device)));
            layer
        };
        Perceptron { layers: sizes.windows(2).map(layer).collect(), sigmoid: self.flags.variant == Variant::Sigmoid }
    }

    fn data_fingerprint(&self) -> Option<Fingerprint> {
        Some(digits::fingerprint(self.images.train()))
    }

    fn samples(&self) -> usize {
        self.images.train().len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Self::Batch> {
        Ok(gather(self.images.train(), samples, device))
    }

    fn loss(&self, network: &Perceptron, (images, labels): Self::Batch) -> Tensor<1> {
        self.joined(cross_entropy(network.forward(images), labels))
    }

    fn loss_is_summed(&self) -> bool {
        self.flags.variant == Variant::Relu
    }

    fn chance_loss(&self) -> Option<f64> {
        Some((CLASSES as f64).ln())
    }

    fn evaluate(&self, network: &Perceptron, device: &Device) -> anyhow::Result<Metrics> {
        let classify = |images| network.forward(images);
        Ok(classifier::evaluate(&self.images, EVALUATION_BATCH, gather, classify, device))
    }

    fn staging() -> Option<Staging<Self>> {
        Some(Staging::declared())
    }
}

/// Each layer is a stage: `hidden` and `output`, or `hidden0`, `hidden1`… and `output` if there are several hidden
/// layers.
impl Staged for Mnist {
    fn stages(&self) -> Vec<Stage> {
        let names = self.layer_names();
        let stage = |(layer, name): (usize, &String)| {
            let stage = Stage::new(name.clone()).with(format!("layers.{layer}"));
            if layer == 0 { stage } else { stage.after(names[layer - 1].clone()) }
        };
        names.iter().enumerate().map(stage).collect()
    }

    fn feed(&self, (images, labels): Self::Batch, feeds: &mut Feeds) -> anyhow::Result<()> {
        feeds.to(&self.layer_names()[0], images)?;
        feeds.to(OUTPUT, labels)
    }

    fn forward(&self, network: &Perceptron, stage: &str, mut input: StageInput) -> anyhow::Result<Vec<Activation>> {
        let layer = self.layer_names().iter().position(|name| name == stage).context("there is no such layer")?;
        let received = if layer == 0 { input.feed()? } else { input.tensor()? };
        let output = network.layer(layer, received);
        Ok(vec![match stage {
            OUTPUT => self.joined(cross_entropy(output, input.feed()?)).into(),
            _ => output.into(),
        }])
    }
}

impl Mnist {
    fn layer_names(&self) -> Vec<String> {
        let hidden = self.flags.hidden.len();
        let name = |layer: usize| if hidden == 1 { "hidden".to_owned() } else { format!("hidden{layer}") };
        (0..hidden).map(name).chain([OUTPUT.to_owned()]).collect()
    }

    /// Combines the losses of a batch's images into the loss of the batch.
    fn joined(&self, losses: Tensor<1>) -> Tensor<1> {
        match self.flags.variant {
            Variant::Relu => losses.sum(),
            Variant::Sigmoid => losses.mean(),
        }
    }
}

fn gather(images: &Images, samples: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
    images.gather(samples, &mut pixels);
    let labels: Vec<i64> = samples.iter().map(|index| i64::from(images.labels[*index])).collect();
    (
        Tensor::from_data(TensorData::new(pixels, [samples.len(), PIXELS]), device),
        Tensor::from_data(TensorData::new(labels, [samples.len()]), device),
    )
}
