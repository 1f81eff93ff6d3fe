//! A whole worker: it loads its data, joins the cluster, trains when told to, and stays until the run is over.
//!
//! A worker runs on its own thread, outside the async runtime, which carries only its session. Nothing waits forever
//! for that thread: if it hangs on a disk, the worker ends without it.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tracing::info;
use windlass_core::cluster::TaskId;
use windlass_core::consistency::Mode;
use windlass_core::learning::advice::Situation;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::parameter::{ParameterId, ParameterSpec};
use windlass_core::plan::{ServerPlan, ShardPlan};
use windlass_core::run::RunSpec;
use windlass_instruments::{Site, Sites};
use windlass_wire::client::{ClientConfig, ClientError, Route};
use windlass_wire::control::proto::{AllFinished, Endpoint, ModelFile, Start, WorkerReport};
use windlass_wire::control::session::Progress;
use windlass_wire::control::worker_machine::{Achievement, Work};

use crate::batches::making::{CHECK_EVERY, Watch};
use crate::board::hparams;
use crate::buffer::ParameterClient;
pub use crate::config::{RunConfig, WorkerConfig};
use crate::control::{Control, Joining};
use crate::event::{Event, Finished, Placed, PlacedParameter, Started, Watcher};
use crate::history::HistoryConfig;
use crate::memory;
use crate::model::{Model, Setup};
use crate::replica::Replica;
use crate::rows;
use crate::spec;
use crate::summary::{Facts, Summary};
use crate::telemetry::TelemetryConfig;
use crate::threads;
use crate::train::{TrainConfig, TrainError, Training};

/// How a worker ended, with the run's summary if it was the chief.
#[derive(Debug)]
pub struct Ended {
    /// The outcome.
    pub outcome: Outcome,
    /// The summary, from the chief.
    pub summary: Option<Summary>,
    /// Whether the worker ended before it joined the cluster, which is still waiting for it.
    pub before_joining: bool,
    /// Whether the coordinator ever admitted it.
    pub was_let_in: bool,
}

impl Ended {
    /// An ending without a summary.
    pub fn with(outcome: Outcome) -> Self {
        Self { outcome, summary: None, before_joining: false, was_let_in: false }
    }
}

/// Runs a worker from start to end. Blocks; `runtime` carries its session.
pub fn run(
    runtime: &tokio::runtime::Handle,
    config: WorkerConfig,
    run: RunConfig,
    replica: Box<dyn Replica>,
    mut watch: Watcher,
) -> Ended {
    let (sender, ended) = mpsc::channel();
    let (runtime, given_up) = (runtime.clone(), sender.clone());
    let work = move || {
        let ended = match Worker::new(config, run, replica) {
            Ok(mut worker) => worker.run(&runtime, &mut watch, given_up),
            Err(unfit) => {
                let outcome = match unfit {
                    Unfit::Usage(error) => Outcome { exit_code: exit_code::USAGE, reason: format!("{error:#}") },
                    Unfit::Trial(TrainError::Client(_)) => Outcome::told_to_stop(),
                    Unfit::Trial(error) => Outcome { exit_code: exit_code::INTERNAL, reason: error.to_string() },
                };
                Ended { before_joining: true, ..Ended::with(outcome) }
            }
        };
        let _ = sender.send(ended);
    };
    let internal = |reason: String| Ended::with(Outcome { exit_code: exit_code::INTERNAL, reason });
    match std::thread::Builder::new().name("worker".to_owned()).spawn(work) {
        Ok(_) => ended.recv().unwrap_or_else(|_| internal("the worker's thread has panicked".to_owned())),
        Err(error) => internal(format!("cannot start the worker's thread: {error}")),
    }
}

/// Why a worker cannot join the cluster.
enum Unfit {
    /// What the user asked for is impossible.
    Usage(anyhow::Error),
    /// A trial step could not be computed, for example because its data cannot be read: treated as during training.
    Trial(TrainError),
}

impl From<anyhow::Error> for Unfit {
    fn from(error: anyhow::Error) -> Self {
        Self::Usage(error)
    }
}

/// Loads a model's data, as [`run`] needs it.
pub fn load<M: Model>(flags: &M::Flags, setup: &Setup) -> anyhow::Result<M> {
    let began = Instant::now();
    let model = M::load(flags, setup)?;
    info!("{} samples ready in {:.2} s", model.samples(), began.elapsed().as_secs_f64());
    Ok(model)
}

struct Worker {
    config: WorkerConfig,
    /// Where steps are computed.
    sites: Sites,
    run: RunConfig,
    spec: RunSpec,
    files: Vec<ModelFile>,
    training: Training,
    pool: rayon::ThreadPool,
    progress: Progress,
    /// The position at which this process first took part: the global step, and the worker's own batches.
    began_at: Option<(u64, u64)>,
}

impl Worker {
    fn new(config: WorkerConfig, run: RunConfig, replica: Box<dyn Replica>) -> Result<Self, Unfit> {
        let order = run.order(replica.info(), config.id, config.workers).map_err(anyhow::Error::from)?;
        let files = spec::model_files(replica.info())?;
        let is_trainable = replica.table().iter().any(|(_, spec)| spec.kind.is_trained());
        if !is_trainable {
            return Err(anyhow::anyhow!("all of the network is frozen: there is nothing to train").into());
        }
        memory::check("the model is", replica.gradient_bytes()).map_err(anyhow::Error::from)?;
        let spec = spec::of_run(&run, &*replica, &files);
        let here = Site::of_devices(&config.devices);
        let sites = replica.sites().unwrap_or_else(|| Arc::new(move || here.clone()));
        let train = TrainConfig {
            steps: run.steps,
            epochs: run.epochs,
            learning_rate: run.learning_rate,
            schedule: run.schedule,
            clip_norm: run.clip_norm,
            data_patience: config.peer_timeout,
            evaluate_epochs: run.evaluate_epochs,
            telemetry: telemetry(replica.info().name, &config, &run, &sites),
        };
        let progress = Progress::default();
        let mut training = Training::new(train, replica, order, progress.clone());
        let pool = match config.threads {
            Some(threads) => threads::pool(threads).map_err(anyhow::Error::from)?,
            None => {
                // In a container, as many as its control group allows.
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                let pool = threads::choose(&mut training, cores, &config.stop).map_err(Unfit::Trial)?;
                info!("computing on {} of {cores} available cores", pool.current_num_threads());
                pool
            }
        };
        Ok(Self { config, sites, run, spec, files, training, pool, progress, began_at: None })
    }

    /// Works until the run is over. If this thread hangs, `given_up` receives how the worker has ended.
    fn run(&mut self, runtime: &tokio::runtime::Handle, watch: &mut Watcher, given_up: mpsc::Sender<Ended>) -> Ended {
        let joining = Joining {
            run: serde_json::to_string(&self.spec).unwrap_or_default(),
            files: std::mem::take(&mut self.files),
            batches: self.training.batches() as u64,
            sites: self.sites.clone(),
            shown_as: if self.training.replica().is_client() { TaskId::CLIENT } else { self.config.id.into() },
        };
        let control = Arc::new(Control::open(runtime, &self.config, joining, &self.progress));
        let batches = Watch::new(self.training.making(), self.config.peer_timeout, self.config.stop.clone());
        let watching = runtime.spawn(watch_over(batches, control.clone(), given_up));
        let (mut client, mut summary) = (None, None);
        while let Some((incarnation, work)) = control.next() {
            let done = match work {
                Work::Initialise(servers) => self.initialise(incarnation, servers, &mut client),
                Work::Train(start) => {
                    // A summary made before the run rolled back is obsolete.
                    summary = None;
                    self.train(&control, incarnation, start, &mut client, watch)
                }
                Work::Summarise(servers, finished) => {
                    self.summarise(incarnation, servers, &mut client, &finished).map(|summed_up| {
                        summary = Some(summed_up);
                        Achievement::Concluded(self.conclude(watch))
                    })
                }
            };
            if done.is_err() {
                // Training has continued since, or this worker has failed.
                summary = None;
            }
            control.completed(done);
        }
        watching.abort();
        let (outcome, was_let_in) = control.close(runtime);
        // A worker told to stop before the last checkpoint is written leaves a run that has not ended yet.
        let summary = summary.filter(|_| outcome.exit_code != exit_code::TERMINATED);
        Ended { outcome, summary, before_joining: false, was_let_in }
    }

    /// Sends the initial values, as the chief.
    fn initialise(
        &mut self,
        incarnation: Incarnation,
        servers: Vec<Endpoint>,
        client: &mut Connected,
    ) -> Result<Achievement, TrainError> {
        let replica = self.training.replica();
        let mut values = threads::compute(&self.pool, move || anyhow::Ok(replica.first_values()))?;
        let rows = rows::split(&mut values, rows::all(&self.spec.parameters));
        self.connected(incarnation, servers, client)?.initialise(values, rows)?;
        Ok(Achievement::Initialised)
    }

    /// Returns this process's parameter client for this incarnation, connecting it if necessary.
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
            progress: self.progress.clone(),
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
        let servers = begin.servers.len();
        let client = self.connected(incarnation, begin.servers, client)?;
        if self.config.log_placement && self.began_at.is_none() {
            let parameters = if control.is_chief() { self.placed(servers) } else { Vec::new() };
            let stages = self.training.replica().placement();
            let mut devices = match stages.is_empty() {
                true => self.training.replica().devices().unwrap_or_else(|| self.config.devices.clone()),
                false => Vec::new(),
            };
            for stage in &stages {
                if !devices.contains(&stage.device) {
                    devices.push(stage.device.clone());
                }
            }
            watch(&Event::Placed(Placed { worker: self.config.id.0, devices, stages, parameters }));
        }
        let (_, first) = *self.began_at.get_or_insert((begin.global_step, begin.batches));
        self.training.go_to(begin.batches, &begin.note, begin.global_step);
        watch(&Event::Started(Started {
            worker: self.config.id.0,
            chief: control.is_chief(),
            batches: self.training.batches(),
            batch_size: self.run.samples_a_step(),
            accumulate: self.run.accumulate,
            towers: self.run.towers,
            left_out: self.training.left_out(),
            from: begin.global_step,
            steps: self.run.steps,
            epochs: self.run.epochs,
            threads: self.pool.current_num_threads(),
            transports: client.transports().iter().map(ToString::to_string).collect(),
        }));
        let began = Instant::now();
        let (training, pool) = (&mut self.training, &self.pool);
        let trained = threads::compute(pool, || training.run(client, &|| control.is_chief(), watch));
        if trained.is_err() {
            client.deliver();
        }
        trained?;
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

    /// Returns which servers hold each parameter.
    fn placed(&self, servers: usize) -> Vec<PlacedParameter> {
        let plan = ShardPlan::new(&self.spec.parameters, servers, self.spec.sharding);
        let holders = |id: ParameterId| {
            let holds = |server: &ServerPlan| {
                server.segments.iter().any(|segment| segment.parameter == id)
                    || server.stripes.iter().any(|stripe| stripe.parameter == id)
            };
            (0..).zip(&plan.servers).filter(|(_, server)| holds(server)).map(|(index, _)| index).collect()
        };
        let placed = |(id, spec): (ParameterId, &ParameterSpec)| PlacedParameter {
            name: spec.name.clone(),
            shape: spec.shape.clone(),
            servers: holders(id),
        };
        self.spec.parameters.iter().map(placed).collect()
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
            bytes_in_process: tally.traffic.in_process,
            began_at: self.began_at.map_or(0, |(_, batches)| batches),
        }
    }

    /// Scores the final values and makes the summary: the chief's last duty.
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
        let metrics = threads::compute(&self.pool, || training.score_last(finished.global_step, &values))?;
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
            devices: self.training.replica().lanes(),
        };
        Ok(Summary::new(facts, finished))
    }

    /// Lets the model do its final work on the final values. If that fails, the run has still succeeded: the summary is
    /// reported, the other tasks end well, and only the chief reports what is missing.
    fn conclude(&mut self, watch: &mut Watcher) -> Outcome {
        let replica = self.training.replica();
        match threads::compute(&self.pool, move || replica.conclude()) {
            Ok(written) => {
                written.into_iter().for_each(|path| watch(&Event::Wrote { path }));
                Outcome::done()
            }
            Err(error) => Outcome { exit_code: exit_code::INTERNAL, reason: format!("{error:#}") },
        }
    }
}

/// Ends the worker if the training thread hangs while it makes a batch.
async fn watch_over(mut batches: Watch, control: Arc<Control>, given_up: mpsc::Sender<Ended>) {
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let Some(error) = batches.check() else { continue };
        let (control, given_up) = (control.clone(), given_up.clone());
        let runtime = tokio::runtime::Handle::current();
        let ending = tokio::task::spawn_blocking(move || {
            let Some((outcome, was_let_in)) = control.abandon(&error, &runtime) else { return false };
            // Nothing receives this if the worker has ended meanwhile.
            let _ = given_up.send(Ended { was_let_in, ..Ended::with(outcome) });
            true
        });
        if ending.await.unwrap_or(true) {
            return;
        }
    }
}

fn telemetry(model: &str, config: &WorkerConfig, run: &RunConfig, sites: &Sites) -> TelemetryConfig {
    let instruments = config.instruments.worker();
    instruments.computes_on(sites.clone());
    let gradients_an_update = match run.mode {
        Mode::Sync { replicas_to_aggregate } => replicas_to_aggregate.or(config.workers).unwrap_or(1) as usize,
        _ => 1,
    };
    TelemetryConfig {
        worker: config.id.0,
        log_every: run.log_every,
        samples_a_step: run.samples_a_step(),
        samples_an_update: run.samples_a_step() * gradients_an_update,
        situation: Situation {
            mode: run.mode,
            workers: config.workers,
            learning_rate: run.learning_rate,
            staleness_scaling: run.staleness_scaling,
            mean_staleness: 0.0,
        },
        board: config.board.clone(),
        hparams: hparams::of_run(model, config, run),
        history: HistoryConfig { file: config.history.clone(), started: config.started },
        instruments,
    }
}

/// A parameter client, and the incarnation it was connected as.
type Connected = Option<(Incarnation, ParameterClient)>;
