//! A whole parameter server: its port, its shard, its session with the coordinator, and in ps 0 the coordinator. What it
//! does when is decided by `server_machine`.

use std::net::TcpListener;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::service::Routes;
use tracing::warn;
use windlass_core::cluster::{Job, ServerId};
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::membership::Patience;
use windlass_wire::PROTOCOL;
use windlass_wire::control::{Endpoint, Hello, Marked, Prepare, task_message};
use windlass_wire::endpoint::listen_locally;
use windlass_wire::frame::Request;
use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::lobby::{self, Lobby};
use windlass_wire::port::{Services, StreamHandler};
use windlass_wire::roster::{self, Introductions};
use windlass_wire::session::{Coordinator, Persistence, Progress, Records, Session};
use windlass_wire::{Socket, port};

use crate::checkpoint::CheckpointConfig;
use crate::connection::Connections;
use crate::coordinator::{ActorConfig, CoordinatorHandle};
use crate::memory;
use crate::prepare::{PrepareError, Prepared, Preparing};
use crate::saving::Saver;
use crate::server_machine::{Holding, LAST_WORDS, ServerEffect, ServerEvent, ServerMachine, Unprepared};
use crate::shard::ParameterShard;

/// How long it stays for those who have not come yet if the run cannot begin.
const FIRST_WORDS: Duration = Duration::from_secs(10);
/// After a connection that could not be taken, as when file descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a parameter server has to know. Everything about the run itself comes from the workers.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Which one this is.
    pub id: ServerId,
    /// How many there are.
    pub servers: u32,
    /// How many workers there are; `None` if that is not known, and whoever comes is welcome.
    pub workers: Option<u32>,
    /// The address at which workers reach this server.
    pub address: String,
    /// The address of ps 0.
    pub coordinator: String,
    /// When a silent task counts as dead.
    pub patience: Patience,
    /// How long to wait for peers before giving up.
    pub peer_timeout: Duration,
    /// When the run was started, for the time to the first step.
    pub started: Instant,
    /// The run's checkpoints, if it has any. The other servers hear of them from ps 0.
    pub checkpoints: Option<CheckpointConfig>,
    /// What may tell that the run has ended, when ps 0 cannot be reached.
    pub records: Option<Arc<dyn Records>>,
}

/// A parameter server at work.
pub struct Server {
    id: ServerId,
    machine: ServerMachine,
    /// What the machine's times count from.
    origin: Instant,
    shard: Arc<ShardSlot>,
    /// The shard that is being allocated or restored.
    preparing: Option<Preparing>,
    /// True once the run has begun, as far as this server knows.
    has_prepared: bool,
    /// Writes this server's parts of checkpoints, if it has any.
    saver: Option<Saver>,
    coordinator: Coordinator,
    own_coordinator: Option<CoordinatorHandle>,
    session: Session,
    /// What heartbeats tell.
    progress: Progress,
    connections: Connections,
    /// Connections are accepted until this is dropped.
    _accepting: watch::Sender<()>,
    /// Workers of a sparse cluster know by this that the server is here.
    _introductions: Option<Introductions>,
}

impl Server {
    /// Starts serving: on `listener`, or without one only within this process. Needs the async runtime.
    pub fn start(listener: Option<TcpListener>, config: ServerConfig) -> std::io::Result<Self> {
        let shard = Arc::new(ShardSlot::default());
        let connections = Connections::default();
        let own_coordinator = (config.id.0 == 0).then(|| {
            let config = ActorConfig {
                servers: config.servers,
                workers: config.workers,
                patience: config.patience,
                peer_timeout: config.peer_timeout,
                started: config.started,
                checkpoints: config.checkpoints.clone(),
                address: if listener.is_some() { config.address.clone() } else { String::new() },
            };
            CoordinatorHandle::start(config, shard.clone())
        });
        let coordinator = match &own_coordinator {
            Some(handle) => Coordinator::Local(Arc::new(handle.clone())),
            None => Coordinator::Remote(config.coordinator.clone()),
        };
        let mut endpoint = Endpoint { address: config.address.clone(), local_name: String::new() };
        let (accepting, stopped) = watch::channel(());
        let mut introductions = None;
        if let Some(listener) = listener {
            let (connections, shard) = (connections.clone(), shard.clone());
            let streams: StreamHandler = Arc::new(move |socket, visit| connections.serve(socket, visit, shard.clone()));
            let lobby = Lobby::default();
            endpoint.local_name = accept_locally(&listener, streams.clone(), lobby.clone(), stopped.clone())?;
            introductions = Some(accept(listener, own_coordinator.as_ref(), (streams, lobby), stopped)?);
        }
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Ps.to_string(),
            index: config.id.0,
            endpoint: Some(endpoint),
            memory: memory::available(),
            ..Hello::default()
        };
        let persistence = Persistence { patience: config.peer_timeout, records: config.records.clone() };
        let progress = Progress::default();
        let session = Session::open(coordinator.clone(), hello, progress.clone(), persistence);
        Ok(Self {
            id: config.id,
            machine: ServerMachine::default(),
            origin: Instant::now(),
            shard,
            preparing: None,
            has_prepared: false,
            saver: None,
            coordinator,
            own_coordinator,
            session,
            progress,
            connections,
            _accepting: accepting,
            _introductions: introductions,
        })
    }

    /// This server's shard, for a worker in the same process.
    pub fn shard(&self) -> Arc<dyn Shard> {
        self.shard.clone()
    }

    /// The coordinator, as a task in the same process reaches it.
    pub fn coordinator(&self) -> Coordinator {
        self.coordinator.clone()
    }

    /// Serves until the run is over.
    pub async fn run(self) -> Outcome {
        self.run_until(std::future::pending()).await
    }

    /// Serves until the run is over. Told to stop, it says goodbye, which ends the run for everyone.
    pub async fn run_until(mut self, stop: impl Future<Output = ()>) -> Outcome {
        let mut stop = std::pin::pin!(stop);
        let mut stopping = false;
        let outcome = 'serving: loop {
            let deadline =
                self.machine.deadline().map(|deadline| tokio::time::Instant::from_std(self.origin + deadline));
            let event = tokio::select! {
                event = self.next() => event,
                () = &mut stop, if !stopping => {
                    stopping = true;
                    ServerEvent::Stop
                }
                () = sleep_until(deadline) => ServerEvent::Quiet,
            };
            for effect in self.machine.handle(event, self.origin.elapsed()) {
                if let Some(outcome) = self.carry_out(effect).await {
                    break 'serving outcome;
                }
            }
        };
        if let Some(coordinator) = &self.own_coordinator {
            let refused = !self.has_prepared && matches!(outcome.exit_code, exit_code::USAGE | exit_code::CHECKPOINT);
            coordinator.ended(if refused { FIRST_WORDS } else { LAST_WORDS }).await;
        }
        outcome
    }

    /// Waits for what happens next. A shard that is ready is taken; else this does nothing yet, so that it may be dropped.
    async fn next(&mut self) -> ServerEvent {
        tokio::select! {
            message = self.session.receive() => message.map_or(ServerEvent::Lost, ServerEvent::Told),
            prepared = Preparing::done(&mut self.preparing) => ServerEvent::Prepared(self.take(prepared)),
        }
    }

    fn take(&mut self, prepared: Result<Prepared, PrepareError>) -> Result<Holding, Unprepared> {
        self.preparing = None;
        let unprepared = |error: PrepareError| Unprepared { exit_code: error.exit_code(), reason: error.to_string() };
        let Prepared { shard, saver, restored } = prepared.map_err(unprepared)?;
        let holding = Holding { shard: shard.is_some(), saves: saver.is_some(), restored };
        self.saver = saver;
        shard.into_iter().for_each(|shard| self.shard.set(shard));
        Ok(holding)
    }

    /// Does what has to be done. Returns how the run has ended, if it has.
    async fn carry_out(&mut self, effect: ServerEffect) -> Option<Outcome> {
        match effect {
            ServerEffect::End(outcome) => return Some(outcome),
            ServerEffect::Mention(waiting) => waiting.log(),
            ServerEffect::Prepare(prepare) => self.prepare(*prepare),
            ServerEffect::Send(message) => self.session.sender().send(message).await,
            ServerEffect::CloseSession => {
                let _ = tokio::time::timeout(LAST_WORDS, self.session.close()).await;
            }
            ServerEffect::Mark(number) => {
                if let Some(shard) = self.shard.get() {
                    let mark = serde_json::to_string(&shard.mark(number)).unwrap_or_default();
                    self.session.sender().send(task_message::Kind::Marked(Marked { number, mark })).await;
                }
            }
            ServerEffect::Cut(cut) => {
                if let (Some(saver), Some(shard)) = (&self.saver, self.shard.get()) {
                    saver.cut(shard, self.session.sender(), cut);
                }
            }
            ServerEffect::Abandon(number) => {
                self.shard.get().iter().for_each(|shard| shard.abandon(number));
                self.saver.iter().for_each(|saver| saver.give_up(number));
            }
            ServerEffect::Join(worker, incarnation, clock) => {
                self.shard.get().iter().for_each(|shard| drop(shard.join(worker, incarnation, clock)));
            }
            ServerEffect::Leave(worker, incarnation) => {
                if let Some(shard) = self.shard.get() {
                    // It may complete a round, and applying that is work.
                    let _ = tokio::task::spawn_blocking(move || shard.leave(worker, incarnation)).await;
                }
            }
        }
        None
    }

    /// Begins to allocate or restore this server's shard. What was there before goes first, so that there is never more
    /// than one.
    fn prepare(&mut self, prepare: Prepare) {
        self.shard.clear();
        self.saver = None;
        (self.preparing, self.has_prepared) = (None, true);
        self.preparing = Some(Preparing::start(self.id, prepare, self.progress.clone()));
    }
}

/// Never ready if there is no deadline.
async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl Drop for Server {
    /// Lets go of whoever waits, and ends the threads.
    fn drop(&mut self) {
        if let Some(shard) = self.shard.get() {
            shard.close();
        }
        self.connections.close();
    }
}

/// The place of a shard that is allocated once the run is known, and anew when the run goes back to a checkpoint.
#[derive(Default)]
pub(crate) struct ShardSlot(RwLock<Option<Arc<ParameterShard>>>);

impl ShardSlot {
    pub(crate) fn get(&self) -> Option<Arc<ParameterShard>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, shard: ParameterShard) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(shard));
    }

    /// Empties the slot, and lets go of whoever waits for its shard.
    fn clear(&self) {
        if let Some(shard) = self.0.write().unwrap_or_else(PoisonError::into_inner).take() {
            shard.close();
        }
    }
}

impl Shard for ShardSlot {
    fn serve(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        match self.get() {
            Some(shard) => shard.serve(request, peer),
            // The worker tries again.
            None => Err(std::io::Error::new(std::io::ErrorKind::ConnectionAborted, "no parameters here yet").into()),
        }
    }
}

fn accept(
    listener: TcpListener,
    coordinator: Option<&CoordinatorHandle>,
    (streams, lobby): (StreamHandler, Lobby),
    mut stopped: watch::Receiver<()>,
) -> std::io::Result<Introductions> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (introductions, roster) = roster::service();
    let mut routes = Routes::new(roster);
    if let Some(coordinator) = coordinator {
        routes = routes.add_service(coordinator.service());
    }
    let router = port::health().merge(routes.into_axum_router());
    tokio::spawn(port::serve(listener, Services { router, streams, lobby }, async move {
        let _ = stopped.changed().await;
    }));
    Ok(introductions)
}

/// Takes tensor streams from workers on this host, and returns the name under which they find it.
fn accept_locally(
    listener: &TcpListener,
    streams: StreamHandler,
    lobby: Lobby,
    mut stopped: watch::Receiver<()>,
) -> std::io::Result<String> {
    let Some((listener, name)) = listen_locally(listener.local_addr()?.port()) else { return Ok(String::new()) };
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.changed() => return,
            };
            let socket = accepted.and_then(|(stream, _)| stream.into_std()).and_then(|stream| {
                stream.set_nonblocking(false)?;
                Socket::unix(stream)
            });
            match socket {
                Ok(socket) => streams(socket, lobby.enter(lobby::Caller::Local)),
                Err(error) => {
                    warn!(%error, "cannot take a local connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(name)
}
