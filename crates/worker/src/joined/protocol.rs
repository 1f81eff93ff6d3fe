//! The messages between a client and a joined worker: their heads, as JSON. Tensors travel beside them.
//!
//! The worker answers every request, and while it is busy with one it reports so every second. A silent peer is
//! therefore dead, suspended or cut off, and a step may take any length of time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::identity::ModelFlag;
use windlass_core::parameter::ParameterTable;
use windlass_instruments::Usage;
use windlass_wire::compute::Limits;

/// How often a busy worker reports that it is busy.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How often a client pings a worker that it has no request for, which keeps the worker from serving another client.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// The size limit of a batch.
pub const BATCH_BYTES: u64 = 1 << 30;
/// The most tensors of a batch.
const BATCH_TENSORS: usize = 1 << 16;
/// The size limit of the head of an assignment, which includes the model's files.
const ASSIGNMENT_BYTES: usize = 32 << 20;
/// The size limit of any other head.
const HEAD_BYTES: usize = 4 << 20;

/// What a client asks of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// To prepare this model; always the first request.
    Assign(Box<Assignment>),
    /// To compute a step. Tensors: the changed values, then the batch.
    Step(StepAsked),
    /// To compute a piece of a step of one of its stages.
    Stage(StageAsked),
    /// Whether it is alive.
    Ping,
    /// To wait for the next step, because other workers have not finished this one. Not answered.
    Wait,
    /// To do nothing more: the client's run has ended.
    Leave {
        /// How the run ended.
        reason: String,
        /// The exit code of the run.
        #[serde(default)]
        exit_code: u8,
    },
}

/// What a worker is to compute, and for which client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The client's name, as shown to other clients.
    pub client: String,
    /// Identifies the client's run: a client that reconnects takes its own place.
    pub run: u64,
    /// The number of the addressed worker in that run.
    pub worker: usize,
    /// The model's name.
    pub model: String,
    /// The model's own flags, by name.
    pub flags: BTreeMap<String, ModelFlag>,
    /// The run's seed.
    pub seed: u64,
    /// The number of parts in which a batch is computed, one after the other.
    pub accumulate: usize,
    /// The model's files: name and content.
    pub files: Vec<(String, String)>,
    /// The parameters as the client has them.
    pub parameters: ParameterTable,
    /// Which worker has which stages of the model, if the model is divided.
    #[serde(default)]
    pub placed: Option<PlacedStages>,
}

/// The stages of a model that joined workers compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStages {
    /// Whether a missing device may be replaced by another.
    #[serde(default)]
    pub is_soft: bool,
    /// The stages of all workers.
    pub stages: Vec<StageAssigned>,
}

impl PlacedStages {
    /// The stages of a worker.
    pub fn of(&self, worker: usize) -> impl Iterator<Item = &StageAssigned> {
        self.stages.iter().filter(move |stage| stage.worker == worker)
    }
}

/// A stage, and the worker that computes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAssigned {
    /// The name of the stage.
    pub stage: String,
    /// The number of the worker.
    pub worker: usize,
    /// Which of the worker's devices; `None` for the one that it was started with.
    pub device: Option<String>,
}

/// See [`Ask::Stage`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageAsked {
    /// The stage's name.
    pub stage: String,
    /// What to do.
    pub piece: StagePiece,
}

/// A piece of a step. Parameters are numbered among those of the stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum StagePiece {
    /// Begin a step. Tensors: the values that have changed, then row numbers.
    Begin {
        /// The parameters whose values are attached.
        changed: Vec<usize>,
        /// The parameters of which the step has only some rows.
        rows: Vec<usize>,
    },
    /// Run the forward pass of a micro-batch. Tensors: its part of the batch, then its row numbers for each of the
    /// step's row parameters, then the outputs of the stages before it.
    Forward {
        /// The micro-batch.
        micro: usize,
        /// The number of tensors in its part of the batch.
        feed: usize,
        /// The number of parameters that rows are attached for.
        rows: usize,
        /// The seed of random numbers.
        seed: u64,
    },
    /// Run the backward pass of a micro-batch. Tensors: the gradients of its outputs.
    Backward {
        /// The micro-batch.
        micro: usize,
        /// Which of its outputs have a gradient.
        given: Vec<bool>,
    },
    /// End the step and return the sums of gradients.
    Finish,
}

/// See [`Answer::Staged`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageAnswered {
    /// Which of the outputs, of the gradients of inputs, or of the gradients of parameters are attached.
    pub given: Vec<bool>,
    /// The parameters whose running state is attached.
    pub state: Vec<bool>,
    /// The worker's hardware usage, about once a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

/// See [`Ask::Step`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepAsked {
    /// The numbers of the parameters whose values are attached.
    pub changed: Vec<u32>,
    /// The parts to compute.
    pub parts: Vec<PartAsked>,
}

/// A part of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartAsked {
    /// The number of samples.
    pub samples: usize,
    /// The seed of random numbers in the forward pass.
    pub seed: u64,
    /// The number of tensors.
    pub tensors: usize,
}

/// What a worker answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Answer {
    /// The model is ready.
    Assigned(Capacity),
    /// The worker refuses to compute this.
    Refused {
        /// The reason.
        reason: String,
        /// Whether the client may retry later: the worker computes for another, or memory is short for a time.
        is_busy: bool,
    },
    /// A step has been computed. Tensors: gradients, then running state.
    Stepped(StepAnswered),
    /// A piece of a step has been computed. Tensors: those marked in `given`, then running state.
    Staged(StageAnswered),
    /// The worker is busy with the request.
    Working,
    /// The worker is alive.
    Here,
    /// The worker could not compute the request.
    Failed {
        /// The reason.
        reason: String,
    },
}

impl Answer {
    /// Adds the worker's hardware usage to the answer to a request to compute.
    pub(super) fn with(self, usage: Option<Box<Usage>>) -> Self {
        match self {
            Self::Stepped(answer) => Self::Stepped(StepAnswered { usage, ..answer }),
            Self::Staged(answer) => Self::Staged(StageAnswered { usage, ..answer }),
            other => other,
        }
    }
}

/// What a worker computes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// The names of its devices.
    pub devices: Vec<String>,
    /// The number of threads, if the user set it.
    pub threads: Option<usize>,
    /// The number of replicas that divide a batch.
    pub towers: usize,
}

/// See [`Answer::Stepped`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepAnswered {
    /// The bits of the loss: JSON has no infinities.
    pub loss: u32,
    /// The number of samples that it was computed on.
    pub samples: usize,
    /// The computing time in microseconds.
    #[serde(default)]
    pub micros: u64,
    /// The numbers of the parameters whose gradients are attached.
    pub gradients: Vec<u32>,
    /// The numbers of the parameters whose running state is attached.
    pub state: Vec<u32>,
    /// The worker's hardware usage, about once a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

/// Encodes a head.
pub fn written(head: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(head).unwrap_or_default()
}

/// Decodes a head.
pub fn read<T: DeserializeOwned>(head: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(head).map_err(|error| anyhow::anyhow!("cannot parse the message: {error}"))
}

/// Whether a message is an answer, and no sign of life.
pub fn is_answer(head: &[u8]) -> bool {
    !matches!(serde_json::from_slice(head), Ok(Answer::Working))
}

/// The limits of the first request.
pub fn assignment_limits() -> Limits {
    Limits { head: ASSIGNMENT_BYTES, sections: 0, bytes: 0 }
}

/// The limits of a request about a model with these parameters.
pub fn request_limits(parameters: &ParameterTable) -> Limits {
    let Limits { head, sections, bytes } = answer_limits(parameters);
    Limits { head, sections: sections + BATCH_TENSORS, bytes: bytes + BATCH_BYTES }
}

/// The limits of a request about stages, and of its answer: tensors between stages may be as large as a batch.
pub fn stage_limits(parameters: &ParameterTable) -> Limits {
    request_limits(parameters)
}

/// The limits of an answer.
pub fn answer_limits(parameters: &ParameterTable) -> Limits {
    let bytes = parameters.elements() as u64 * size_of::<f32>() as u64;
    Limits { head: HEAD_BYTES, sections: 2 * parameters.len(), bytes }
}
