//! Whole clusters in this process, for models that no binary has: real servers on free ports, workers on threads.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use windlass::event::Event;
use windlass::{Model, Summary};
use windlass_core::cluster::{RunLayout, ServerId, WorkerId};
use windlass_core::lifecycle::Outcome;
use windlass_core::membership::Patience;
use windlass_instruments::Instruments;
use windlass_server::{Server, ServerConfig};
use windlass_wire::control::session::Coordinator;
use windlass_wire::link::Shard;
use windlass_worker::event::Watcher;
use windlass_worker::replica::{Local, LocalConfig};
use windlass_worker::task::{self, Ended, RunConfig, WorkerConfig};

use crate::process::LIMIT;

/// The tasks of a run. Without servers, a worker and a server share the process and need no port, as in `windlass
/// train`.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub servers: u32,
    pub workers: u32,
}

/// The results of a run.
pub struct Trained {
    pub summary: Summary,
    /// The losses of all workers at each step that they reported.
    pub losses: Vec<Loss>,
}

/// A worker, its step, and the loss at that step.
pub type Loss = ((u32, u64), f32);

/// How every task of a run ended.
pub struct AllEnded {
    pub workers: Vec<Ended>,
    pub servers: Vec<Outcome>,
    /// The losses of all workers at each step that they reported.
    pub losses: Vec<Loss>,
}

/// Trains a model until the run finishes.
pub fn train<M: Model>(layout: Layout, run: &RunConfig, model: impl Fn() -> M) -> Trained {
    let AllEnded { workers, servers, losses } = train_until_ended(layout, run, model, |shard| shard);
    assert!(servers.iter().all(|outcome| *outcome == Outcome::done()), "{servers:?}");
    assert!(workers.iter().all(|ended| ended.outcome == Outcome::done()), "{workers:?}");
    let summary = workers.into_iter().find_map(|ended| ended.summary).expect("the chief has a summary");
    Trained { summary, losses }
}

/// Trains a model until every task has ended, successfully or not. `between` wraps a shard in the worker's own process.
pub fn train_until_ended<M: Model>(
    layout: Layout,
    run: &RunConfig,
    model: impl Fn() -> M,
    between: impl Fn(Arc<dyn Shard>) -> Arc<dyn Shard>,
) -> AllEnded {
    let runtime = Runtime::new().unwrap();
    let servers = start_servers(&runtime, layout);
    let losses = Arc::new(Mutex::new(Vec::new()));
    let (sender, ended) = mpsc::channel();
    for worker in (0..layout.workers).map(WorkerId) {
        let (sender, runtime, run, model) = (sender.clone(), runtime.handle().clone(), run.clone(), model());
        let (mut config, watch) = (worker_config(worker, layout, &servers), watcher(losses.clone()));
        config.own_server = config.own_server.map(|(id, shard)| (id, between(shard)));
        let local = LocalConfig { accumulate: run.accumulate, ..LocalConfig::on_cpu(run.seed) };
        let replica = Box::new(Local::new(model, local).expect("the model can be trained"));
        std::thread::spawn(move || drop(sender.send(task::run(&runtime, config, run, replica, watch))));
    }
    let outcomes: Vec<_> = servers.into_iter().map(|server| runtime.spawn(server.run())).collect();
    let workers = (0..layout.workers).map(|_| ended.recv_timeout(LIMIT).expect("a worker ends")).collect();
    let end = |outcome: JoinHandle<Outcome>| {
        let outcome = runtime.block_on(async { tokio::time::timeout(LIMIT, outcome).await });
        outcome.expect("a server ends").unwrap()
    };
    let servers = outcomes.into_iter().map(end).collect();
    let mut losses = std::mem::take(&mut *losses.lock().unwrap());
    losses.sort_unstable_by_key(|(step, _)| *step);
    AllEnded { workers, servers, losses }
}

/// Runs a worker that chooses its number of threads itself until it has ended, whether or not it joined.
pub fn try_out<M: Model>(run: &RunConfig, model: M) -> Ended {
    let (runtime, layout) = (Runtime::new().unwrap(), Layout { servers: 0, workers: 1 });
    let mut servers = start_servers(&runtime, layout);
    let config = WorkerConfig { threads: None, ..worker_config(WorkerId(0), layout, &servers) };
    let replica = Box::new(Local::new(model, LocalConfig::on_cpu(run.seed)).expect("the model can be trained"));
    let serving = runtime.spawn(servers.remove(0).run());
    let ended = task::run(runtime.handle(), config, run.clone(), replica, watcher(Arc::default()));
    serving.abort();
    ended
}

/// Runs a worker with a server in its process until it has ended. It is told to stop when `told` receives a message.
pub fn train_until_told<M: Model>(run: &RunConfig, model: M, told: mpsc::Receiver<()>) -> Ended {
    let (runtime, layout) = (Runtime::new().unwrap(), Layout { servers: 0, workers: 1 });
    let mut servers = start_servers(&runtime, layout);
    let config = worker_config(WorkerId(0), layout, &servers);
    let stop = config.stop.clone();
    std::thread::spawn(move || told.recv().into_iter().for_each(|()| stop.set()));
    let replica = Box::new(Local::new(model, LocalConfig::on_cpu(run.seed)).expect("the model can be trained"));
    let serving = runtime.spawn(servers.remove(0).run());
    let ended = task::run(runtime.handle(), config, run.clone(), replica, watcher(Arc::default()));
    let served = runtime.block_on(async { tokio::time::timeout(LIMIT, serving).await });
    assert!(served.is_ok(), "the server ends too");
    runtime.shutdown_background();
    ended
}

fn start_servers(runtime: &Runtime, layout: Layout) -> Vec<Server> {
    let listeners: Vec<TcpListener> = (0..layout.servers).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    let config = |index: u32, address: &str| ServerConfig {
        id: ServerId(index),
        servers: layout.servers.max(1),
        workers: Some(layout.workers),
        layout: RunLayout::Apart,
        joined: None,
        address: address.to_owned(),
        coordinator: addresses.first().cloned().unwrap_or_default(),
        patience: Patience::new(LIMIT),
        peer_timeout: LIMIT,
        started: Instant::now(),
        checkpoints: None,
        records: None,
        run_dir: None,
        instruments: Instruments::default(),
    };
    let _entered = runtime.enter();
    if listeners.is_empty() {
        return vec![Server::start(None, config(0, "in-process")).unwrap()];
    }
    let start = |(index, listener)| Server::start(Some(listener), config(index, &addresses[index as usize])).unwrap();
    (0..).zip(listeners).map(start).collect()
}

fn worker_config(id: WorkerId, layout: Layout, servers: &[Server]) -> WorkerConfig {
    let coordinator: Coordinator = servers[0].coordinator();
    WorkerConfig {
        id,
        workers: Some(layout.workers),
        servers: layout.servers,
        coordinator,
        own_server: (layout.servers == 0).then(|| (ServerId(0), servers[0].shard())),
        threads: Some(1),
        peer_timeout: LIMIT,
        records: None,
        started: Instant::now(),
        stop: Arc::default(),
        board: windlass_worker::board::BoardConfig::default(),
        devices: vec!["cpu:0".to_owned()],
        log_placement: false,
        history: None,
        instruments: Instruments::default(),
    }
}

fn watcher(losses: Arc<Mutex<Vec<Loss>>>) -> Watcher {
    Box::new(move |event| {
        if let Event::Step(step) = event {
            let loss = step.loss.unwrap_or(f32::NAN);
            losses.lock().unwrap().push(((step.worker, step.local_step), loss));
        }
    })
}
