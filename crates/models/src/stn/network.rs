//! The layers of `stn`.

use burn::module::{Module, Param};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Initializer, Linear, LinearConfig, LocalResponseNorm, LocalResponseNormConfig};
use burn::tensor::activation::{relu, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use windlass_ops::{affine_sample, convolution_relu};

use super::{CLASSES, PIXELS, SIDE, StnFlags, Transformer, Variant};

const KERNEL: usize = 3;
const PADDING: usize = 1;
/// Two rows of three, which map a pixel's position to the position it shows.
const TRANSFORM: usize = 6;
const IDENTITY: [f32; TRANSFORM] = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
/// Convolutions and pooling halve the canvas twice.
const REDUCED: usize = SIDE / 4;
/// Local response normalisation: the number of channels it spans, including the channel itself, and the usual
/// constants.
const NEIGHBOURS: usize = 9;
const ALPHA: f64 = 0.001;
const BETA: f64 = 0.75;

/// The whole network: an optional spatial transformer, convolutions, a fully connected layer, scores.
#[derive(Module, Debug)]
pub struct Reader {
    localiser: Option<Localiser>,
    convolutions: Vec<Convolution>,
    hidden: Linear,
    output: Linear,
}

/// Decides where to look in an image.
#[derive(Module, Debug)]
pub struct Localiser {
    hidden: Linear,
    transform: Linear,
}

/// A convolution with ReLU and, in the large network, what follows it.
#[derive(Module, Debug)]
pub struct Convolution {
    weight: Param<Tensor<4>>,
    bias: Param<Tensor<1>>,
    #[module(skip)]
    stride: usize,
    reduction: Option<Reduction>,
}

/// Max-pooling, then local response normalisation.
#[derive(Module, Debug)]
pub struct Reduction {
    pool: MaxPool2d,
    norm: LocalResponseNorm,
}

/// Factors that drop units in a batch; `None` outside training.
#[derive(Debug, Clone, Default)]
pub struct Dropout {
    /// For units of the localisation network.
    pub(super) localisation: Option<Tensor<2>>,
    /// For units of the fully connected layer.
    pub(super) hidden: Option<Tensor<2>>,
}

windlass_worker::travels!(Dropout { localisation, hidden });

/// The network's results for a batch of images.
pub(super) struct Reading {
    /// The transforms, and what the network sees through them.
    pub(super) look: Option<(Tensor<2>, Tensor<4>)>,
    /// A row of scores for every image.
    pub(super) scores: Tensor<2>,
}

impl Reader {
    /// Convolutions and ReLU layers have He's initial weights, all others Xavier's; biases start at zero.
    pub(super) fn new(flags: &StnFlags, device: &Device) -> Self {
        let he = || Initializer::KaimingNormal { gain: std::f64::consts::SQRT_2, fan_out_only: false };
        let xavier = || Initializer::XavierUniform { gain: 1.0 };
        let localiser = (flags.transformer == Transformer::On).then(|| {
            let mut transform = linear(flags.localisation, TRANSFORM, Initializer::Zeros, device);
            transform.bias = Some(Param::from_tensor(Tensor::from_data(TensorData::from(IDENTITY), device)));
            Localiser { hidden: linear(PIXELS, flags.localisation, xavier(), device), transform }
        });
        let strides_and_reductions: &[(usize, bool)] = match flags.variant {
            Variant::Small => &[(2, false), (2, false)],
            Variant::Large => &[(1, true), (1, true), (1, false)],
        };
        let mut channels = 1;
        let convolution = |&(stride, reduces): &(usize, bool)| {
            let inputs = channels * KERNEL * KERNEL;
            let shape = [flags.filters, channels, KERNEL, KERNEL];
            channels = flags.filters;
            Convolution {
                weight: he().init_with(shape, Some(inputs), None, device),
                bias: Param::from_tensor(Tensor::zeros([flags.filters], device)),
                stride,
                reduction: reduces.then(Reduction::new),
            }
        };
        Self {
            localiser,
            convolutions: strides_and_reductions.iter().map(convolution).collect(),
            hidden: linear(flags.filters * REDUCED * REDUCED, flags.hidden, he(), device),
            output: linear(flags.hidden, CLASSES, xavier(), device),
        }
    }

    pub(super) fn forward(&self, images: Tensor<4>, dropout: &Dropout) -> Reading {
        let look = self.localiser.as_ref().map(|localiser| {
            let transforms = localiser.forward(images.clone(), dropout);
            (transforms.clone(), affine_sample(images.clone(), transforms))
        });
        let seen = look.as_ref().map_or(images, |(_, seen)| seen.clone());
        let features = self.convolutions.iter().fold(seen, |input, convolution| convolution.forward(input));
        let hidden = relu(self.hidden.forward(features.flatten(1, 3)));
        Reading { look, scores: self.output.forward(drop_units(hidden, dropout.hidden.as_ref())) }
    }
}

impl Localiser {
    /// Returns a transform for every image. The bias is the identity, but passes through tanh, so the network starts by
    /// looking at the inner three quarters of the canvas.
    fn forward(&self, images: Tensor<4>, dropout: &Dropout) -> Tensor<2> {
        let hidden = tanh(self.hidden.forward(images.flatten(1, 3)));
        tanh(self.transform.forward(drop_units(hidden, dropout.localisation.as_ref())))
    }
}

impl Convolution {
    fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let output = convolution_relu(input, self.weight.val(), self.bias.val(), self.stride, PADDING);
        match &self.reduction {
            Some(reduction) => reduction.norm.forward(reduction.pool.forward(output)),
            None => output,
        }
    }
}

impl Reduction {
    fn new() -> Self {
        let norm = LocalResponseNormConfig::new(NEIGHBOURS).with_alpha(ALPHA).with_beta(BETA);
        Self { pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(), norm: norm.init() }
    }
}

fn linear(from: usize, to: usize, weights: Initializer, device: &Device) -> Linear {
    let mut layer = LinearConfig::new(from, to).with_initializer(weights).init(device);
    layer.bias = Some(Param::from_tensor(Tensor::zeros([to], device)));
    layer
}

fn drop_units(units: Tensor<2>, factors: Option<&Tensor<2>>) -> Tensor<2> {
    match factors {
        Some(factors) => units * factors.clone(),
        None => units,
    }
}
