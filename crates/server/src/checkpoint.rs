//! What a run says of its checkpoints, what a server says of its part of one, and how its shard is restored from one.

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

/// How long after a failure that may pass a store is tried again.
pub(crate) const RETRY_EVERY: Duration = Duration::from_secs(1);

/// How long a store that fails is retried: less than the other tasks wait, so that they are told why before they give up.
pub(crate) fn store_patience(peer_timeout: Duration) -> Duration {
    const LEFT_FOR_TELLING: Duration = Duration::from_secs(3);
    peer_timeout.saturating_sub(LEFT_FOR_TELLING.min(peer_timeout / 2))
}

/// Whether, when and where a run's checkpoints are written. Only ps 0's word counts.
#[derive(Debug, Clone)]
pub struct CheckpointConfig {
    /// A directory, or the address of an object store.
    pub location: String,
    /// Time between two.
    pub every: Option<Duration>,
    /// Global steps between two.
    pub every_steps: Option<u64>,
    /// How many are kept.
    pub keep: usize,
    /// What training begins from.
    pub resume: Resume,
    /// True for a process that was started again: what its run has saved goes before `resume`.
    pub restarted: bool,
    /// How long nothing may move while one is written or published before it is given up; longer for large models.
    pub stall: Duration,
    /// Take over the checkpoints of a run that lives.
    pub take_over: bool,
    /// The flags of the run, for people.
    pub description: String,
}

/// What training begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// The newest whole checkpoint of its own, if there is one.
    Auto,
    /// First values.
    Never,
    /// A checkpoint from elsewhere: where, and which if not the newest.
    From(String, Option<CheckpointId>),
}

/// Incarnations under the coordinator of a generation are later than this.
pub fn before_generation(generation: u64) -> Incarnation {
    Incarnation(generation << 32)
}

/// The generation of the coordinator that gave a process its incarnation.
pub fn generation_of(incarnation: Incarnation) -> u64 {
    incarnation.0 >> 32
}

/// What a server says of its part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// What was written.
    pub record: PartRecord,
    /// Where the shard was cut.
    pub mark: CutPoint,
    /// What came with the last pushes, to the first server.
    pub notes: Notes,
    /// The learning rate there.
    pub learning_rate: LearningRate,
    /// For how long at the most a push has been held up by it.
    pub held_up: Duration,
}

/// The state of a run at a checkpoint that it resumes from.
#[derive(Debug)]
pub(crate) struct ResumePoint {
    /// How many updates the values have had.
    pub(crate) version: u64,
    /// The learning rate.
    pub(crate) learning_rate: LearningRate,
    /// After which step the optimizer began with parameters that it has not had from the first, by name.
    pub(crate) trained_since: BTreeMap<String, u64>,
}

/// Reads what this server holds of a checkpoint: the values, and where the run stands with them. What has been read is
/// counted meanwhile.
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
    let (version, learning_rate) = (manifest.id.step, manifest.learning_rate);
    Ok((image, ResumePoint { version, learning_rate, trained_since: manifest.trained_since_in(&run.parameters) }))
}
