//! What goes into the coordinator's machine and what comes out: events, effects, and what it asks of its own shard.

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

/// How often a coordinator is to be told that time has passed.
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
    /// How long tasks that are needed are waited for.
    pub peer_timeout: Duration,
    /// The memory that ps 0, in which this is, found when it was started.
    pub memory: Option<Memory>,
    /// Incarnations are later than this one if there is no generation to count from.
    pub before: Incarnation,
}

/// The claim of a coordinator on its run's checkpoints.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// When and where checkpoints are written.
    pub config: CheckpointConfig,
    /// Where they are, in full.
    pub location: String,
    /// The generation that was claimed.
    pub generation: u64,
    /// A random number, so that no two attempts to write a checkpoint share objects.
    pub salt: u8,
    /// True if the run has begun and its tasks wait for this coordinator: for them, a failing store is retried.
    pub goes_on: bool,
}

/// What happens to a coordinator.
#[derive(Debug)]
pub enum Event {
    /// A task has connected.
    Opened(SessionId),
    /// A task says something.
    Message(SessionId, TaskMessage),
    /// A connection has closed.
    Closed(SessionId),
    /// A task does not read what is sent to it, and its connection was given up.
    Undelivered(SessionId),
    /// Time has passed. Said every [`TICK`].
    Tick {
        /// True if more of a checkpoint has been read that is looked for.
        has_read_on: bool,
    },
    /// The checkpoint of this number was published, or could not be.
    Published(u64, Result<CheckpointId, CheckpointError>),
    /// The checkpoints cannot be kept: another run has taken them over, say.
    Overtaken(CheckpointError),
    /// The lease on the checkpoints was given up.
    Released,
    /// The checkpoint to begin from or go back to has been looked up for the nth time.
    Found(u64, Result<Box<Beginning>, CheckpointError>),
    /// The checkpoints of the run cannot be opened.
    Unusable(CheckpointError),
}

/// What is to be done for a coordinator.
#[derive(Debug)]
pub enum Effect {
    /// Say this to a task.
    Send(SessionId, CoordinatorMessage),
    /// It is known whose this connection is.
    Admit(SessionId, TaskId),
    /// Close a connection, whose task has had its last word.
    Dismiss(SessionId),
    /// Close a connection.
    Close(SessionId),
    /// Look for the newest checkpoint of the run, for the nth time. Without one it goes back to where it began; if that is
    /// not known yet, look for what to begin from.
    Look(u64, Option<Box<Beginning>>),
    /// Publish the checkpoint of this number, after the files that go with it, and remove what is too old.
    Publish(u64, Box<Manifest>, Arc<[ModelFile]>),
    /// Remember with the lease in which generation the run began.
    BeganIn(u64),
    /// Give the lease on the checkpoints up, and leave word of how the run has ended.
    Release(Outcome),
}

/// What the coordinator asks of the shard in its own process, if there is one yet.
pub trait OwnShard {
    /// Takes pushes of this process of a worker, refuses earlier ones, and says how far the workers were. It starts at this
    /// clock.
    fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Option<Standing>;
    /// The clock at which a worker that joins now is to start, on all servers.
    fn clock(&self) -> Option<u64>;
    /// Refuses this process of a worker, and says how far the workers are.
    fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Option<Standing>;
    /// Counts so far, and times since the run was started.
    fn statistics(&self) -> Option<ShardStatistics>;
}
