//! The interface of the coordinator's machine: its events, its effects, and its requests to the shard in the same
//! process.

use std::sync::Arc;
use std::time::Duration;

use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest};
use windlass_core::admission::ShardStatistics;
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::{RunLayout, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_core::membership::Patience;
use windlass_wire::control::proto::{CoordinatorMessage, Memory, ModelFile, TaskMessage};

use super::checkpoint::Beginning;
use crate::checkpoint::CheckpointConfig;

/// The interval at which the coordinator gets `Event::Tick`.
pub const TICK: Duration = Duration::from_millis(100);
/// A connection of a task to the coordinator.
pub type SessionId = u64;

/// What a coordinator has to know of its cluster.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are; `None` if the number is open and every worker is admitted.
    pub workers: Option<u32>,
    /// How servers and workers are laid out in processes.
    pub layout: RunLayout,
    /// When a silent task counts as dead.
    pub patience: Patience,
    /// How long to wait for tasks that the run needs.
    pub peer_timeout: Duration,
    /// The memory that ps 0, the process of this coordinator, found when it started.
    pub memory: Option<Memory>,
    /// Incarnations are later than this one if there is no generation to count from.
    pub before: Incarnation,
}

/// The claim of a coordinator on its run's checkpoints.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// When and where checkpoints are written.
    pub config: CheckpointConfig,
    /// The full location of the checkpoints.
    pub location: String,
    /// The generation that was claimed.
    pub generation: u64,
    /// A random number, so that no two attempts to write a checkpoint share objects.
    pub salt: u8,
    /// True if the run has begun and its tasks wait for this coordinator: for them, a failing store is retried.
    pub goes_on: bool,
}

/// An event for the coordinator.
#[derive(Debug)]
pub enum Event {
    /// A task has connected.
    Opened(SessionId),
    /// A task has sent a message.
    Message(SessionId, TaskMessage),
    /// A connection has closed.
    Closed(SessionId),
    /// A task does not read its messages, and its connection was closed.
    Undelivered(SessionId),
    /// Time has passed. Sent every [`TICK`].
    Tick {
        /// True if the lookup of a checkpoint has read more data.
        has_read_on: bool,
    },
    /// The checkpoint of this number was published, or could not be.
    Published(u64, Result<CheckpointId, CheckpointError>),
    /// Checkpoints can no longer be published, for example because another run has taken over.
    Overtaken(CheckpointError),
    /// The lease on the checkpoints was released.
    Released,
    /// The nth lookup of the checkpoint to begin from or roll back to is done.
    Found(u64, Result<Box<Beginning>, CheckpointError>),
    /// The checkpoints of the run cannot be opened.
    Unusable(CheckpointError),
}

/// An action that the coordinator requests.
#[derive(Debug)]
pub enum Effect {
    /// Send this message to a task.
    Send(SessionId, CoordinatorMessage),
    /// This connection belongs to this task.
    Admit(SessionId, TaskId),
    /// Close a connection whose task has received its final message.
    Dismiss(SessionId),
    /// Close a connection.
    Close(SessionId),
    /// Start the nth lookup of the newest checkpoint of the run. Without one the run goes back to where it began; if
    /// that is not known yet, look up what to begin from.
    Look(u64, Option<Box<Beginning>>),
    /// Publish the checkpoint of this number, after the files that go with it, and remove what is too old.
    Publish(u64, Box<Manifest>, Arc<[ModelFile]>),
    /// Remember with the lease in which generation the run began.
    BeganIn(u64),
    /// Release the lease on the checkpoints, and record how the run ended.
    Release(Outcome),
}

/// The coordinator's requests to the shard in its own process, if there is one yet.
pub trait OwnShard {
    /// Accepts pushes of this process of a worker from this clock on, and refuses those of earlier processes. Returns
    /// how far the workers had got.
    fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Option<Standing>;
    /// The clock at which a worker that joins now is to start, on all servers.
    fn clock(&self) -> Option<u64>;
    /// Refuses this process of a worker. Returns how far the workers have got.
    fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Option<Standing>;
    /// Counts so far, and times since the run was started.
    fn statistics(&self) -> Option<ShardStatistics>;
}
