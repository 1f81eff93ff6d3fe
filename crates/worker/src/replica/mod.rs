//! Where a step is computed. To the training loop, a replica takes values and returns a loss and gradients; whether one
//! network on one device or something else is behind this trait does not concern the loop.
//!
//! Values are one buffer of floats per parameter, in the order of the parameter table. They go in and gradients come
//! out in the memory that Burn allocated, without being copied (see [`crate::buffer`]).

mod accumulation;
mod division;
pub mod local;
pub mod packed;
mod placed;
pub mod remote;
pub mod tensors;
mod towers;
mod transfer;

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

pub use local::{Local, LocalConfig, ReplicaError};
pub use placed::{Place, PlaceAt, PlaceError, Placed, PlacedConfig, StageWorker, TRACED_STEPS, Trace};
pub(crate) use placed::{StageForward, StageHost, StageRows, StageStart};
use serde::{Deserialize, Serialize};
pub use towers::Towers;
use windlass_core::footprint::gradient_bytes;
use windlass_core::identity::Fingerprint;
use windlass_core::parameter::ParameterTable;
use windlass_instruments::Sites;
use windlass_wire::client::RowRequest;

use crate::buffer::TensorBuffer;
use crate::event::PlacedStage;
use crate::metrics::Metrics;
use crate::model::PngImage;
use crate::randomness::Draw;
use crate::report::Reports;
use crate::travel::TravelError;
use packed::PackedPart;

/// A copy of a model that computes steps.
pub trait Replica: Send {
    /// What training needs to know of the model.
    fn info(&self) -> &ModelInfo;

    /// The parameters, by path.
    fn table(&self) -> &ParameterTable;

    /// Whether some parameters are accessed by row.
    fn has_rows(&self) -> bool;

    /// How training is reported, if the model asks for reports.
    fn reports(&self) -> Option<Reports>;

    /// Whether joined workers compute for this process, which is then the client of the run.
    fn is_client(&self) -> bool {
        false
    }

    /// Where the steps are computed, if not on the devices of this process.
    fn sites(&self) -> Option<Sites> {
        None
    }

    /// The source of this replica's batches.
    fn source(&self) -> Arc<dyn BatchSource>;

    /// The devices that the replica computes on, if they are not those of this process.
    fn devices(&self) -> Option<Vec<String>> {
        None
    }

    /// The memory that the gradients of a step take in this process, before they are combined.
    fn gradient_bytes(&self) -> u64 {
        gradient_bytes(self.table())
    }

    /// The stages that the model is divided into, if it is, and where they are.
    fn placement(&self) -> Vec<PlacedStage> {
        Vec::new()
    }

    /// The devices that the model is divided among, if it is, and the load of each so far.
    fn lanes(&self) -> Vec<LaneReport> {
        Vec::new()
    }

    /// The values before training, even if training has begun.
    fn first_values(&self) -> Vec<TensorBuffer>;

    /// Replaces the values; an empty buffer keeps the current ones. A parameter accessed by row may have any number of
    /// rows.
    fn load(&mut self, values: Vec<TensorBuffer>);

    /// Computes the loss on a batch and its gradients. Of parameters accessed by row, exactly the rows that the batch
    /// requests must have been loaded.
    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult>;

    /// Computes a step and throws it away: values and state remain as before. All rows of all parameters must be
    /// loaded.
    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()>;

    /// The batches that a report scores: one for each named part of the held-out data, or `None` for a part that is
    /// empty. The choice of samples depends on `draw` alone.
    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>>;

    /// The loss on a batch, without gradients. Rows must be loaded as for a step.
    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64>;

    /// Scores the network.
    fn evaluate(&mut self) -> anyhow::Result<Metrics>;

    /// Pictures of the network's results.
    fn images(&mut self) -> anyhow::Result<Vec<PngImage>>;

    /// Lets the model do its final work on the trained network, and returns the files that it wrote.
    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>>;
}

/// Makes batches, on any thread.
pub trait BatchSource: Send + Sync {
    /// Makes a batch of these samples.
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch>;

    /// The number of parts in which a batch is computed.
    fn parts(&self) -> usize;

    /// Packs a batch from this source to be sent to another process.
    fn pack(&self, _batch: Batch) -> Result<Vec<PackedPart>, TravelError> {
        Err(TravelError::Unable("a batch of this kind"))
    }

    /// Unpacks a batch from another process. Its parts, however many, are computed as one step.
    fn unpack(&self, _parts: Vec<PackedPart>) -> Result<Batch, TravelError> {
        Err(TravelError::Unable("a batch of this kind"))
    }
}

/// What a step computes on. Only the replica knows the content.
pub struct Batch {
    pub(crate) content: Box<dyn Any + Send>,
    pub(crate) rows: Vec<RowRequest>,
    pub(crate) samples: usize,
}

impl Batch {
    /// The rows that the batch needs of the parameters accessed by row.
    pub fn rows(&self) -> &[RowRequest] {
        &self.rows
    }

    /// The number of samples.
    pub fn samples(&self) -> usize {
        self.samples
    }
}

/// A device that computes some stages of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// The name of the device.
    pub device: String,
    /// The stages.
    pub stages: Vec<String>,
    /// The fraction of the step time in which the device was busy with them.
    pub busy: f64,
}

/// The result of a step.
#[derive(Debug, PartialEq)]
pub struct StepResult {
    /// The mean loss per sample.
    pub loss: f32,
    /// One buffer per parameter; empty if it is not trained.
    pub gradients: Vec<TensorBuffer>,
    /// One buffer per parameter: running state after the step. Buffers of other parameters are empty; without any
    /// running state, the list is empty.
    pub state: Vec<TensorBuffer>,
    /// The number of samples that it was computed on.
    pub samples: usize,
}

impl StepResult {
    /// Returns what is pushed: gradients, with running state in place of the empty ones.
    pub fn into_pushed(self) -> Vec<TensorBuffer> {
        let mut pushed = self.gradients;
        let state = pushed.iter_mut().zip(self.state).filter(|(_, state)| !state.is_empty());
        state.for_each(|(slot, state)| *slot = state);
        pushed
    }
}

/// What training needs to know of a model besides its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// The model's name.
    pub name: &'static str,
    /// The number of training samples.
    pub samples: usize,
    /// The number of samples in each file, if they are stored in files.
    pub sample_files: Vec<usize>,
    /// The fingerprint of the training samples, if the model provides one.
    pub fingerprint: Option<Fingerprint>,
    /// Files needed besides the values to use the trained network: name and content.
    pub files: Vec<(&'static str, String)>,
    /// The loss per sample of a network that only guesses, if it is known.
    pub chance_loss: Option<f64>,
    /// Whether losses and gradients of a batch are sums over its samples instead of means.
    pub loss_is_summed: bool,
}
