//! The client of an in-graph run: it has the data, the training loop and perhaps the parameters, and joined workers
//! compute for it. In sync mode they share each of its steps; in async mode the client acts as one worker for each of
//! them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::sync::Arc;

use tracing::info;
use windlass_core::cluster::{RunLayout, ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_instruments::Instruments;
use windlass_wire::client::Interrupt;
use windlass_wire::control::session::Coordinator;
use windlass_wire::link::Shard;
use windlass_worker::event::Event;
use windlass_worker::joined::protocol::{Assignment, PlacedStages};
use windlass_worker::model::Model;
use windlass_worker::replica::Replica;
use windlass_worker::replica::remote::{Crew, CrewConfig, CrewError, InGraph, InGraphConfig};
use windlass_worker::summary::JoinedSummary;
use windlass_worker::task::{self, Ended, WorkerConfig};

use super::serving::Serving;
use super::{Process, ServerAddress, told_to_stop};
use crate::failure::Failure;
use crate::in_graph::Client;
use crate::listening;
use crate::output::count;

/// The coordinator, and the server in this process if there is one.
type Parameters = (Coordinator, Option<(ServerId, Arc<dyn Shard>)>);

/// One of the workers that the servers see.
struct LogicalWorker {
    replica: Box<dyn Replica>,
    config: WorkerConfig,
}

impl Process {
    /// Runs everything in this process except for the joined workers and the servers, if there are any.
    pub(super) fn in_graph<M: Model>(
        &mut self,
        flags: &M::Flags,
        client: &Client,
        listener: TcpListener,
    ) -> Result<Ended, Failure> {
        let joined = client.workers.len();
        let seats: Vec<Vec<usize>> = match self.config.run.mode {
            Mode::Sync { .. } => vec![(0..joined).collect()],
            Mode::Async | Mode::Ssp { .. } => (0..joined).map(|seat| vec![seat]).collect(),
        };
        let replicas = self.answering(&listener, || self.load_for_crew::<M>(flags, seats.len()))?;
        let crew = self.crew(&*replicas[0], client, None)?;
        self.joined = Some(crew.sites());
        let workers = Some(seats.len() as u32);
        let ((coordinator, own), serving) = self.ready(&crew, client, listener, seats.len() as u32)?;
        let servers = client.ps.len() as u32;
        let mut logical = Vec::new();
        for (index, (replica, seats)) in (0..).zip(replicas.into_iter().zip(seats)) {
            let mut config = self.worker_config(WorkerId(index), workers, servers, coordinator.clone(), own.clone());
            config.threads = config.threads.or(std::thread::available_parallelism().ok().map(usize::from));
            if index > 0 {
                config.stop = self.another_stop();
                config.instruments = Instruments::default(); // The first one's are this process's.
            }
            let in_graph = InGraphConfig { seats, balance: self.config.balance, stop: config.stop.clone() };
            logical.push(LogicalWorker { replica: Box::new(InGraph::new(replica, crew.clone(), in_graph)), config });
        }
        self.instruments.probes().started();
        let mut ended = self.run_all(logical);
        if let Some(summary) = &mut ended.summary {
            summary.joined = crew.tally();
        }
        for JoinedSummary { worker, steps, joined: times, .. } in crew.tally() {
            let shares = count(steps as usize, "share");
            info!(
                "{worker} has computed {shares} of steps{}",
                if times > 1 { format!(", joined {times} times") } else { String::new() }
            );
        }
        // Only now: if the run could not be saved, it has failed for them, too.
        let ended = closed(ended, serving);
        crew.leave(&ended.outcome);
        Ok(ended)
    }

    /// Prepares the parameters and the joined workers for this number of workers in this process. Joined workers are
    /// told about a failure.
    pub(super) fn ready(
        &self,
        crew: &Crew,
        client: &Client,
        listener: TcpListener,
        workers: u32,
    ) -> Result<(Parameters, Option<Serving>), Failure> {
        let (parameters, serving) =
            self.parameters_of(client, listener, workers).inspect_err(|failure| leave(crew, failure))?;
        Ok((parameters, self.gathered(crew, serving)?))
    }

    /// The access to the parameters for this number of workers in this process: on servers, or in this process, which
    /// then serves them.
    fn parameters_of(
        &self,
        client: &Client,
        listener: TcpListener,
        workers: u32,
    ) -> Result<(Parameters, Option<Serving>), Failure> {
        if let Some(first) = client.ps.first() {
            self.serve_instruments(listener)?;
            return Ok(((Coordinator::Remote(first.clone()), None), None));
        }
        let address = ServerAddress { own: listening::reached_at(&listener), coordinator: String::new() };
        let layout = RunLayout::Client { holds_parameters: true };
        let server = self.start_server(Some(listener), (ServerId(0), 1), Some(workers), address, layout)?;
        let own: (ServerId, Arc<dyn Shard>) = (ServerId(0), server.shard());
        let coordinator = server.coordinator();
        Ok(((coordinator, Some(own)), Some(Serving::start(&self.runtime, server))))
    }

    /// Waits for the joined workers. A server in this process is already running and shows their state. It ends if they do
    /// not join; if it ends by itself, they are no longer waited for.
    fn gathered(&self, crew: &Crew, serving: Option<Serving>) -> Result<Option<Serving>, Failure> {
        let server_has_ended = || serving.as_ref().is_some_and(Serving::has_ended);
        let Err(error) = crew.gather(&|| self.config.stop.is_set() || server_has_ended()) else { return Ok(serving) };
        let decides = server_has_ended();
        let failure = match error {
            CrewError::Interrupted => Outcome::told_to_stop().into(),
            CrewError::Refused { .. } => Failure::usage(error),
            error => Outcome { exit_code: exit_code::PEERS, reason: error.to_string() }.into(),
        };
        let outcome = Outcome { exit_code: failure.exit_code, reason: failure.message.clone() };
        let served = serving.map(|serving| serving.give_up(outcome));
        let failure = match served.filter(|served| decides && served.exit_code != 0) {
            Some(served) => served.into(),
            None => failure,
        };
        leave(crew, &failure);
        Err(failure)
    }

    /// Starts connecting to the joined workers.
    pub(super) fn crew(
        &self,
        replica: &dyn Replica,
        client: &Client,
        placed: Option<PlacedStages>,
    ) -> Result<Arc<Crew>, Failure> {
        let (info, run) = (replica.info(), &self.config.run);
        let files = windlass_worker::spec::model_files(info).map_err(|error| Failure::usage(format!("{error:#}")))?;
        let assignment = Assignment {
            client: format!("the {} run of process {} on {}", info.name, std::process::id(), listening::hostname()),
            run: RandomState::new().build_hasher().finish(),
            worker: 0,
            model: info.name.to_owned(),
            flags: run.model_flags.clone(),
            seed: run.seed,
            accumulate: run.accumulate,
            files: files.into_iter().map(|file| (file.name, file.content)).collect(),
            parameters: replica.table().clone(),
            placed,
        };
        let config = CrewConfig {
            addresses: client.workers.clone(),
            assignment,
            silence: self.config.silence,
            peer_timeout: self.config.peer_timeout,
        };
        Ok(Arc::new(Crew::call(config).map_err(Failure::internal)?))
    }

    /// Creates a separate stop for another worker in this process, which is set along with the process's own: the
    /// coordinator welcomes each worker separately.
    fn another_stop(&self) -> Arc<Interrupt> {
        let (own, all) = (Arc::new(Interrupt::default()), self.config.stop.clone());
        let set = own.clone();
        self.runtime.spawn(async move {
            told_to_stop(all).await;
            set.set();
        });
        own
    }

    /// Runs all workers concurrently. Returns how the chief ended, or else the first worker that failed.
    fn run_all(&mut self, logical: Vec<LogicalWorker>) -> Ended {
        let (runtime, run) = (self.runtime.handle().clone(), &self.config.run);
        let watch = &self.watch;
        let ended: Vec<Ended> = std::thread::scope(|scope| {
            let start = |LogicalWorker { replica, config }: LogicalWorker| {
                let (runtime, watch) = (runtime.clone(), watch.clone());
                let told = Box::new(move |event: &Event| watch.tell(event));
                scope.spawn(move || task::run(&runtime, config, run.clone(), replica, told))
            };
            let threads: Vec<_> = logical.into_iter().map(start).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        let was_let_in = ended.iter().any(|ended| ended.was_let_in);
        let before_joining = ended.iter().all(|ended| ended.before_joining);
        let position = ended.iter().position(|ended| ended.summary.is_some());
        let position = position.or_else(|| ended.iter().position(|ended| ended.outcome.exit_code != 0)).unwrap_or(0);
        let counts = ended.into_iter().nth(position);
        let counts = counts.unwrap_or_else(|| {
            let reason = "no worker's thread has come to its end".to_owned();
            Ended::with(Outcome { exit_code: exit_code::INTERNAL, reason })
        });
        Ended { was_let_in, before_joining, ..counts }
    }
}

/// Waits until the server in this process, if any, has ended, and returns how the process ended.
pub(super) fn closed(ended: Ended, serving: Option<Serving>) -> Ended {
    match serving {
        Some(serving) => serving.closed(ended),
        None => ended,
    }
}

/// Tells the joined workers how a run has failed.
fn leave(crew: &Crew, Failure { exit_code, message, .. }: &Failure) {
    crew.leave(&Outcome { exit_code: *exit_code, reason: message.clone() });
}
