//! A whole parameter server: its port (`listen`), its shard (`prepare`), its parts of checkpoints (`save`), its session
//! with the coordinator (`serve`), and in ps 0 the coordinator. What it does when is decided by `server_machine`.

mod listen;
mod prepare;
mod save;
mod serve;
mod shard_slot;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::cluster::{Job, RunLayout, ServerId};
use windlass_core::membership::Patience;
use windlass_instruments::{Instruments, PsInstruments, PushFate, Sites, available_memory};
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::{Endpoint, Heartbeat, Hello, PsTotals};
use windlass_wire::control::session::{Coordinator, Persistence, Progress, Records, Session};
use windlass_wire::control::usage;
use windlass_wire::link::Shard;

use crate::checkpoint::CheckpointConfig;
use crate::coordinator::{ActorConfig, CoordinatorHandle};
use crate::server_machine::ServerMachine;
use listen::{PortServices, ServerPort};
use prepare::Preparing;
use save::Saver;
pub(crate) use shard_slot::ShardSlot;

/// The configuration of a parameter server. Everything about the run itself comes from the workers.
#[derive(Clone)]
pub struct ServerConfig {
    /// The id of this server.
    pub id: ServerId,
    /// How many servers there are.
    pub servers: u32,
    /// How many workers there are; `None` if the number is open and every worker is admitted.
    pub workers: Option<u32>,
    /// How servers and workers are laid out in processes.
    pub layout: RunLayout,
    /// The client's view of its joined workers, if the client is in this process.
    pub joined: Option<Sites>,
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
    /// The run's checkpoints, if it has any. Other servers get them from ps 0.
    pub checkpoints: Option<CheckpointConfig>,
    /// Records that may show that the run has ended when ps 0 cannot be reached.
    pub records: Option<Arc<dyn Records>>,
    /// The run directory, if any. Only ps 0 writes there.
    pub run_dir: Option<PathBuf>,
    /// The instruments of this task.
    pub instruments: Instruments,
}

/// A parameter server at work.
pub struct Server {
    id: ServerId,
    machine: ServerMachine,
    /// The origin of the machine's clock.
    origin: Instant,
    shard: Arc<ShardSlot>,
    /// The shard that is being allocated or restored.
    preparing: Option<Preparing>,
    /// How long the others wait for this server to prepare.
    peer_timeout: Duration,
    /// Whether tasks in other processes take part in the run.
    is_shared: bool,
    /// True once the run has begun, as far as this server knows.
    has_prepared: bool,
    /// Writes this server's parts of checkpoints, if it has any.
    saver: Option<Saver>,
    coordinator: Coordinator,
    own_coordinator: Option<CoordinatorHandle>,
    session: Session,
    /// What heartbeats report.
    progress: Progress,
    /// The instruments of this task, and those of its role.
    instruments: Instruments,
    counts: PsInstruments,
    /// The port, if it has one.
    port: Option<ServerPort>,
}

impl Server {
    /// Starts serving on `listener`, or else only within this process. Needs the async runtime.
    pub fn start(listener: Option<TcpListener>, config: ServerConfig) -> std::io::Result<Self> {
        let shard = Arc::new(ShardSlot::default());
        let address = listener.as_ref().map_or("", |_| &config.address);
        let own_coordinator =
            (config.id.0 == 0).then(|| CoordinatorHandle::start(actor_config(&config, address), shard.clone()));
        let coordinator = match &own_coordinator {
            Some(handle) => Coordinator::Local(Arc::new(handle.clone())),
            None => Coordinator::Remote(config.coordinator.clone()),
        };
        let (instruments, counts) = (config.instruments.clone(), config.instruments.ps());
        let services = PortServices {
            shard: shard.clone(),
            coordinator: own_coordinator.clone(),
            router: instruments.router(),
            counts: counts.clone(),
        };
        let port = listener.map(|listener| ServerPort::start(listener, services)).transpose()?;
        let local_name = port.as_ref().map(|port| port.local_name().to_owned()).unwrap_or_default();
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Ps.to_string(),
            index: config.id.0,
            endpoint: Some(Endpoint { address: config.address.clone(), local_name }),
            memory: available_memory().map(Into::into),
            ..Hello::default()
        };
        let persistence = Persistence { patience: config.peer_timeout, records: config.records.clone() };
        let progress = Progress::default();
        let session = Session::open(coordinator.clone(), hello, progress.clone(), persistence);
        instruments.probes().started();
        let counted = counts.clone();
        usage::report(instruments.usage(), &progress, move |heartbeat| tell_totals(&counted, heartbeat));
        Ok(Self {
            id: config.id,
            machine: ServerMachine::default(),
            origin: Instant::now(),
            shard,
            preparing: None,
            peer_timeout: config.peer_timeout,
            is_shared: matches!(config.layout, RunLayout::Apart | RunLayout::Colocated),
            has_prepared: false,
            saver: None,
            coordinator,
            own_coordinator,
            session,
            progress,
            instruments,
            counts,
            port,
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
}

impl Drop for Server {
    /// Ends all waits and the threads.
    fn drop(&mut self) {
        if let Some(shard) = self.shard.get() {
            shard.close();
        }
        self.port.iter().for_each(ServerPort::close_streams);
    }
}

/// Builds the configuration of the coordinator in ps 0. Without a port, the address is empty.
fn actor_config(config: &ServerConfig, address: &str) -> ActorConfig {
    ActorConfig {
        servers: config.servers,
        workers: config.workers,
        layout: config.layout,
        joined: config.joined.clone(),
        patience: config.patience,
        peer_timeout: config.peer_timeout,
        started: config.started,
        checkpoints: config.checkpoints.clone(),
        address: address.to_owned(),
        run_dir: config.run_dir.clone(),
        instruments: config.instruments.clone(),
        tidying: Arc::default(),
    }
}

/// Fills in what has become of the pushes so far.
fn tell_totals(counts: &PsInstruments, heartbeat: &mut Heartbeat) {
    heartbeat.ps_totals = Some(PsTotals {
        applied: counts.count(PushFate::Applied),
        repeated: counts.count(PushFate::Repeated),
        stale: counts.count(PushFate::Stale),
    });
}
