//! Counts and times of a shard, by the clock of this process.

use std::time::Instant;

use windlass_core::admission::Statistics;

/// Counts and times of a shard.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShardStatistics {
    /// Updates applied, those before a checkpoint that was restored included.
    pub steps: u64,
    /// Updates that were in that checkpoint.
    pub resumed_at: u64,
    /// Pushes dropped as stale.
    pub dropped: u64,
    /// When the first update was applied.
    pub first_step: Option<Instant>,
    /// When the last update was applied.
    pub last_step: Option<Instant>,
    /// Over all pushes, how many updates there had been since their parameters were read.
    pub staleness: u64,
    /// Pushes that were applied or counted in a round.
    pub pushes: u64,
}

impl ShardStatistics {
    /// What a gate has counted whose times count from `origin`.
    pub(super) fn new(counted: Statistics, origin: Instant) -> Self {
        let Statistics { steps, resumed_at, dropped, first_step, last_step, staleness, pushes } = counted;
        let at = |time| origin + time;
        let (first_step, last_step) = (first_step.map(at), last_step.map(at));
        Self { steps, resumed_at, dropped, first_step, last_step, staleness, pushes }
    }
}
