//! The decisions about pushes on one shard, together with what they need to know: the consistency model, the
//! ledger, the learning rate, and counts for the summary. It is held for nanoseconds, never during work.

use std::time::Instant;

use windlass_core::cluster::WorkerId;
use windlass_core::consistency::{Admission, Consistency};
use windlass_core::ledger::{Entry, Incarnation, Ledger};
use windlass_core::optimizer::Update;
use windlass_core::run::{LearningRate, RunSpec};
use windlass_wire::frame::{AnswerKind, Request};

/// What is to be done with a push.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Apply it as it arrives, but for the first `blocks`.
    Apply { update: Update, blocks: usize },
    /// Keep it for the round.
    Collect,
    /// Read it, do nothing, and answer so.
    Skip(AnswerKind),
    /// Refuse it: the process was declared dead.
    Fenced,
    /// Refuse it: the numbers do not follow.
    OutOfOrder { expected: u64 },
}

/// Counts and times of a shard.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShardStatistics {
    /// Updates applied.
    pub steps: u64,
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

pub(super) struct Gate {
    consistency: Consistency,
    ledger: Ledger,
    learning_rate: LearningRate,
    statistics: ShardStatistics,
}

impl Gate {
    pub(super) fn new(run: &RunSpec, workers: &[WorkerId]) -> Self {
        Self {
            consistency: Consistency::new(run.mode, workers, run.steps),
            ledger: Ledger::default(),
            learning_rate: LearningRate::initial(run.learning_rate),
            statistics: ShardStatistics::default(),
        }
    }

    pub(super) fn admit(&mut self, request: &Request) -> Verdict {
        let entry = self.ledger.enter(request.worker, request.incarnation, request.sequence);
        let again = match entry {
            Entry::Fenced => return Verdict::Fenced,
            Entry::OutOfOrder { expected } => return Verdict::OutOfOrder { expected },
            Entry::New => None,
            Entry::Again { blocks } => Some(blocks),
        };
        self.learning_rate.adopt(request.learning_rate);
        match (again, &self.consistency) {
            // A push that was cut off goes on where it stopped, as the same step.
            (Some(blocks), Consistency::Async(_) | Consistency::Ssp(_)) => {
                return Verdict::Apply { update: self.update(self.consistency.version(), 1.0), blocks };
            }
            (Some(_), Consistency::Sync(round)) if round.has(request.worker) || request.base < round.version() => {
                return Verdict::Skip(AnswerKind::Values);
            }
            _ => {}
        }
        let version = self.consistency.version();
        match self.consistency.admit(request.worker, request.base) {
            Admission::Apply { step } => {
                self.statistics.staleness += version.saturating_sub(request.base);
                self.statistics.pushes += 1;
                self.count_step();
                Verdict::Apply { update: self.update(step, 1.0), blocks: 0 }
            }
            Admission::Collect => Verdict::Collect,
            Admission::Stale => {
                self.count_dropped();
                Verdict::Skip(AnswerKind::Stale)
            }
            Admission::Over => Verdict::Skip(AnswerKind::Over),
        }
    }

    pub(super) fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        self.ledger.fence(worker, incarnation);
    }

    pub(super) fn block_applied(&mut self, worker: WorkerId) {
        self.ledger.block_applied(worker);
    }

    /// True if the round that a gradient was meant for is still open.
    pub(super) fn is_open(&self, request: &Request) -> bool {
        match &self.consistency {
            Consistency::Sync(round) => round.takes(request.worker, request.base),
            _ => true,
        }
    }

    /// Notes a push that has wholly arrived; true if it completes a round.
    pub(super) fn arrived(&mut self, worker: WorkerId) -> bool {
        if matches!(self.consistency, Consistency::Sync(_)) {
            self.statistics.pushes += 1;
        }
        self.consistency.applied(worker)
    }

    /// True if that completes a round.
    pub(super) fn leave(&mut self, worker: WorkerId) -> bool {
        self.consistency.leave(worker)
    }

    pub(super) fn round_update(&self, gradients: usize) -> Update {
        self.update(self.consistency.version() + 1, 1.0 / gradients as f32)
    }

    pub(super) fn end_round(&mut self) {
        self.consistency.end_round();
        self.count_step();
    }

    pub(super) fn waits_for(&self, request: &Request) -> Option<Vec<WorkerId>> {
        self.consistency.waits_for(request.worker, request.base)
    }

    /// In words, whom a worker waits for.
    pub(super) fn describe_wait(&self, missing: &[WorkerId]) -> String {
        const NAMED: usize = 8;
        let mut names: Vec<String> = missing.iter().take(NAMED).map(ToString::to_string).collect();
        if missing.len() > NAMED {
            names.push(format!("{} more", missing.len() - NAMED));
        }
        format!("{} in step {}", names.join(", "), self.consistency.version() + 1)
    }

    pub(super) fn count_dropped(&mut self) {
        self.statistics.dropped += 1;
    }

    pub(super) fn version(&self) -> u64 {
        self.consistency.version()
    }

    pub(super) fn is_over(&self) -> bool {
        self.consistency.is_over()
    }

    pub(super) fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    pub(super) fn statistics(&self) -> ShardStatistics {
        ShardStatistics { steps: self.consistency.version(), ..self.statistics }
    }

    fn update(&self, step: u64, scale: f32) -> Update {
        Update { learning_rate: self.learning_rate.rate, step, scale }
    }

    fn count_step(&mut self) {
        let now = Instant::now();
        self.statistics.first_step.get_or_insert(now);
        self.statistics.last_step = Some(now);
    }
}
