//! What a worker is told: the run, as the user asked for it, and its own place in the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::identity::ModelFlag;
use windlass_core::optimizer::Optimizer;
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_instruments::Instruments;
use windlass_wire::client::Interrupt;
use windlass_wire::control::session::{Coordinator, Records};
use windlass_wire::link::Shard;

use crate::batches::order::{Order, OrderConfig, OrderError};
use crate::board::BoardConfig;
use crate::replica::ModelInfo;

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
    /// Among how many replicas a worker divides each of them.
    pub towers: usize,
    /// The largest norm of a worker's gradient; a larger one is scaled down to it.
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
        let order = Order::new(OrderConfig {
            samples: model.samples,
            batch_size: self.samples_a_step(),
            shuffle: self.shuffle,
            seed: self.seed,
            worker: worker.0,
            shards: workers.filter(|_| self.shard_data),
            files: model.sample_files.clone(),
        });
        order.map_err(|error| match error {
            OrderError::TooFewSamples { samples, .. } if self.accumulate > 1 => {
                OrderError::TooFewForStep { batch_size: self.batch_size, accumulate: self.accumulate, samples }
            }
            error => error,
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
    /// Curves for TensorBoard: the run's, written by the chief, and each worker's own.
    pub board: BoardConfig,
    /// The names of the devices that this worker computes on, one for each replica.
    pub devices: Vec<String>,
    /// Whether it is told where every parameter is.
    pub log_placement: bool,
    /// Where the loss over time is written, by the chief; `None` for nowhere.
    pub history: Option<PathBuf>,
    /// How this task is seen from outside.
    pub instruments: Instruments,
}
