//! The life of a run, as decided by the coordinator: gather, prepare, initialise, train, finish, end.
//!
//! A pure state machine. Every event returns the decisions that the coordinator has to carry out; it sends no messages
//! itself and has no clock. `joining` admits tasks, `phases` moves from one phase to the next, `losses` decides how a
//! run continues without tasks that leave or die, `ending` how it ends, and `waiting` how long it waits.

mod ending;
mod joining;
mod losses;
mod outcome;
mod phases;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::{Job, TaskId, WorkerId};
use crate::fault::{self, Fault};
use crate::ledger::Incarnation;
use crate::membership::{Membership, Patience, Presence};
pub use joining::JoinError;
pub use outcome::{NOT_SAVED, Outcome, exit_code};

/// The current phase of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for tasks to arrive: at the start, and again after losing a server.
    Gathering,
    /// Servers allocate their shards, or restore them.
    Preparing,
    /// The chief pushes the first values.
    Initialising,
    /// Workers train.
    Training,
    /// No worker trains; the chief evaluates and writes the summary.
    Finishing,
    /// A last checkpoint is written, and then the run is over.
    Saving(Outcome),
    /// Every process ends.
    Over(Outcome),
}

/// An action that the coordinator has to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Tell every server to allocate its shard, or to restore it.
    Prepare,
    /// Ask every worker to rejoin because a server was lost, for this reason.
    Regather(String),
    /// Write a last checkpoint.
    Save,
    /// Tell this worker to push the first values.
    Initialise(WorkerId),
    /// Tell this worker to train.
    Start(WorkerId),
    /// Tell the servers that this process plays the worker now.
    Joined(WorkerId, Incarnation),
    /// Tell all tasks that this process of a worker has left, and why if it did not finish.
    Left(WorkerId, Incarnation, String),
    /// Tell a server that joined in the middle of a run that it holds nothing.
    PrepareIdle(TaskId),
    /// Forget a server that held nothing and was lost, for this reason.
    IdleLeft(TaskId, String),
    /// Tell the workers that all of them have finished training.
    AllFinished,
    /// Tell all tasks to end.
    Over(Outcome),
}

/// What a run needs to know about its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecycleConfig {
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are; `None` if the number is open and every worker is admitted.
    pub workers: Option<u32>,
    /// When a silent task is declared dead.
    pub patience: Patience,
    /// How long the run waits for tasks that it needs.
    pub peer_timeout: Duration,
    /// True if there are checkpoints: the run waits for a lost server, and the parameters are saved at the end.
    pub checkpoints: bool,
    /// The new incarnations are later than this one.
    pub before: Incarnation,
    /// True if the workers are really the client of joined workers, and are called that.
    pub has_client: bool,
}

/// The life of one run.
#[derive(Debug)]
pub struct Lifecycle {
    config: LifecycleConfig,
    tasks: BTreeSet<TaskId>,
    /// The servers that hold nothing.
    idle: BTreeSet<TaskId>,
    membership: Membership,
    phase: Phase,
    ready: BTreeSet<TaskId>,
    chief: WorkerId,
    left: BTreeMap<WorkerId, String>,
    /// Workers that have said goodbye, and since when; the others still wait for them.
    leaving: BTreeMap<WorkerId, Duration>,
    /// The reasons given by failed workers.
    failures: BTreeMap<WorkerId, String>,
    /// The tasks that the run waits for, with the time of their last progress.
    awaited_since: BTreeMap<TaskId, Duration>,
    awaited_in: std::mem::Discriminant<Phase>,
    /// Since when only workers are missing from a gathering.
    servers_here_since: Option<Duration>,
    /// True if the run had begun before this gathering, so that workers may be missing for good.
    again: bool,
    /// True if the run had ended under an earlier coordinator, and no worker has asked for more steps.
    finished_before: bool,
    /// True while the last checkpoint is being published: all its parts are written, and it needs no server.
    parts_are_written: bool,
    /// Why a server was lost during that time, in case it is needed after all.
    lost_meanwhile: Option<String>,
}

impl Lifecycle {
    /// A run whose tasks have not joined yet. If the number of workers is unknown, it begins with worker 0 and those
    /// that joined before it.
    pub fn new(config: LifecycleConfig) -> Self {
        let workers = config.workers.unwrap_or(1);
        let tasks = (0..config.servers).map(TaskId::ps).chain((0..workers).map(TaskId::worker)).collect();
        Self {
            config,
            tasks,
            idle: BTreeSet::new(),
            membership: Membership::new(config.patience, config.before),
            phase: Phase::Gathering,
            ready: BTreeSet::new(),
            chief: WorkerId(0),
            left: BTreeMap::new(),
            leaving: BTreeMap::new(),
            failures: BTreeMap::new(),
            awaited_since: BTreeMap::new(),
            awaited_in: std::mem::discriminant(&Phase::Gathering),
            servers_here_since: None,
            again: false,
            finished_before: false,
            parts_are_written: false,
            lost_meanwhile: None,
        }
    }

    /// The name of a task for users.
    pub fn named(&self, task: impl Into<TaskId>) -> TaskId {
        let task = task.into();
        if self.config.has_client && task.job == Job::Worker { TaskId::CLIENT } else { task }
    }

    /// The current phase.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The worker that initialises, evaluates and writes the summary.
    pub fn chief(&self) -> WorkerId {
        self.chief
    }

    /// The tasks that have not joined yet. If the number of workers is open, the run can begin once worker 0 has
    /// joined.
    pub fn missing(&self) -> Vec<TaskId> {
        let dynamic = self.config.workers.is_none() && !fault::is_back(Fault::EarlyWorkerAwaited);
        let is_needed = |task: &TaskId| match self.again {
            true => !self.idle.contains(task),
            false => !dynamic || task.job == Job::Ps || *task == TaskId::worker(0),
        };
        let needed = self.tasks.iter().copied().filter(is_needed);
        needed.filter(|task| !self.membership.is_present(*task)).collect()
    }

    /// The servers that take part.
    fn active_servers(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.iter().copied().filter(|task| task.job == Job::Ps && !self.idle.contains(task))
    }

    /// The incarnations that this coordinator assigns are later than this one.
    pub fn before(&self) -> Incarnation {
        self.config.before
    }

    /// The latest incarnation that any process has been given. A process with an earlier one that plays no task counts
    /// as dead.
    pub fn latest_incarnation(&self) -> Incarnation {
        self.membership.latest()
    }

    /// True if this process was declared dead, or dismissed.
    pub fn is_dead(&self, task: TaskId, incarnation: Incarnation) -> bool {
        let replaced = self.membership.incarnation(task).is_some_and(|playing| playing > incarnation);
        replaced || self.membership.presence(task) == Some(Presence::Dead)
    }

    /// Every worker of the cluster, as far as is known.
    pub fn workers(&self) -> Vec<WorkerId> {
        self.tasks.iter().filter(|task| task.job == Job::Worker).map(|task| WorkerId(task.index)).collect()
    }

    /// True if this process has said goodbye.
    pub fn has_left(&self, task: TaskId, incarnation: Incarnation) -> bool {
        self.membership.presence(task) == Some(Presence::Finished)
            && self.membership.incarnation(task) == Some(incarnation)
    }

    /// The process that plays a task, or last did.
    pub fn incarnation(&self, task: TaskId) -> Option<Incarnation> {
        self.membership.incarnation(task)
    }

    /// Records a sign of life.
    pub fn heard(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        self.membership.heard(task, incarnation, now);
    }

    /// Records that a task's connection broke.
    pub fn disconnected(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        self.membership.disconnected(task, incarnation, now);
    }

    /// Every task of the cluster, as far as is known.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.iter().copied()
    }

    /// The presence of the process that plays a task; `None` if none has joined yet.
    pub fn presence(&self, task: TaskId) -> Option<Presence> {
        self.membership.presence(task)
    }

    /// When a task last showed a sign of life.
    pub fn last_heard(&self, task: TaskId) -> Option<Duration> {
        self.membership.last_heard(task)
    }

    /// Since when the run has been waiting for a task without progress.
    pub fn awaited_since(&self, task: TaskId) -> Option<Duration> {
        self.awaited_since.get(&task).copied()
    }

    /// The workers whose processes are alive, as far as is known.
    pub fn present_workers(&self) -> Vec<WorkerId> {
        self.workers()
            .into_iter()
            .filter(|worker| self.membership.presence(TaskId::from(*worker)) == Some(Presence::Present))
            .collect()
    }
}

#[cfg(test)]
mod tests;
