//! The events of a run as its observers see them. The lines of the log, the launcher's progress bars and the JSON of
//! `--format json` are all made from them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use windlass_core::learning::Finding;

use crate::metrics::{MetricKind, Metrics};
use crate::summary::Summary;

/// The log target of messages that are shown to the user who started the run.
pub const NOTICE: &str = "windlass_worker::notice";

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A worker is about to train.
    Started(Started),
    /// Where a worker computes, and where the parameters are, if placement is reported.
    Placed(Placed),
    /// A worker has done a step. Not every step is reported; see `--log-every`.
    Step(Step),
    /// A worker's progress, a few times a second, for terminals. It is not logged.
    Progress(Step),
    /// A worker reports on its last steps and on held-out data, for models that ask for it.
    Report(Report),
    /// The run does not learn, or has stopped learning. Reported by the chief, once for each kind of problem.
    Warning(Warning),
    /// A worker has finished an epoch; if it is the chief, it may have scored the network.
    Epoch(Epoch),
    /// A worker has done its share.
    Finished(Finished),
    /// A task was stopped by a signal and has left. If it was a worker, the others continue without it.
    Stopped(Stopped),
    /// The run is over; reported by the chief.
    Summary(Box<Summary>),
    /// The run had ended before it was started again: nothing was trained or written.
    AlreadyFinished {
        /// What the run has completed, where it is, and how to continue it.
        reason: String,
    },
    /// A log message of a launched task that its user should see at once, such as a failed checkpoint.
    Notice {
        /// The message.
        text: String,
    },
    /// A file has been written: the summary, or something that the model made from the trained network.
    Wrote {
        /// The path of the file.
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
    /// Steps per epoch.
    pub batches: usize,
    /// Samples per step.
    pub batch_size: usize,
    /// Batches per step, computed one after the other.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Replicas that each batch is divided among.
    #[serde(default = "one")]
    pub towers: usize,
    /// Samples that each epoch leaves out, because they do not fill a step.
    #[serde(default)]
    pub left_out: usize,
    /// The global step that the worker continues from: that of the checkpoint, or that of the workers already training;
    /// 0 at the beginning.
    #[serde(default)]
    pub from: u64,
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// The last epoch, if the run ends by epochs.
    pub epochs: Option<u64>,
    /// The number of threads that it computes on.
    pub threads: usize,
    /// The transport to each server.
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
    /// The devices that the worker computes on, each with a replica of the whole network or with some of its stages.
    pub devices: Vec<String>,
    /// The stages of a divided network; reported by the chief only.
    #[serde(default)]
    pub stages: Vec<PlacedStage>,
    /// Every parameter; reported by the chief only.
    pub parameters: Vec<PlacedParameter>,
}

/// Where a stage is computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedStage {
    /// The name of the stage.
    pub name: String,
    /// The device, or several joined by `+`.
    pub device: String,
    /// The paths of the stage's parameters in the network.
    pub parameters: Vec<String>,
}

/// Where a parameter is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedParameter {
    /// The path of the parameter in the network.
    pub name: String,
    /// The shape of the parameter.
    pub shape: Vec<usize>,
    /// The numbers of the servers that hold a part of the parameter.
    pub servers: Vec<u32>,
}

/// See [`Event::Step`] and [`Event::Progress`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Unix time in seconds.
    pub time: f64,
    /// The worker.
    pub worker: u32,
    /// This worker's steps so far.
    pub local_step: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The batch within the epoch, counted from 1.
    pub batch: usize,
    /// Batches per epoch.
    pub batches: usize,
    /// The loss of this step's batch, per sample; `null` in JSON if it is not finite.
    pub loss: Option<f32>,
    /// The mean step time since the last such event, in milliseconds.
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
    /// The mean step time of this process since the last report, in milliseconds, if it has made any steps.
    pub step_ms: Option<f64>,
    /// This worker's samples per second in that time.
    pub samples_per_second: Option<f64>,
    /// The mean loss since the last report.
    pub loss: f64,
    /// The name of the score that a mean loss is shown as, such as a perplexity…
    pub score: String,
    /// …and its kind.
    pub kind: MetricKind,
    /// The scores of the held-out data.
    pub held_out: Vec<HeldOut>,
    /// What the numbers suggest is going wrong, and what to do about it.
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
    /// The average number of updates between reading parameters and pushing their gradient.
    pub mean_staleness: f64,
    /// The finding in words.
    pub message: String,
    /// What to try.
    pub hint: String,
}

/// A part of the held-out data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// The name of the part.
    pub name: String,
    /// The loss of a batch of this part; `None` if the part is empty.
    pub loss: Option<f64>,
}

/// See [`Event::Epoch`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The worker.
    pub worker: u32,
    /// The epoch that has ended, counted from 1.
    pub epoch: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The mean loss over the epoch, per sample.
    pub loss: f32,
    /// Scores, from the chief.
    #[serde(flatten)]
    pub metrics: Option<Metrics>,
    /// The duration of the epoch.
    pub seconds: f64,
}

/// See [`Event::Finished`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// The worker.
    pub worker: u32,
    /// The worker's steps, including those before the checkpoint that the run began from.
    pub steps: u64,
    /// The worker's steps, excluding those.
    #[serde(default)]
    pub steps_this_run: u64,
    /// All workers' updates so far.
    pub global_step: u64,
    /// The training time.
    pub seconds: f64,
}

/// See [`Event::Stopped`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Unix time in seconds.
    pub time: u64,
    /// The task, such as `worker 1`.
    pub task: String,
    /// The signal, such as `SIGTERM`.
    pub signal: String,
}

/// Called with every event.
pub type Watcher = Box<dyn FnMut(&Event) + Send>;
