//! A whole parameter server: its port, its shard, its session with the coordinator, and in ps 0 the coordinator.

use std::net::TcpListener;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tonic::service::Routes;
use tracing::warn;
use windlass_core::cluster::{Job, ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::membership::Patience;
use windlass_wire::PROTOCOL;
use windlass_wire::control::{
    Abandon, Endpoint, Failure, Goodbye, Hello, Mark, Marked, Over, Prepare, ServerReady, coordinator_message,
    task_message,
};
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
use crate::coordinator::{CoordinatorConfig, CoordinatorHandle};
use crate::memory;
use crate::prepare::{PrepareError, Prepared, Preparing};
use crate::saving::Saver;
use crate::shard::ParameterShard;

/// How long ps 0 stays after the end for the others to hear of it.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long it stays for those who have not come yet if the run cannot begin.
const FIRST_WORDS: Duration = Duration::from_secs(10);
/// How long a server that is told to stop stays for the last checkpoint without a word of the coordinator, which speaks
/// every few seconds while it is written and gives up by itself.
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
    shard: Arc<ShardSlot>,
    /// The shard that is being allocated or restored.
    preparing: Option<Preparing>,
    /// Writes this server's parts of checkpoints, if it has any.
    saver: Option<Saver>,
    /// True once it is known that this server takes no part in the run.
    idle: bool,
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
        let progress = Progress::default();
        let session = Session::open(coordinator.clone(), hello, progress.clone(), persistence);
        Ok(Self {
            id: config.id,
            shard,
            preparing: None,
            saver: None,
            idle: false,
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
        let outcome = loop {
            let event = tokio::select! {
                event = self.next() => event,
                () = &mut stop => break self.leave().await,
            };
            if let Some(outcome) = self.handle(event).await {
                break outcome;
            }
        };
        if let Some(coordinator) = &self.own_coordinator {
            let refused = matches!(outcome.exit_code, exit_code::USAGE | exit_code::CHECKPOINT);
            coordinator.ended(if refused { FIRST_WORDS } else { LAST_WORDS }).await;
        }
        outcome
    }

    /// Says goodbye, and serves on until the coordinator has ended the run: a last checkpoint may have to be written.
    async fn leave(&mut self) -> Outcome {
        if self.idle {
            // The run goes on.
            let _ = tokio::time::timeout(LAST_WORDS, self.session.close()).await;
            return told_to_stop();
        }
        self.session.sender().send(task_message::Kind::Goodbye(Goodbye {})).await;
        let patience = if self.saver.is_some() { DRAIN } else { LAST_WORDS };
        while let Ok(event) = tokio::time::timeout(patience, self.next()).await {
            if let Some(outcome) = self.handle(event).await {
                return outcome;
            }
        }
        told_to_stop()
    }

    /// Waits for what happens next, and does nothing yet, so that it may be dropped.
    async fn next(&mut self) -> Event {
        tokio::select! {
            message = self.session.receive() => message.map_or(Event::Lost, Event::Told),
            prepared = Preparing::done(&mut self.preparing) => Event::Prepared(Box::new(prepared)),
        }
    }

    /// Does what has to be done. Returns how the run has ended, if it has.
    async fn handle(&mut self, event: Event) -> Option<Outcome> {
        match event {
            Event::Lost => {
                let reason = "lost the coordinator".to_owned();
                return Some(Outcome { exit_code: exit_code::PEERS, reason });
            }
            Event::Told(coordinator_message::Kind::Over(over)) => return Some(outcome(over)),
            Event::Told(coordinator_message::Kind::Waiting(waiting)) => waiting.log(),
            Event::Told(coordinator_message::Kind::Prepare(prepare)) => self.prepare(prepare),
            Event::Told(message) => match &mut self.preparing {
                // What concerns the shard is done when there is one.
                Some(preparing) => preparing.deferred.push(message),
                None => self.change(message).await,
            },
            Event::Prepared(prepared) => self.prepared(*prepared).await,
        }
        None
    }

    /// Does what the coordinator says about the shard.
    async fn change(&mut self, message: coordinator_message::Kind) {
        let Some(shard) = self.shard.get() else { return };
        match message {
            coordinator_message::Kind::Mark(Mark { number }) => {
                let mark = serde_json::to_string(&shard.mark(number)).unwrap_or_default();
                self.session.sender().send(task_message::Kind::Marked(Marked { number, mark })).await;
            }
            coordinator_message::Kind::Cut(cut) => {
                if let Some(saver) = &self.saver {
                    saver.cut(shard, self.session.sender(), cut);
                }
            }
            coordinator_message::Kind::Abandon(Abandon { number }) => {
                shard.abandon(number);
                self.saver.iter().for_each(|saver| saver.give_up(number));
            }
            coordinator_message::Kind::WorkerJoined(joined) => {
                shard.fence(WorkerId(joined.worker), Incarnation(joined.incarnation));
            }
            coordinator_message::Kind::WorkerLeft(left) => {
                // It may complete a round, and applying that is work.
                let leave = move || shard.leave(WorkerId(left.worker), Incarnation(left.incarnation));
                let _ = tokio::task::spawn_blocking(leave).await;
            }
            _ => {}
        }
    }

    /// Begins to allocate or restore this server's shard. What was there before goes first, so that there is never more
    /// than one.
    fn prepare(&mut self, prepare: Prepare) {
        self.shard.clear();
        self.saver = None;
        self.preparing = None;
        self.preparing = Some(Preparing::start(self.id, prepare, self.progress.clone()));
    }

    /// Takes the shard, tells the coordinator, and does what has come meanwhile.
    async fn prepared(&mut self, prepared: Result<Prepared, PrepareError>) {
        let Some(mut preparing) = self.preparing.take() else { return };
        let number = preparing.number;
        let reply = match prepared {
            Ok(Prepared { shard, saver, restored }) => {
                (self.idle, self.saver) = (shard.is_none(), saver);
                shard.into_iter().for_each(|shard| self.shard.set(shard));
                task_message::Kind::ServerReady(ServerReady { number, restored })
            }
            Err(error) => {
                let exit_code = u32::from(error.exit_code());
                task_message::Kind::Failed(Failure {
                    exit_code,
                    reason: error.to_string(),
                    incarnation: 0,
                    prepare: number,
                })
            }
        };
        self.session.sender().send(reply).await;
        for message in std::mem::take(&mut preparing.deferred) {
            self.change(message).await;
        }
    }
}

/// What happens to a server.
enum Event {
    Told(coordinator_message::Kind),
    /// The session is over, without a word of how the run ended.
    Lost,
    /// There is a shard, or there cannot be one.
    Prepared(Box<Result<Prepared, PrepareError>>),
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
