//! A worker's configuration: the run as the user requested it, and the worker's own place in the cluster.

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

/// A run as the user requested it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// How pushes become updates.
    pub mode: Mode,
    /// What the servers do with gradients.
    pub optimizer: Optimizer,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// How parameters are spread over the servers.
    pub sharding: Sharding,
    /// Samples per batch.
    pub batch_size: usize,
    /// Batches per step: their gradients are pushed as one, as if of a single batch of all their samples.
    pub accumulate: usize,
    /// The number of replicas among which a worker divides each batch.
    pub towers: usize,
    /// The largest norm of a worker's gradient; a larger one is scaled down to it.
    pub clip_norm: Option<f32>,
    /// The limit in global steps, if the run has one.
    pub steps: Option<u64>,
    /// The limit in epochs per worker, if the run has one.
    pub epochs: Option<u64>,
    /// The seed of the initial values, the built-in data and the order of samples.
    pub seed: u64,
    /// Whether each epoch has its own order of samples.
    pub shuffle: bool,
    /// Whether the workers share the data out instead of each of them reading all of it.
    pub shard_data: bool,
    /// Whether gradients are summed in the order of workers.
    pub deterministic: bool,
    /// Whether the learning rate of a push is divided by its staleness.
    pub staleness_scaling: bool,
    /// Whether the chief scores the network after every epoch, and not only at the end.
    pub evaluate_epochs: bool,
    /// Steps between two log lines.
    pub log_every: u64,
    /// The model's own flags by name, except those that concern only this process.
    pub model_flags: BTreeMap<String, ModelFlag>,
    /// The data directory, unless the data are built in.
    pub data_dir: Option<String>,
}

impl RunConfig {
    /// Samples in a step of a worker.
    pub fn samples_a_step(&self) -> usize {
        self.batch_size * self.accumulate
    }

    /// Returns the order in which a worker goes through a model's samples, if there are enough of them.
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
    /// The worker's number.
    pub id: WorkerId,
    /// The number of workers; `None` if it is not fixed and any worker may join.
    pub workers: Option<u32>,
    /// The number of servers; zero for a run in one process.
    pub servers: u32,
    /// How the coordinator is reached.
    pub coordinator: Coordinator,
    /// The server in this same process, if there is one.
    pub own_server: Option<(ServerId, Arc<dyn Shard>)>,
    /// Threads to compute on; `None` to choose by trial.
    pub threads: Option<usize>,
    /// How long to wait for peers before giving up.
    pub peer_timeout: Duration,
    /// Records of how the run ended, consulted when ps 0 cannot be reached.
    pub records: Option<Arc<dyn Records>>,
    /// When the run was started.
    pub started: Instant,
    /// Set when the process is told to stop.
    pub stop: Arc<Interrupt>,
    /// Curves for TensorBoard: the run's, written by the chief, and each worker's own.
    pub board: BoardConfig,
    /// The names of the devices that this worker computes on, one for each replica.
    pub devices: Vec<String>,
    /// Whether the placement of every parameter is reported.
    pub log_placement: bool,
    /// The file for the loss over time, written by the chief; `None` disables it.
    pub history: Option<PathBuf>,
    /// The metrics and probes of this task.
    pub instruments: Instruments,
}
