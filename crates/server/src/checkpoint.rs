//! Checkpoint settings of a run, a server's report on its part of a checkpoint, and the restore of its shard.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass_checkpoint::{
    CheckpointError, CheckpointId, PartRecord, ReadCounter, Restore, ShardImage, SlotPolicy, Store,
};
use windlass_core::checkpoint::{CutPoint, Notes};
use windlass_core::ledger::Incarnation;
use windlass_core::plan::ServerPlan;
use windlass_core::run::{LearningRate, RunSpec};

/// The pause before a store is retried after a failure that may be temporary.
pub(crate) const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long a store that fails is retried: less than the other tasks wait, so that they are told why before they give up.
pub(crate) fn store_patience(peer_timeout: Duration) -> Duration {
    const LEFT_FOR_TELLING: Duration = Duration::from_secs(3);
    peer_timeout.saturating_sub(LEFT_FOR_TELLING.min(peer_timeout / 2))
}

/// Whether, when and where a run writes checkpoints. Only the settings of ps 0 count.
#[derive(Debug, Clone)]
pub struct CheckpointConfig {
    /// A directory, or the address of an object store.
    pub location: String,
    /// Time between two checkpoints.
    pub every: Option<Duration>,
    /// Global steps between two checkpoints.
    pub every_steps: Option<u64>,
    /// How many checkpoints are kept.
    pub keep: usize,
    /// What training begins from.
    pub resume: Resume,
    /// True for a restarted process: checkpoints of its own run take precedence over `resume`.
    pub restarted: bool,
    /// A checkpoint is given up if writing or publishing makes no progress for this long; more is added for large
    /// models.
    pub stall: Duration,
    /// Take over the checkpoints of a run that lives.
    pub take_over: bool,
    /// The flags of the run, for display.
    pub description: String,
}

/// What training begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest whole checkpoint of its own, if there is one.
    Auto,
    /// The initial values of the model.
    Never,
    /// A checkpoint from elsewhere: its location, and its id unless it is the newest.
    From(String, Option<CheckpointId>),
}

/// Returns the incarnation before the first that a generation's coordinator assigns.
pub fn before_generation(generation: u64) -> Incarnation {
    Incarnation(generation << 32)
}

/// The generation of the coordinator that gave a process its incarnation.
pub fn generation_of(incarnation: Incarnation) -> u64 {
    incarnation.0 >> 32
}

/// A server's report on its part of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// What was written.
    pub record: PartRecord,
    /// The point at which the shard was cut.
    pub mark: CutPoint,
    /// The notes of the last pushes; only the first server has them.
    pub notes: Notes,
    /// The learning rate at the cut.
    pub learning_rate: LearningRate,
    /// The longest time that this checkpoint held up a push.
    pub held_up: Duration,
}

/// The state of a run at a checkpoint that it resumes from.
#[derive(Debug)]
pub(crate) struct ResumePoint {
    /// How many updates have been applied to the values.
    pub(crate) version: u64,
    /// The learning rate.
    pub(crate) learning_rate: LearningRate,
    /// The step after which the optimizer began to train each parameter that was not trained from the start, by name.
    pub(crate) trained_since: BTreeMap<String, u64>,
}

/// Reads this server's share of a checkpoint: the values, and the state of the run that belongs to them. Counts the
/// bytes as they are read.
pub(crate) async fn restore(
    (location, read): (&str, ReadCounter),
    id: &CheckpointId,
    run: &RunSpec,
    plan: &ServerPlan,
) -> Result<(ShardImage, ResumePoint), CheckpointError> {
    let store = Store::open_counted(location, read).await?;
    let manifest = store.load(id).await?;
    let wanted = Restore { table: &run.parameters, plan, optimizer: &run.optimizer, slots: SlotPolicy::Restore };
    let image = store.restore(&manifest, &wanted).await?;
    let version = manifest.id.step;
    let learning_rate = LearningRate::resumed(run, &manifest.run, manifest.learning_rate);
    Ok((image, ResumePoint { version, learning_rate, trained_since: manifest.trained_since_in(&run.parameters) }))
}
