//! Where a step is computed. To the training loop a replica is values in, loss and gradients out; whether it is one
//! network on one device or something else behind this trait is not its concern.
//!
//! Values are one buffer of floats a parameter, in the order of the parameter table. They go in and gradients come out in
//! the memory that Burn gave them, without being copied (see [`crate::buffer`]).

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
    /// What training has to know of the model.
    fn info(&self) -> &ModelInfo;

    /// The parameters, by path.
    fn table(&self) -> &ParameterTable;

    /// Whether there are parameters of which a step has only some rows.
    fn has_rows(&self) -> bool;

    /// How training is reported on, if the model wants it.
    fn reports(&self) -> Option<Reports>;

    /// Where its steps are computed, if that is not on the devices of this process.
    fn sites(&self) -> Option<Sites> {
        None
    }

    /// Where its batches come from.
    fn source(&self) -> Arc<dyn BatchSource>;

    /// The devices that it computes on, if they are not those of this process.
    fn devices(&self) -> Option<Vec<String>> {
        None
    }

    /// How many gradients of the whole model this process holds at a time for it, beside those of its own towers.
    fn gradients(&self) -> usize {
        1
    }

    /// The stages that it is divided into, if it is, and where they are.
    fn placement(&self) -> Vec<PlacedStage> {
        Vec::new()
    }

    /// The devices that it is divided among, if it is, and what each has done so far.
    fn lanes(&self) -> Vec<LaneReport> {
        Vec::new()
    }

    /// The values before training, however far that has come.
    fn first_values(&self) -> Vec<TensorBuffer>;

    /// Replaces the values; where a buffer is empty, what is there stays. Of a parameter accessed by row there may be any
    /// number of rows.
    fn load(&mut self, values: Vec<TensorBuffer>);

    /// The loss on a batch and its gradients. Of parameters accessed by row, the values that were loaded are those that
    /// the batch asks for.
    fn step(&mut self, batch: Batch) -> anyhow::Result<StepResult>;

    /// Computes a step and throws it away: values and state are as before. All rows of all parameters are there.
    fn rehearse(&mut self, batch: Batch) -> anyhow::Result<()>;

    /// What a report scores: a batch for each named part of the held-out data, or `None` for a part that is empty. Which
    /// samples it has follows from `draw` alone.
    fn held_out(&self, draw: u64) -> anyhow::Result<Vec<(String, Option<Batch>)>>;

    /// The loss on a batch, without gradients. Rows are as for a step.
    fn loss(&mut self, batch: Batch) -> anyhow::Result<f64>;

    /// Scores the network.
    fn evaluate(&mut self) -> anyhow::Result<Metrics>;

    /// Pictures of what the network does.
    fn images(&mut self) -> anyhow::Result<Vec<PngImage>>;

    /// Lets the model do what it does with a trained network, and returns the files that it wrote.
    fn conclude(&mut self) -> anyhow::Result<Vec<PathBuf>>;
}

/// Makes batches, on any thread.
pub trait BatchSource: Send + Sync {
    /// Puts these samples together.
    fn batch(&self, samples: &[usize], draw: Draw) -> anyhow::Result<Batch>;

    /// In how many parts a batch is computed.
    fn parts(&self) -> usize;

    /// A batch that this has made, as it travels to another process.
    fn pack(&self, _batch: Batch) -> Result<Vec<PackedPart>, TravelError> {
        Err(TravelError::Unable("a batch of this kind"))
    }

    /// A batch that has come from another process. Its parts, however many, are computed as one step.
    fn unpack(&self, _parts: Vec<PackedPart>) -> Result<Batch, TravelError> {
        Err(TravelError::Unable("a batch of this kind"))
    }
}

/// What a step computes on. What is in it, only its replica knows.
pub struct Batch {
    pub(crate) content: Box<dyn Any + Send>,
    pub(crate) rows: Vec<RowRequest>,
    pub(crate) samples: usize,
}

impl Batch {
    /// The rows that it needs of the parameters accessed by row.
    pub fn rows(&self) -> &[RowRequest] {
        &self.rows
    }

    /// How many samples it has.
    pub fn samples(&self) -> usize {
        self.samples
    }
}

/// A device that computes some stages of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    /// Its name.
    pub device: String,
    /// The stages.
    pub stages: Vec<String>,
    /// Of the time that steps took, the part in which it worked on them.
    pub busy: f64,
}

/// What comes of a step.
#[derive(Debug, PartialEq)]
pub struct StepResult {
    /// The loss of a sample, on average.
    pub loss: f32,
    /// One buffer a parameter; empty if it is not trained.
    pub gradients: Vec<TensorBuffer>,
    /// One buffer a parameter: running state after the step. The others are empty, or all are left out.
    pub state: Vec<TensorBuffer>,
    /// How many samples it was computed on.
    pub samples: usize,
}

impl StepResult {
    /// What is pushed: gradients, and running state in the places of the gradients that it does not have.
    pub fn into_pushed(self) -> Vec<TensorBuffer> {
        let mut pushed = self.gradients;
        let state = pushed.iter_mut().zip(self.state).filter(|(_, state)| !state.is_empty());
        state.for_each(|(slot, state)| *slot = state);
        pushed
    }
}

/// What training has to know of a model beside its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Its name.
    pub name: &'static str,
    /// How many training samples there are.
    pub samples: usize,
    /// How many of them each file has, if they lie in files.
    pub sample_files: Vec<usize>,
    /// Of the training samples, if the model can tell.
    pub fingerprint: Option<Fingerprint>,
    /// What it takes beside the values to use the trained network: name and content.
    pub files: Vec<(&'static str, String)>,
    /// The loss of a sample if the network only guesses, if that is known.
    pub chance_loss: Option<f64>,
    /// Whether losses and gradients of a batch are sums over its samples, and not their mean.
    pub loss_is_summed: bool,
}
