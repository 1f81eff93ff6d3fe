//! The one trait that a user implements to get every role, mode and flag of Windlass.
//!
//! A model is data and mathematics. It knows nothing of servers, workers, steps or files of the run.

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use rand::rngs::StdRng;
pub use windlass_core::identity::{Fingerprint, FlagRole};
use windlass_core::optimizer::{Adam, Optimizer};

pub use crate::metrics::{Metric, MetricKind, Metrics};
pub use crate::report::Reports;
pub use crate::stages::{Activation, Feeds, Stage, StageInput, Staged, Staging};
use crate::travel::Travel;

/// A model that can be trained on one process or many.
///
/// Batches are usually made ahead of use on a separate thread: `self` is shared between that thread and training.
pub trait Model: Sized + Send + Sync + 'static {
    /// The word after `windlass train`.
    const NAME: &'static str;
    /// One line for `windlass train --help`.
    const ABOUT: &'static str;
    /// The model's own flags.
    type Flags: clap::Args + Clone + Send + Sync + 'static;
    /// The layers, as a Burn module. Parameters are identified by their path in it.
    type Network: Module + 'static;
    /// What one step computes on. Tensors, and tuples and options of them, can be sent to another process as they are;
    /// a struct declares how with [`travels!`](crate::travels), or `impl Travel for MyBatch {}` if it cannot be sent.
    type Batch: Travel;

    /// How the model is trained unless flags say otherwise.
    fn defaults(flags: &Self::Flags) -> Defaults;

    /// Loads or makes the data.
    fn load(flags: &Self::Flags, setup: &Setup) -> anyhow::Result<Self>;

    /// The model without its data, for a process that computes on batches sent by others: the network, its loss, the
    /// rows of a batch. `files` are those of [`Model::files`] in the process that has the data, by name. By default,
    /// the model loads its data there too.
    fn without_data(flags: &Self::Flags, setup: &Setup, files: &[(String, String)]) -> anyhow::Result<Self> {
        let _ = files;
        Self::load(flags, setup)
    }

    /// The network before training. Burn's random numbers have been seeded with the run's seed.
    ///
    /// Burn's view of a tensor decides how it is treated. A `Param` that requires gradients is trained. A
    /// `RunningState`, such as the statistics of `BatchNorm`, follows training without being trained. A `Param` that
    /// does not require gradients (`no_grad`, `freeze`) stays constant, as do integers and booleans.
    fn network(&self, device: &Device) -> Self::Network;

    /// The number of training samples. An epoch is one pass over all of them, except for a last batch that would not be
    /// full.
    fn samples(&self) -> usize;

    /// The number of training samples in each file, if the samples are stored in files in the order of their numbers.
    /// Each epoch then goes through the data file by file, and `--shard-data` assigns whole files to the workers.
    fn sample_files(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Makes a batch of these samples from memory or storage. It runs on its own thread, ahead of training and
    /// concurrently with [`Model::loss`] and [`Model::evaluate`], or between two steps if it takes only microseconds.
    /// Two calls may overlap when the thread changes. A failure ends the run.
    ///
    /// `random` has been seeded for this batch of this worker. Do not draw from Burn's own generator here, as
    /// `Tensor::random` does: the step that is being computed draws from it. A [`crate::dataset::DatasetBatches`] makes
    /// batches of a Burn `Dataset` with a `Batcher`.
    fn batch(&self, samples: &[usize], device: &Device, random: &mut StdRng) -> anyhow::Result<Self::Batch>;

    /// The loss of a batch, to be minimised. Burn's random numbers have been seeded for this batch of this worker, so
    /// that `Dropout` drops the same units again after a restart. With `--towers`, the first step determines whether a
    /// network draws any: a network that starts later, say with dropout after a warm-up, gets unseeded numbers.
    fn loss(&self, network: &Self::Network, batch: Self::Batch) -> Tensor<1>;

    /// Whether [`Model::loss`] sums the losses of a batch's samples instead of averaging them. The loss that is shown
    /// is always the mean. The losses of [`Model::held_out`] are shown as they are.
    fn loss_is_summed(&self) -> bool {
        false
    }

    /// The loss per sample of a network that only guesses, such as the logarithm of the number of classes. Windlass
    /// warns if the loss stays there or rises above it. Without it, losses are compared with the first ones.
    fn chance_loss(&self) -> Option<f64> {
        None
    }

    /// Scores the network, after each epoch and at the end. No gradients are recorded.
    fn evaluate(&self, network: &Self::Network, device: &Device) -> anyhow::Result<Metrics>;

    /// Pictures of the network's results, for TensorBoard: occasionally after [`Model::evaluate`], and at the end. No
    /// gradients are recorded.
    fn images(&self, _network: &Self::Network, _device: &Device) -> anyhow::Result<Vec<PngImage>> {
        Ok(Vec::new())
    }

    /// Final work on the trained network, such as drawing a picture. Called once, by the chief, with the final values;
    /// no gradients are recorded. Returns the files that were written, which are reported to the user.
    fn conclude(&self, _network: &Self::Network, _device: &Device) -> anyhow::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    /// The role of the model's flag `--NAME`. By default, all flags define the network: workers must agree on them,
    /// checkpoints store them, and a command that continues from a checkpoint or scores one takes them from there.
    fn flag_role(_name: &str) -> FlagRole {
        FlagRole::Network
    }

    /// A fingerprint of the training samples, by which workers notice that they read different data. Without one, only
    /// the number of samples is compared.
    fn data_fingerprint(&self) -> Option<Fingerprint> {
        None
    }

    /// Files needed besides the parameters to use the trained network, such as vocabularies: name and content. They are
    /// kept with the checkpoints, and a run continues from a checkpoint only if it has the same files.
    fn files(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// The paths of parameters that are accessed by row, like the embedding of a large vocabulary: in a step, a worker
    /// holds and pushes only the rows that its batch touches. They have at least two dimensions.
    fn row_parameters(&self) -> &[&str] {
        &[]
    }

    /// For each of those parameters, the rows that a batch touches: at least one, without duplicates, in ascending
    /// order. [`Model::loss`] sees them as rows 0, 1, 2… of the parameter; [`Model::evaluate`] sees all rows.
    fn rows(&self, _batch: &Self::Batch) -> Vec<Vec<u32>> {
        Vec::new()
    }

    /// The stages by which `--place` divides the model among devices, if it implements [`Staged`]:
    /// `Some(Staging::declared())`.
    fn staging() -> Option<Staging<Self>> {
        None
    }

    /// How training is reported and its learning rate lowered, besides the log of steps.
    fn reports(&self) -> Option<Reports> {
        None
    }

    /// The batches that a report scores: one for each named part of the held-out data, or `None` for a part that is
    /// empty. The choice of samples depends on `draw` alone.
    fn held_out(&self, _draw: u64, _device: &Device) -> anyhow::Result<Vec<(String, Option<Self::Batch>)>> {
        Ok(Vec::new())
    }
}

/// A picture of a network's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PngImage {
    /// What the picture shows, in lower case with underscores.
    pub name: String,
    /// The contents of the PNG file.
    pub bytes: Vec<u8>,
}

/// How a model is trained unless flags say otherwise. `..Defaults::default()` fills in the rest; a run limited by
/// epochs needs `steps: None` too, since the first limit reached ends the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// What the servers do with gradients.
    pub optimizer: Optimizer,
    /// The learning rate.
    pub learning_rate: f32,
    /// Samples per batch, which is a step unless the user accumulates several batches.
    pub batch_size: usize,
    /// The limit in global steps, if the run has one.
    pub steps: Option<u64>,
    /// The limit in epochs per worker, if the run has one.
    pub epochs: Option<u64>,
    /// Whether each epoch has its own order of samples.
    pub shuffle: bool,
    /// The maximum L2 norm of a worker's gradient over all parameters; a larger one is scaled down to it.
    pub clip_norm: Option<f32>,
}

impl Default for Defaults {
    /// Adam with a learning rate of 0.001, batches of 100, reshuffled every epoch, for 10,000 steps.
    fn default() -> Self {
        Self {
            optimizer: Optimizer::Adam(Adam::default()),
            learning_rate: 0.001,
            batch_size: 100,
            steps: Some(10_000),
            epochs: None,
            shuffle: true,
            clip_norm: None,
        }
    }
}

/// What a model needs to load its data.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The run's seed.
    pub seed: u64,
    /// The user's data directory; `None` for the built-in data.
    pub data_dir: Option<PathBuf>,
}
