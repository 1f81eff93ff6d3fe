//! What may be done with a request on one shard: the consistency model, the ledger, the learning rate, the cut of a
//! checkpoint, and counts for the summary, behind one [`Gate`].
//!
//! A pure state machine. It has no clock and no lock, holds no values and waits for nobody: the shard keeps it behind a
//! small lock, asks it, and does what it says.

mod copy_on_cut;
mod cutting;
mod notes;

use std::time::Duration;

use crate::checkpoint::{Pushes, Standing};
use crate::cluster::WorkerId;
use crate::consistency::{Admission, Consistency};
use crate::ledger::{Acquaintance, Entry, Fate, Incarnation, Ledger, PushId};
use crate::optimizer::Update;
use crate::run::{LearningRate, RunSpec, staleness_scaled};
pub use copy_on_cut::{CopyOnCut, CutSide};
pub use cutting::CutError;
use cutting::CutStage;
use notes::LastNotes;

/// How far a rate's version may be ahead of what this server has seen. Versions are global steps or count changes, so a
/// server that is told of one is never far behind; a version from nowhere would keep all later rates out.
const RATE_LEAD: u64 = 1 << 16;

/// What a worker asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// To set the values, before training.
    Initialise,
    /// To read the values.
    Pull,
    /// To apply a gradient and read the values.
    Push,
}

/// What decisions about a request depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// What is asked.
    pub kind: RequestKind,
    /// Who asks, and the number of the push.
    pub push: PushId,
    /// In a push, the version of the parameters it was computed from; in a pull, the lowest version that is of use.
    pub base: u64,
    /// The newest learning rate that the worker knows.
    pub learning_rate: LearningRate,
}

/// Why a push is read and not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// It has been counted before.
    Counted,
    /// It was computed from parameters that a round has replaced.
    Stale,
    /// The run has had its last step.
    Over,
}

/// Why first values are not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLate {
    /// Their process was declared dead or replaced.
    Fenced,
    /// Training has begun.
    Begun,
}

/// What is to be done with a push.
#[derive(Debug)]
pub enum Verdict {
    /// Apply it as it arrives, those pieces of it that can be claimed.
    Apply(Update),
    /// Keep it for the round.
    Collect,
    /// Read it, do nothing, and answer so.
    Skip(Skip),
    /// Refuse it: the process was declared dead.
    Fenced,
    /// Refuse it: its numbers do not follow from what this server has said, in these words.
    Refused(String),
}

/// What is to be done with a request whose sender waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Answer it now.
    Answer,
    /// Let go of it: the run has ended, or goes back to a checkpoint.
    Closed,
    /// Refuse it: another process plays the worker now.
    Fenced,
    /// Take its worker out of the open round with [`Gate::skip_to`], and ask again.
    SkipRound,
    /// Ask again when something has changed. It waits for these.
    Wait(Vec<WorkerId>),
}

/// Counts and times of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardStatistics {
    /// Updates applied, those before a checkpoint that was restored included.
    pub steps: u64,
    /// Updates that were in that checkpoint.
    pub resumed_at: u64,
    /// Pushes dropped as stale.
    pub dropped: u64,
    /// When the first update was applied.
    pub first_step: Option<Duration>,
    /// When the last update was applied.
    pub last_step: Option<Duration>,
    /// Over all pushes, how many updates there had been since their parameters were read.
    pub staleness: u64,
    /// Pushes that were applied or counted in a round.
    pub pushes: u64,
}

/// What became of a gradient that has wholly arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is to be added to the round, and perhaps completes it.
    Counted {
        /// True if the round is now to be applied.
        complete: bool,
    },
    /// The same push has been counted, having come twice.
    Again,
    /// The round went by while it was on its way.
    Late,
    /// Its process was declared dead or replaced, or has gone on without waiting for it.
    Fenced,
}

/// The decisions about requests on one shard.
#[derive(Debug)]
pub struct Gate {
    closed: bool,
    /// True once a push has been let in.
    begun: bool,
    consistency: Consistency,
    /// The run's last step, if it ends by steps.
    limit: Option<u64>,
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
    /// A gate in front of parameters that nobody has pushed to.
    pub fn new(run: &RunSpec, workers: &[WorkerId]) -> Self {
        Self {
            closed: false,
            begun: false,
            consistency: Consistency::new(run.mode, workers, run.steps),
            limit: run.steps,
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
    pub fn resume_at(&mut self, version: u64, learning_rate: LearningRate) {
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

    /// Decides about a push that begins to arrive, with its note.
    pub fn admit(&mut self, request: &Request, note: String, now: Duration) -> Verdict {
        let push = request.push;
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
            Fate::Taken { .. } if self.consistency.has_rounds() => return Verdict::Skip(Skip::Counted),
            // A push that was cut off goes on where it stopped, as the same step.
            Fate::Taken { step } => return Verdict::Apply(self.push_update(step, request)),
            Fate::Pending | Fate::Dropped => {}
        }
        let version = self.consistency.version();
        match self.consistency.admit(request.push.worker, request.base) {
            Admission::Apply { step } => {
                self.ledger.settle(push, Fate::Taken { step });
                self.statistics.staleness += version.saturating_sub(request.base);
                self.statistics.pushes += 1;
                self.count_step(now);
                Verdict::Apply(self.push_update(step, request))
            }
            Admission::Collect => Verdict::Collect,
            Admission::Stale => {
                self.drop_push(push);
                Verdict::Skip(Skip::Stale)
            }
            Admission::Over => Verdict::Skip(Skip::Over),
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
    pub fn refuses_first_values(&self, request: &Request) -> Option<TooLate> {
        if self.ledger.is_fenced(request.push.worker, request.push.incarnation) {
            Some(TooLate::Fenced)
        } else {
            self.begun.then_some(TooLate::Begun)
        }
    }

    /// Refuses every process up to this one that is not announced.
    pub fn fence_up_to(&mut self, latest: Incarnation) {
        self.ledger.fence_up_to(latest);
    }

    /// Refuses the processes before this one from now on, and says how far the workers are.
    pub fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.fence(worker, incarnation);
        standing
    }

    /// As [`Gate::fence`], for a worker that joins in the middle of a run, at this clock.
    pub fn join(&mut self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Standing {
        // On the first server it is announced twice: at once, and with the word to all servers.
        let is_new = !self.ledger.is_living(worker, incarnation);
        let standing = self.fence(worker, incarnation);
        if is_new {
            self.consistency.join(worker, clock);
        }
        standing
    }

    /// The clock at which a worker that joins now is to start, on all servers.
    pub fn clock(&self) -> u64 {
        self.consistency.clock()
    }

    /// For whoever asks first for this piece of a push, and has it to apply: on which side of a cut.
    pub fn claim(&mut self, request: &Request, piece: usize) -> Option<CutSide> {
        self.ledger.claim(request.push, piece).then(|| self.side(request))
    }

    /// Notes that the last piece of a push has been applied, if it was not before.
    pub fn applied(&mut self, request: &Request, pieces: usize) {
        if self.claim(request, pieces).is_some() {
            self.ledger.complete(request.push);
            self.consistency.applied(request.push.worker);
        }
    }

    /// Notes a gradient for a round that has wholly arrived.
    pub fn arrived(&mut self, request: &Request) -> Arrival {
        let push = request.push;
        match (self.ledger.fate(push), &self.consistency) {
            (None, _) => Arrival::Fenced,
            (Some(Fate::Taken { .. }), _) => Arrival::Again,
            (_, Consistency::Sync(round)) if !round.takes(request.push.worker, request.base) => {
                self.drop_push(push);
                Arrival::Late
            }
            _ => {
                self.ledger.settle(push, Fate::Taken { step: self.consistency.version() + 1 });
                self.statistics.pushes += 1;
                let complete = self.consistency.applied(request.push.worker);
                Arrival::Counted { complete: self.completes(complete) }
            }
        }
    }

    /// What is known of the process that sends a request.
    pub fn acquaintance(&self, request: &Request) -> Acquaintance {
        self.ledger.acquaintance(request.push.worker, request.push.incarnation)
    }

    /// True if this process plays its worker, as far as is known here yet.
    pub fn is_living(&self, request: &Request) -> bool {
        self.ledger.is_living(request.push.worker, request.push.incarnation)
    }

    /// True if another process plays the worker now.
    pub fn is_replaced(&self, request: &Request) -> bool {
        self.ledger.is_replaced(request.push.worker, request.push.incarnation)
    }

    /// Lets a worker go that asks for a later version than there is. True if that completes a round. The word of another
    /// process than the living one does not count: after a server was restored, it may ask for what it has seen before.
    pub fn skip_to(&mut self, request: &Request) -> bool {
        let complete = self.is_living(request) && self.consistency.skip_to(request.push.worker, request.base);
        self.completes(complete)
    }

    /// Refuses a process that has left from now on, and says how far the workers are.
    pub fn retire(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.retire(worker, incarnation);
        standing
    }

    /// Notes that a process of a worker has left. True if that completes a round.
    pub fn leave(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        let complete = self.ledger.retire(worker, incarnation) && self.consistency.leave(worker);
        self.completes(complete)
    }

    /// Notes that the caller goes on to apply a round, if it is complete.
    fn completes(&mut self, complete: bool) -> bool {
        self.applying |= complete;
        complete
    }

    /// Ends all waits.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// True once all waits have ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The update that so many gradients of a round make.
    pub fn round_update(&self, gradients: usize) -> Update {
        self.update(self.consistency.version() + 1, 1.0 / gradients as f32)
    }

    /// Opens the next round, after the update of the complete one has been applied.
    pub fn end_round(&mut self, now: Duration) {
        self.consistency.end_round();
        self.applying = false;
        self.learning_rate = self.announced;
        self.count_step(now);
        self.cut_after_round();
    }

    /// Whom the sender of a request has to wait for before it is answered; `None` if it may be answered now.
    fn waits_for(&self, request: &Request) -> Option<Vec<WorkerId>> {
        match request.kind {
            RequestKind::Push => self.consistency.waits_for(request.push.worker, request.base),
            _ => self.consistency.waits_for_version(request.base),
        }
    }

    /// What is to be done with a request whose sender waits. Whoever asks for a version that is to come takes no part in
    /// the rounds until then, once it is known to be the living process, unless that has been done (`may_skip`).
    pub fn turn(&self, request: &Request, may_skip: bool) -> Turn {
        match self.waits_for(request) {
            None => Turn::Answer,
            Some(_) if self.closed => Turn::Closed,
            Some(_) if request.kind == RequestKind::Pull && self.is_replaced(request) => Turn::Fenced,
            Some(_) if may_skip && self.is_living(request) => Turn::SkipRound,
            Some(missing) => Turn::Wait(missing),
        }
    }

    /// In words, whom a worker waits for.
    pub fn describe_wait(&self, missing: &[WorkerId]) -> String {
        const NAMED: usize = 8;
        let mut names: Vec<String> = missing.iter().take(NAMED).map(ToString::to_string).collect();
        if missing.len() > NAMED {
            names.push(format!("{} more", missing.len() - NAMED));
        }
        format!("{} in step {}", names.join(", "), self.consistency.version() + 1)
    }

    /// How many updates the parameters have had.
    pub fn version(&self) -> u64 {
        self.consistency.version()
    }

    /// True once the run's last update has been given.
    pub fn is_over(&self) -> bool {
        self.consistency.is_over()
    }

    /// True if updates are rounds.
    pub fn has_rounds(&self) -> bool {
        self.consistency.has_rounds()
    }

    /// The learning rate that workers are told.
    pub fn learning_rate(&self) -> LearningRate {
        self.learning_rate
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> ShardStatistics {
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

    fn count_step(&mut self, now: Duration) {
        self.statistics.first_step.get_or_insert(now);
        self.statistics.last_step = Some(now);
    }
}
