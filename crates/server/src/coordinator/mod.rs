//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! An actor: sessions feed it messages, `windlass_core::lifecycle` and `windlass_core::checkpoint` decide, and it tells
//! the tasks. It touches no parameters and does nothing that takes time.

mod beginning;
mod capacity;
mod checkpoints;
mod effects;
mod front;
mod lease_keeper;
mod members;
mod opening;
mod positions;
mod refusing;
mod saving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};
use windlass_core::checkpoint::{Setback, SetbackKind};
use windlass_core::cluster::{Job, ServerId, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{JoinError, Lifecycle, LifecycleConfig, Outcome, Phase, exit_code};
use windlass_core::membership::Patience;
use windlass_core::plan::ShardPlan;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::coordinator_message::Kind;
use windlass_wire::control::{
    Busy, Endpoint, Failure, Heartbeat, Hello, Memory, Over, Prepare, Waiting, WorkerReport, task_message,
};

use crate::checkpoint::{CheckpointConfig, Part};
use crate::memory;
use crate::task::ShardSlot;
use checkpoints::{Checkpoints, Done};
pub(crate) use front::CoordinatorHandle;
use front::{Event, SessionId};
use members::Members;
use opening::Opened;
use positions::Positions;
use refusing::Untold;
use saving::{LastCheckpoint, unusable};

const TICK: Duration = Duration::from_millis(100);
const SPEAK_EVERY: Duration = Duration::from_secs(3);
/// Things done beside the coordinator that it has not heard of yet.
const DONE: usize = 16;

/// What the coordinator has to know.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorConfig {
    pub(crate) servers: u32,
    /// `None` with dynamic workers.
    pub(crate) workers: Option<u32>,
    pub(crate) patience: Patience,
    pub(crate) peer_timeout: Duration,
    pub(crate) started: Instant,
    pub(crate) checkpoints: Option<CheckpointConfig>,
    /// Where ps 0 listens; empty for a run in one process.
    pub(crate) address: String,
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
struct Began {
    /// The global step.
    step: u64,
    /// The batches that each worker has had.
    batches: BTreeMap<WorkerId, u64>,
}

struct Coordinator {
    config: CoordinatorConfig,
    shard: Arc<ShardSlot>,
    lifecycle: Lifecycle,
    members: Members,
    /// Once the run is over: how many tasks have not heard of it.
    unheard: watch::Sender<Option<usize>>,
    run: Option<(String, RunSpec)>,
    checkpoints: Option<Checkpoints>,
    positions: Positions,
    /// Where the run was when it first began to train, as far as this coordinator knows.
    began: Option<Began>,
    /// The last global step that anyone has seen.
    seen_step: u64,
    /// While the checkpoint to go back to is looked up: whether the servers wait for it.
    looking: Option<bool>,
    /// What the servers were told last to prepare; its number counts how often.
    prepare: Prepare,
    /// The last checkpoint, while the run waits for it.
    saving: Option<LastCheckpoint>,
    /// Those who have yet to hear that the run cannot begin.
    untold: Untold,
    endpoints: BTreeMap<u32, Endpoint>,
    /// The memory that each server found when it was started, as far as it knows.
    memory: BTreeMap<u32, Memory>,
    reports: BTreeMap<WorkerId, WorkerReport>,
    progress: BTreeMap<TaskId, Heartbeat>,
    /// Why tasks that are waited for were not let in, by their names.
    refused: BTreeMap<String, String>,
    spoken: Instant,
    /// When it was last said what a checkpoint waits for.
    spoken_of_checkpoint: Instant,
    /// The time at the last tick; see [`Coordinator::now`].
    clock: Duration,
    ticked: Instant,
}

impl Coordinator {
    /// Runs a coordinator. It is one from its first breath: if checkpoints cannot be kept or read, it tells everyone.
    async fn start(
        config: CoordinatorConfig,
        shard: Arc<ShardSlot>,
        unheard: watch::Sender<Option<usize>>,
        mut inbox: mpsc::Receiver<(SessionId, Event)>,
    ) {
        let (done, results) = mpsc::channel(DONE);
        let Opened { checkpoints, early } = opening::open(&config, &done, &mut inbox).await;
        let (checkpoints, refusal) = match checkpoints {
            Ok(checkpoints) => (checkpoints, None),
            Err(error) => (None, Some(unusable(&error))),
        };
        let mut coordinator = Self::new(config, shard, unheard, checkpoints);
        refusal.into_iter().for_each(|outcome| coordinator.refuse_to_begin(outcome));
        early.into_iter().for_each(|(id, event)| coordinator.handle(id, event));
        // The sender stays here, so that the results never end before the sessions do.
        let _done = done;
        coordinator.run(inbox, results).await;
    }

    fn new(
        config: CoordinatorConfig,
        shard: Arc<ShardSlot>,
        unheard: watch::Sender<Option<usize>>,
        checkpoints: Option<Checkpoints>,
    ) -> Self {
        // Without a generation to count from, later coordinators are told from earlier ones by the time.
        let seconds = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let before = checkpoints.as_ref().map_or_else(|| Incarnation(seconds() << 20), Checkpoints::before);
        let lifecycle = Lifecycle::new(LifecycleConfig {
            servers: config.servers,
            workers: config.workers,
            patience: config.patience,
            peer_timeout: config.peer_timeout,
            checkpoints: checkpoints.is_some(),
            before,
        });
        Self {
            lifecycle,
            config,
            shard,
            members: Members::default(),
            unheard,
            run: None,
            positions: Positions::default(),
            began: None,
            seen_step: 0,
            looking: checkpoints.as_ref().map(|_| false),
            checkpoints,
            prepare: Prepare::default(),
            saving: None,
            untold: Untold::default(),
            endpoints: BTreeMap::new(),
            // Of ps 0, in which this is: a worker may come before ps 0 has said hello.
            memory: memory::available().map(|memory| (0, memory)).into_iter().collect(),
            reports: BTreeMap::new(),
            progress: BTreeMap::new(),
            refused: BTreeMap::new(),
            spoken: Instant::now(),
            spoken_of_checkpoint: Instant::now(),
            clock: Duration::ZERO,
            ticked: Instant::now(),
        }
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<(SessionId, Event)>, mut results: mpsc::Receiver<Done>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = inbox.recv() => match event {
                    Some((id, event)) => self.handle(id, event),
                    None => return,
                },
                Some(done) = results.recv() => self.done(done),
                _ = tick.tick() => self.tick(),
            }
            let over = matches!(self.lifecycle.phase(), Phase::Over(_));
            let releasing = self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.lease.is_releasing());
            let unheard = self.members.unheard() + self.untold.count() + usize::from(releasing);
            self.unheard.send_replace(over.then_some(unheard));
        }
    }

    /// A clock that stands still while this process does: when it was stopped or starved itself, the others'
    /// signs of life are waiting to be read, and none of them has been silent.
    fn now(&self) -> Duration {
        self.clock + self.ticked.elapsed().min(2 * TICK)
    }

    fn handle(&mut self, id: SessionId, event: Event) {
        let now = self.now();
        match event {
            Event::Opened(sender, visit) => self.members.opened(id, sender, visit),
            Event::Closed => {
                self.untold.closed(id);
                if let Some((task, incarnation)) = self.members.closed(id) {
                    self.lifecycle.disconnected(task, incarnation, now);
                }
            }
            Event::Message(message) => match message.kind {
                Some(task_message::Kind::Hello(hello)) => self.hello(id, &hello, message.heard),
                Some(kind) => {
                    let Some((task, incarnation)) = self.members.speaker(id) else { return };
                    self.lifecycle.heard(task, incarnation, now);
                    if self.members.hear(task, message.number, message.heard) {
                        self.message(task, incarnation, kind);
                    }
                }
                None => {}
            },
        }
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
        let joined = self.lifecycle.join(task, earlier, self.now());
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
        info!("{task} {}", if earlier == Some(incarnation) { "is connected again" } else { "joined" });
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
                let effects = self.lifecycle.goodbye(task, incarnation, self.now());
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
            self.lifecycle.progressed(self.now());
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        (self.clock, self.ticked) = (now, Instant::now());
        if self.looking.is_some() && self.checkpoints.as_mut().is_some_and(Checkpoints::has_read_on) {
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
            self.spoken = Instant::now();
        } else if self.spoken.elapsed() >= SPEAK_EVERY {
            self.spoken = Instant::now();
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
        self.mention_checkpoint();
    }

    /// Closes the sessions of processes that were declared dead. One that lives after all says hello again, and is let
    /// in as another incarnation.
    fn dismiss_the_dead(&mut self) {
        if !matches!(self.lifecycle.phase(), Phase::Over(_)) {
            let lifecycle = &self.lifecycle;
            self.members.remove_those(|task, incarnation| lifecycle.is_dead(task, incarnation));
        }
    }

    /// The global step: what ps 0 has applied.
    fn step(&self) -> u64 {
        self.shard.get().map_or(0, |shard| shard.statistics().steps)
    }

    /// The servers that take part in a run.
    fn active_servers(&self, run: &RunSpec) -> BTreeSet<ServerId> {
        ShardPlan::new(&run.parameters, self.config.servers as usize, run.sharding).active_servers()
    }

    fn waiting(&self) -> Waiting {
        if let (Phase::Preparing, Some(_), Some(checkpoints)) =
            (self.lifecycle.phase(), self.looking, &self.checkpoints)
        {
            let notice = format!("looking for a checkpoint that is whole, in {}", checkpoints.looks_in());
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

    fn tell(&mut self, task: TaskId, kind: Kind) {
        self.members.tell(|other| other == task, &kind);
    }
}

fn is_server(task: TaskId) -> bool {
    task.job == Job::Ps
}
