//! The life of a run, as the coordinator decides it: gather, prepare, initialise, train, finish, end.
//!
//! A pure state machine. Every event returns the effects that the coordinator has to carry out; it sends no
//! messages itself and has no clock.

mod outcome;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::cluster::{Job, ServerId, TaskId, WorkerId};
use crate::fault::{self, Fault};
use crate::ledger::Incarnation;
use crate::membership::{Membership, Occupied, Patience, Presence};
pub use outcome::{NOT_SAVED, Outcome, exit_code};

/// Where a run stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for tasks to arrive: at the start, and again when a server was lost.
    Gathering,
    /// Servers allocate their shards, or restore them.
    Preparing,
    /// The chief pushes the first values.
    Initialising,
    /// Workers train.
    Training,
    /// Nobody trains; the chief evaluates and writes the summary.
    Finishing,
    /// A last checkpoint is written, and then the run is over.
    Saving(Outcome),
    /// Every process ends.
    Over(Outcome),
}

/// What the coordinator has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Tell every server to allocate its shard, or to restore it.
    Prepare,
    /// Ask every worker to come in again, for a server was lost: whoever is named is waited for.
    Regather(String),
    /// Write a last checkpoint.
    Save,
    /// Tell this worker to push the first values.
    Initialise(WorkerId),
    /// Tell this worker to train.
    Start(WorkerId),
    /// Tell the servers that this process plays the worker now.
    Joined(WorkerId, Incarnation),
    /// Tell everyone that this process of a worker has left, and why if it did not finish.
    Left(WorkerId, Incarnation, String),
    /// Tell a server that came in the middle of a run that it holds nothing.
    PrepareIdle(TaskId),
    /// Forget a server that held nothing and is gone, for this reason.
    IdleLeft(TaskId, String),
    /// Tell the workers that nobody trains any more.
    AllFinished,
    /// Tell everyone to end.
    Over(Outcome),
}

/// Why a task was not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another process plays that task.
    #[error("{0} is already running: two processes were started with the same --task_index")]
    Taken(TaskId),
    /// Another process plays that task, or did until a moment ago: ask again.
    #[error("another process already runs as {0}; waiting to see whether it is still alive")]
    Contested(TaskId),
    /// The task is not in the cluster.
    #[error("{0} is not in the cluster that ps 0 was started with ({1})")]
    Unknown(TaskId, String),
    /// The run has ended, or is about to.
    #[error("the run has ended")]
    Over(Outcome),
}

/// What a worker is told that comes when all steps have been made.
const NOTHING_LEFT: &str = "all steps have been made, and the run is ending";

/// How long the others wait for a worker that was told to stop before they train without it. When all are told to stop
/// one after another, this leaves no update that only some of them had a part in.
const FAREWELL: Duration = Duration::from_millis(300);

/// What a run needs to know of its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecycleConfig {
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are; `None` if nobody knows, and whoever comes is welcome.
    pub workers: Option<u32>,
    /// When a silent task counts as dead.
    pub patience: Patience,
    /// How long tasks that are needed are waited for.
    pub peer_timeout: Duration,
    /// True if there are checkpoints: a lost server is waited for, and the parameters are saved at the end.
    pub checkpoints: bool,
    /// Incarnations are later than this one.
    pub before: Incarnation,
}

/// The life of one run.
#[derive(Debug)]
pub struct Lifecycle {
    config: LifecycleConfig,
    tasks: BTreeSet<TaskId>,
    /// Servers that hold nothing.
    idle: BTreeSet<TaskId>,
    membership: Membership,
    phase: Phase,
    ready: BTreeSet<TaskId>,
    chief: WorkerId,
    left: BTreeMap<WorkerId, String>,
    /// Workers that were told to stop, and since when; the others still train with them.
    leaving: BTreeMap<WorkerId, Duration>,
    /// Whom the run waits for, since when without any progress of theirs, and in which phase.
    awaited_since: BTreeMap<TaskId, Duration>,
    awaited_in: std::mem::Discriminant<Phase>,
    /// Since when only workers are missing from a gathering.
    servers_here_since: Option<Duration>,
    /// True if the run had begun before this gathering, so that workers may be missing for good.
    again: bool,
    /// True if the run had come to its end before this coordinator.
    finished_before: bool,
}

impl Lifecycle {
    /// A run whose tasks have not come yet. If it is not known how many workers there are, it begins with worker 0 and
    /// those who have come before it.
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
            awaited_since: BTreeMap::new(),
            awaited_in: std::mem::discriminant(&Phase::Gathering),
            servers_here_since: None,
            again: false,
            finished_before: false,
        }
    }

    /// Notes that a task comes from a run that had begun: this coordinator is a second one.
    pub fn begun_before(&mut self) -> Vec<Effect> {
        self.again |= self.phase == Phase::Gathering;
        self.prepare_if_all_are_here()
    }

    /// Says which servers take part in the run, once that is known. A run begins when all servers have come, so that all
    /// hear of its end; from then on it neither waits for the others nor loses anything with them.
    pub fn set_active_servers(&mut self, active: &BTreeSet<ServerId>) -> Vec<Effect> {
        let holds_nothing = |task: &TaskId| task.job == Job::Ps && !active.contains(&ServerId(task.index));
        self.idle = self.tasks.iter().copied().filter(holds_nothing).collect();
        self.prepare_if_all_are_here()
    }

    fn prepare_if_all_are_here(&mut self) -> Vec<Effect> {
        let all_here = self.phase == Phase::Gathering && self.missing().is_empty();
        if all_here { self.prepare() } else { Vec::new() }
    }

    /// Notes that the run had come to its end when the coordinator before this one died: it goes on only if workers come.
    pub fn finished_before(&mut self) {
        self.finished_before = true;
    }

    /// Where the run stands.
    pub fn phase(&self) -> &Phase {
        &self.phase
    }

    /// The worker that initialises, evaluates and writes the summary.
    pub fn chief(&self) -> WorkerId {
        self.chief
    }

    /// The tasks that have not come yet.
    pub fn missing(&self) -> Vec<TaskId> {
        let is_needed = |task: &TaskId| !self.again || !self.idle.contains(task);
        let needed = self.tasks.iter().copied().filter(is_needed);
        needed.filter(|task| !self.membership.is_present(*task)).collect()
    }

    /// The servers that take part.
    fn active_servers(&self) -> impl Iterator<Item = TaskId> {
        self.tasks.iter().copied().filter(|task| task.job == Job::Ps && !self.idle.contains(task))
    }

    /// Incarnations that this coordinator gives are later than this.
    pub fn before(&self) -> Incarnation {
        self.config.before
    }

    /// The latest incarnation that any process has been given. Whoever has an earlier one and does not play a task is
    /// dead to the run.
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

    /// True if this process plays the task, as far as is known.
    pub fn is_played_by(&self, task: TaskId, incarnation: Incarnation) -> bool {
        self.membership.is_present(task) && self.membership.incarnation(task) == Some(incarnation)
    }

    /// The process that plays a task, or last did.
    pub fn incarnation(&self, task: TaskId) -> Option<Incarnation> {
        self.membership.incarnation(task)
    }

    /// A process offers to play a task, perhaps again after a broken connection.
    pub fn join(
        &mut self,
        task: TaskId,
        earlier: Option<Incarnation>,
        now: Duration,
    ) -> Result<(Incarnation, Vec<Effect>), JoinError> {
        if self.config.workers.is_none() && task.job == Job::Worker {
            self.tasks.insert(task);
        } else if !self.tasks.contains(&task) {
            return Err(JoinError::Unknown(task, self.describe_cluster()));
        }
        if let Some(incarnation) = earlier
            && self.membership.rejoin(task, incarnation, now)
        {
            return Ok((incarnation, Vec::new()));
        }
        match &self.phase {
            Phase::Over(outcome) => return Err(JoinError::Over(outcome.clone())),
            Phase::Saving(outcome) if task.job == Job::Worker => return Err(JoinError::Over(outcome.clone())),
            // The chief itself, started again before its process is known to be dead, still has to score.
            Phase::Finishing if task.job == Job::Worker && task != TaskId::from(self.chief) && !self.is_abandoned() => {
                // While the connection of the chief is broken, it is not known whether somebody else has to score.
                return Err(match self.membership.is_connected(TaskId::from(self.chief)) {
                    true => JoinError::Over(Outcome { exit_code: 0, reason: NOTHING_LEFT.to_owned() }),
                    false => JoinError::Contested(TaskId::from(self.chief)),
                });
            }
            _ => {}
        }
        let incarnation = self.membership.join(task, now).map_err(|occupied| match occupied {
            Occupied::Alive => JoinError::Taken(task),
            Occupied::Unsure => JoinError::Contested(task),
        })?;
        if self.phase == Phase::Gathering && self.missing().iter().all(|task| task.job == Job::Worker) {
            self.servers_here_since.get_or_insert(now);
        }
        let mut effects = Vec::new();
        if task.job == Job::Worker {
            self.finished_before = false;
            self.left.remove(&WorkerId(task.index));
            self.leaving.remove(&WorkerId(task.index));
            effects.push(Effect::Joined(WorkerId(task.index), incarnation));
            if self.phase != Phase::Gathering && !self.membership.is_present(TaskId::from(self.chief)) {
                self.chief = WorkerId(task.index);
            }
        }
        match self.phase {
            Phase::Gathering if self.missing().is_empty() => effects.extend(self.prepare()),
            Phase::Initialising if task == TaskId::from(self.chief) => effects.push(Effect::Initialise(self.chief)),
            Phase::Training if task.job == Job::Worker => effects.push(Effect::Start(WorkerId(task.index))),
            // Nobody was left to score the network. This one finds that there is nothing to train, and does.
            Phase::Finishing if task.job == Job::Worker => {
                self.phase = Phase::Training;
                effects.push(Effect::Start(WorkerId(task.index)));
            }
            Phase::Gathering => {}
            _ if self.idle.contains(&task) => effects.push(Effect::PrepareIdle(task)),
            _ if task.job == Job::Ps => {
                let reason = format!("{task} was restarted and has lost its parameters");
                effects.extend(self.server_lost(reason));
            }
            _ => {}
        }
        Ok((incarnation, effects))
    }

    /// The servers are to prepare for those who are here. If the chief is not, another is named.
    fn prepare(&mut self) -> Vec<Effect> {
        let present = self.present_workers();
        if !present.contains(&self.chief) && !fault::is_back(Fault::ChiefLostWithServer) {
            self.chief = present.first().copied().unwrap_or(self.chief);
        }
        self.phase = Phase::Preparing;
        self.ready.clear();
        vec![Effect::Prepare]
    }

    /// Without one server's parameters the others' are of no use: all go back to the last checkpoint, once it is
    /// there again.
    fn server_lost(&mut self, reason: String) -> Vec<Effect> {
        match &self.phase {
            Phase::Over(_) => return Vec::new(),
            Phase::Saving(_) => return self.not_saved(&reason),
            _ => {}
        }
        if !self.config.checkpoints {
            return self.end_at_once(Outcome { exit_code: exit_code::PEERS, reason });
        }
        (self.phase, self.again, self.finished_before) = (Phase::Gathering, true, false);
        self.awaited_since.clear();
        self.servers_here_since = None;
        self.left.clear();
        self.leaving.clear();
        for worker in self.workers() {
            self.membership.dismiss(worker.into());
        }
        vec![Effect::Regather(reason)]
    }

    /// Notes a sign of life.
    pub fn heard(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        self.membership.heard(task, incarnation, now);
    }

    /// Notes that a task's connection broke.
    pub fn disconnected(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        self.membership.disconnected(task, incarnation, now);
    }

    /// A server has its shard: new, or with the values of a checkpoint.
    pub fn server_ready(&mut self, server: TaskId, restored: bool) -> Vec<Effect> {
        self.ready.insert(server);
        let all = self.active_servers().all(|task| self.ready.contains(&task));
        if self.phase != Phase::Preparing || !all {
            return Vec::new();
        }
        self.phase = Phase::Initialising;
        if restored {
            return self.initialised();
        }
        vec![Effect::Initialise(self.chief)]
    }

    /// The chief has pushed the first values.
    pub fn initialised(&mut self) -> Vec<Effect> {
        if self.phase != Phase::Initialising {
            return Vec::new();
        }
        self.phase = Phase::Training;
        self.present_workers().into_iter().map(Effect::Start).collect()
    }

    /// A worker has done its share of the training; it stays for the end.
    pub fn worker_finished(&mut self, worker: WorkerId) -> Vec<Effect> {
        if !matches!(self.phase, Phase::Training | Phase::Finishing) {
            return Vec::new();
        }
        let incarnation = self.membership.incarnation(TaskId::from(worker)).unwrap_or_default();
        let mut effects = self.part_with_leavers(Duration::MAX);
        self.left.insert(worker, String::new());
        effects.push(Effect::Left(worker, incarnation, String::new()));
        effects.extend(self.finish_if_nobody_trains());
        effects
    }

    /// The chief has scored the network and summed the run up, and nothing is left to do.
    pub fn concluded(&mut self, worker: WorkerId) -> Vec<Effect> {
        let last = self.phase == Phase::Finishing && worker == self.chief;
        if last { self.end(Outcome::done()) } else { Vec::new() }
    }

    /// A task leaves because it was told to stop. The others go on without a worker, but not without a server.
    pub fn goodbye(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) -> Vec<Effect> {
        if !self.membership.finished(task, incarnation) {
            return Vec::new();
        }
        let others = match self.phase {
            Phase::Saving(_) => true,
            // After a server was lost, they may be about to come in again.
            Phase::Gathering if self.again => self.workers().len() > 1,
            _ => !self.present_workers().is_empty(),
        };
        if task.job == Job::Worker {
            // Even the last of them: the checkpoint waits for a push of which only a part has come, but not for ever.
            self.leaving.insert(WorkerId(task.index), now);
            if others {
                return Vec::new();
            }
        }
        let reason = format!("{task} was told to stop");
        if self.idle.contains(&task) && (self.again || self.phase != Phase::Gathering) {
            return vec![Effect::IdleLeft(task, reason)];
        }
        self.end(Outcome { exit_code: exit_code::TERMINATED, reason })
    }

    /// The others train without those who were told to stop a while ago.
    fn part_with_leavers(&mut self, now: Duration) -> Vec<Effect> {
        // By then the cut of a last checkpoint is made, and no round that one of them is missing from is before it.
        let patience = if matches!(self.phase, Phase::Saving(_)) { 3 * FAREWELL } else { FAREWELL };
        let parted = |_: &WorkerId, since: &mut Duration| now.saturating_sub(*since) >= patience;
        let parted: Vec<WorkerId> = self.leaving.extract_if(.., parted).map(|(worker, _)| worker).collect();
        let mut effects = Vec::new();
        for worker in parted {
            effects.extend(self.worker_left(worker, "told to stop".to_owned()));
            effects.extend(self.go_on_without(worker));
        }
        effects
    }

    /// A task failed in a way that ends the run.
    pub fn failed(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.end(outcome)
    }

    /// Another coordinator has taken over the run: it ends here, and nothing of it can be saved any more.
    pub fn overtaken(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.end_at_once(outcome)
    }

    /// The last checkpoint is written.
    pub fn saved(&mut self) -> Vec<Effect> {
        match &self.phase {
            Phase::Saving(outcome) => {
                let outcome = outcome.clone();
                self.end_at_once(outcome)
            }
            _ => Vec::new(),
        }
    }

    /// The last checkpoint could not be written, for this reason. Whatever the run has come to, that is no success, and
    /// not what whoever told it to stop expects.
    pub fn not_saved(&mut self, reason: &str) -> Vec<Effect> {
        let Phase::Saving(Outcome { exit_code, reason: ended }) = &self.phase else { return Vec::new() };
        let not_saved = format!("{NOT_SAVED}: {reason}");
        let exit_code = match *exit_code {
            0 | exit_code::TERMINATED => exit_code::CHECKPOINT,
            other => other,
        };
        let reason = if ended.is_empty() { not_saved } else { format!("{ended}, and {not_saved}") };
        self.end_at_once(Outcome { exit_code, reason })
    }

    /// Lets time pass: declares the silent dead, and gives up on those who do not come.
    pub fn tick(&mut self, now: Duration) -> Vec<Effect> {
        let mut effects = self.part_with_leavers(now);
        for (task, reason) in self.membership.expire(now) {
            effects.extend(match task.job {
                Job::Ps if self.phase == Phase::Gathering => Vec::new(),
                Job::Ps if matches!(self.phase, Phase::Over(_)) => Vec::new(),
                Job::Ps if self.idle.contains(&task) => vec![Effect::IdleLeft(task, reason)],
                Job::Ps => self.server_lost(format!("lost {task}: {reason}")),
                Job::Worker => {
                    let worker = WorkerId(task.index);
                    let mut effects = self.worker_left(worker, reason);
                    effects.extend(self.go_on_without(worker));
                    effects
                }
            });
        }
        effects.extend(self.wait_for_tasks(now));
        effects
    }

    fn worker_left(&mut self, worker: WorkerId, reason: String) -> Vec<Effect> {
        // Told even while the last checkpoint is written: that waits for a push that has come in part, of a worker that
        // has left the rest unsaid.
        if matches!(self.phase, Phase::Over(_) | Phase::Gathering) {
            return Vec::new();
        }
        let incarnation = self.membership.incarnation(TaskId::from(worker)).unwrap_or_default();
        let was_training = self.left.insert(worker, reason.clone()).is_none();
        if was_training { vec![Effect::Left(worker, incarnation, reason)] } else { Vec::new() }
    }

    fn go_on_without(&mut self, worker: WorkerId) -> Vec<Effect> {
        if matches!(self.phase, Phase::Saving(_) | Phase::Over(_) | Phase::Gathering) {
            return Vec::new();
        }
        let mut effects = Vec::new();
        if worker == self.chief {
            effects.extend(self.name_another_chief());
        }
        effects.extend(self.finish_if_nobody_trains());
        effects
    }

    /// Worker 0 is chief while it lives; then the lowest of the living takes over, and keeps it.
    fn name_another_chief(&mut self) -> Vec<Effect> {
        let Some(next) = self.present_workers().first().copied() else {
            // With parameters that can outlive them, workers are waited for as servers are.
            if self.config.checkpoints {
                if self.phase == Phase::Preparing {
                    self.phase = Phase::Gathering;
                }
                return Vec::new();
            }
            let reason = "no workers are left".to_owned();
            return self.end(Outcome { exit_code: exit_code::PEERS, reason });
        };
        self.chief = next;
        match self.phase {
            Phase::Initialising => vec![Effect::Initialise(next)],
            Phase::Finishing => vec![Effect::AllFinished],
            _ => Vec::new(),
        }
    }

    fn finish_if_nobody_trains(&mut self) -> Vec<Effect> {
        let present = self.present_workers();
        let training = present.iter().any(|worker| !self.left.contains_key(worker));
        if self.phase != Phase::Training || training || present.is_empty() {
            return Vec::new();
        }
        self.phase = Phase::Finishing;
        vec![Effect::AllFinished]
    }

    /// Ends the run, after a last checkpoint if there are parameters worth one.
    fn end(&mut self, outcome: Outcome) -> Vec<Effect> {
        let trained = matches!(self.phase, Phase::Training | Phase::Finishing);
        let sound = outcome.exit_code != exit_code::NUMERIC;
        let reachable = self.active_servers().all(|task| self.membership.presence(task) != Some(Presence::Dead));
        if self.config.checkpoints && trained && sound && reachable {
            self.phase = Phase::Saving(outcome);
            return vec![Effect::Save];
        }
        if matches!(self.phase, Phase::Saving(_)) { Vec::new() } else { self.end_at_once(outcome) }
    }

    fn end_at_once(&mut self, outcome: Outcome) -> Vec<Effect> {
        if matches!(self.phase, Phase::Over(_)) {
            return Vec::new();
        }
        self.phase = Phase::Over(outcome.clone());
        vec![Effect::Over(outcome)]
    }

    /// The workers whose processes are alive, as far as is known.
    pub fn present_workers(&self) -> Vec<WorkerId> {
        self.workers()
            .into_iter()
            .filter(|worker| self.membership.presence(TaskId::from(*worker)) == Some(Presence::Present))
            .collect()
    }

    fn describe_cluster(&self) -> String {
        let count = |job| self.tasks.iter().filter(|task| task.job == job).count();
        format!("{} ps, {} workers", count(Job::Ps), count(Job::Worker))
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
