//! What happens in a run, as its watchers see it: the lines of the log, the bars of the launcher, the JSON of
//! `--format json` are all made from these.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use windlass_core::learning::Finding;

use crate::metrics::{MetricKind, Metrics};
use crate::summary::Summary;

/// What is logged with this target is of interest to whoever started the run, and shown to them.
pub const NOTICE: &str = "windlass_worker::notice";

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A worker is about to train.
    Started(Started),
    /// Where a worker computes, and where the parameters are, if that is to be told.
    Placed(Placed),
    /// A worker has done a step. Not every step is told; see `--log-every`.
    Step(Step),
    /// Where a worker is, a few times a second, for whoever watches a terminal. It is in no log.
    Progress(Step),
    /// A worker reports on its last steps and on held-out data, for models that ask for it.
    Report(Report),
    /// The run does not learn, or no longer: told by the chief, once for each kind of trouble.
    Warning(Warning),
    /// A worker has been through the data once; the chief has scored the network.
    Epoch(Epoch),
    /// A worker has done its share.
    Finished(Finished),
    /// A task was told to stop by a signal, and has left. Without a worker, the others go on.
    Stopped(Stopped),
    /// The run is over; told by the chief.
    Summary(Box<Summary>),
    /// The run had ended before it was started again: nothing was trained or written.
    AlreadyFinished {
        /// What it has had, where it is, and how it goes on.
        reason: String,
    },
    /// What the log of a launched task says that its user should hear at once, such as a checkpoint that failed.
    Notice {
        /// In words.
        text: String,
    },
    /// The summary, or something that the model made of the trained network, has been written to a file.
    Wrote {
        /// Where.
        path: PathBuf,
    },
}

/// See [`Event::Started`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The worker.
    pub worker: u32,
    /// Whether it is the chief.
    pub chief: bool,
    /// Steps an epoch.
    pub batches: usize,
    /// Samples a step.
    pub batch_size: usize,
    /// Batches a step, one after the other.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Replicas that each of them is divided among.
    #[serde(default = "one")]
    pub towers: usize,
    /// Samples that each epoch leaves out, because they do not fill a step.
    #[serde(default)]
    pub left_out: usize,
    /// The global step of the checkpoint that it goes on from, or that the others have come to; 0 at the beginning.
    #[serde(default)]
    pub from: u64,
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// The last epoch, if the run ends by epochs.
    pub epochs: Option<u64>,
    /// Threads it computes on.
    pub threads: usize,
    /// How it reaches each server.
    pub transports: Vec<String>,
}

fn one() -> usize {
    1
}

/// See [`Event::Placed`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The worker.
    pub worker: u32,
    /// The devices that it computes on, each with a replica of the whole network or with some of its stages.
    pub devices: Vec<String>,
    /// The stages of a network that is divided; told by the chief alone.
    #[serde(default)]
    pub stages: Vec<PlacedStage>,
    /// Every parameter; told by the chief alone.
    pub parameters: Vec<PlacedParameter>,
}

/// Where a stage is computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStage {
    /// Its name.
    pub name: String,
    /// The device, or several with `+` between them.
    pub device: String,
    /// The paths of its parameters in the network.
    pub parameters: Vec<String>,
}

/// Where a parameter is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedParameter {
    /// Its path in the network.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The servers that hold a part of it, by their numbers.
    pub servers: Vec<u32>,
}

/// See [`Event::Step`] and [`Event::Progress`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Seconds since the epoch of Unix.
    pub time: f64,
    /// The worker.
    pub worker: u32,
    /// This worker's steps so far.
    pub local_step: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The epoch, from one.
    pub epoch: u64,
    /// The batch in the epoch, from one.
    pub batch: usize,
    /// Batches an epoch.
    pub batches: usize,
    /// The loss of this step's batch, per sample; `null` in JSON if it is no number.
    pub loss: Option<f32>,
    /// The mean time of a step since the last such event, in milliseconds.
    pub step_ms: f64,
}

/// See [`Event::Report`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The worker.
    pub worker: u32,
    /// This worker's steps so far.
    pub local_step: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The learning rate that all workers share.
    pub learning_rate: f32,
    /// The mean time of this process's steps since the last report, in milliseconds, if it has made any.
    pub step_ms: Option<f64>,
    /// Samples a second of this worker in that time.
    pub samples_per_second: Option<f64>,
    /// The mean loss since the last report.
    pub loss: f64,
    /// What a mean loss is shown as, such as a perplexity: its name…
    pub score: String,
    /// …and its kind.
    pub kind: MetricKind,
    /// The scores of the held-out data.
    pub held_out: Vec<HeldOut>,
    /// What the numbers say is going wrong, and what can be done.
    pub warning: Option<String>,
}

impl Report {
    /// The scores of the held-out data, by part.
    pub fn scores(&self) -> Metrics {
        let known = self.held_out.iter().filter_map(|part| Some((&part.name, part.loss?)));
        known.fold(Metrics::new(), |metrics, (name, loss)| {
            let name = format!("held_out_{name}_{}", self.score).replace(' ', "_");
            metrics.with(&name, self.kind, self.kind.of_loss(loss))
        })
    }
}

/// See [`Event::Warning`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warning {
    /// The worker that noticed it.
    pub worker: u32,
    /// What is wrong; losses are per sample.
    #[serde(flatten)]
    pub finding: Finding,
    /// How many updates there were, on average, between reading parameters and pushing their gradient.
    pub mean_staleness: f64,
    /// The same in words.
    pub message: String,
    /// What to try.
    pub hint: String,
}

/// A part of the held-out data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Its name.
    pub name: String,
    /// The loss of a batch of it; nothing if it is empty.
    pub loss: Option<f64>,
}

/// See [`Event::Epoch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The worker.
    pub worker: u32,
    /// The epoch that has ended, from one.
    pub epoch: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The mean loss over the epoch, per sample.
    pub loss: f32,
    /// Scores, from the chief.
    #[serde(flatten)]
    pub metrics: Option<Metrics>,
    /// How long the epoch took.
    pub seconds: f64,
}

/// See [`Event::Finished`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The worker.
    pub worker: u32,
    /// Its steps, those before the checkpoint that the run began from included.
    pub steps: u64,
    /// Its steps without those.
    #[serde(default)]
    pub steps_this_run: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// How long it trained.
    pub seconds: f64,
}

/// See [`Event::Stopped`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// When, in seconds since the epoch of Unix.
    pub time: u64,
    /// The task, such as `worker 1`.
    pub task: String,
    /// The signal, such as `SIGTERM`.
    pub signal: String,
}

/// Told of everything that happens.
pub type Watcher = Box<dyn FnMut(&Event) + Send>;
