//! `windlass train MODEL`: a whole run in this process, or one task of a cluster.

mod concluding;
mod in_graph;
mod loading;
mod placed;
mod serving;

use std::fs::File;
use std::net::TcpListener;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::ArgMatches;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tracing::{info, warn};
use windlass_core::cluster::{ClusterSpec, Job, ResolvedTask, RunLayout, ServerId, TaskId, WorkerId};
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::limits::Limits;
use windlass_instruments::{Instruments, Sites};
use windlass_server::{RunRecords, Server, ServerConfig};
use windlass_wire::client::Interrupt;
use windlass_wire::control::roster;
use windlass_wire::control::session::{Coordinator, Records};
use windlass_wire::port;
use windlass_worker::devices::{self, ComputeDevice};
use windlass_worker::event::{Event, Watcher};
use windlass_worker::model::Model;
use windlass_worker::replica::{Replica, Trace};
use windlass_worker::task::{self, Ended, WorkerConfig};

use self::serving::Serving;
use crate::args::{Format, TrainArgs, TrainingArgs};
use crate::config::{Role, TaskConfig, make_run_dir, resolve_role};
use crate::failure::Failure;
use crate::in_graph::{Client, logical_workers};
use crate::output::Trainers;
use crate::placement::Placement;
use crate::program::parse;
use crate::progress::{Progress, SharedExtent};
use crate::run_file::RunFile;
use crate::terminal::Terminal;
use crate::{config, eval, finished, listening, logging, model_flags, output, placement, run_file, signals, version};

/// How long a finished process waits for its threads.
const LAST_WORDS: Duration = Duration::from_secs(1);

pub(crate) fn run<M: Model>(matches: &ArgMatches, args: &TrainArgs) -> Result<(), Failure> {
    let client = crate::in_graph::client(args)?;
    let role = if client.is_some() { Role::Alone } else { resolve_role(&args.cluster, &args.settings)? };
    if args.cluster.print_cluster {
        match &role {
            Role::Alone if client.is_some() => print_client(client.as_ref()),
            Role::Task(resolved) => resolved.print_lines().iter().for_each(|line| output::print_line(line)),
            Role::Evaluator => output::print_line("an evaluator: reads the checkpoints and connects to no other task"),
            Role::Alone => output::print_line("no cluster given: training in one process"),
        }
        return Ok(());
    }
    let resolved = match role {
        Role::Evaluator if !args.config.print_config => return eval::follow::<M>(matches, args),
        Role::Task(resolved) => Some(resolved),
        Role::Alone | Role::Evaluator => None,
    };
    let flags: &M::Flags = &parse(matches)?;
    let terminal = if args.output.format == Format::Human { Terminal::with_bars() } else { Terminal::default() };
    let is_launched = args.output.started_at.is_some();
    match &resolved {
        Some(resolved) if is_launched => logging::start_for_launcher(&terminal, resolved.task == TaskId::CHIEF),
        None if is_launched => logging::start_for_launcher(&terminal, true),
        Some(_) => logging::start_beside(&terminal),
        None => logging::start_for_one_process(&terminal),
    }
    let workers = match &client {
        Some(client) => Some(logical_workers(args, client.workers.len() as u32)),
        None => resolved.as_ref().map_or(Some(1), |resolved| resolved.cluster.task_count(Job::Worker)),
    };
    let mut config = TaskConfig::new(args, &M::defaults(flags), workers)?;
    // The check concerns a process that holds all parameters, and the task with the coordinator.
    let is_alone = resolved.is_none() && client.as_ref().is_none_or(|client| client.ps.is_empty());
    if is_alone || resolved.as_ref().is_some_and(is_coordinator) {
        config::check_places(args)?;
    }
    config.run.model_flags = model_flags::recorded::<M>(matches);
    let settings = run_file::text(&args.settings, &config.run)?;
    if args.config.print_config {
        output::print_line(settings.trim_end());
        return Ok(());
    }
    let task = match &client {
        Some(client) => (!client.ps.is_empty()).then_some(TaskId::CHIEF),
        None => resolved.as_ref().map(|resolved| resolved.task),
    };
    if client.is_some() && args.training.in_graph {
        config.placement = Placement::of_the_processor(config.placement.is_logged);
    }
    let devices = match task.unwrap_or(TaskId::CHIEF) {
        task if task.job == Job::Worker => config.placement.devices(task)?,
        _ => Vec::new(),
    };
    let cluster = match &client {
        Some(client) => client.cluster.as_ref(),
        None => resolved.as_ref().map(|resolved| &resolved.cluster),
    };
    cluster.into_iter().for_each(|cluster| config.fit_to(cluster, &args.training));
    let trainers = match &client {
        Some(_) => Trainers::of_client(workers.unwrap_or(1)),
        None => Trainers::Workers,
    };
    let progress = Progress::of_one(&terminal, args.output.format, args.output.progress).with_trainers(trainers);
    if is_alone
        && let Some(reason) =
            finished::already(M::NAME, &config.run.model_flags, args, &config.run, workers.unwrap_or(1))?
    {
        progress.watcher()(&Event::AlreadyFinished { reason });
        return Ok(());
    }
    args.output.run_dir.as_deref().map(make_run_dir).transpose()?;
    // Tasks of a cluster may share the directory, and each has its own settings.
    let run_dir = args.output.run_dir.as_deref().filter(|_| is_alone && !is_launched);
    let run_file =
        run_dir.map(|directory| RunFile::create(directory, settings, args.checkpoint.take_over)).transpose()?;
    let _lock = resolved.as_ref().filter(|resolved| is_coordinator(resolved)).and_then(|_| lock(args));
    let runtime = runtime()?;
    signals::watch(&runtime, config.stop.clone(), config.stopped_by.clone(), &terminal);
    let extent = progress.extent();
    let runtime = Ending(Some(runtime));
    let TaskId { job, index } = task.unwrap_or(TaskId::CHIEF);
    let job = if client.is_some() { Job::Client } else { job };
    let instruments = Instruments::new(&version::build(), &job.to_string(), index);
    let run_dir = args.output.run_dir.clone();
    let watch = SharedWatcher(Arc::new(Mutex::new(progress.watcher())));
    let trace = Trace::default();
    let mut process =
        Process { runtime, config, task, devices, extent, instruments, run_dir, trace, watch, joined: None };
    let ended = match (&resolved, &client) {
        (None, None) => process.single::<M>(flags),
        (None, Some(client)) => listening::listen_as_client(args.cluster.bind.as_deref()).and_then(|listener| {
            let page = client.ps.first().cloned().unwrap_or_else(|| listening::reached_at(&listener));
            info!("live page at http://{page}/");
            match args.training.in_graph {
                true => process.in_graph::<M>(flags, client, listener),
                false => process.placed::<M>(flags, client, listener),
            }
        }),
        (Some(resolved), _) => {
            check_dynamic(&resolved.cluster, &args.training)?;
            log_cluster(resolved);
            let listener = listening::listen(resolved, args.cluster.bind.as_deref())?;
            info!("{} listens on {}", resolved.task, listening::local_address(&listener));
            if is_coordinator(resolved) {
                info!("live page at http://{}/", resolved.address);
            }
            match resolved.task.job {
                Job::Ps => process.server(resolved, listener),
                Job::Worker | Job::Client => process.worker::<M>(flags, resolved, listener),
            }
        }
    };
    if let Some(run_file) = run_file.filter(|_| !process.extent.with(|extent| extent.has_begun())) {
        run_file.restore();
    }
    match ended {
        Ok(ended) => process.conclude(ended, args),
        Err(failure) => Err(process.explained(failure, args)),
    }
}

fn print_client(client: Option<&Client>) {
    if let Some(Client { workers, ps, .. }) = client {
        let holds =
            if ps.is_empty() { "it holds the parameters".to_owned() } else { format!("ps at {}", ps.join(", ")) };
        output::print_line(&format!("the client of joined workers: {holds}; workers at {}", workers.join(", ")));
    }
}

/// The address of a server in this process, and that of ps 0.
struct ServerAddress {
    own: String,
    coordinator: String,
}

/// One or several tasks in this process.
struct Process {
    runtime: Ending,
    config: TaskConfig,
    /// Its task in a cluster, if it does not train alone.
    task: Option<TaskId>,
    /// The devices to compute on, with a replica of the network on each.
    devices: Vec<ComputeDevice>,
    extent: SharedExtent,
    /// Its metrics and probes.
    instruments: Instruments,
    run_dir: Option<PathBuf>,
    /// A trace of the first steps of a placed model.
    trace: Trace,
    watch: SharedWatcher,
    /// A client's knowledge of its joined workers.
    joined: Option<Sites>,
}

/// The receiver of events, shared by the worker's thread and the main thread.
#[derive(Clone)]
struct SharedWatcher(Arc<Mutex<Watcher>>);

impl SharedWatcher {
    fn tell(&self, event: &Event) {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner))(event);
    }
}

/// The runtime of a process. Shutting it down has a time limit: one of its threads may hang on a disk.
struct Ending(Option<Runtime>);

impl Deref for Ending {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("there until it is dropped")
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|runtime| runtime.shutdown_timeout(LAST_WORDS));
    }
}

impl Process {
    /// Runs everything in this process: a worker, and a server without a port.
    fn single<M: Model>(&mut self, flags: &M::Flags) -> Result<Ended, Failure> {
        let replica = self.load::<M>(flags, WorkerId(0), Some(1))?;
        let address = ServerAddress { own: "in-process".to_owned(), coordinator: String::new() };
        let server = self.start_server(None, (ServerId(0), 1), Some(1), address, RunLayout::OneProcess)?;
        let own = Some((ServerId(0), server.shard()));
        let worker = self.worker_config(WorkerId(0), Some(1), 0, server.coordinator(), own);
        let serving = Serving::start(&self.runtime, server);
        let ended = self.train(replica, worker);
        Ok(serving.closed(ended))
    }

    fn server(&mut self, resolved: &ResolvedTask, listener: TcpListener) -> Result<Ended, Failure> {
        // The client of an in-graph run counts as one or several workers, and joins once its own workers have joined.
        let workers = resolved.cluster.task_count(Job::Worker).filter(|_| !self.config.in_graph);
        let ps = match ps_addresses(&resolved.cluster) {
            Some(ps) => ps,
            None => self.introduced(resolved, &listener)?,
        };
        let layout = match self.config.in_graph {
            true => RunLayout::Client { holds_parameters: false },
            false => RunLayout::Apart,
        };
        let address = ServerAddress { own: resolved.address.to_string(), coordinator: ps[0].clone() };
        let own = (ServerId(resolved.task.index), ps.len() as u32);
        let server = self.start_server(Some(listener), own, workers, address, layout)?;
        let stop = told_to_stop(self.config.stop.clone());
        let outcome = self.runtime.block_on(server.run_until(stop));
        Ok(Ended::with(outcome))
    }

    /// The addresses of all ps, learned from a worker that knows them: this ps was told only its own.
    fn introduced(&self, resolved: &ResolvedTask, listener: &TcpListener) -> Result<Vec<String>, Failure> {
        let (task, patience) = (resolved.task, self.config.peer_timeout);
        let listener = listener.try_clone().map_err(Failure::internal)?;
        let stop = self.config.stop.clone();
        let told = self.runtime.block_on(async {
            tokio::select! {
                told = roster::await_introduction(listener, self.instruments.router(), patience) => told.map_err(Failure::internal),
                outcome = told_to_stop(stop) => Err(outcome.into()),
            }
        })?;
        let Some(ps) = told else {
            let reason = format!("gave up waiting for a worker after {} s", patience.as_secs());
            return Err(Outcome { exit_code: exit_code::PEERS, reason }.into());
        };
        info!("{task} was told the addresses of the ps: {}", ps.join(", "));
        match ps.get(task.index as usize) {
            Some(own) if *own == resolved.address.to_string() => Ok(ps),
            Some(own) => Err(Failure::usage(format!(
                "{task} was started at {}, but the workers' cluster has it at {own}",
                resolved.address
            ))),
            None => Err(Failure::usage(format!("the workers' cluster has only {} ps, but this is {task}", ps.len()))),
        }
    }

    fn worker<M: Model>(
        &mut self,
        flags: &M::Flags,
        resolved: &ResolvedTask,
        listener: TcpListener,
    ) -> Result<Ended, Failure> {
        let id = WorkerId(resolved.task.index);
        let workers = resolved.cluster.task_count(Job::Worker);
        let ps = ps_addresses(&resolved.cluster)
            .ok_or_else(|| Failure::usage("the cluster does not give the addresses of all ps"))?;
        let (servers, coordinator_at) = (ps.len() as u32, ps[0].clone());
        if !resolved.cluster.is_colocated() {
            self.serve_instruments(listener)?;
            let replica = self.load::<M>(flags, id, workers)?;
            self.instruments.probes().started();
            if resolved.cluster.is_sparse() {
                self.runtime.spawn(roster::introduce(ps));
            }
            let coordinator = Coordinator::Remote(coordinator_at);
            let worker = self.worker_config(id, workers, servers, coordinator, None);
            return Ok(self.train(replica, worker));
        }
        let replica = self.load_and_answer::<M>(flags, id, workers, &listener)?;
        let own = ServerId(id.0);
        let address = ServerAddress { own: resolved.address.to_string(), coordinator: coordinator_at };
        let server = self.start_server(Some(listener), (own, servers), workers, address, RunLayout::Colocated)?;
        let worker = self.worker_config(id, workers, servers, server.coordinator(), Some((own, server.shard())));
        let serving = Serving::start_shared(&self.runtime, server, self.config.stop.clone());
        let ended = self.train(replica, worker);
        Ok(serving.closed(ended))
    }

    fn start_server(
        &self,
        listener: Option<TcpListener>,
        (id, servers): (ServerId, u32),
        workers: Option<u32>,
        ServerAddress { own: address, coordinator }: ServerAddress,
        layout: RunLayout,
    ) -> Result<Server, Failure> {
        let _guard = self.runtime.enter();
        let config = ServerConfig {
            id,
            servers,
            workers,
            layout,
            joined: self.joined.clone(),
            address,
            coordinator,
            patience: self.config.patience,
            // A client that is also the server decides by itself when to give up on its joined workers; its server must
            // not give up on the client before that.
            peer_timeout: match layout {
                RunLayout::Client { holds_parameters: true } => self.config.peer_timeout.saturating_mul(2),
                _ => self.config.peer_timeout,
            },
            started: self.config.started,
            checkpoints: self.config.checkpoints.clone(),
            // A server does not know the number of steps of the run.
            records: self.records(Limits::default()),
            run_dir: self.run_dir.clone(),
            instruments: self.instruments.clone(),
        };
        Server::start(listener, config).map_err(Failure::internal)
    }

    fn worker_config(
        &self,
        id: WorkerId,
        workers: Option<u32>,
        servers: u32,
        coordinator: Coordinator,
        own_server: Option<(ServerId, Arc<dyn windlass_wire::link::Shard>)>,
    ) -> WorkerConfig {
        WorkerConfig {
            id,
            workers,
            servers,
            coordinator,
            own_server,
            threads: self.threads(),
            peer_timeout: self.config.peer_timeout,
            records: self.records(Limits { steps: self.config.run.steps, epochs: self.config.run.epochs }),
            started: self.config.started,
            stop: self.config.stop.clone(),
            board: self.config.board.clone(),
            devices: placement::names(&self.devices),
            log_placement: self.config.placement.is_logged,
            history: self.run_dir.as_deref().map(|directory| directory.join("history.jsonl")),
            instruments: self.instruments.clone(),
        }
    }

    /// The records that can tell a task which cannot reach ps 0 that the run has ended.
    fn records(&self, limits: Limits) -> Option<Arc<dyn Records>> {
        let checkpoints = self.config.checkpoints.as_ref()?;
        Some(Arc::new(RunRecords::new(checkpoints.location.clone(), limits)))
    }

    fn train(&mut self, replica: Box<dyn Replica>, worker: WorkerConfig) -> Ended {
        let watch = self.watch.clone();
        let told = Box::new(move |event: &Event| watch.tell(event));
        let ended = task::run(self.runtime.handle(), worker, self.config.run.clone(), replica, told);
        self.write_trace();
        devices::log_memory(&self.devices);
        ended
    }

    /// Writes the trace however the run ended, since it may show the reason.
    fn write_trace(&self) {
        let path = self.config.stages.as_ref().and_then(|stages| stages.trace.as_ref());
        let (Some(path), Some(trace)) = (path, self.trace.to_json()) else { return };
        let path = trace_of(path, self.task);
        match windlass_files::write(&path, &[trace.as_bytes(), b"\n"]) {
            Ok(()) => self.watch.tell(&Event::Wrote { path }),
            Err(error) => warn!("cannot write the trace to {}: {error}", path.display()),
        }
    }

    /// Serves the probes and metrics of a worker, which takes no streams. It starts early, because loading data may
    /// take long.
    fn serve_instruments(&self, listener: TcpListener) -> Result<JoinHandle<()>, Failure> {
        let _guard = self.runtime.enter();
        listener.set_nonblocking(true).map_err(Failure::internal)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(Failure::internal)?;
        Ok(self.runtime.spawn(port::serve(
            listener,
            port::Services::without_streams(self.instruments.router()),
            std::future::pending(),
        )))
    }
}

/// The file of a task's trace: the path that the user gave for worker 0, and one beside it for every other task.
fn trace_of(path: &Path, task: Option<TaskId>) -> PathBuf {
    let Some(index) = task.map(|task| task.index).filter(|index| *index > 0) else { return path.to_owned() };
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    path.with_file_name(format!("{name}-worker-{index}{extension}"))
}

/// Two threads are enough: tensors do not go through this runtime, and nothing computes on it.
fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(Failure::internal)
}

/// Returns when the task has been told to stop.
async fn told_to_stop(stop: Arc<Interrupt>) -> Outcome {
    signals::stopped(&stop).await;
    Outcome::told_to_stop()
}

fn is_coordinator(resolved: &ResolvedTask) -> bool {
    resolved.task.index == 0 && (resolved.task.job == Job::Ps || resolved.cluster.is_colocated())
}

/// Takes the lock, which shows others on this machine that the run is alive, unless the launcher does. The run
/// continues without the lock: the process that holds it may be the one that this one replaces.
fn lock(args: &TrainArgs) -> Option<File> {
    let run_dir = args.output.run_dir.as_deref().filter(|_| args.output.started_at.is_none())?;
    run_file::lock(run_dir).ok()
}

fn log_cluster(resolved: &ResolvedTask) {
    for line in resolved.cluster.map_lines(Some(resolved.task)) {
        info!("{line}");
    }
}

/// The addresses of all ps, if this task knows them; with co-located shards, those of the workers.
fn ps_addresses(cluster: &ClusterSpec) -> Option<Vec<String>> {
    Some(cluster.addresses(Job::Ps)?.into_iter().map(ToString::to_string).collect())
}

/// Refuses flags that depend on the number of workers if workers may join and leave.
fn check_dynamic(cluster: &ClusterSpec, training: &TrainingArgs) -> Result<(), Failure> {
    let flag = match training {
        _ if cluster.task_count(Job::Worker).is_some() => return Ok(()),
        training if training.shard_data => "--shard-data",
        training if training.deterministic => "--deterministic",
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("{flag} needs the number of workers, which this TF_CONFIG does not give"))
        .with_hint("turn off enableDynamicWorker, or omit the flag".to_owned()))
}
