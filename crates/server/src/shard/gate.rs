//! The decisions about pushes on one shard, together with what they need to know: the consistency model, the
//! ledger, the learning rate, and counts for the summary. It is held for nanoseconds, never during work.

mod cutting;

use std::time::{Duration, Instant};

use windlass_core::checkpoint::{Pushes, Standing};
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::{Admission, Consistency};
use windlass_core::ledger::{Acquaintance, Entry, Fate, Incarnation, Ledger, PushId};
use windlass_core::optimizer::Update;
use windlass_core::run::{LearningRate, RunSpec, staleness_scaled};
use windlass_wire::frame::{AnswerKind, Request, RequestKind};

use super::cut::CutStage;
use super::kept::Age;
use super::notes::LastNotes;

/// How far a rate's version may be ahead of what this server has seen. Versions are global steps or count changes, so a
/// server that is told of one is never far behind; a version from nowhere would keep all later rates out.
const RATE_LEAD: u64 = 1 << 16;

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
    /// Refuse it: its numbers do not follow from what this server has said, in these words.
    Refused(String),
}

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
    /// Whether the rate of a push is divided by its staleness.
    scales_by_staleness: bool,
    ledger: Ledger,
    notes: LastNotes,
    /// The rate of the last update, which workers are told.
    learning_rate: LearningRate,
    /// The newest that a worker has announced. A round has one rate, so this becomes the other when a round ends: what
    /// workers know of the rate after a round does not depend on who is how far in the next.
    announced: LearningRate,
    statistics: ShardStatistics,
    /// True while the update of a round that is complete is applied.
    applying: bool,
    cut: CutStage,
    /// For how long at the most the last checkpoint has held up a push.
    longest_held_up: Duration,
}

impl Gate {
    pub(super) fn new(run: &RunSpec, workers: &[WorkerId]) -> Self {
        Self {
            closed: false,
            begun: false,
            consistency: Consistency::new(run.mode, workers, run.steps),
            scales_by_staleness: run.staleness_scaling,
            ledger: Ledger::default(),
            notes: LastNotes::default(),
            learning_rate: LearningRate::initial(run.learning_rate),
            announced: LearningRate::initial(run.learning_rate),
            statistics: ShardStatistics::default(),
            applying: false,
            cut: CutStage::default(),
            longest_held_up: Duration::ZERO,
        }
    }

    /// Goes on from where a checkpoint was taken.
    pub(super) fn resume_at(&mut self, version: u64, learning_rate: LearningRate) {
        self.consistency.resume_at(version);
        self.statistics.resumed_at = version;
        (self.learning_rate, self.announced) = (learning_rate, learning_rate);
    }

    /// Which pushes are in the parameters.
    fn pushes(&self) -> Pushes {
        let mut pushes = self.ledger.decided();
        self.consistency.without_open_round(&mut pushes);
        pushes
    }

    /// How far the workers are in the parameters of now.
    fn standing(&self) -> Standing {
        let pushes = self.pushes();
        Standing { notes: self.notes.of(&pushes), pushes }
    }

    pub(super) fn admit(&mut self, request: &Request, note: String) -> Verdict {
        let push = push_id(request);
        if let Some(words) = self.contradiction(request) {
            return Verdict::Refused(words);
        }
        let fate = match self.ledger.enter(push) {
            Entry::Fenced => return Verdict::Fenced,
            Entry::OutOfOrder { expected } => {
                return Verdict::Refused(format!("push {} came where {expected} was expected", push.sequence));
            }
            Entry::New => {
                self.keep_note(push, note);
                self.keep_rate(request);
                Fate::Pending
            }
            Entry::Again(fate) => fate,
        };
        self.begun = true;
        self.announced.adopt(request.learning_rate);
        if !self.has_rounds() {
            self.learning_rate = self.announced;
        }
        match fate {
            Fate::Taken { .. } if self.consistency.has_rounds() => return Verdict::Skip(AnswerKind::Values),
            // A push that was cut off goes on where it stopped, as the same step.
            Fate::Taken { step } => return Verdict::Apply(self.push_update(step, request)),
            Fate::Pending | Fate::Dropped => {}
        }
        let version = self.consistency.version();
        match self.consistency.admit(request.worker, request.base) {
            Admission::Apply { step } => {
                self.ledger.settle(push, Fate::Taken { step });
                self.statistics.staleness += version.saturating_sub(request.base);
                self.statistics.pushes += 1;
                self.count_step();
                Verdict::Apply(self.push_update(step, request))
            }
            Admission::Collect => Verdict::Collect,
            Admission::Stale => {
                self.drop_push(push);
                Verdict::Skip(AnswerKind::Stale)
            }
            Admission::Over => Verdict::Skip(AnswerKind::Over),
        }
    }

    /// What a push of the living process says that cannot be so.
    fn contradiction(&self, request: &Request) -> Option<String> {
        if !self.is_living(request) {
            return None;
        }
        let (version, base) = (self.version(), request.base);
        if base > version {
            return Some(format!("a push computed from version {base} where the newest is {version}"));
        }
        let newest = self.announced.version.max(version).saturating_add(RATE_LEAD);
        let rate = request.learning_rate.version;
        (rate > newest).then(|| format!("a learning rate of version {rate}, far beyond any step"))
    }

    /// Why the first values are not taken from a request, if they are not.
    pub(super) fn refuses_first_values(&self, request: &Request) -> Option<AnswerKind> {
        if self.ledger.is_fenced(request.worker, request.incarnation) {
            Some(AnswerKind::Fenced)
        } else {
            self.begun.then_some(AnswerKind::Refused)
        }
    }

    /// Refuses every process up to this one that is not announced.
    pub(super) fn fence_up_to(&mut self, latest: Incarnation) {
        self.ledger.fence_up_to(latest);
    }

    /// Refuses the processes before this one from now on, and says how far the workers are.
    pub(super) fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.fence(worker, incarnation);
        standing
    }

    /// For whoever asks first for this piece of a push, and has it to apply: on which side of a cut.
    pub(super) fn claim(&mut self, request: &Request, piece: usize) -> Option<Age> {
        self.ledger.claim(push_id(request), piece).then(|| self.age(request))
    }

    /// Notes that the last piece of a push has been applied, if it was not before.
    pub(super) fn applied(&mut self, request: &Request, pieces: usize) {
        if self.claim(request, pieces).is_some() {
            self.ledger.complete(push_id(request));
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
                let complete = self.consistency.applied(request.worker);
                Arrival::Counted { complete: self.completes(complete) }
            }
        }
    }

    /// What is known of the process that sends a request.
    pub(super) fn acquaintance(&self, request: &Request) -> Acquaintance {
        self.ledger.acquaintance(request.worker, request.incarnation)
    }

    /// True if this process plays its worker, as far as is known here yet.
    pub(super) fn is_living(&self, request: &Request) -> bool {
        self.ledger.is_living(request.worker, request.incarnation)
    }

    /// True if another process plays the worker now.
    pub(super) fn is_replaced(&self, request: &Request) -> bool {
        self.ledger.is_replaced(request.worker, request.incarnation)
    }

    /// Lets a worker go that asks for a later version than there is. True if that completes a round. The word of another
    /// process than the living one does not count: after a server was restored, it may ask for what it has seen before.
    pub(super) fn skip_to(&mut self, request: &Request) -> bool {
        let complete = self.is_living(request) && self.consistency.skip_to(request.worker, request.base);
        self.completes(complete)
    }

    /// Refuses a process that has left from now on, and says how far the workers are.
    pub(super) fn retire(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.retire(worker, incarnation);
        standing
    }

    /// Notes that a process of a worker has left. True if that completes a round.
    pub(super) fn leave(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        let complete = self.ledger.retire(worker, incarnation) && self.consistency.leave(worker);
        self.completes(complete)
    }

    /// Notes that the caller goes on to apply a round, if it is complete.
    fn completes(&mut self, complete: bool) -> bool {
        self.applying |= complete;
        complete
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
        self.applying = false;
        self.learning_rate = self.announced;
        self.count_step();
        self.cut_after_round();
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

    /// The update that one push makes. What it was computed from is as old as there are updates in between; that does
    /// not change when a push that was cut off goes on later.
    fn push_update(&self, step: u64, request: &Request) -> Update {
        let update = self.update(step, 1.0);
        if !self.scales_by_staleness {
            return update;
        }
        let staleness = (step - 1).saturating_sub(request.base);
        Update { learning_rate: staleness_scaled(update.learning_rate, staleness), ..update }
    }

    fn update(&self, step: u64, scale: f32) -> Update {
        Update { learning_rate: self.announced.rate, step, scale }
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
