//! `stn`: recognises digits in clutter by learning where to look: a spatial transformer before a small convolutional
//! network.

mod drawing;
mod network;

use std::path::PathBuf;

use anyhow::ensure;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use windlass_data::cluttered::{self, SIDE};
use windlass_data::digits::Sizes;
use windlass_data::{ImageSet, Images};
use windlass_ops::cross_entropy;
use windlass_worker::model::{Defaults, Fingerprint, FlagRole, Metrics, Model, PngImage, Setup};

pub use self::network::{Convolution, Dropout, Localiser, Reader};
use crate::batch_noise::{BatchNoise, Purpose};
use crate::{classifier, digits, picture};

const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = windlass_data::mnist::CLASSES as usize;
/// Images scored at a time.
const EVALUATION_BATCH: usize = 250;

/// Recognises digits in clutter.
pub struct SpatialTransformer {
    flags: StnFlags,
    seed: u64,
    images: ImageSet,
}

/// The flags of `stn`.
#[derive(Debug, Clone, clap::Args)]
pub struct StnFlags {
    /// Size of the network
    #[arg(long, value_enum, default_value_t = Variant::Small)]
    pub variant: Variant,
    /// Spatial transformer
    #[arg(long, value_enum, default_value_t = Transformer::On)]
    pub transformer: Transformer,
    /// Units of the localisation network
    #[arg(long, value_name = "UNITS", default_value_t = 20)]
    pub localisation: usize,
    /// Filters of each convolution
    #[arg(long, value_name = "FILTERS", default_value_t = 16)]
    pub filters: usize,
    /// Units of the fully connected layer
    #[arg(long, value_name = "UNITS", default_value_t = 1024)]
    pub hidden: usize,
    /// Dropout: probability of keeping a unit
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.8)]
    pub keep_probability: f32,
    /// Training images; validation and test sets have a tenth as many each
    #[arg(long, value_name = "N", default_value_t = cluttered::SIZES.train)]
    pub images: usize,
    /// At the end, draw test images, where the network looks and what it sees to this PNG file
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
}

/// The two networks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Variant {
    /// Two convolutions with stride 2; dropout in the localisation network.
    Small,
    /// Three convolutions with stride 1, with max-pooling and local response normalisation between them; dropout in the
    /// fully connected layer, too.
    Large,
}

/// Whether there is a spatial transformer before the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Transformer {
    /// The network learns where to look.
    On,
    /// The network reads the whole canvas, for comparison.
    Off,
}

/// The inputs of one step.
#[derive(Debug, Clone)]
pub struct Batch {
    images: Tensor<4>,
    labels: Tensor<1, Int>,
    dropout: Dropout,
}

windlass_worker::travels!(Batch { images, labels, dropout });

impl Model for SpatialTransformer {
    const NAME: &'static str = "stn";
    const ABOUT: &'static str = "classify digits in clutter with a spatial transformer and convolutions";
    type Flags = StnFlags;
    type Network = Reader;
    type Batch = Batch;

    /// 10,000 images in batches of 101 make the customary 99 steps per epoch.
    fn defaults(flags: &StnFlags) -> Defaults {
        let epochs = match flags.variant {
            Variant::Small => 5,
            Variant::Large => 500,
        };
        Defaults { batch_size: 101, steps: None, epochs: Some(epochs), ..Defaults::default() }
    }

    fn flag_role(name: &str) -> FlagRole {
        match name {
            "keep-probability" | "images" => FlagRole::Training,
            "samples" => FlagRole::Output,
            _ => FlagRole::Network,
        }
    }

    fn load(flags: &StnFlags, setup: &Setup) -> anyhow::Result<Self> {
        flags.check()?;
        let (train, few) = (flags.images, flags.images.div_ceil(10));
        let sizes = Sizes { train, validation: few, test: few };
        let images = cluttered::set(&digits::load_or_draw(setup, sizes)?, setup.seed, sizes);
        Ok(Self { flags: flags.clone(), seed: setup.seed, images })
    }

    fn without_data(flags: &StnFlags, setup: &Setup, _files: &[(String, String)]) -> anyhow::Result<Self> {
        // Pictures are drawn only by the process that has the images.
        let flags = StnFlags { samples: None, ..flags.clone() };
        flags.check()?;
        Ok(Self { flags, seed: setup.seed, images: digits::none(SIDE) })
    }

    fn network(&self, device: &Device) -> Reader {
        Reader::new(&self.flags, device)
    }

    fn data_fingerprint(&self) -> Option<Fingerprint> {
        Some(digits::fingerprint(self.images.train()))
    }

    fn samples(&self) -> usize {
        self.images.train().len()
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Batch> {
        let (images, labels) = gather(self.images.train(), samples, device);
        Ok(Batch { images, labels, dropout: self.dropout(samples, device) })
    }

    fn loss(&self, network: &Reader, batch: Batch) -> Tensor<1> {
        cross_entropy(network.forward(batch.images, &batch.dropout).scores, batch.labels).mean()
    }

    fn chance_loss(&self) -> Option<f64> {
        Some((CLASSES as f64).ln())
    }

    fn evaluate(&self, network: &Reader, device: &Device) -> anyhow::Result<Metrics> {
        let classify = |images| network.forward(images, &Dropout::default()).scores;
        Ok(classifier::evaluate(&self.images, EVALUATION_BATCH, gather, classify, device))
    }

    fn images(&self, network: &Reader, device: &Device) -> anyhow::Result<Vec<PngImage>> {
        Ok(vec![PngImage { name: "test_images".to_owned(), bytes: self.draw(network, device).encode()? }])
    }

    fn conclude(&self, network: &Reader, device: &Device) -> anyhow::Result<Vec<PathBuf>> {
        let Some(path) = &self.flags.samples else { return Ok(Vec::new()) };
        self.draw(network, device).write(path)?;
        Ok(vec![path.clone()])
    }
}

impl SpatialTransformer {
    /// The units that a step drops. They are derived from the batch, so that a network and a batch always give the same
    /// loss.
    fn dropout(&self, samples: &[usize], device: &Device) -> Dropout {
        let StnFlags { keep_probability, localisation, hidden, .. } = self.flags;
        if keep_probability == 1.0 {
            return Dropout::default();
        }
        let randomness = BatchNoise::of_batch(self.seed, samples);
        let factors = |purpose, units| {
            let factors = randomness.keep(purpose, samples.len(), units, keep_probability);
            Tensor::from_data(TensorData::new(factors, [samples.len(), units]), device)
        };
        let transformer = self.flags.transformer == Transformer::On;
        let large = self.flags.variant == Variant::Large;
        Dropout {
            localisation: transformer.then(|| factors(Purpose::LocalisationDropout, localisation)),
            hidden: large.then(|| factors(Purpose::Dropout, hidden)),
        }
    }
}

impl StnFlags {
    fn check(&self) -> anyhow::Result<()> {
        let counts = [("--localisation", self.localisation), ("--filters", self.filters), ("--hidden", self.hidden)];
        for (flag, count) in counts {
            ensure!(count > 0, "{flag} is 0, expected at least 1");
        }
        ensure!(self.images > 0, "--images is 0, expected at least one to train on");
        let keep = self.keep_probability;
        ensure!(keep > 0.0 && keep <= 1.0, "--keep-probability is {keep}, expected a probability above 0 and up to 1");
        Ok(self.samples.as_deref().map_or(Ok(()), picture::check)?)
    }
}

fn gather(images: &Images, samples: &[usize], device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let mut pixels = Vec::with_capacity(samples.len() * PIXELS);
    images.gather(samples, &mut pixels);
    let labels: Vec<i64> = samples.iter().map(|index| i64::from(images.labels[*index])).collect();
    (
        Tensor::from_data(TensorData::new(pixels, [samples.len(), 1, SIDE, SIDE]), device),
        Tensor::from_data(TensorData::new(labels, [samples.len()]), device),
    )
}
