//! The coordinator as a pure machine: what happens and when goes in, what is to be done comes out.
//!
//! `windlass_core::lifecycle` and `windlass_core::checkpoint` decide, and it tells the tasks. It touches no parameters,
//! no sockets and no store, reads no clock and starts nothing: that is for `actor`, or for a simulated cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest};
use windlass_core::admission::ShardStatistics;
use windlass_core::checkpoint::{Setback, SetbackKind, Standing};
use windlass_core::cluster::{Job, ServerId, TaskId, WorkerId};
use windlass_core::fault::{self, Fault};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{JoinError, Lifecycle, LifecycleConfig, Outcome, Phase, exit_code};
use windlass_core::membership::Patience;
use windlass_core::plan::ShardPlan;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::coordinator_message::Kind;
use windlass_wire::control::{
    Busy, CoordinatorMessage, Endpoint, Failure, Heartbeat, Hello, Memory, ModelFile, Over, Prepare, TaskMessage,
    Waiting, WorkerReport, task_message,
};

use super::checkpoints::{Beginning, Checkpoints};
use super::members::Members;
use super::positions::Positions;
use super::refusing::Untold;
use super::saving::{LastCheckpoint, unusable};
use crate::checkpoint::{CheckpointConfig, Part, before_generation};

/// How often a coordinator is to be told that time has passed.
pub const TICK: Duration = Duration::from_millis(100);
/// How often those who wait are told for whom.
pub(super) const SPEAK_EVERY: Duration = Duration::from_secs(3);

/// A connection of a task to the coordinator.
pub type SessionId = u64;

/// What a coordinator has to know of its cluster.
#[derive(Debug, Clone)]
pub struct CoordinatorConfig {
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are; `None` if nobody knows, and whoever comes is welcome.
    pub workers: Option<u32>,
    /// When a silent task counts as dead.
    pub patience: Patience,
    /// How long tasks that are needed are waited for.
    pub peer_timeout: Duration,
    /// The memory that ps 0, in which this is, found when it was started.
    pub memory: Option<Memory>,
    /// Incarnations are later than this one if there is no generation to count from.
    pub before: Incarnation,
}

/// The claim of a coordinator on its run's checkpoints.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// When and where checkpoints are written.
    pub config: CheckpointConfig,
    /// Where they are, in full.
    pub location: String,
    /// The generation that was claimed.
    pub generation: u64,
    /// A random number, so that no two attempts to write a checkpoint share objects.
    pub salt: u16,
}

/// What happens to a coordinator.
#[derive(Debug)]
pub enum Event {
    /// A task has connected.
    Opened(SessionId),
    /// A task says something.
    Message(SessionId, TaskMessage),
    /// A connection has closed.
    Closed(SessionId),
    /// A task does not read what is sent to it, and its connection was given up.
    Undelivered(SessionId),
    /// Time has passed. Said every [`TICK`].
    Tick {
        /// True if more of a checkpoint has been read that is looked for.
        has_read_on: bool,
    },
    /// The checkpoint of this number was published, or could not be.
    Published(u64, Result<CheckpointId, CheckpointError>),
    /// The checkpoints cannot be kept: another run has taken them over, say.
    Overtaken(CheckpointError),
    /// The lease on the checkpoints was given up.
    Released,
    /// The checkpoint to begin from or go back to has been looked up, the so many-th time.
    Found(u64, Result<Box<Beginning>, CheckpointError>),
    /// The checkpoints of the run cannot be opened.
    Unusable(CheckpointError),
}

/// What is to be done for a coordinator.
#[derive(Debug)]
pub enum Effect {
    /// Say this to a task.
    Send(SessionId, CoordinatorMessage),
    /// It is known whose this connection is.
    Admit(SessionId, TaskId),
    /// Close a connection, whose task has had its last word.
    Dismiss(SessionId),
    /// Close a connection.
    Close(SessionId),
    /// Look for the newest checkpoint of the run, the so many-th time; without one it goes back to where it began.
    Look(u64, Box<Beginning>),
    /// Publish the checkpoint of this number, after the files that go with it, and remove what is too old.
    Publish(u64, Box<Manifest>, Arc<[ModelFile]>),
    /// Remember with the lease in which generation the run began.
    BeganIn(u64),
    /// Give the lease on the checkpoints up.
    Release,
}

/// What the coordinator asks of the shard in its own process, if there is one yet.
pub trait OwnShard {
    /// Takes pushes of this process of a worker, refuses earlier ones, and says how far the workers were. It starts at this
    /// clock.
    fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Option<Standing>;
    /// The clock at which a worker that joins now is to start, on all servers.
    fn clock(&self) -> Option<u64>;
    /// Refuses this process of a worker, and says how far the workers are.
    fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Option<Standing>;
    /// Counts so far, and times since the run was started.
    fn statistics(&self) -> Option<ShardStatistics>;
}

/// Why a task is not let in.
enum Refusal {
    /// It is to ask again.
    ForNow(String),
    /// It ends.
    ForGood(Outcome),
}

/// Where a run begins: at a checkpoint, or at the beginning.
#[derive(Debug, Clone, Default)]
pub(super) struct Began {
    /// The global step.
    pub(super) step: u64,
    /// The batches that each worker has had.
    pub(super) batches: BTreeMap<WorkerId, u64>,
}

/// The one place that knows the whole cluster. It lives in ps 0.
pub struct Coordinator<S> {
    pub(super) config: CoordinatorConfig,
    pub(super) shard: S,
    pub(super) lifecycle: Lifecycle,
    pub(super) members: Members,
    pub(super) run: Option<(String, RunSpec)>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) positions: Positions,
    /// Where the run was when it first began to train, as far as this coordinator knows.
    pub(super) began: Option<Began>,
    /// The last global step that anyone has seen.
    pub(super) seen_step: u64,
    /// While the checkpoint to go back to is looked up: whether the servers wait for it.
    pub(super) looking: Option<bool>,
    /// What the servers were told last to prepare; its number counts how often.
    pub(super) prepare: Prepare,
    /// The last checkpoint, while the run waits for it.
    pub(super) saving: Option<LastCheckpoint>,
    /// Those who have yet to hear that the run cannot begin.
    pub(super) untold: Untold,
    pub(super) endpoints: BTreeMap<u32, Endpoint>,
    /// The memory that each server found when it was started, as far as it knows.
    pub(super) memory: BTreeMap<u32, Memory>,
    pub(super) reports: BTreeMap<WorkerId, WorkerReport>,
    pub(super) progress: BTreeMap<TaskId, Heartbeat>,
    /// Why tasks that are waited for were not let in, by their names.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) spoken: Duration,
    /// When it was last said what a checkpoint waits for.
    pub(super) spoken_of_checkpoint: Duration,
    /// The time of the event that is being handled.
    pub(super) now: Duration,
    /// What is to be done beside speaking.
    pub(super) effects: Vec<Effect>,
}

impl<S: OwnShard> Coordinator<S> {
    /// A coordinator whose tasks have not come yet, of a run with these checkpoints, if it has any.
    pub fn new(config: CoordinatorConfig, shard: S, claimed: Option<Claimed>) -> Self {
        let before = claimed.as_ref().map_or(config.before, |claimed| before_generation(claimed.generation));
        let lifecycle = Lifecycle::new(LifecycleConfig {
            servers: config.servers,
            workers: config.workers,
            patience: config.patience,
            peer_timeout: config.peer_timeout,
            checkpoints: claimed.is_some(),
            before,
        });
        Self {
            lifecycle,
            shard,
            members: Members::default(),
            run: None,
            positions: Positions::default(),
            began: None,
            seen_step: 0,
            looking: claimed.as_ref().map(|_| false),
            checkpoints: claimed.map(Checkpoints::new),
            prepare: Prepare::default(),
            saving: None,
            untold: Untold::default(),
            endpoints: BTreeMap::new(),
            // A worker may come before ps 0 has said hello.
            memory: config.memory.map(|memory| (0, memory)).into_iter().collect(),
            reports: BTreeMap::new(),
            progress: BTreeMap::new(),
            refused: BTreeMap::new(),
            spoken: Duration::ZERO,
            spoken_of_checkpoint: Duration::ZERO,
            now: Duration::ZERO,
            effects: Vec::new(),
            config,
        }
    }

    /// Once the run is over: how many tasks have not heard of it, and whether the lease is still to be given up.
    pub fn unheard(&self) -> Option<usize> {
        let over = matches!(self.lifecycle.phase(), Phase::Over(_));
        let releasing = self.checkpoints.as_ref().is_some_and(Checkpoints::is_releasing);
        over.then(|| self.members.unheard() + self.untold.count() + usize::from(releasing))
    }

    /// Where the run stands.
    pub fn phase(&self) -> &Phase {
        self.lifecycle.phase()
    }

    /// Takes an event, and says what is to be done. The time is that of a clock which stands still while this process
    /// does: when it was stopped or starved itself, the others' signs of life are waiting to be read, and none of them
    /// has been silent.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.now = now;
        match event {
            Event::Opened(id) => self.members.opened(id),
            Event::Undelivered(id) => self.members.undelivered(id),
            Event::Closed(id) => {
                self.untold.closed(id);
                if let Some((task, incarnation)) = self.members.closed(id) {
                    self.lifecycle.disconnected(task, incarnation, now);
                    // Whoever has said goodbye does not come back to hear the rest.
                    if self.lifecycle.has_left(task, incarnation) {
                        self.members.remove(task);
                    }
                }
            }
            Event::Message(id, message) => match message.kind {
                Some(task_message::Kind::Hello(hello)) => self.hello(id, &hello, message.heard),
                Some(kind) => {
                    if let Some((task, incarnation)) = self.members.speaker(id) {
                        self.lifecycle.heard(task, incarnation, now);
                        if self.members.hear(task, message.number, message.heard) {
                            self.message(task, incarnation, kind);
                        }
                    }
                }
                None => {}
            },
            Event::Tick { has_read_on } => self.tick(has_read_on),
            Event::Published(..) | Event::Overtaken(_) | Event::Released | Event::Found(..) => self.stored(event),
            Event::Unusable(error) => self.refuse_to_begin(unusable(&error)),
        }
        let mut effects = self.members.take_effects();
        effects.append(&mut self.effects);
        effects
    }

    fn hello(&mut self, id: SessionId, hello: &Hello, heard: u64) {
        match self.admit(id, hello, heard) {
            Ok(()) => {}
            Err(Refusal::ForNow(reason)) => self.members.dismiss(id, Kind::Busy(Busy { reason })),
            Err(Refusal::ForGood(outcome)) => {
                if !outcome.reason.is_empty() {
                    let task = format!("{} {}", hello.job, hello.index);
                    warn!("refused {task}: {}", outcome.reason);
                    // Those who wait for it are told with the next word of whom they wait for.
                    if self.lifecycle.awaited().iter().any(|awaited| awaited.to_string() == task) {
                        self.refused.insert(task, outcome.reason.clone());
                    }
                }
                let over = Over { exit_code: u32::from(outcome.exit_code), reason: outcome.reason };
                self.members.dismiss(id, Kind::Over(over));
                self.untold.dismissed(id, hello);
            }
        }
    }

    fn admit(&mut self, id: SessionId, hello: &Hello, heard: u64) -> Result<(), Refusal> {
        let refuse = |reason: String| Refusal::ForGood(Outcome { exit_code: exit_code::USAGE, reason });
        if hello.protocol != PROTOCOL {
            return Err(refuse(format!(
                "ps 0 speaks protocol {PROTOCOL}, this task speaks {}: run the same version everywhere",
                hello.protocol
            )));
        }
        let job: Job = hello.job.parse().map_err(|_| refuse(format!("unknown job {:?}", hello.job)))?;
        let task = TaskId { job, index: hello.index };
        let run = if job == Job::Worker { Some(self.agreed_run(task, &hello.run).map_err(refuse)?) } else { None };
        if let Some(shortage) = run.as_ref().and_then(|run| self.shortage(run)) {
            return Err(refuse(shortage));
        }
        let earlier = self.members.earlier(task, hello.process);
        let joined = self.lifecycle.join(task, earlier, self.now);
        let (incarnation, mut effects) = joined.map_err(|error| match error {
            JoinError::Over(outcome) => Refusal::ForGood(outcome),
            JoinError::Contested(_) => Refusal::ForNow(error.to_string()),
            error => refuse(error.to_string()),
        })?;
        if hello.begun {
            effects.extend(self.lifecycle.begun_before());
            self.seen_step = self.seen_step.max(hello.global_step);
        }
        if let Some(endpoint) = hello.endpoint.clone().filter(|_| job == Job::Ps) {
            self.endpoints.insert(task.index, endpoint);
            self.memory.extend(hello.memory.map(|memory| (task.index, memory)));
        }
        self.refused.remove(&task.to_string());
        if let Some(run) = run {
            self.mention_difference(task, &run);
            if let Some(checkpoints) = &mut self.checkpoints {
                checkpoints.keep_files(&run, &hello.files);
            }
            effects.extend(self.lifecycle.set_active_servers(&self.active_servers(&run)));
            self.run = Some((hello.run.clone(), run));
            self.positions.set_pass(WorkerId(task.index), hello.batches);
        }
        info!("{task} {}", if earlier == Some(incarnation) { "reconnected" } else { "joined" });
        self.members.welcome(id, task, hello, incarnation, heard);
        if *self.lifecycle.phase() == Phase::Gathering {
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
        self.carry_out(effects);
        Ok(())
    }

    /// The first worker brings the run; the others must have the same.
    fn agreed_run(&self, task: TaskId, text: &str) -> Result<RunSpec, String> {
        let theirs: RunSpec = serde_json::from_str(text).map_err(|error| format!("{task} sent no run: {error}"))?;
        let alone = self.lifecycle.present_workers().iter().all(|worker| TaskId::from(*worker) == task);
        let first = self.prepare.number == 0 && alone;
        match &self.run {
            Some((_, run)) if !first => match theirs.first_difference(run) {
                Some(difference) => Err(difference.describe(&task.to_string(), "the other workers")),
                None => Ok(theirs),
            },
            _ => Ok(theirs),
        }
    }

    /// Tells everyone in what a worker differs from the others that it may differ in.
    fn mention_difference(&mut self, task: TaskId, run: &RunSpec) {
        let others = self.lifecycle.present_workers().iter().any(|worker| TaskId::from(*worker) != task);
        let agreed = self.run.as_ref().filter(|_| others);
        if let Some(difference) = agreed.and_then(|(_, agreed)| run.tolerated_difference(agreed)) {
            let notice = difference.describe(&task.to_string(), "the other workers");
            warn!("{notice}");
            self.members.mention(&Kind::Waiting(Waiting { tasks: Vec::new(), notices: vec![notice] }));
        }
    }

    fn message(&mut self, task: TaskId, incarnation: Incarnation, message: task_message::Kind) {
        let worker = WorkerId(task.index);
        let effects = match message {
            task_message::Kind::Heartbeat(heartbeat) => {
                self.seen_step = self.seen_step.max(heartbeat.global_step);
                self.note_progress(task, heartbeat);
                return;
            }
            task_message::Kind::ServerReady(ready) if ready.number == self.prepare.number => {
                self.lifecycle.server_ready(task, ready.restored)
            }
            task_message::Kind::Marked(marked) => {
                let mark = serde_json::from_str(&marked.mark);
                self.checkpoint(|checkpoints| {
                    checkpoints.cycle().marked(marked.number, ServerId(task.index), mark.ok()?)
                });
                return;
            }
            task_message::Kind::PartWritten(written) => {
                let part: Result<Part, _> = serde_json::from_str(&written.part);
                self.checkpoint(|checkpoints| {
                    checkpoints.cycle().written(written.number, ServerId(task.index), part.ok()?)
                });
                return;
            }
            task_message::Kind::CheckpointFailed(failed) => {
                let kind = if failed.missed { SetbackKind::Missed } else { SetbackKind::Failed };
                let setback = Setback { reason: format!("{task}: {}", failed.reason), kind };
                self.checkpoint(|checkpoints| checkpoints.cycle().failed(failed.number, setback));
                return;
            }
            task_message::Kind::PartProgress(progress) => {
                if let Some(checkpoints) = &mut self.checkpoints {
                    checkpoints.cycle().progressed(progress.number, ServerId(task.index));
                }
                return;
            }
            task_message::Kind::Initialised(initialised) if initialised.incarnation == incarnation.0 => {
                self.lifecycle.initialised()
            }
            task_message::Kind::Finished(report) if report.incarnation == incarnation.0 => {
                info!("{task} finished after {} steps", report.steps);
                self.reports.insert(worker, report);
                self.lifecycle.worker_finished(worker)
            }
            task_message::Kind::Concluded(concluded) if concluded.incarnation == incarnation.0 => {
                self.lifecycle.concluded(worker)
            }
            task_message::Kind::Failed(failure) if self.is_of_now(task, incarnation, &failure) => {
                let reason = format!("{task}: {}", failure.reason);
                // A failure is never a success, whatever its number.
                let exit_code = u8::try_from(failure.exit_code).ok().filter(|code| *code > 0).unwrap_or(u8::MAX);
                self.lifecycle.failed(Outcome { exit_code, reason })
            }
            task_message::Kind::Goodbye(_) => {
                let effects = self.lifecycle.goodbye(task, incarnation, self.now);
                // At the end it stays, to hear how the run ended.
                if !matches!(self.lifecycle.phase(), Phase::Saving(_) | Phase::Over(_)) {
                    self.members.remove(task);
                }
                effects
            }
            // Answers to what was said before the run went back to a checkpoint.
            task_message::Kind::ServerReady(_)
            | task_message::Kind::Failed(_)
            | task_message::Kind::Initialised(_)
            | task_message::Kind::Finished(_)
            | task_message::Kind::Concluded(_)
            | task_message::Kind::Hello(_) => return,
        };
        self.carry_out(effects);
    }

    /// Whether a failure is one of what was asked for last: a server fails to prepare, a worker to train.
    fn is_of_now(&self, task: TaskId, incarnation: Incarnation, failure: &Failure) -> bool {
        match task.job {
            Job::Ps => failure.prepare == self.prepare.number,
            Job::Worker => failure.incarnation == incarnation.0,
        }
    }

    /// Keeps what a task reports of itself. If the run waits for that task, it is good news.
    fn note_progress(&mut self, task: TaskId, heartbeat: Heartbeat) {
        let stage = |heartbeat: &Heartbeat| (heartbeat.local_step, heartbeat.global_step, heartbeat.waiting.clone());
        let now = stage(&heartbeat);
        let before = self.progress.insert(task, heartbeat).as_ref().map(stage);
        if before != Some(now) && self.lifecycle.awaited().contains(&task) {
            self.lifecycle.progressed(self.now);
        }
    }

    fn tick(&mut self, has_read_on: bool) {
        let now = self.now;
        if self.looking.is_some() && has_read_on {
            self.lifecycle.progressed(now);
        }
        let effects = self.lifecycle.tick(now);
        self.carry_out(effects);
        self.dismiss_the_dead();
        let step = self.step();
        match self.lifecycle.phase() {
            Phase::Training => self.checkpoint(|checkpoints| checkpoints.tick(now, step)),
            Phase::Finishing => self.checkpoint(|checkpoints| checkpoints.cycle().tick(now)),
            Phase::Saving(_) => self.go_on_saving(now),
            _ => {}
        }
        if self.lifecycle.awaited().is_empty() {
            self.spoken = now;
        } else if now.saturating_sub(self.spoken) >= SPEAK_EVERY {
            self.spoken = now;
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
        self.mention_checkpoint();
    }

    /// Closes the sessions of processes that were declared dead. One that lives after all says hello again, and is let
    /// in as another incarnation.
    fn dismiss_the_dead(&mut self) {
        let over = matches!(self.lifecycle.phase(), Phase::Over(_));
        if !over && !fault::is_back(Fault::SleeperNotDismissed) {
            let lifecycle = &self.lifecycle;
            self.members.remove_those(|task, incarnation| lifecycle.is_dead(task, incarnation));
        }
    }

    /// The global step: what ps 0 has applied.
    pub(super) fn step(&self) -> u64 {
        self.shard.statistics().map_or(0, |statistics| statistics.steps)
    }

    /// The servers that take part in a run.
    pub(super) fn active_servers(&self, run: &RunSpec) -> BTreeSet<ServerId> {
        ShardPlan::new(&run.parameters, self.config.servers as usize, run.sharding).active_servers()
    }

    fn waiting(&self) -> Waiting {
        if let (Phase::Preparing, Some(_), Some(checkpoints)) =
            (self.lifecycle.phase(), self.looking, &self.checkpoints)
        {
            let notice = format!("looking for a whole checkpoint in {}", checkpoints.looks_in());
            return Waiting { tasks: Vec::new(), notices: vec![notice] };
        }
        let mut tasks: Vec<String> = self.lifecycle.awaited().iter().map(ToString::to_string).collect();
        let refused = self.refused.iter().filter(|(task, _)| tasks.contains(task));
        let notices = refused.map(|(task, reason)| format!("{task} was refused: {reason}")).collect();
        if let Some(last) = tasks.last_mut() {
            last.push_str(self.lifecycle.awaited_for());
        }
        Waiting { tasks, notices }
    }

    pub(super) fn tell(&mut self, task: TaskId, kind: Kind) {
        self.members.tell(|other| other == task, &kind);
    }
}

pub(super) fn is_server(task: TaskId) -> bool {
    task.job == Job::Ps
}
