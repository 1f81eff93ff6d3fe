//! `autoencoder`: reconstructs handwritten digits through a narrow layer, in four variants.

mod drawing;
mod standard;

use std::path::PathBuf;

use anyhow::ensure;
use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData};
use rand::rngs::StdRng;
use windlass_data::{ImageSet, Images};
use windlass_ops::{half_squared_error, softplus};
use windlass_worker::model::{Defaults, Fingerprint, FlagRole, Metrics, Model, PngImage, Setup};

use self::standard::Standard;
use crate::batch_noise::{BatchNoise, Purpose};
use crate::digits;
use crate::picture;

const PIXELS: usize = windlass_data::mnist::SIDE * windlass_data::mnist::SIDE;
/// Images scored at a time.
const EVALUATION_BATCH: usize = 1000;

const NOISE_SCALE: f32 = 0.5;
const KEEP: f32 = 0.75;
const LATENT: usize = 20;

/// Reconstructs handwritten digits.
pub struct Autoencoder {
    flags: AutoencoderFlags,
    seed: u64,
    images: ImageSet,
    standard: Standard,
}

/// The flags of `autoencoder`.
#[derive(Debug, Clone, clap::Args)]
pub struct AutoencoderFlags {
    /// What images are reconstructed from
    #[arg(long, value_enum, default_value_t = Variant::Plain)]
    pub variant: Variant,
    /// Units of the hidden layer
    #[arg(long, value_name = "UNITS", default_value_t = 200)]
    pub hidden: usize,
    /// With --variant noise: standard deviation of the noise; inputs have 1 [default: 0.5]
    #[arg(long, value_name = "SCALE")]
    pub noise_scale: Option<f32>,
    /// With --variant masking: probability of keeping a pixel [default: 0.75]
    #[arg(long, value_name = "PROBABILITY")]
    pub keep_probability: Option<f32>,
    /// With --variant variational: dimensions of the latent code [default: 20]
    #[arg(long, value_name = "NUMBERS")]
    pub latent: Option<usize>,
    /// At the end, draw test images and their reconstructions to this PNG file
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
}

/// What happens to an image on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// The images themselves.
    Plain,
    /// The images with Gaussian noise.
    Noise,
    /// The images with some pixels dropped.
    Masking,
    /// A code that is drawn from a distribution kept close to N(0, 1).
    Variational,
}

/// A hidden layer with softplus, and a linear output.
#[derive(Module, Debug)]
pub struct Coder {
    encoder: Linear,
    code: Option<Code>,
    output: Linear,
}

/// The middle of a variational autoencoder: maps units to a normal distribution for every image, and a code back to
/// units.
#[derive(Module, Debug)]
pub struct Code {
    mean: Linear,
    precision: Linear,
    decoder: Linear,
}

/// The inputs of one step, all standardised.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The images to reconstruct.
    target: Tensor<2>,
    /// The input images, if they differ from the target.
    corrupted: Option<Tensor<2>>,
    /// The random draw of each code, in standard deviations from its mean.
    draw: Option<Tensor<2>>,
}

windlass_worker::travels!(Batch { target, corrupted, draw });

impl Coder {
    /// Returns the reconstructions of the inputs, and the summed divergence of the codes' distributions from N(0, 1).
    fn forward(&self, input: Tensor<2>, draw: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<1>>) {
        let hidden = softplus(self.encoder.forward(input));
        match &self.code {
            None => (self.output.forward(hidden), None),
            Some(code) => {
                let (mean, log_precision) = code.distribution(hidden);
                let variance = log_precision.clone().neg().exp();
                let divergence = (mean.clone() * mean.clone() + variance.clone() + log_precision - 1.0).sum() * 0.5;
                let drawn = match draw {
                    Some(draw) => mean + variance.sqrt() * draw,
                    None => mean,
                };
                (self.decode(code, drawn), Some(divergence))
            }
        }
    }

    fn decode(&self, code: &Code, drawn: Tensor<2>) -> Tensor<2> {
        self.output.forward(softplus(code.decoder.forward(drawn)))
    }
}

impl Code {
    /// The means, and the logarithms of the inverse variances. The logarithms are never below zero: no image makes a
    /// code less certain than N(0, 1). If they were free, a single unusual image, whose rare pixels are hundreds of
    /// deviations from their means, would suffice for an unbounded variance.
    fn distribution(&self, hidden: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        (self.mean.forward(hidden.clone()), softplus(self.precision.forward(hidden)))
    }
}

impl Model for Autoencoder {
    const NAME: &'static str = "autoencoder";
    const ABOUT: &'static str = "reconstruct handwritten digits through a layer of 200 units";
    type Flags = AutoencoderFlags;
    type Network = Coder;
    type Batch = Batch;

    fn defaults(_flags: &AutoencoderFlags) -> Defaults {
        Defaults { batch_size: 128, steps: None, epochs: Some(20), ..Defaults::default() }
    }

    fn flag_role(name: &str) -> FlagRole {
        match name {
            "noise-scale" | "keep-probability" => FlagRole::Training,
            "samples" => FlagRole::Output,
            _ => FlagRole::Network,
        }
    }

    fn load(flags: &AutoencoderFlags, setup: &Setup) -> anyhow::Result<Self> {
        flags.check()?;
        let images = digits::load(setup)?;
        let standard = Standard::of(images.train());
        Ok(Self { flags: flags.clone(), seed: setup.seed, images, standard })
    }

    fn without_data(flags: &AutoencoderFlags, setup: &Setup, _files: &[(String, String)]) -> anyhow::Result<Self> {
        // Pictures are drawn only by the process that has the images.
        let flags = AutoencoderFlags { samples: None, ..flags.clone() };
        flags.check()?;
        let images = digits::none(windlass_data::mnist::SIDE);
        let standard = Standard::of(images.train());
        Ok(Self { flags, seed: setup.seed, images, standard })
    }

    fn network(&self, device: &Device) -> Coder {
        let layer = |from, to, weights: Initializer| {
            let mut layer = LinearConfig::new(from, to).with_initializer(weights).init(device);
            layer.bias = Some(Param::from_tensor(Tensor::zeros([to], device)));
            layer
        };
        let xavier = || Initializer::XavierUniform { gain: 1.0 };
        let hidden = self.flags.hidden;
        let code = self.flags.latent().map(|latent| Code {
            mean: layer(hidden, latent, xavier()),
            precision: layer(hidden, latent, Initializer::Zeros),
            decoder: layer(latent, hidden, xavier()),
        });
        let encoder = layer(PIXELS, hidden, xavier());
        Coder { encoder, code, output: layer(hidden, PIXELS, Initializer::Zeros) }
    }

    fn data_fingerprint(&self) -> Option<Fingerprint> {
        Some(digits::fingerprint(self.images.train()))
    }

    fn samples(&self) -> usize {
        self.images.train().len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Batch> {
        Ok(self.make_batch(self.images.train(), samples, device))
    }

    /// Half the squared error, summed over pixels and images; for the variational variant, plus the divergence of the
    /// codes.
    fn loss(&self, network: &Coder, batch: Batch) -> Tensor<1> {
        let input = batch.corrupted.unwrap_or_else(|| batch.target.clone());
        let (drawn, divergence) = network.forward(input, batch.draw);
        let cost = half_squared_error(drawn, batch.target);
        match divergence {
            Some(divergence) => cost + divergence,
            None => cost,
        }
    }

    fn loss_is_summed(&self) -> bool {
        true
    }

    /// The mean loss per test image: as in training, and for a corrupting variant also on clean inputs.
    fn evaluate(&self, network: &Coder, device: &Device) -> anyhow::Result<Metrics> {
        let test = self.images.test();
        let all: Vec<usize> = (0..test.len()).collect();
        let loss = |prepare: &dyn Fn(Batch) -> Batch| {
            let batches = all.chunks(EVALUATION_BATCH).map(|samples| self.make_batch(test, samples, device));
            batches.map(|batch| scalar(self.loss(network, prepare(batch)))).sum::<f64>() / test.len().max(1) as f64
        };
        let metrics = Metrics::new().loss("test_loss", loss(&|batch| batch));
        Ok(match self.flags.variant {
            Variant::Plain | Variant::Variational => metrics,
            Variant::Noise | Variant::Masking => {
                let clean = loss(&|batch| Batch { corrupted: None, ..batch });
                metrics.loss("test_loss_of_clean_images", clean)
            }
        })
    }

    fn images(&self, network: &Coder, device: &Device) -> anyhow::Result<Vec<PngImage>> {
        Ok(vec![PngImage { name: "test_images".to_owned(), bytes: self.draw(network, device).encode()? }])
    }

    fn conclude(&self, network: &Coder, device: &Device) -> anyhow::Result<Vec<PathBuf>> {
        let Some(path) = &self.flags.samples else { return Ok(Vec::new()) };
        self.draw(network, device).write(path)?;
        Ok(vec![path.clone()])
    }
}

impl Autoencoder {
    fn make_batch(&self, images: &Images, samples: &[usize], device: &Device) -> Batch {
        let randomness = BatchNoise::of_batch(self.seed, samples);
        let rows = samples.len();
        let tensor = |values: Vec<f32>| Tensor::from_data(TensorData::new(values, [rows, PIXELS]), device);
        let mut target = Vec::new();
        self.standard.gather(images, samples, &mut target);
        let corrupted = match self.flags.variant {
            Variant::Plain | Variant::Variational => None,
            Variant::Noise => {
                let scale = self.flags.noise_scale.unwrap_or(NOISE_SCALE);
                let mut noise = randomness.normal(Purpose::Corruption, rows, PIXELS);
                noise.iter_mut().zip(&target).for_each(|(noise, value)| *noise = value + scale * *noise);
                Some(tensor(noise))
            }
            Variant::Masking => {
                let keep = self.flags.keep_probability.unwrap_or(KEEP);
                let mut mask = randomness.keep(Purpose::Corruption, rows, PIXELS, keep);
                mask.iter_mut().zip(&target).for_each(|(factor, value)| *factor *= value);
                Some(tensor(mask))
            }
        };
        let draw = self.flags.latent().map(|latent| {
            let draw = randomness.normal(Purpose::Latent, rows, latent);
            Tensor::from_data(TensorData::new(draw, [rows, latent]), device)
        });
        Batch { target: tensor(target), corrupted, draw }
    }
}

impl AutoencoderFlags {
    /// The size of the code, if there is one.
    fn latent(&self) -> Option<usize> {
        (self.variant == Variant::Variational).then(|| self.latent.unwrap_or(LATENT))
    }

    fn check(&self) -> anyhow::Result<()> {
        let needs = [
            ("--noise-scale", self.noise_scale.is_some(), Variant::Noise, "noise"),
            ("--keep-probability", self.keep_probability.is_some(), Variant::Masking, "masking"),
            ("--latent", self.latent.is_some(), Variant::Variational, "variational"),
        ];
        for (flag, given, variant, name) in needs {
            ensure!(!given || self.variant == variant, "{flag} needs --variant {name}");
        }
        ensure!(self.hidden > 0, "--hidden is 0, expected at least 1");
        ensure!(self.latent != Some(0), "--latent is 0, expected at least 1");
        let scale = self.noise_scale.unwrap_or(NOISE_SCALE);
        ensure!(scale.is_finite() && scale >= 0.0, "--noise-scale is {scale}, expected zero or more");
        let keep = self.keep_probability.unwrap_or(KEEP);
        ensure!(keep > 0.0 && keep <= 1.0, "--keep-probability is {keep}, expected a probability above 0 and up to 1");
        Ok(self.samples.as_deref().map_or(Ok(()), picture::check)?)
    }
}

fn scalar(tensor: Tensor<1>) -> f64 {
    tensor.into_data().iter::<f64>().next().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_unlike_all_others_does_not_make_codes_less_certain_than_the_prior() {
        let device = Device::flex();
        let weights = || Initializer::Uniform { min: -1.0, max: 1.0 };
        let layer = |from, to| LinearConfig::new(from, to).with_initializer(weights()).init(&device);
        let code = Code { mean: layer(8, 4), precision: layer(8, 4), decoder: layer(4, 8) };
        let coder = Coder { encoder: layer(6, 8), code: Some(code), output: layer(8, 6) };
        let unlike = Tensor::<2>::full([3, 6], 1e4, &device);
        let (drawn, divergence) = coder.forward(unlike, Some(Tensor::ones([3, 4], &device)));
        assert!(drawn.into_data().iter::<f32>().all(f32::is_finite));
        assert!(divergence.is_some_and(|divergence| scalar(divergence).is_finite()));
    }
}
