//! A whole worker: it loads its data, joins the cluster, trains when told to, and stays until the run is over.
//!
//! It runs on a thread of its own, outside the async runtime, on which only its session lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::identity::{Fingerprint, Identity, ModelFlag};
use windlass_core::learning::advice::Situation;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::optimizer::Optimizer;
use windlass_core::plan::{ShardPlan, Sharding};
use windlass_core::run::{DataSpec, RunSpec};
use windlass_core::schedule::Schedule;
use windlass_wire::client::{ClientConfig, ClientError, Interrupt, Route};
use windlass_wire::control::proto::{AllFinished, Endpoint, ModelFile, Start, WorkerReport};
use windlass_wire::control::session::{Coordinator, Progress, Records};
use windlass_wire::control::worker_machine::{Achievement, Work};
use windlass_wire::link::Shard;

use crate::batches::order::{Order, OrderConfig, OrderError};
use crate::board::BoardConfig;
use crate::buffer::ParameterClient;
use crate::control::{Control, Joining};
use crate::event::{Event, Finished, Started, Watcher};
use crate::model::{Model, Setup};
use crate::replica::{ModelInfo, Replica};
use crate::rows;
use crate::summary::{Facts, Summary};
use crate::telemetry::TelemetryConfig;
use crate::threads;
use crate::train::{TrainConfig, TrainError, Training};

/// The most bytes of a model's files: they go to the coordinator in one message.
const FILES_BYTES: usize = windlass_wire::MESSAGE_BYTES / 2;

/// A run, as the user asked for it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// How pushes become updates.
    pub mode: Mode,
    /// What the servers do with gradients.
    pub optimizer: Optimizer,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How it changes.
    pub schedule: Schedule,
    /// How parameters are spread over the servers.
    pub sharding: Sharding,
    /// Samples that are computed at a time.
    pub batch_size: usize,
    /// How many times that makes a step: one gradient is pushed, as of a batch of all of them.
    pub accumulate: usize,
    /// The longest that a worker's gradient may be; a longer one is scaled down.
    pub clip_norm: Option<f32>,
    /// Global steps, if the run ends by them.
    pub steps: Option<u64>,
    /// Epochs a worker, if the run ends by them.
    pub epochs: Option<u64>,
    /// The seed of the first values, of the built-in data and of the order of samples.
    pub seed: u64,
    /// Whether each epoch has its own order of samples.
    pub shuffle: bool,
    /// Whether the workers share the data out instead of each reading all of it.
    pub shard_data: bool,
    /// Sum gradients in the order of workers.
    pub deterministic: bool,
    /// Divide the learning rate of a push by its staleness.
    pub staleness_scaling: bool,
    /// Whether the chief scores the network after every epoch, and not only at the end.
    pub evaluate_epochs: bool,
    /// Steps between two lines of the log.
    pub log_every: u64,
    /// The model's own flags, by name, but for those that concern this process alone.
    pub model_flags: BTreeMap<String, ModelFlag>,
    /// Where the data are read, if they are not built in.
    pub data_dir: Option<String>,
}

impl RunConfig {
    /// Samples in a step of a worker.
    pub fn samples_a_step(&self) -> usize {
        self.batch_size * self.accumulate
    }

    /// The order in which a worker goes through a model's samples, if they are enough for it.
    pub fn order(&self, model: &ModelInfo, worker: WorkerId, workers: Option<u32>) -> Result<Order, OrderError> {
        Order::new(OrderConfig {
            samples: model.samples,
            batch_size: self.samples_a_step(),
            shuffle: self.shuffle,
            seed: self.seed,
            worker: worker.0,
            shards: workers.filter(|_| self.shard_data),
            files: model.sample_files.clone(),
        })
    }
}

/// A worker's place in the cluster.
#[derive(Clone)]
pub struct WorkerConfig {
    /// Which one this is.
    pub id: WorkerId,
    /// How many there are; `None` if that is not known, and whoever comes is welcome.
    pub workers: Option<u32>,
    /// How many servers there are; zero for a run in one process.
    pub servers: u32,
    /// How the coordinator is reached.
    pub coordinator: Coordinator,
    /// The server in this same process, if there is one.
    pub own_server: Option<(ServerId, Arc<dyn Shard>)>,
    /// Threads to compute on; `None` to find out.
    pub threads: Option<usize>,
    /// How long to wait for peers before giving up.
    pub peer_timeout: Duration,
    /// What may tell that the run has ended, when ps 0 cannot be reached.
    pub records: Option<Arc<dyn Records>>,
    /// When the run was started.
    pub started: Instant,
    /// Set by the process when it is told to stop.
    pub stop: Arc<Interrupt>,
    /// Curves for TensorBoard, written by the chief.
    pub board: BoardConfig,
}

/// How a worker ended, and what the chief has to say of the run.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub outcome: Outcome,
    /// The summary, from the chief.
    pub summary: Option<Summary>,
}

impl Ended {
    fn failed(exit_code: u8, reason: String) -> Self {
        Self { outcome: Outcome { exit_code, reason }, summary: None }
    }
}

/// Runs a worker from its start to its end. Blocks; `runtime` carries its session.
pub fn run(
    runtime: &tokio::runtime::Handle,
    config: WorkerConfig,
    run: RunConfig,
    replica: Box<dyn Replica>,
    watch: &mut Watcher,
) -> Ended {
    match Worker::new(config, run, replica) {
        Ok(mut worker) => worker.run(runtime, watch),
        Err(error) => Ended::failed(exit_code::USAGE, format!("{error:#}")),
    }
}

/// Loads a model's data, as [`run`] needs it.
pub fn load<M: Model>(flags: &M::Flags, setup: &Setup) -> anyhow::Result<M> {
    let began = Instant::now();
    let model = M::load(flags, setup)?;
    info!("{} samples ready in {:.2} s", model.samples(), began.elapsed().as_secs_f64());
    Ok(model)
}

/// A trained model beside its parameters: the flags it was given, and its files.
pub fn identity(flags: BTreeMap<String, ModelFlag>, files: &[ModelFile]) -> Identity {
    let fingerprint = |file: &ModelFile| (file.name.clone(), Fingerprint::of(file.content.as_bytes()));
    Identity { flags, files: files.iter().map(fingerprint).collect() }
}

/// The model's files, as they are kept with checkpoints.
pub fn model_files(model: &ModelInfo) -> anyhow::Result<Vec<ModelFile>> {
    let files =
        model.files.iter().map(|(name, content)| ModelFile { name: (*name).to_owned(), content: content.clone() });
    let files: Vec<ModelFile> = files.collect();
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    anyhow::ensure!(
        bytes <= FILES_BYTES,
        "the files that {} keeps with its checkpoints are {:.0} MB, but the limit is {:.0} MB",
        model.name,
        bytes as f64 * 1e-6,
        FILES_BYTES as f64 * 1e-6
    );
    Ok(files)
}

struct Worker {
    config: WorkerConfig,
    run: RunConfig,
    spec: RunSpec,
    files: Vec<ModelFile>,
    training: Training,
    pool: rayon::ThreadPool,
    progress: Progress,
    /// Where training was when this process first took part: the global step, and its own batches.
    began_at: Option<(u64, u64)>,
}

impl Worker {
    fn new(config: WorkerConfig, run: RunConfig, replica: Box<dyn Replica>) -> anyhow::Result<Self> {
        let order = run.order(replica.info(), config.id, config.workers)?;
        let files = model_files(replica.info())?;
        let is_trainable = replica.table().iter().any(|(_, spec)| spec.kind.is_trained());
        anyhow::ensure!(is_trainable, "all of the network is frozen: there is nothing to train");
        let spec = spec(&run, &*replica, &files);
        let train = TrainConfig {
            steps: run.steps,
            epochs: run.epochs,
            learning_rate: run.learning_rate,
            schedule: run.schedule,
            clip_norm: run.clip_norm,
            data_patience: config.peer_timeout,
            evaluate_epochs: run.evaluate_epochs,
            telemetry: telemetry(&config, &run),
        };
        let progress = Progress::default();
        let mut training = Training::new(train, replica, order, progress.clone());
        let pool = match config.threads {
            Some(threads) => threads::pool(threads)?,
            None => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                threads::choose(&mut training, cores)?
            }
        };
        Ok(Self { config, run, spec, files, training, pool, progress, began_at: None })
    }

    fn run(&mut self, runtime: &tokio::runtime::Handle, watch: &mut Watcher) -> Ended {
        let joining = Joining {
            run: serde_json::to_string(&self.spec).unwrap_or_default(),
            files: std::mem::take(&mut self.files),
            batches: self.training.batches() as u64,
        };
        let control = Control::open(runtime, &self.config, joining, &self.progress);
        let (mut client, mut summary) = (None, None);
        while let Some((incarnation, work)) = control.next() {
            let done = match work {
                Work::Initialise(servers) => self.initialise(incarnation, servers, &mut client),
                Work::Train(start) => self.train(&control, incarnation, start, &mut client, watch),
                Work::Summarise(servers, finished) => {
                    self.summarise(incarnation, servers, &mut client, &finished).map(|summed_up| {
                        summary = Some(summed_up);
                        Achievement::Concluded(self.conclude(watch))
                    })
                }
            };
            if done.is_err() {
                // Training has gone on since, or this worker has failed.
                summary = None;
            }
            control.completed(done);
        }
        let outcome = control.close(runtime);
        // Whoever is told to stop before the last checkpoint is written leaves a run that has yet to end.
        let summary = summary.filter(|_| outcome.exit_code != exit_code::TERMINATED);
        Ended { outcome, summary }
    }

    /// The chief brings the first values.
    fn initialise(
        &mut self,
        incarnation: Incarnation,
        servers: Vec<Endpoint>,
        client: &mut Connected,
    ) -> Result<Achievement, TrainError> {
        let mut values = self.training.replica().first_values();
        let rows = rows::split(&mut values, rows::all(&self.spec.parameters));
        self.connected(incarnation, servers, client)?.initialise(values, rows)?;
        Ok(Achievement::Initialised)
    }

    /// The hold on the parameters that this process has as this incarnation.
    fn connected<'a>(
        &self,
        incarnation: Incarnation,
        servers: Vec<Endpoint>,
        client: &'a mut Connected,
    ) -> Result<&'a mut ParameterClient, ClientError> {
        if client.as_ref().is_none_or(|(connected_as, _)| *connected_as != incarnation) {
            *client = Some((incarnation, self.connect(incarnation, servers)?));
        }
        Ok(client.as_mut().map(|(_, client)| client).expect("just connected"))
    }

    fn connect(&self, incarnation: Incarnation, servers: Vec<Endpoint>) -> Result<ParameterClient, ClientError> {
        let plan = ShardPlan::new(&self.spec.parameters, servers.len(), self.spec.sharding);
        let route = |(index, endpoint)| match &self.config.own_server {
            Some((own, shard)) if own.0 as usize == index => Route::Local(shard.clone()),
            _ => Route::Remote(endpoint),
        };
        ParameterClient::connect(ClientConfig {
            table: self.spec.parameters.clone(),
            plan,
            routes: servers.into_iter().enumerate().map(route).collect(),
            worker: self.config.id,
            incarnation,
            learning_rate: self.spec.learning_rate,
            peer_timeout: self.config.peer_timeout,
            interrupt: self.config.stop.clone(),
        })
    }

    fn train(
        &mut self,
        control: &Control,
        incarnation: Incarnation,
        begin: Start,
        client: &mut Connected,
        watch: &mut Watcher,
    ) -> Result<Achievement, TrainError> {
        let client = self.connected(incarnation, begin.servers, client)?;
        let (_, first) = *self.began_at.get_or_insert((begin.global_step, begin.batches));
        self.training.go_to(begin.batches, &begin.note, begin.global_step);
        watch(&Event::Started(Started {
            worker: self.config.id.0,
            chief: control.is_chief(),
            batches: self.training.batches(),
            batch_size: self.run.samples_a_step(),
            from: begin.global_step,
            steps: self.run.steps,
            epochs: self.run.epochs,
            threads: self.pool.current_num_threads(),
            transports: client.transports().iter().map(ToString::to_string).collect(),
        }));
        let began = Instant::now();
        let (training, pool) = (&mut self.training, &self.pool);
        pool.install(|| training.run(client, &|| control.is_chief(), watch))?;
        let tally = self.training.tally();
        watch(&Event::Finished(Finished {
            worker: self.config.id.0,
            steps: tally.steps,
            steps_this_run: tally.steps.saturating_sub(first),
            global_step: tally.global_step,
            seconds: began.elapsed().as_secs_f64(),
        }));
        Ok(Achievement::Trained(Box::new(self.report(incarnation))))
    }

    fn report(&self, incarnation: Incarnation) -> WorkerReport {
        let tally = self.training.tally();
        let mean_ms = |total: Duration| total.as_secs_f64() * 1e3 / tally.own_steps.max(1) as f64;
        WorkerReport {
            incarnation: incarnation.0,
            worker: self.config.id.0,
            steps: tally.steps,
            own_steps: tally.own_steps,
            samples: tally.own_steps * self.run.samples_a_step() as u64,
            loss: f64::from(tally.loss),
            compute_ms: mean_ms(tally.compute),
            wait_ms: mean_ms(tally.wait),
            data_ms: mean_ms(tally.data),
            wait_ms_p50: tally.wait_times.percentile_ms(50.0),
            step_times: serde_json::to_string(&tally.step_times).unwrap_or_default(),
            left: String::new(),
            bytes_sent: tally.traffic.sent,
            bytes_received: tally.traffic.received,
            began_at: self.began_at.map_or(0, |(_, batches)| batches),
        }
    }

    /// The chief's last duty: the final values are scored.
    fn summarise(
        &mut self,
        incarnation: Incarnation,
        servers: Vec<Endpoint>,
        client: &mut Connected,
        finished: &AllFinished,
    ) -> Result<Summary, TrainError> {
        let client = self.connected(incarnation, servers, client)?;
        let values = rows::pull_whole(client, &self.spec.parameters)?;
        let training = &mut self.training;
        let metrics = self.pool.install(|| training.score(finished.global_step, &values))?;
        let facts = Facts {
            model: self.spec.model.clone(),
            mode: self.spec.mode.name().to_owned(),
            ps: self.config.servers,
            workers: self.config.workers.unwrap_or(finished.reports.len() as u32),
            colocated: self.config.servers > 0 && self.config.own_server.is_some(),
            optimizer: self.spec.optimizer.name().to_owned(),
            batch_size: self.run.samples_a_step(),
            wall_seconds: self.config.started.elapsed().as_secs_f64(),
            began_at: self.began_at.map_or(u64::MAX, |(step, _)| step),
            metrics,
            warning: self.training.warning(),
        };
        Ok(Summary::new(facts, finished))
    }

    /// What the model does with the final values. If that fails, the run has succeeded all the same: the summary is
    /// told, the other tasks end well, and only the chief says what is missing.
    fn conclude(&mut self, watch: &mut Watcher) -> Outcome {
        let replica = self.training.replica();
        match self.pool.install(move || replica.conclude()) {
            Ok(written) => {
                written.into_iter().for_each(|path| watch(&Event::Wrote { path }));
                Outcome::done()
            }
            Err(error) => Outcome { exit_code: exit_code::INTERNAL, reason: format!("{error:#}") },
        }
    }
}

/// The run, as all tasks must see it.
fn spec(run: &RunConfig, replica: &dyn Replica, files: &[ModelFile]) -> RunSpec {
    let model = replica.info();
    let data = DataSpec {
        samples: model.samples as u64,
        fingerprint: model.fingerprint,
        directory: run.data_dir.clone(),
        seed: run.seed,
        batch_size: run.samples_a_step() as u64,
        shard_data: run.shard_data,
        epochs: run.epochs,
    };
    RunSpec {
        model: model.name.to_owned(),
        mode: run.mode,
        optimizer: run.optimizer,
        learning_rate: run.learning_rate,
        schedule: run.schedule,
        clip_norm: run.clip_norm,
        sharding: run.sharding,
        steps: run.steps,
        deterministic: run.deterministic,
        staleness_scaling: run.staleness_scaling,
        parameters: replica.table().clone(),
        identity: identity(run.model_flags.clone(), files),
        data: Some(data),
    }
}

fn telemetry(config: &WorkerConfig, run: &RunConfig) -> TelemetryConfig {
    let gradients_an_update = match run.mode {
        Mode::Sync { replicas_to_aggregate } => replicas_to_aggregate.or(config.workers).unwrap_or(1) as usize,
        _ => 1,
    };
    TelemetryConfig {
        worker: config.id.0,
        log_every: run.log_every,
        samples_an_update: run.samples_a_step() * gradients_an_update,
        situation: Situation {
            mode: run.mode,
            workers: config.workers,
            learning_rate: run.learning_rate,
            staleness_scaling: run.staleness_scaling,
            mean_staleness: 0.0,
        },
        board: config.board.clone(),
    }
}

/// A hold on the parameters, and the incarnation under which it was made.
type Connected = Option<(Incarnation, ParameterClient)>;
