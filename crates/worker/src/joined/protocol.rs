//! What a client and a joined worker say to each other: the heads of messages, as JSON. Their tensors travel beside them.
//!
//! The worker answers every request, and while it is busy with one says every second that it is. So whoever is silent
//! is dead, suspended or cut off, and a step may take as long as it takes.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use windlass_core::identity::ModelFlag;
use windlass_core::parameter::ParameterTable;
use windlass_instruments::Usage;
use windlass_wire::compute::Limits;

/// How often a busy worker says so.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// How often a client says something to a worker that it has nothing to ask of: then the worker is not free for another.
pub const PING_EVERY: Duration = Duration::from_secs(2);
/// The most bytes of a batch.
pub const BATCH_BYTES: u64 = 1 << 30;
/// The most tensors of a batch.
const BATCH_TENSORS: usize = 1 << 16;
/// The longest head that says what is to be computed; the model's files are in it.
const ASSIGNMENT_BYTES: usize = 32 << 20;
/// The longest head of anything else.
const HEAD_BYTES: usize = 4 << 20;

/// What a client asks of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// To make this model ready; the first thing that is asked.
    Assign(Box<Assignment>),
    /// To compute a step. Tensors: the changed values, then the batch.
    Step(StepAsked),
    /// To compute a piece of a step of one of its stages.
    Stage(StageAsked),
    /// Whether it is there.
    Ping,
    /// To wait for the next step: others are not done with this one. It is not answered.
    Wait,
    /// Nothing more: the client's run has ended.
    Leave {
        /// How.
        reason: String,
        /// With which exit code.
        #[serde(default)]
        exit_code: u8,
    },
}

/// What a worker is to compute, and for whom.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// The client, as it is told to others.
    pub client: String,
    /// Which of all clients it is: one that connects again takes its own place.
    pub run: u64,
    /// Which worker of that run it is that is told.
    pub worker: usize,
    /// The model's name.
    pub model: String,
    /// The model's own flags, by name.
    pub flags: BTreeMap<String, ModelFlag>,
    /// The run's seed.
    pub seed: u64,
    /// In how many parts, one after the other, a batch is computed.
    pub accumulate: usize,
    /// The model's files: name and content.
    pub files: Vec<(String, String)>,
    /// The parameters as the client has them.
    pub parameters: ParameterTable,
    /// Which stages of the model are whose, if nobody computes all of it.
    #[serde(default)]
    pub placed: Option<PlacedStages>,
}

/// The stages of a model that joined workers compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStages {
    /// Whether another device may be taken for one that is not there.
    #[serde(default)]
    pub is_soft: bool,
    /// All of them.
    pub stages: Vec<StageAssigned>,
}

impl PlacedStages {
    /// The stages of a worker.
    pub fn of(&self, worker: usize) -> impl Iterator<Item = &StageAssigned> {
        self.stages.iter().filter(move |stage| stage.worker == worker)
    }
}

/// A stage, and who computes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageAssigned {
    /// Its name.
    pub stage: String,
    /// The number of the worker.
    pub worker: usize,
    /// On which of its devices; `None` for the one that it was started with.
    pub device: Option<String>,
}

/// See [`Ask::Stage`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageAsked {
    /// The stage's name.
    pub stage: String,
    /// What is to be done.
    pub piece: StagePiece,
}

/// A piece of a step. Parameters are numbered among those of the stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum StagePiece {
    /// A step begins. Tensors: the values that have changed, then the numbers of rows.
    Begin {
        /// Whose values those are.
        changed: Vec<usize>,
        /// The parameters that the step has only some rows of.
        rows: Vec<usize>,
    },
    /// Forward through a micro-batch. Tensors: its part of the batch, then the numbers of the rows that it has of each of
    /// those parameters, then what other stages have put out.
    Forward {
        /// Which one.
        micro: usize,
        /// How many tensors its part of the batch is.
        feed: usize,
        /// How many parameters those are.
        rows: usize,
        /// Of random numbers.
        seed: u64,
    },
    /// And back. Tensors: gradients of what it has put out.
    Backward {
        /// Which one.
        micro: usize,
        /// Which of its outputs have one.
        given: Vec<bool>,
    },
    /// The step ends: the sums of gradients are asked for.
    Finish,
}

/// See [`Answer::Staged`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageAnswered {
    /// Of the outputs, of the gradients of inputs or of the gradients of parameters, those that come along.
    pub given: Vec<bool>,
    /// The parameters whose running state does.
    pub state: Vec<bool>,
    /// What the worker uses of its hardware, about once a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

/// See [`Ask::Step`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepAsked {
    /// The parameters whose values come along, by number.
    pub changed: Vec<u32>,
    /// What is to be computed.
    pub parts: Vec<PartAsked>,
}

/// A part of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartAsked {
    /// How many samples it has.
    pub samples: usize,
    /// Of random numbers in the forward pass.
    pub seed: u64,
    /// How many tensors it is.
    pub tensors: usize,
}

/// What a worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub enum Answer {
    /// The model is ready.
    Assigned(Capacity),
    /// It will not compute this.
    Refused {
        /// Why.
        reason: String,
        /// Whether it may at another time.
        is_busy: bool,
    },
    /// A step has been computed. Tensors: gradients, then running state.
    Stepped(StepAnswered),
    /// A piece of a step has been computed. Tensors: those that are given, then running state.
    Staged(StageAnswered),
    /// It is busy with what was asked.
    Working,
    /// It is there.
    Here,
    /// It could not compute what was asked.
    Failed {
        /// Why.
        reason: String,
    },
}

/// What a worker computes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Its devices.
    pub devices: Vec<String>,
    /// Threads, if it was told how many.
    pub threads: Option<usize>,
    /// Replicas that divide a batch.
    pub towers: usize,
}

/// See [`Answer::Stepped`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepAnswered {
    /// The bits of the loss: JSON has no infinities.
    pub loss: u32,
    /// How many samples it was computed on.
    pub samples: usize,
    /// How long that took, in microseconds.
    #[serde(default)]
    pub micros: u64,
    /// The parameters whose gradients come along, by number.
    pub gradients: Vec<u32>,
    /// Those whose running state does.
    pub state: Vec<u32>,
    /// What the worker uses of its hardware, about once a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
}

/// A head as it travels.
pub fn written(head: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(head).unwrap_or_default()
}

/// A head that has arrived.
pub fn read<T: DeserializeOwned>(head: &[u8]) -> anyhow::Result<T> {
    serde_json::from_slice(head).map_err(|error| anyhow::anyhow!("cannot parse the message: {error}"))
}

/// Whether a message is an answer, and no sign of life.
pub fn is_answer(head: &[u8]) -> bool {
    !matches!(serde_json::from_slice(head), Ok(Answer::Working))
}

/// The most of the first request.
pub fn assignment_limits() -> Limits {
    Limits { head: ASSIGNMENT_BYTES, sections: 0, bytes: 0 }
}

/// The most of a request about a model of these parameters.
pub fn request_limits(parameters: &ParameterTable) -> Limits {
    let Limits { head, sections, bytes } = answer_limits(parameters);
    Limits { head, sections: sections + BATCH_TENSORS, bytes: bytes + BATCH_BYTES }
}

/// The most of a request about stages, or of an answer to it: what goes between stages may be as large as a batch.
pub fn stage_limits(parameters: &ParameterTable) -> Limits {
    request_limits(parameters)
}

/// The most of an answer.
pub fn answer_limits(parameters: &ParameterTable) -> Limits {
    let bytes = parameters.elements() as u64 * size_of::<f32>() as u64;
    Limits { head: HEAD_BYTES, sections: 2 * parameters.len(), bytes }
}
