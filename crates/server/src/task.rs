//! A whole parameter server: its port, its shard, its session with the coordinator, and in ps 0 the coordinator.

use std::net::TcpListener;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::service::Routes;
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, PartLayout, Store};
use windlass_core::cluster::{Job, ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::membership::Patience;
use windlass_core::plan::ShardPlan;
use windlass_core::run::RunSpec;
use windlass_wire::PROTOCOL;
use windlass_wire::control::{
    CheckpointFailed, Cut, Endpoint, Failure, Goodbye, Hello, Mark, Marked, Over, PartWritten, Prepare, ServerReady,
    coordinator_message, task_message,
};
use windlass_wire::endpoint::listen_locally;
use windlass_wire::frame::Request;
use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::lobby::{self, Lobby};
use windlass_wire::port::{Services, StreamHandler};
use windlass_wire::roster::{self, Introductions};
use windlass_wire::session::{Coordinator, Persistence, Progress, Records, Session};
use windlass_wire::{Socket, port};

use crate::background::Background;
use crate::checkpoint::{self, CheckpointConfig};
use crate::connection::Connections;
use crate::coordinator::{CoordinatorConfig, CoordinatorHandle};
use crate::memory;
use crate::shard::ParameterShard;

/// How long ps 0 stays after the end for the others to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long a server that is told to stop stays for the last checkpoint.
const DRAIN: Duration = Duration::from_secs(60);
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
    saves: Option<Saves>,
    shard: Arc<ShardSlot>,
    coordinator: Coordinator,
    own_coordinator: Option<CoordinatorHandle>,
    session: Session,
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
            let config = CoordinatorConfig {
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
        let session = Session::open(coordinator.clone(), hello, Progress::default(), persistence);
        Ok(Self {
            id: config.id,
            saves: None,
            shard,
            coordinator,
            own_coordinator,
            session,
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
        let outcome = loop {
            let message = tokio::select! {
                message = self.session.receive() => message,
                () = &mut stop => break self.leave().await,
            };
            match message {
                Some(coordinator_message::Kind::Over(over)) => break outcome(over),
                Some(message) => self.handle(message).await,
                None => {
                    let reason = "lost the coordinator".to_owned();
                    break Outcome { exit_code: exit_code::PEERS, reason };
                }
            }
        };
        if let Some(coordinator) = &self.own_coordinator {
            coordinator.ended(LAST_WORDS).await;
        }
        outcome
    }

    /// Says goodbye, and serves on until the coordinator has ended the run: a last checkpoint may have to be written.
    async fn leave(&mut self) -> Outcome {
        self.session.sender().send(task_message::Kind::Goodbye(Goodbye {})).await;
        let patience = if self.saves.is_some() { DRAIN } else { LAST_WORDS };
        let over = async {
            loop {
                match self.session.receive().await {
                    Some(coordinator_message::Kind::Over(over)) => return outcome(over),
                    Some(message) => self.handle(message).await,
                    None => return told_to_stop(),
                }
            }
        };
        tokio::time::timeout(patience, over).await.unwrap_or_else(|_| told_to_stop())
    }

    async fn handle(&mut self, message: coordinator_message::Kind) {
        match message {
            coordinator_message::Kind::Waiting(waiting) => waiting.log(),
            coordinator_message::Kind::Prepare(prepare) => {
                let reply = match self.prepare(&prepare).await {
                    Ok(restored) => task_message::Kind::ServerReady(ServerReady { number: prepare.number, restored }),
                    Err(error) => {
                        let exit_code = u32::from(error.exit_code());
                        task_message::Kind::Failed(Failure { exit_code, reason: error.to_string(), incarnation: 0 })
                    }
                };
                self.session.sender().send(reply).await;
            }
            coordinator_message::Kind::Mark(Mark { number }) => {
                if let Some(shard) = self.shard.get() {
                    let mark = serde_json::to_string(&shard.mark()).unwrap_or_default();
                    self.session.sender().send(task_message::Kind::Marked(Marked { number, mark })).await;
                }
            }
            coordinator_message::Kind::Cut(cut) => self.cut(cut),
            coordinator_message::Kind::Abandon(_) => {
                if let Some(shard) = self.shard.get() {
                    shard.abandon();
                }
            }
            coordinator_message::Kind::WorkerJoined(joined) => {
                if let Some(shard) = self.shard.get() {
                    shard.fence(WorkerId(joined.worker), Incarnation(joined.incarnation));
                }
            }
            coordinator_message::Kind::WorkerLeft(left) => {
                let shard = self.shard.clone();
                // It may complete a round, and applying that is work.
                let leave = move || {
                    if let Some(shard) = shard.get() {
                        shard.leave(WorkerId(left.worker), Incarnation(left.incarnation));
                    }
                };
                let _ = tokio::task::spawn_blocking(leave).await;
            }
            _ => {}
        }
    }

    /// Allocates this server's shard, or restores it. True if it was restored.
    async fn prepare(&mut self, prepare: &Prepare) -> Result<bool, PrepareError> {
        let run: RunSpec = serde_json::from_str(&prepare.run)?;
        let servers = prepare.servers as usize;
        let plan = ShardPlan::new(&run.parameters, servers, run.sharding);
        let own = &plan.servers[self.id.0 as usize];
        let workers: Vec<WorkerId> = prepare.workers.iter().map(|worker| WorkerId(*worker)).collect();
        let held = own.dense_elements() + own.row_elements(&run.parameters);
        info!(
            "holds {} of {} parameter values ({:.1} MB) of {}, optimizer {}{}",
            held,
            run.parameters.elements(),
            held as f64 * 4e-6,
            run.model,
            run.optimizer.name(),
            if held == 0 { ": it is too small to be worth another ps here (see --min-shard-bytes)" } else { "" }
        );
        // What was there before goes first, so that there is never more than one.
        self.shard.clear();
        self.saves = None;
        if !prepare.checkpoints.is_empty() {
            let store = Arc::new(Store::open(&prepare.checkpoints)?);
            let layout = Arc::new(PartLayout::new(&run, own, self.id.0 as usize, servers));
            let background = Arc::new(Background::start().map_err(PrepareError::Threads)?);
            self.saves = Some(Saves { store, layout, background });
        }
        let restored = !prepare.restore.is_empty();
        let shard = if restored {
            let id: CheckpointId = prepare.restore.parse().map_err(PrepareError::Id)?;
            let (image, state) = checkpoint::restore(&prepare.restore_from, &id, &run, own).await?;
            ParameterShard::restored(run, own, &workers, image, state)
        } else {
            ParameterShard::new(run, own, &workers)
        };
        shard.fence_up_to(Incarnation(prepare.latest_incarnation));
        for living in &prepare.living {
            shard.fence(WorkerId(living.worker), Incarnation(living.incarnation));
        }
        // Those who are not here are not waited for.
        for worker in workers.iter().filter(|worker| prepare.living.iter().all(|living| living.worker != worker.0)) {
            shard.leave(*worker, Incarnation::default());
        }
        if let Some(saves) = &self.saves {
            let spares = shard.spares().clone();
            saves.background.handle().spawn_blocking(move || spares.fill());
        }
        self.shard.set(shard);
        Ok(restored)
    }

    /// Cuts the shard, and writes it while training goes on.
    fn cut(&self, Cut { number, id, cut }: Cut) {
        let (Some(shard), Some(saves)) = (self.shard.get(), self.saves.clone()) else { return };
        let (sender, foreground) = (self.session.sender(), Handle::current());
        let made = serde_json::from_str(&cut).map_err(|error| error.to_string());
        let made = made.and_then(|cut| shard.cut(number, &cut).map_err(|error| error.to_string()));
        let background = saves.background.handle().clone();
        background.spawn(async move {
            let written = async {
                made?;
                let id: CheckpointId =
                    id.parse().map_err(|error: windlass_checkpoint::BadCheckpointId| error.to_string())?;
                // Not in the background: pushes wait for what it has locked.
                let read = shard.clone();
                let snapshot = foreground.spawn_blocking(move || read.snapshot(number)).await;
                let snapshot = snapshot.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
                let part = checkpoint::write(&saves.store, &id, &saves.layout, snapshot, &shard).await;
                part.map_err(|error| error.to_string())
            };
            let reply = match written.await {
                Ok(part) => {
                    let part = serde_json::to_string(&part).unwrap_or_default();
                    task_message::Kind::PartWritten(PartWritten { number, part })
                }
                Err(reason) => task_message::Kind::CheckpointFailed(CheckpointFailed { number, reason }),
            };
            sender.send(reply).await;
        });
    }
}

/// Where and as what this server writes its part of a checkpoint.
#[derive(Clone)]
struct Saves {
    store: Arc<Store>,
    layout: Arc<PartLayout>,
    background: Arc<Background>,
}

/// Why a server has no shard.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("cannot prepare: {0}")]
    Threads(std::io::Error),
    #[error("cannot prepare: {0}")]
    Run(#[from] serde_json::Error),
    #[error("cannot restore: {0}")]
    Id(windlass_checkpoint::BadCheckpointId),
    #[error("cannot restore: {0}")]
    Checkpoint(#[from] CheckpointError),
}

impl PrepareError {
    fn exit_code(&self) -> u8 {
        match self {
            PrepareError::Threads(_) => exit_code::INTERNAL,
            PrepareError::Run(_) => exit_code::USAGE,
            PrepareError::Id(_) | PrepareError::Checkpoint(_) => exit_code::CHECKPOINT,
        }
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

fn outcome(over: Over) -> Outcome {
    Outcome { exit_code: over.exit_code as u8, reason: over.reason }
}

fn told_to_stop() -> Outcome {
    Outcome { exit_code: exit_code::TERMINATED, reason: "told to stop".to_owned() }
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
