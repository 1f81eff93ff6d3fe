//! Whole clusters in one process: real servers on ports that the system picks, and workers that use a session and a
//! client as a worker task does. Each task has its own runtime, and every wait has a limit.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use windlass_core::cluster::{RunLayout, ServerId};
use windlass_core::lifecycle::Outcome;
use windlass_core::membership::Patience;
use windlass_core::run::RunSpec;
use windlass_instruments::Instruments;
use windlass_server::{Server, ServerConfig};
use windlass_wire::client::{Pulled, RowGradient, RowRequest};
use windlass_wire::control::proto::{AllFinished, Over};
use windlass_wire::control::session::Coordinator;
use windlass_wire::link::Shard;

use crate::network::Link;
use crate::proxy::{Disconnection, Proxy};
use crate::worker::{Ended, Worker};

/// The limit of every wait in these tests, however slow the machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// How workers reach the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The Unix socket that a worker on the same host finds.
    Unix,
    /// The server's port.
    Tcp,
    /// Calls, as in single-process training.
    Process,
    /// A call to the server of the worker's own number, ports for the others.
    Colocated,
}

/// Options that tests override.
#[derive(Clone)]
pub struct Options {
    pub via: Via,
    pub patience: Patience,
    pub peer_timeout: Duration,
    /// The first values that the chief pushes; `None` means zeros.
    pub first_values: Option<Vec<Vec<f32>>>,
    /// The first values of rows.
    pub first_rows: Vec<RowGradient>,
    /// The rows that the chief pulls after all training has ended.
    pub last_rows: Vec<RowRequest>,
    /// If set, tensor streams over TCP go through proxies that cut them like this.
    pub cut_streams: Option<Disconnection>,
    /// If set, tensor streams over TCP suffer faults that are drawn from this seed.
    pub faults: Option<u64>,
    /// If set, sessions go through a proxy that cuts them like this.
    pub cut_sessions: Option<Disconnection>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            via: Via::Unix,
            patience: Patience::new(Duration::from_secs(20)),
            peer_timeout: LIMIT,
            first_values: None,
            first_rows: Vec::new(),
            last_rows: Vec::new(),
            cut_streams: None,
            faults: None,
            cut_sessions: None,
        }
    }
}

/// The servers of a run, and what a worker needs to find them.
pub struct Cluster {
    servers: Mutex<BTreeMap<u32, ServerProcess>>,
    listeners: Vec<TcpListener>,
    site: Arc<Site>,
}

/// A server's process: its own runtime.
struct ServerProcess {
    end: JoinHandle<Outcome>,
    runtime: Runtime,
}

/// What the workers of a cluster know.
pub struct Site {
    pub workers: u32,
    run: RunSpec,
    pub options: Options,
    /// The address of each server.
    addresses: Vec<String>,
    shards: Vec<OnceLock<Arc<dyn Shard>>>,
    coordinator: OnceLock<Coordinator>,
    /// One proxy per server, if streams go through proxies.
    pub streams: Vec<Proxy>,
    /// One link per server, if streams suffer faults.
    pub links: Vec<Link>,
    /// The proxy for sessions, if they go through one.
    sessions: Option<Proxy>,
}

impl Cluster {
    /// Starts the servers for a run.
    pub fn start(servers: u32, workers: u32, run: RunSpec) -> Self {
        Self::start_with(servers, workers, run, Options::default())
    }

    /// Like [`Cluster::start`], with options.
    pub fn start_with(servers: u32, workers: u32, run: RunSpec, options: Options) -> Self {
        let cluster = Self::bind(servers, workers, run, options);
        (0..servers).for_each(|index| cluster.start_server(index));
        cluster
    }

    /// Takes the ports of the servers, but starts none.
    pub fn bind(servers: u32, workers: u32, run: RunSpec, options: Options) -> Self {
        let listeners: Vec<TcpListener> = (0..servers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<String> = listeners.iter().map(|l| l.local_addr().unwrap().to_string()).collect();
        let streams = options.cut_streams.map(|cut| addresses.iter().map(|a| Proxy::start(a, cut)).collect());
        let link = |(server, address): (usize, &String)| {
            options.faults.map(|seed| Link::start(seed, server, address, &run.parameters))
        };
        let site = Site {
            workers,
            streams: streams.unwrap_or_default(),
            links: addresses.iter().enumerate().filter_map(link).collect(),
            run,
            sessions: options.cut_sessions.map(|cut| Proxy::start(&addresses[0], cut)),
            options,
            shards: addresses.iter().map(|_| OnceLock::new()).collect(),
            addresses,
            coordinator: OnceLock::new(),
        };
        Self { servers: Mutex::default(), listeners, site: Arc::new(site) }
    }

    /// Starts a server on its port; if it runs already, a second process.
    pub fn start_server(&self, index: u32) {
        let listener = self.listeners[index as usize].try_clone().unwrap();
        let runtime = new_runtime();
        let entered = runtime.enter();
        let server = Server::start(Some(listener), self.server_config(index)).unwrap();
        let _ = self.site.shards[index as usize].set(server.shard());
        if index == 0 {
            let _ = self.site.coordinator.set(server.coordinator());
        }
        let end = runtime.spawn(server.run());
        drop(entered);
        self.servers.lock().unwrap().insert(index, ServerProcess { end, runtime });
    }

    /// Kills a server's process: its connections close without any message.
    pub fn kill_server(&self, index: u32) {
        let process = self.servers.lock().unwrap().remove(&index).expect("it runs");
        process.runtime.shutdown_background();
    }

    /// Waits until a server has ended, and returns how.
    pub fn outcome(&self, index: u32) -> Outcome {
        let ServerProcess { end, runtime } = self.servers.lock().unwrap().remove(&index).expect("it runs");
        let outcome = runtime.block_on(async { tokio::time::timeout(LIMIT, end).await });
        runtime.shutdown_background();
        outcome.unwrap_or_else(|_| panic!("ps {index} ends")).unwrap()
    }

    fn server_config(&self, index: u32) -> ServerConfig {
        let site = &self.site;
        ServerConfig {
            id: ServerId(index),
            servers: site.addresses.len() as u32,
            workers: Some(site.workers),
            layout: RunLayout::Apart,
            joined: None,
            address: site.addresses[index as usize].clone(),
            coordinator: site.coordinator_address(),
            patience: site.options.patience,
            peer_timeout: site.options.peer_timeout,
            started: Instant::now(),
            checkpoints: None,
            records: None,
            run_dir: None,
            instruments: Instruments::default(),
        }
    }

    /// The address of a server.
    pub fn address(&self, server: usize) -> &str {
        &self.site.addresses[server]
    }

    /// A server's shard, for a test that plays its peer.
    pub fn shard(&self, server: usize) -> Arc<dyn Shard> {
        self.site.shard(server)
    }

    /// Returns what the workers know, which outlives the servers.
    pub fn site(&self) -> Arc<Site> {
        self.site.clone()
    }

    /// Starts a worker's process that says hello and is admitted.
    pub fn worker(&self, index: u32) -> Worker {
        self.worker_with(index, self.site.run.clone()).unwrap()
    }

    /// Starts a new process for a worker that has vanished. It is refused until the loss of the old one is noticed.
    pub fn worker_again(&self, index: u32) -> Worker {
        let join = |_| self.worker_with(index, self.site.run.clone()).ok();
        (0..1000).find_map(join).expect("the death of the first process is noticed")
    }

    /// Like [`Cluster::worker`], with its own run, and possibly refused.
    pub fn worker_with(&self, index: u32, run: RunSpec) -> Result<Worker, Over> {
        Worker::join(self.site.clone(), index, run, self.site.coordinator())
    }

    /// Like [`Cluster::worker`], with a session that goes through a proxy.
    pub fn worker_through(&self, index: u32, sessions: &Proxy) -> Result<Worker, Over> {
        let coordinator = Coordinator::Remote(sessions.address().to_owned());
        Worker::join(self.site.clone(), index, self.site.run.clone(), coordinator)
    }

    /// Runs `work` as a worker on a thread of its own, from the worker's hello to the end of the run.
    pub fn spawn<T: Send + 'static>(
        &self,
        index: u32,
        work: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> Working<Ended<T>> {
        let (site, run) = (self.site.clone(), self.site.run.clone());
        Working::start(format!("worker {index}"), move || {
            let coordinator = site.coordinator();
            let mut worker = Worker::join(site, index, run, coordinator).unwrap();
            worker.start_training();
            let result = work(&mut worker);
            worker.finish(result)
        })
    }

    /// Runs all workers to the end of the run, which must end well.
    pub fn train<T: Send + 'static>(self, work: impl Fn(&mut Worker) -> T + Clone + Send + 'static) -> Trained<T> {
        let workers: Vec<_> = (0..self.site.workers).map(|index| self.spawn(index, work.clone())).collect();
        let mut ended: Vec<Ended<T>> = workers.into_iter().map(Working::join).collect();
        self.assert_ends_well();
        let summary = ended[0].all_finished.take().expect("all finished");
        let last = ended.iter_mut().find_map(|ended| ended.last.take()).expect("a chief");
        Trained { results: ended.into_iter().map(|ended| ended.result).collect(), last, summary }
    }

    /// Waits until every server has ended, and returns how.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let running: Vec<u32> = self.servers.lock().unwrap().keys().copied().collect();
        running.into_iter().map(|index| self.outcome(index)).collect()
    }

    /// Waits until every server has ended well.
    pub fn assert_ends_well(&self) {
        for outcome in self.outcomes() {
            assert_eq!(outcome, Outcome::done());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (_, process) in std::mem::take(&mut *self.servers.lock().unwrap()) {
            process.runtime.shutdown_background();
        }
    }
}

/// The runtime of one process.
pub fn new_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

impl Site {
    /// A server's shard, for a worker in the same process.
    pub fn shard(&self, server: usize) -> Arc<dyn Shard> {
        self.shards[server].get().expect("started").clone()
    }

    fn coordinator_address(&self) -> String {
        self.sessions.as_ref().map_or(self.addresses[0].as_str(), Proxy::address).to_owned()
    }

    fn coordinator(&self) -> Coordinator {
        match self.options.via {
            Via::Process => self.coordinator.get().expect("ps 0 is started").clone(),
            _ => Coordinator::Remote(self.coordinator_address()),
        }
    }
}

/// The results of a complete training run.
pub struct Trained<T> {
    /// The result of each worker.
    pub results: Vec<T>,
    /// The values after all training has ended, as pulled by the chief.
    pub last: Pulled,
    pub summary: AllFinished,
}

/// Work that runs on its own thread.
pub struct Working<T> {
    name: String,
    result: mpsc::Receiver<T>,
}

impl<T: Send + 'static> Working<T> {
    pub fn start(name: impl Into<String>, work: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, result) = mpsc::channel();
        let name = name.into();
        std::thread::Builder::new().name(name.clone()).spawn(move || drop(sender.send(work()))).unwrap();
        Self { name, result }
    }

    /// Returns the result, within the limit.
    pub fn join(self) -> T {
        match self.result.recv_timeout(LIMIT) {
            Ok(result) => result,
            Err(error) => panic!("{}: {error}", self.name),
        }
    }
}
