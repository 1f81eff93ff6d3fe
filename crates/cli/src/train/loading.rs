//! Loading a worker's model and data onto its devices, before anything else is started. Nothing here trains or connects.

use std::net::TcpListener;
use std::sync::Arc;

use burn::tensor::Device;
use windlass_core::cluster::WorkerId;
use windlass_core::lifecycle::Outcome;
use windlass_worker::model::{Model, Setup};
use windlass_worker::replica::remote::InGraph;
use windlass_worker::replica::{Local, LocalConfig, Placed, PlacedConfig, Replica, Towers};
use windlass_worker::task::{self, RunConfig};
use windlass_worker::threads;

use super::Process;
use crate::failure::Failure;
use crate::{signals, stage_placement};

/// The stack size of the thread that loads the model: that of a main thread.
const LOADING_STACK: usize = 8 << 20;

impl Process {
    /// Loads a worker's copy of the model, with its data, before anything is started, so that nobody waits for a worker
    /// that fails to load. Loading may take minutes and there is nothing to save yet, so a process that is told to stop
    /// meanwhile does not wait for it.
    pub(super) fn load<M: Model>(
        &self,
        flags: &M::Flags,
        id: WorkerId,
        workers: Option<u32>,
    ) -> Result<Box<dyn Replica>, Failure> {
        let (flags, setup, run) = (flags.clone(), self.config.setup.clone(), self.config.run.clone());
        let threads = self.threads();
        let devices: Vec<Device> = self.devices.iter().map(|device| device.device.clone()).collect();
        let placed = self.placed_config(None)?;
        self.loaded(move || {
            let replica = match placed {
                Some(placed) => Box::new(divided::<M>(&flags, (&setup, &run), placed)?),
                None => load_replica::<M>(&flags, &setup, &run, &devices, threads)?,
            };
            run.order(replica.info(), id, workers).map_err(Failure::usage)?;
            Ok(replica)
        })
    }

    /// Loads copies of the model, which share its data, for a process whose steps joined workers compute. A model that
    /// cannot be sent to them is refused here.
    pub(super) fn load_for_crew<M: Model>(
        &self,
        flags: &M::Flags,
        copies: usize,
    ) -> Result<Vec<Box<dyn Replica>>, Failure> {
        let (flags, setup, run) = (flags.clone(), self.config.setup.clone(), self.config.run.clone());
        self.loaded(move || {
            let model: M = task::load(&flags, &setup).map_err(|error| Failure::usage(format!("{error:#}")))?;
            let (model, config) = (Arc::new(model), LocalConfig::on_cpu(run.seed));
            let config = LocalConfig { accumulate: run.accumulate, is_tower: false, ..config };
            let mut replicas: Vec<Box<dyn Replica>> = Vec::with_capacity(copies);
            for index in 0..copies as u32 {
                let replica = Local::sharing(model.clone(), config.clone()).map_err(Failure::usage)?;
                run.order(replica.info(), WorkerId(index), Some(copies as u32)).map_err(Failure::usage)?;
                replicas.push(Box::new(replica));
            }
            let first: Vec<usize> = (0..run.samples_a_step()).collect();
            let travels =
                InGraph::check(&*replicas[0], &first).map_err(|error| Failure::usage(format!("{error:#}")))?;
            travels.map_err(|error| {
                Failure::usage(format!("{} cannot be trained with --in-graph: {error}", M::NAME))
                    .with_hint("train it without --in-graph, or say in the model how its batches travel".to_owned())
            })?;
            Ok(replicas)
        })
    }

    /// Loads a model that is divided among this process and `joined` joined workers.
    pub(super) fn load_placed<M: Model>(&self, flags: &M::Flags, joined: usize) -> Result<Placed, Failure> {
        let (flags, setup, run) = (flags.clone(), self.config.setup.clone(), self.config.run.clone());
        let config = self.placed_config(Some(joined))?;
        let config = config.ok_or_else(|| Failure::internal("a run without places has no joined workers"))?;
        self.loaded(move || {
            let placed = divided::<M>(&flags, (&setup, &run), config)?;
            run.order(placed.info(), WorkerId(0), Some(1)).map_err(Failure::usage)?;
            Ok(placed)
        })
    }

    /// Runs `work` on a thread of its own.
    fn loaded<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (sender, loaded) = tokio::sync::oneshot::channel();
        let load = move || {
            let _ = sender.send(threads::caught("loading the model", work));
        };
        let thread = std::thread::Builder::new().name("load".to_owned()).stack_size(LOADING_STACK);
        thread.spawn(load).map_err(Failure::internal)?;
        self.runtime.block_on(async {
            tokio::select! {
                loaded = loaded => loaded.map_err(Failure::internal)?,
                () = signals::stopped(&self.config.stop) => Err(Outcome::told_to_stop().into()),
            }
        })
    }

    /// Loads a worker's copy of the model while this task's port serves its probes and metrics. Any other connection
    /// has to be retried, as if the task had not started yet.
    pub(super) fn load_and_answer<M: Model>(
        &self,
        flags: &M::Flags,
        id: WorkerId,
        workers: Option<u32>,
        listener: &TcpListener,
    ) -> Result<Box<dyn Replica>, Failure> {
        self.answering(listener, || self.load::<M>(flags, id, workers))
    }

    /// Runs `work` while this task's port serves its probes and metrics.
    pub(super) fn answering<T>(
        &self,
        listener: &TcpListener,
        work: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let answering = self.serve_instruments(listener.try_clone().map_err(Failure::internal)?)?;
        let done = work();
        answering.abort();
        // From here on the server accepts connections.
        let _ = self.runtime.block_on(answering);
        done
    }

    /// How this worker's model is divided, if it is, among its own devices or those of `joined` joined workers.
    fn placed_config(&self, joined: Option<usize>) -> Result<Option<PlacedConfig>, Failure> {
        let (Some(stages), [client]) = (&self.config.stages, &self.devices[..]) else { return Ok(None) };
        Ok(Some(PlacedConfig {
            client: (client.name.to_string(), client.device.clone()),
            places: stages.places(joined)?,
            micro_batches: stages.micro_batches,
            threads: self.threads().unwrap_or(1),
            seed: self.config.run.seed,
            trace: stages.trace.as_ref().map(|_| self.trace.clone()),
        }))
    }

    /// The number of threads on which a worker computes; `None` lets it find out itself. Towers share all cores
    /// equally, and a worker that feeds a GPU needs only one thread.
    pub(super) fn threads(&self) -> Option<usize> {
        let by_devices = match &self.devices[..] {
            _ if self.config.stages.is_some() => Some(std::thread::available_parallelism().map_or(1, usize::from)),
            [device] => (!device.is_cpu()).then_some(1),
            _ => Some(std::thread::available_parallelism().map_or(1, usize::from)),
        };
        self.config.threads.or(by_devices)
    }
}

/// The model divided into stages, checked with one batch.
fn divided<M: Model>(
    flags: &M::Flags,
    (setup, run): (&Setup, &RunConfig),
    config: PlacedConfig,
) -> Result<Placed, Failure> {
    let model: M = task::load(flags, setup).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let placed = Placed::of(model, config).map_err(|error| stage_placement::failure(&error))?;
    let first: Vec<usize> = (0..run.samples_a_step().min(placed.info().samples)).collect();
    placed.check(&first).map_err(|error| Failure::usage(format!("--place: {error:#}")))?;
    Ok(placed)
}

/// The model on this process's devices.
fn load_replica<M: Model>(
    flags: &M::Flags,
    setup: &Setup,
    run: &RunConfig,
    devices: &[Device],
    threads: Option<usize>,
) -> Result<Box<dyn Replica>, Failure> {
    let model: M = task::load(flags, setup).map_err(|error| Failure::usage(format!("{error:#}")))?;
    let config = LocalConfig { accumulate: run.accumulate, ..LocalConfig::on_cpu(run.seed) };
    Ok(match devices {
        [device] => {
            let config = LocalConfig { device: device.clone(), ..config };
            Box::new(Local::new(model, config).map_err(Failure::usage)?)
        }
        devices => Box::new(Towers::of(model, devices, threads.unwrap_or(1), &config).map_err(Failure::usage)?),
    })
}
