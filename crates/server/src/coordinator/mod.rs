//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! An actor: sessions feed it messages, `windlass_core::lifecycle` decides, and it tells the tasks. It touches no
//! parameters and does nothing that takes time.

mod front;
mod members;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tracing::{info, warn};
use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Effect, JoinError, Lifecycle, Outcome, Phase, exit_code};
use windlass_core::membership::Patience;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::coordinator_message::Kind;
use windlass_wire::control::{
    AllFinished, Endpoint, Heartbeat, Hello, Initialise, Over, Prepare, Start, Waiting, WorkerJoined, WorkerLeft,
    WorkerReport, task_message,
};

use crate::task::ShardSlot;
pub(crate) use front::CoordinatorHandle;
use front::{Event, SessionId};
use members::Members;

const TICK: Duration = Duration::from_millis(100);
const SPEAK_EVERY: Duration = Duration::from_secs(3);

/// What the coordinator has to know.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorConfig {
    pub(crate) servers: u32,
    pub(crate) workers: u32,
    pub(crate) patience: Patience,
    pub(crate) peer_timeout: Duration,
    pub(crate) started: Instant,
}

struct Coordinator {
    config: CoordinatorConfig,
    shard: Arc<ShardSlot>,
    lifecycle: Lifecycle,
    members: Members,
    unheard: watch::Sender<usize>,
    run: Option<(String, RunSpec)>,
    endpoints: BTreeMap<u32, Endpoint>,
    reports: BTreeMap<WorkerId, WorkerReport>,
    progress: BTreeMap<WorkerId, Heartbeat>,
    spoken: Instant,
    /// The time at the last tick; see [`Coordinator::now`].
    clock: Duration,
    ticked: Instant,
}

impl Coordinator {
    fn new(config: CoordinatorConfig, shard: Arc<ShardSlot>, unheard: watch::Sender<usize>) -> Self {
        Self {
            lifecycle: Lifecycle::new(config.servers, config.workers, config.patience),
            config,
            shard,
            members: Members::default(),
            unheard,
            run: None,
            endpoints: BTreeMap::new(),
            reports: BTreeMap::new(),
            progress: BTreeMap::new(),
            spoken: Instant::now(),
            clock: Duration::ZERO,
            ticked: Instant::now(),
        }
    }

    async fn run(mut self, mut inbox: mpsc::Receiver<(SessionId, Event)>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = inbox.recv() => match event {
                    Some((id, event)) => self.handle(id, event),
                    None => return,
                },
                _ = tick.tick() => self.tick(),
            }
            self.unheard.send_replace(self.members.unheard());
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
            Event::Opened(sender) => self.members.opened(id, sender),
            Event::Closed => {
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
        if let Err(refusal) = self.admit(id, hello, heard) {
            warn!("refused a task: {}", refusal.reason);
            let over = Over { exit_code: u32::from(refusal.exit_code), reason: refusal.reason };
            self.members.dismiss(id, Kind::Over(over));
        }
    }

    fn admit(&mut self, id: SessionId, hello: &Hello, heard: u64) -> Result<(), Outcome> {
        let refuse = |reason: String| Outcome { exit_code: exit_code::USAGE, reason };
        if hello.protocol != PROTOCOL {
            return Err(refuse(format!(
                "ps 0 speaks protocol {PROTOCOL}, this task speaks {}: run the same version everywhere",
                hello.protocol
            )));
        }
        let job: Job = hello.job.parse().map_err(|_| refuse(format!("unknown job {:?}", hello.job)))?;
        let task = TaskId { job, index: hello.index };
        let run = if job == Job::Worker { Some(self.agreed_run(task, &hello.run).map_err(refuse)?) } else { None };
        let earlier = self.members.earlier(task, hello.process);
        let joined = self.lifecycle.join(task, earlier, self.now());
        let (incarnation, effects) = joined.map_err(|error| match error {
            JoinError::Over(outcome) => outcome,
            error => refuse(error.to_string()),
        })?;
        if let Some(endpoint) = hello.endpoint.clone().filter(|_| job == Job::Ps) {
            self.endpoints.insert(task.index, endpoint);
        }
        if let Some(run) = run {
            self.run = Some((hello.run.clone(), run));
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
        let first = *self.lifecycle.phase() == Phase::Gathering && alone;
        match &self.run {
            Some((_, run)) if !first => match theirs.first_difference(run) {
                Some(difference) => Err(format!("{task} disagrees with the other workers: {difference}")),
                None => Ok(theirs),
            },
            _ => Ok(theirs),
        }
    }

    fn message(&mut self, task: TaskId, incarnation: Incarnation, message: task_message::Kind) {
        let worker = WorkerId(task.index);
        let effects = match message {
            task_message::Kind::Heartbeat(heartbeat) => {
                if task.job == Job::Worker {
                    self.progress.insert(worker, heartbeat);
                }
                return;
            }
            task_message::Kind::ServerReady(_) => self.lifecycle.server_ready(task),
            task_message::Kind::Initialised(_) => self.lifecycle.initialised(),
            task_message::Kind::Finished(report) => {
                info!("{task} finished after {} steps", report.steps);
                self.reports.insert(worker, report);
                self.lifecycle.worker_finished(worker)
            }
            task_message::Kind::Failed(failure) => {
                let reason = format!("{task}: {}", failure.reason);
                // A failure is never a success, whatever its number.
                let exit_code = u8::try_from(failure.exit_code).ok().filter(|code| *code > 0).unwrap_or(u8::MAX);
                self.lifecycle.failed(Outcome { exit_code, reason })
            }
            task_message::Kind::Goodbye(_) => {
                let effects = self.lifecycle.goodbye(task, incarnation);
                if !matches!(self.lifecycle.phase(), Phase::Over(_)) {
                    self.members.remove(task);
                }
                effects
            }
            task_message::Kind::Hello(_) => return,
        };
        self.carry_out(effects);
    }

    fn tick(&mut self) {
        let now = self.now();
        (self.clock, self.ticked) = (now, Instant::now());
        let effects = self.lifecycle.tick(now);
        self.carry_out(effects);
        if *self.lifecycle.phase() != Phase::Gathering {
            return;
        }
        let now = self.config.started.elapsed();
        if now > self.config.peer_timeout {
            let names = self.waiting().tasks.join(", ");
            let reason = format!("gave up waiting for {names} after {} s", now.as_secs());
            let effects = self.lifecycle.failed(Outcome { exit_code: exit_code::PEERS, reason });
            self.carry_out(effects);
        } else if self.spoken.elapsed() >= SPEAK_EVERY {
            self.spoken = Instant::now();
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Prepare => self.prepare(),
                Effect::Initialise(worker) => {
                    let servers = self.endpoints.values().cloned().collect();
                    self.tell(worker.into(), Kind::Initialise(Initialise { servers }));
                }
                Effect::Start(worker) => {
                    let servers = self.endpoints.values().cloned().collect();
                    let chief = worker == self.lifecycle.chief();
                    let start = Start { servers, chief, workers: self.config.workers };
                    self.tell(worker.into(), Kind::Start(start));
                }
                Effect::Joined(worker, incarnation) => {
                    let joined = WorkerJoined { worker: worker.0, incarnation: incarnation.0 };
                    self.members.tell(is_server, &Kind::WorkerJoined(joined));
                }
                Effect::Left(worker, incarnation, reason) => self.left(worker, incarnation, reason),
                Effect::AllFinished => {
                    let finished = Kind::AllFinished(self.all_finished());
                    self.members.tell(|task| task.job == Job::Worker, &finished);
                }
                Effect::Over(outcome) => {
                    if outcome.exit_code == 0 {
                        info!("training has ended");
                    } else {
                        warn!("the run ends: {}", outcome.reason);
                    }
                    let over = Over { exit_code: u32::from(outcome.exit_code), reason: outcome.reason };
                    self.members.tell(|_| true, &Kind::Over(over));
                }
            }
        }
    }

    fn prepare(&mut self) {
        let Some((run, _)) = &self.run else { return };
        let workers = self.lifecycle.workers().iter().map(|worker| worker.0).collect();
        let prepare = Prepare { run: run.clone(), servers: self.config.servers, workers };
        info!("all {} ps and {} workers are here", self.config.servers, self.config.workers);
        self.members.tell(is_server, &Kind::Prepare(prepare));
    }

    fn left(&mut self, worker: WorkerId, incarnation: Incarnation, reason: String) {
        if !reason.is_empty() {
            warn!("{worker} is gone: {reason}; training goes on without it");
            self.members.remove(worker.into());
            let last = self.progress.get(&worker).cloned().unwrap_or_default();
            let report = WorkerReport {
                worker: worker.0,
                steps: last.local_step,
                loss: f64::from(last.loss),
                left: reason.clone(),
                ..WorkerReport::default()
            };
            self.reports.insert(worker, report);
        }
        let chief = self.lifecycle.chief().0;
        let left = WorkerLeft { worker: worker.0, incarnation: incarnation.0, reason, chief };
        self.members.tell(|_| true, &Kind::WorkerLeft(left));
    }

    fn all_finished(&self) -> AllFinished {
        let statistics = self.shard.get().map(|shard| shard.statistics()).unwrap_or_default();
        let first = statistics.first_step.unwrap_or(self.config.started);
        let last = statistics.last_step.unwrap_or(first);
        AllFinished {
            reports: self.reports.values().cloned().collect(),
            global_step: statistics.steps,
            dropped_gradients: statistics.dropped,
            first_step_seconds: first.saturating_duration_since(self.config.started).as_secs_f64(),
            training_seconds: last.saturating_duration_since(first).as_secs_f64(),
            mean_staleness: statistics.staleness as f64 / statistics.pushes.max(1) as f64,
            chief: self.lifecycle.chief().0,
        }
    }

    fn waiting(&self) -> Waiting {
        Waiting { tasks: self.lifecycle.missing().iter().map(ToString::to_string).collect() }
    }

    fn tell(&mut self, task: TaskId, kind: Kind) {
        self.members.tell(|other| other == task, &kind);
    }
}

fn is_server(task: TaskId) -> bool {
    task.job == Job::Ps
}
