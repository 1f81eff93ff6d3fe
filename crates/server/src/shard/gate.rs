//! The decisions about pushes on one shard, together with what they need to know: the consistency model, the
//! ledger, the learning rate, and counts for the summary. It is held for nanoseconds, never during work.

use std::time::Instant;

use windlass_core::cluster::WorkerId;
use windlass_core::consistency::{Admission, Consistency};
use windlass_core::ledger::{Entry, Fate, Incarnation, Ledger, PushId};
use windlass_core::optimizer::Update;
use windlass_core::run::{LearningRate, RunSpec};
use windlass_wire::frame::{AnswerKind, Request, RequestKind};

/// What is to be done with a push.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Apply it as it arrives, those pieces of it that can be claimed.
    Apply(Update),
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

/// What became of a gradient that has wholly arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is to be added to the round, and perhaps completes it.
    Counted { complete: bool },
    /// The same push has been counted, having come twice.
    Again,
    /// The round went by while it was on its way.
    Late,
    /// Its process was declared dead or replaced, or has gone on without waiting for it.
    Fenced,
}

pub(super) struct Gate {
    closed: bool,
    /// True once a push has been let in.
    begun: bool,
    consistency: Consistency,
    ledger: Ledger,
    learning_rate: LearningRate,
    statistics: ShardStatistics,
}

impl Gate {
    pub(super) fn new(run: &RunSpec, workers: &[WorkerId]) -> Self {
        Self {
            closed: false,
            begun: false,
            consistency: Consistency::new(run.mode, workers, run.steps),
            ledger: Ledger::default(),
            learning_rate: LearningRate::initial(run.learning_rate),
            statistics: ShardStatistics::default(),
        }
    }

    pub(super) fn admit(&mut self, request: &Request) -> Verdict {
        let push = push_id(request);
        let fate = match self.ledger.enter(push) {
            Entry::Fenced => return Verdict::Fenced,
            Entry::OutOfOrder { expected } => return Verdict::OutOfOrder { expected },
            Entry::New => Fate::Pending,
            Entry::Again(fate) => fate,
        };
        self.begun = true;
        self.learning_rate.adopt(request.learning_rate);
        match fate {
            Fate::Taken { .. } if self.consistency.has_rounds() => return Verdict::Skip(AnswerKind::Values),
            // A push that was cut off goes on where it stopped, as the same step.
            Fate::Taken { step } => return Verdict::Apply(self.update(step, 1.0)),
            Fate::Pending | Fate::Dropped => {}
        }
        let version = self.consistency.version();
        match self.consistency.admit(request.worker, request.base) {
            Admission::Apply { step } => {
                self.ledger.settle(push, Fate::Taken { step });
                self.statistics.staleness += version.saturating_sub(request.base);
                self.statistics.pushes += 1;
                self.count_step();
                Verdict::Apply(self.update(step, 1.0))
            }
            Admission::Collect => Verdict::Collect,
            Admission::Stale => {
                self.drop_push(push);
                Verdict::Skip(AnswerKind::Stale)
            }
            Admission::Over => Verdict::Skip(AnswerKind::Over),
        }
    }

    /// Why the first values are not taken from a request, if they are not.
    pub(super) fn refuses_first_values(&self, request: &Request) -> Option<AnswerKind> {
        if self.ledger.is_fenced(request.worker, request.incarnation) {
            Some(AnswerKind::Fenced)
        } else {
            self.begun.then_some(AnswerKind::Refused)
        }
    }

    pub(super) fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        self.ledger.fence(worker, incarnation);
    }

    /// True for whoever asks first for this piece of a push, and has it to apply.
    pub(super) fn claim(&mut self, request: &Request, piece: usize) -> bool {
        self.ledger.claim(push_id(request), piece)
    }

    /// Notes that the last piece of a push has been applied, if it was not before.
    pub(super) fn applied(&mut self, request: &Request, pieces: usize) {
        if self.claim(request, pieces) {
            self.consistency.applied(request.worker);
        }
    }

    /// Notes a gradient for a round that has wholly arrived.
    pub(super) fn arrived(&mut self, request: &Request) -> Arrival {
        let push = push_id(request);
        match (self.ledger.fate(push), &self.consistency) {
            (None, _) => Arrival::Fenced,
            (Some(Fate::Taken { .. }), _) => Arrival::Again,
            (_, Consistency::Sync(round)) if !round.takes(request.worker, request.base) => {
                self.drop_push(push);
                Arrival::Late
            }
            _ => {
                self.ledger.settle(push, Fate::Taken { step: self.consistency.version() + 1 });
                self.statistics.pushes += 1;
                Arrival::Counted { complete: self.consistency.applied(request.worker) }
            }
        }
    }

    /// Lets a worker go that asks for a later version than there is. True if that completes a round.
    pub(super) fn skip_to(&mut self, request: &Request) -> bool {
        self.consistency.skip_to(request.worker, request.base)
    }

    /// Notes that a process of a worker has left. True if that completes a round.
    pub(super) fn leave(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        self.ledger.retire(worker, incarnation) && self.consistency.leave(worker)
    }

    /// Ends all waits.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn round_update(&self, gradients: usize) -> Update {
        self.update(self.consistency.version() + 1, 1.0 / gradients as f32)
    }

    pub(super) fn end_round(&mut self) {
        self.consistency.end_round();
        self.count_step();
    }

    pub(super) fn waits_for(&self, request: &Request) -> Option<Vec<WorkerId>> {
        match request.kind {
            RequestKind::Push => self.consistency.waits_for(request.worker, request.base),
            _ => self.consistency.waits_for_version(request.base),
        }
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

    pub(super) fn version(&self) -> u64 {
        self.consistency.version()
    }

    pub(super) fn is_over(&self) -> bool {
        self.consistency.is_over()
    }

    pub(super) fn has_rounds(&self) -> bool {
        self.consistency.has_rounds()
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

    fn drop_push(&mut self, push: PushId) {
        if self.ledger.fate(push) != Some(Fate::Dropped) {
            self.ledger.settle(push, Fate::Dropped);
            self.statistics.dropped += 1;
        }
    }

    fn count_step(&mut self) {
        let now = Instant::now();
        self.statistics.first_step.get_or_insert(now);
        self.statistics.last_step = Some(now);
    }
}

fn push_id(request: &Request) -> PushId {
    PushId { worker: request.worker, incarnation: request.incarnation, sequence: request.sequence }
}
