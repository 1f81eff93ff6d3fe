//! Decides what may be done with a request on one shard: the consistency model, the ledger, the learning rate, the cut
//! of a checkpoint, and counts for the summary, behind one [`Gate`].
//!
//! A pure state machine. It has no clock and no lock, holds no values and never waits: the shard keeps it behind a
//! small lock, asks it, and does what it says. `processes` decides who may ask, `pushes` and `rounds` what counts,
//! `waiting` who has to wait, and `cutting` what a checkpoint contains.

mod copy_on_cut;
mod cutting;
mod notes;
mod processes;
mod pushes;
mod rounds;
mod waiting;

use std::time::Duration;

use crate::checkpoint::Pushes;
use crate::cluster::WorkerId;
use crate::consistency::Consistency;
use crate::ledger::{Ledger, PushId};
use crate::optimizer::Update;
use crate::run::{LearningRate, RunSpec};
pub use copy_on_cut::{CopyOnCut, CutSide};
pub use cutting::CutError;
use cutting::CutStage;
use notes::LastNotes;
pub use processes::TooLate;
pub use pushes::{Skip, Verdict};
pub use rounds::Contribution;
pub use waiting::Turn;

/// The operation that a worker requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// To set the values, before training.
    Initialise,
    /// To read the values.
    Pull,
    /// To apply a gradient and read the values.
    Push,
}

/// The properties of a request that decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// The requested operation.
    pub kind: RequestKind,
    /// The sender, and the number of the push.
    pub push: PushId,
    /// For a push, the version of the parameters it was computed from; for a pull, the lowest version that is of use.
    pub base: u64,
    /// The newest learning rate that the worker knows.
    pub learning_rate: LearningRate,
}

/// Counts and times of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardStatistics {
    /// Updates applied, including those before a restored checkpoint.
    pub steps: u64,
    /// Updates contained in the restored checkpoint.
    pub resumed_at: u64,
    /// Pushes dropped as stale.
    pub dropped: u64,
    /// When the first update was applied.
    pub first_step: Option<Duration>,
    /// When the last update was applied.
    pub last_step: Option<Duration>,
    /// The total staleness: over all pushes, how many updates there had been since their parameters were read.
    pub staleness: u64,
    /// Pushes that were applied or counted in a round.
    pub pushes: u64,
}

/// The decisions about requests on one shard.
#[derive(Debug)]
pub struct Gate {
    closed: bool,
    /// True once a push has been admitted.
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
    /// The newest rate that a worker has announced. A round has one rate, so this becomes `learning_rate` only when a
    /// round ends: what workers learn about the rate after a round does not depend on how far any of them is in the
    /// next.
    announced: LearningRate,
    statistics: ShardStatistics,
    /// True while the update of a complete round is being applied.
    applying: bool,
    cut: CutStage,
    /// The longest time that the last checkpoint has held up a push.
    longest_held_up: Duration,
}

impl Gate {
    /// A gate in front of parameters that have had no push yet.
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

    /// Resumes from the state of a checkpoint.
    pub fn resume_at(&mut self, version: u64, learning_rate: LearningRate) {
        self.consistency.resume_at(version);
        self.statistics.resumed_at = version;
        (self.learning_rate, self.announced) = (learning_rate, learning_rate);
    }

    /// The pushes that are in the parameters.
    fn pushes(&self) -> Pushes {
        let mut pushes = self.ledger.decided();
        self.consistency.without_open_round(&mut pushes);
        pushes
    }

    /// Ends all waits.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// True once all waits have ended.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// How many updates the parameters have had.
    pub fn version(&self) -> u64 {
        self.consistency.version()
    }

    /// True once the run's last update has been assigned.
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

    fn update(&self, step: u64, scale: f32) -> Update {
        Update { learning_rate: self.announced.rate, step, scale }
    }

    fn count_step(&mut self, now: Duration) {
        self.statistics.first_step.get_or_insert(now);
        self.statistics.last_step = Some(now);
    }
}
