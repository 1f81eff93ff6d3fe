//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! An actor: sessions feed it messages, `windlass_core::lifecycle` decides, and it tells the tasks. It touches no
//! parameters and does nothing that takes time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};
use tracing::{info, warn};
use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Effect, Lifecycle, Outcome, Phase, exit_code};
use windlass_core::membership::Patience;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::coordinator_server::{Coordinator as CoordinatorService, CoordinatorServer};
use windlass_wire::control::{
    AllFinished, CoordinatorMessage, Endpoint, Heartbeat, Hello, Initialise, Over, Prepare, Start, TaskMessage,
    Waiting, Welcome, WorkerJoined, WorkerLeft, WorkerReport, coordinator_message, task_message,
};
use windlass_wire::session::Attach;

use crate::task::ShardSlot;

const TICK: Duration = Duration::from_millis(100);
const SPEAK_EVERY: Duration = Duration::from_secs(3);
const CHANNEL: usize = 256;

/// What the coordinator has to know.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorConfig {
    pub(crate) servers: u32,
    pub(crate) workers: u32,
    pub(crate) patience: Patience,
    pub(crate) peer_timeout: Duration,
    pub(crate) started: Instant,
}

/// A way to open sessions with the coordinator.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorHandle {
    events: mpsc::Sender<(SessionId, Event)>,
    next: Arc<AtomicU64>,
    open: watch::Receiver<usize>,
}

type SessionId = u64;

#[derive(Debug)]
enum Event {
    Opened(mpsc::Sender<CoordinatorMessage>),
    Message(task_message::Kind),
    Closed,
}

impl CoordinatorHandle {
    pub(crate) fn start(config: CoordinatorConfig, shard: Arc<ShardSlot>) -> Self {
        let (events, inbox) = mpsc::channel(CHANNEL);
        let (count, open) = watch::channel(0);
        tokio::spawn(Coordinator::new(config, shard, count).run(inbox));
        Self { events, next: Arc::new(AtomicU64::new(1)), open }
    }

    /// The gRPC side, to be served on the task's port.
    pub(crate) fn service(&self) -> axum::Router {
        let server = CoordinatorServer::new(Service(self.clone())).max_decoding_message_size(usize::MAX);
        tonic::service::Routes::new(server).into_axum_router()
    }

    /// Waits until every session has closed, but not longer than this.
    pub(crate) async fn ended(&self, longest: Duration) {
        let mut open = self.open.clone();
        let _ = tokio::time::timeout(longest, open.wait_for(|count| *count == 0)).await;
    }

    /// Opens a session that is fed by `messages`, and returns what the coordinator says on it.
    fn open(
        &self,
        messages: impl tokio_stream::Stream<Item = Result<TaskMessage, Status>> + Unpin + Send + 'static,
    ) -> mpsc::Receiver<CoordinatorMessage> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        tokio::spawn(forward(id, sender, messages, self.events.clone()));
        receiver
    }
}

impl Attach for CoordinatorHandle {
    fn attach(&self) -> (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>) {
        let (sender, inbox) = mpsc::channel(CHANNEL);
        (sender, self.open(ReceiverStream::new(inbox).map(Ok)))
    }
}

struct Service(CoordinatorHandle);

#[tonic::async_trait]
impl CoordinatorService for Service {
    type SessionStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: tonic::Request<Streaming<TaskMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let receiver = self.0.open(request.into_inner());
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }
}

/// Feeds a session to the coordinator: its opening, its messages and its end.
async fn forward(
    id: SessionId,
    sender: mpsc::Sender<CoordinatorMessage>,
    mut messages: impl tokio_stream::Stream<Item = Result<TaskMessage, Status>> + Unpin,
    events: mpsc::Sender<(SessionId, Event)>,
) {
    if events.send((id, Event::Opened(sender))).await.is_err() {
        return;
    }
    while let Some(Ok(message)) = messages.next().await {
        let Some(kind) = message.kind else { continue };
        if events.send((id, Event::Message(kind))).await.is_err() {
            return;
        }
    }
    let _ = events.send((id, Event::Closed)).await;
}

struct SessionState {
    sender: mpsc::Sender<CoordinatorMessage>,
    /// Known after the hello.
    task: Option<(TaskId, Incarnation)>,
}

struct Coordinator {
    config: CoordinatorConfig,
    shard: Arc<ShardSlot>,
    lifecycle: Lifecycle,
    sessions: BTreeMap<SessionId, SessionState>,
    count: watch::Sender<usize>,
    run: Option<(String, RunSpec)>,
    endpoints: BTreeMap<u32, Endpoint>,
    reports: BTreeMap<WorkerId, WorkerReport>,
    progress: BTreeMap<WorkerId, Heartbeat>,
    spoken: Instant,
}

impl Coordinator {
    fn new(config: CoordinatorConfig, shard: Arc<ShardSlot>, count: watch::Sender<usize>) -> Self {
        Self {
            lifecycle: Lifecycle::new(config.servers, config.workers, config.patience),
            config,
            shard,
            sessions: BTreeMap::new(),
            count,
            run: None,
            endpoints: BTreeMap::new(),
            reports: BTreeMap::new(),
            progress: BTreeMap::new(),
            spoken: Instant::now(),
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
            self.count.send_replace(self.sessions.len());
        }
    }

    fn now(&self) -> Duration {
        self.config.started.elapsed()
    }

    fn handle(&mut self, id: SessionId, event: Event) {
        match event {
            Event::Opened(sender) => drop(self.sessions.insert(id, SessionState { sender, task: None })),
            Event::Closed => {
                if let Some(SessionState { task: Some((task, incarnation)), .. }) = self.sessions.remove(&id) {
                    let now = self.now();
                    self.lifecycle.disconnected(task, incarnation, now);
                }
            }
            Event::Message(task_message::Kind::Hello(hello)) => self.hello(id, hello),
            Event::Message(message) => {
                let Some(SessionState { task: Some((task, incarnation)), .. }) = self.sessions.get(&id) else { return };
                let (task, incarnation, now) = (*task, *incarnation, self.now());
                self.lifecycle.heard(task, incarnation, now);
                self.message(task, incarnation, message);
            }
        }
    }

    fn hello(&mut self, id: SessionId, hello: Hello) {
        if let Err(refusal) = self.admit(id, hello) {
            warn!("refused a task: {}", refusal.reason);
            let over = Over { exit_code: u32::from(refusal.exit_code), reason: refusal.reason };
            self.send_to(id, coordinator_message::Kind::Over(over));
            self.sessions.remove(&id);
        }
    }

    fn admit(&mut self, id: SessionId, hello: Hello) -> Result<(), Outcome> {
        let refuse = |reason: String| Outcome { exit_code: exit_code::USAGE, reason };
        if hello.protocol != PROTOCOL {
            return Err(refuse(format!(
                "ps 0 speaks protocol {PROTOCOL}, this task speaks {}: run the same version everywhere",
                hello.protocol
            )));
        }
        let job: Job = hello.job.parse().map_err(|_| refuse(format!("unknown job {:?}", hello.job)))?;
        let task = TaskId { job, index: hello.index };
        if job == Job::Worker {
            self.agree_on_run(task, &hello.run).map_err(refuse)?;
        }
        let earlier = (hello.incarnation > 0).then_some(Incarnation(hello.incarnation));
        let now = self.now();
        let joined = self.lifecycle.join(task, earlier, now);
        let (incarnation, effects) = joined.map_err(|error| refuse(error.to_string()))?;
        if let Some(endpoint) = hello.endpoint.filter(|_| job == Job::Ps) {
            self.endpoints.insert(task.index, endpoint);
        }
        if let Some(state) = self.sessions.get_mut(&id) {
            state.task = Some((task, incarnation));
        }
        info!("{task} joined");
        self.send_to(id, coordinator_message::Kind::Welcome(Welcome { incarnation: incarnation.0 }));
        if *self.lifecycle.phase() == Phase::Gathering {
            self.send_to(id, coordinator_message::Kind::Waiting(self.waiting()));
        }
        self.carry_out(effects);
        Ok(())
    }

    /// The first worker brings the run; the others must have the same.
    fn agree_on_run(&mut self, task: TaskId, text: &str) -> Result<(), String> {
        let theirs: RunSpec = serde_json::from_str(text).map_err(|error| format!("{task} sent no run: {error}"))?;
        match &self.run {
            None => self.run = Some((text.to_owned(), theirs)),
            Some((_, run)) => {
                if let Some(difference) = theirs.first_difference(run) {
                    return Err(format!("{task} disagrees with the other workers: {difference}"));
                }
            }
        }
        Ok(())
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
                self.lifecycle.failed(Outcome { exit_code: failure.exit_code as u8, reason })
            }
            task_message::Kind::Goodbye(_) => self.lifecycle.goodbye(task, incarnation),
            task_message::Kind::Hello(_) => return,
        };
        self.carry_out(effects);
    }

    fn tick(&mut self) {
        let now = self.now();
        let effects = self.lifecycle.tick(now);
        self.carry_out(effects);
        if *self.lifecycle.phase() != Phase::Gathering {
            return;
        }
        if now > self.config.peer_timeout {
            let names = self.waiting().tasks.join(", ");
            let reason = format!("gave up waiting for {names} after {} s", now.as_secs());
            let effects = self.lifecycle.failed(Outcome { exit_code: exit_code::PEERS, reason });
            self.carry_out(effects);
        } else if self.spoken.elapsed() >= SPEAK_EVERY {
            self.spoken = Instant::now();
            self.broadcast(|_| true, &coordinator_message::Kind::Waiting(self.waiting()));
        }
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Prepare => self.prepare(),
                Effect::Initialise(worker) => {
                    let servers = self.endpoints.values().cloned().collect();
                    self.send(worker.into(), coordinator_message::Kind::Initialise(Initialise { servers }));
                }
                Effect::Start(worker) => {
                    let servers = self.endpoints.values().cloned().collect();
                    let chief = worker == self.lifecycle.chief();
                    let start = Start { servers, chief, workers: self.config.workers };
                    self.send(worker.into(), coordinator_message::Kind::Start(start));
                }
                Effect::Joined(worker, incarnation) => {
                    let joined = WorkerJoined { worker: worker.0, incarnation: incarnation.0 };
                    self.broadcast(is_server, &coordinator_message::Kind::WorkerJoined(joined));
                }
                Effect::Left(worker, incarnation, reason) => self.left(worker, incarnation, reason),
                Effect::AllFinished => {
                    let finished = coordinator_message::Kind::AllFinished(self.all_finished());
                    self.broadcast(|task| task.job == Job::Worker, &finished);
                }
                Effect::Over(outcome) => {
                    if outcome.exit_code == 0 {
                        info!("training has ended");
                    } else {
                        warn!("the run ends: {}", outcome.reason);
                    }
                    let over = Over { exit_code: u32::from(outcome.exit_code), reason: outcome.reason };
                    self.broadcast(|_| true, &coordinator_message::Kind::Over(over));
                }
            }
        }
    }

    fn prepare(&self) {
        let Some((run, _)) = &self.run else { return };
        let workers = self.lifecycle.workers().iter().map(|worker| worker.0).collect();
        let prepare = Prepare { run: run.clone(), servers: self.config.servers, workers };
        info!("all {} ps and {} workers are here", self.config.servers, self.config.workers);
        self.broadcast(is_server, &coordinator_message::Kind::Prepare(prepare));
    }

    fn left(&mut self, worker: WorkerId, incarnation: Incarnation, reason: String) {
        if !reason.is_empty() {
            warn!("{worker} is gone: {reason}; training goes on without it");
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
        self.broadcast(|_| true, &coordinator_message::Kind::WorkerLeft(left));
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

    fn send(&self, task: TaskId, kind: coordinator_message::Kind) {
        self.broadcast(|other| other == task, &kind);
    }

    fn send_to(&self, id: SessionId, kind: coordinator_message::Kind) {
        if let Some(state) = self.sessions.get(&id) {
            deliver(&state.sender, kind);
        }
    }

    fn broadcast(&self, to: impl Fn(TaskId) -> bool, kind: &coordinator_message::Kind) {
        for state in self.sessions.values() {
            if state.task.is_some_and(|(task, _)| to(task)) {
                deliver(&state.sender, kind.clone());
            }
        }
    }
}

fn is_server(task: TaskId) -> bool {
    task.job == Job::Ps
}

/// A task that does not read its messages is as good as dead, and is found out as such by its silence.
fn deliver(sender: &mpsc::Sender<CoordinatorMessage>, kind: coordinator_message::Kind) {
    let _ = sender.try_send(CoordinatorMessage { kind: Some(kind) });
}
