//! A finished run as its directory describes it, for the table and the picture.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, de};

use crate::error::RunError;
use crate::history::History;
use crate::utilization::{self, Utilization};

/// Tasks report what they use once a second, beginning with the second report. A shorter run may have none.
const SHORT_SECS: f64 = 5.0;

/// A run that has come to its end.
#[derive(Debug, Clone)]
pub struct Measured {
    /// What was trained, in which layout, how fast, and how well.
    pub summary: Summary,
    /// What it used; `None` if it was too short to tell, or has not recorded it.
    pub utilization: Option<Utilization>,
    /// Its loss over time.
    pub history: History,
    /// Passes over the data of each worker, if that ended it.
    pub epochs: Option<u64>,
}

/// `summary.json`, as far as it is read here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Summary {
    /// The model.
    pub model: String,
    /// How pushes became updates.
    pub mode: String,
    /// Parameter servers; zero for a run in one process.
    pub ps: u32,
    /// Workers.
    pub workers: u32,
    /// Whether the servers lived in the workers' processes.
    #[serde(default)]
    pub colocated: bool,
    /// Samples a step of a worker.
    pub batch_size: u64,
    /// The global step that it went on from when it was last resumed.
    #[serde(default)]
    pub resumed_at: u64,
    /// From the start to the end.
    pub wall_seconds: f64,
    /// From the start to the first update.
    pub first_step_seconds: f64,
    /// From that update to the last.
    pub training_seconds: f64,
    /// Samples a second over all workers.
    pub samples_per_second: f64,
    /// The time of a step.
    pub step_ms: Percentiles,
    /// What a step of a worker moves.
    pub bytes_per_step: Bytes,
    /// The loss of the last batches.
    pub loss: Option<f64>,
    /// What went wrong with its training.
    #[serde(default)]
    pub warning: Option<Warning>,
    /// The final scores, in their order.
    #[serde(default)]
    pub metrics: Scores,
    /// What each of them is, such as `fraction`.
    #[serde(default)]
    pub metric_kinds: std::collections::BTreeMap<String, String>,
    /// Each worker's share.
    #[serde(default)]
    pub per_worker: Vec<Worker>,
    /// The workers that had joined the run's client and computed for it.
    #[serde(default)]
    pub joined: Vec<Joined>,
    /// The devices among which the model was divided.
    #[serde(default)]
    pub devices: Vec<Device>,
}

/// A worker that had joined the run's client.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Joined {
    /// Its number and address.
    pub worker: String,
}

/// A device that computed stages of the model.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Device {
    /// Their names.
    #[serde(default)]
    pub stages: Vec<String>,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Percentiles {
    /// Half are below.
    pub p50: f64,
}

/// Bytes of a step.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Bytes {
    /// To the servers.
    pub sent: f64,
    /// From the servers.
    pub received: f64,
    /// Of both together, what stayed within the worker's process.
    #[serde(default)]
    pub in_process: f64,
}

/// What went wrong with the training of a run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Warning {
    /// In words.
    pub message: String,
}

/// One worker's share of a run.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Worker {
    /// The mean time of its steps.
    #[serde(default)]
    pub step_ms: f64,
    /// Of that, waiting for the servers.
    pub wait_ms: f64,
}

/// Scores by name, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores(pub Vec<(String, f64)>);

impl<'de> Deserialize<'de> for Scores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Scores;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map of scores")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Scores, A::Error> {
                let mut scores = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, Option<f64>>()? {
                    scores.push((name, value.unwrap_or(f64::NAN)));
                }
                Ok(Scores(scores))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// `run.toml`, as far as it is read here.
#[derive(Debug, Default, Deserialize)]
struct RunFile {
    #[serde(default)]
    train: Limits,
}

#[derive(Debug, Default, Deserialize)]
struct Limits {
    steps: Option<u64>,
    epochs: Option<u64>,
}

impl Measured {
    /// What a run directory holds.
    ///
    /// # Errors
    /// If it is none, or the run has not come to its end, or a file is damaged.
    pub fn read(directory: &Path) -> Result<Self, RunError> {
        let metadata = std::fs::metadata(directory)
            .map_err(|source| RunError::Unreadable { path: directory.to_owned(), source })?;
        if !metadata.is_dir() {
            return Err(RunError::NotADirectory { path: directory.to_owned() });
        }
        let path = directory.join("summary.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let is_empty = std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
                let why = if is_empty { "it is empty" } else { "there is no summary.json" };
                return Err(RunError::Unfinished { path: directory.to_owned(), why });
            }
            Err(source) => return Err(RunError::Unreadable { path, source }),
        };
        let summary: Summary = serde_json::from_str(&text)
            .map_err(|error| RunError::Damaged { path, why: format!("it is not the summary of a run: {error}") })?;
        let utilization = utilization::read(directory, summary.colocated || summary.ps == 0)?;
        Ok(Self { history: History::read(directory)?, epochs: epochs(directory), summary, utilization })
    }

    /// What the user would call the layout.
    pub fn layout(&self) -> String {
        let Summary { ps, workers, colocated, mode, joined, devices, .. } = &self.summary;
        let servers = if *ps > 0 { format!("{ps}ps, ") } else { String::new() };
        let stages: BTreeSet<&String> = devices.iter().flat_map(|device| &device.stages).collect();
        match (ps, colocated) {
            _ if !devices.is_empty() && !joined.is_empty() => {
                format!("{servers}{} stages on {} joined", stages.len(), joined.len())
            }
            _ if !devices.is_empty() => format!("{servers}{} stages", stages.len()),
            _ if !joined.is_empty() => format!("{servers}{} joined, {mode}", joined.len()),
            (0, _) => "single".to_owned(),
            (_, true) => format!("{workers}w-colocated-{mode}"),
            (ps, false) if *workers == 1 && mode == "async" => format!("{ps}ps1w"),
            (ps, false) => format!("{ps}ps{workers}w-{mode}"),
        }
    }

    /// Whether it was one process alone, with the model in one piece.
    pub fn is_single(&self) -> bool {
        let Summary { ps, joined, devices, .. } = &self.summary;
        *ps == 0 && joined.is_empty() && devices.is_empty()
    }

    /// Whether it ended so soon that what it used may not have been measured.
    pub fn is_short(&self) -> bool {
        self.summary.wall_seconds < SHORT_SECS
    }

    /// A score by its name.
    pub fn score(&self, name: &str) -> Option<f64> {
        let found = self.summary.metrics.0.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| *value).filter(|value| value.is_finite())
    }

    /// The main score: the first that is a fraction, such as an accuracy, or else the first.
    pub fn main_score(&self) -> Option<&str> {
        let is_fraction = |name: &str| self.summary.metric_kinds.get(name).is_some_and(|kind| kind == "fraction");
        let names = || self.summary.metrics.0.iter().map(|(name, _)| name.as_str());
        names().find(|name| is_fraction(name)).or_else(|| names().next())
    }

    /// From the start to the end, without the time in which it was interrupted.
    pub fn total_seconds(&self) -> f64 {
        self.history.earlier_seconds + self.summary.wall_seconds
    }

    /// The step at which it was last resumed, if it was.
    pub fn resumed_at(&self) -> Option<u64> {
        Some(self.summary.resumed_at).filter(|step| *step > 0)
    }

    /// Samples a second over all workers. The summary of a run that was resumed counts from there, perhaps a few steps;
    /// the history has all of it.
    pub fn samples_per_second(&self) -> f64 {
        let all = self.resumed_at().and_then(|_| self.history.samples_per_second());
        all.unwrap_or(self.summary.samples_per_second)
    }

    /// From the start to the first step.
    pub fn first_step_seconds(&self) -> f64 {
        let first = self.resumed_at().and(self.history.first_step_seconds);
        first.unwrap_or(self.summary.first_step_seconds)
    }

    /// The time of a worker's epoch.
    pub fn epoch_seconds(&self) -> Option<f64> {
        let whole = (self.summary.resumed_at == 0).then_some(self.summary.training_seconds);
        let seconds = self.history.training_seconds().or(whole)?;
        self.epochs.map(|epochs| seconds / epochs as f64)
    }

    /// The part of workers' time that they waited for servers.
    pub fn wait_share(&self) -> Option<f64> {
        let sum = |pick: fn(&Worker) -> f64| self.summary.per_worker.iter().map(pick).sum::<f64>();
        let steps = sum(|worker| worker.step_ms);
        (steps > 0.0).then(|| sum(|worker| worker.wait_ms) / steps)
    }

    /// What a step of a worker moves between processes, on average; `None` if joined workers computed it: what they are sent
    /// is not counted.
    pub fn bytes_per_step(&self) -> Option<f64> {
        let Bytes { sent, received, in_process } = self.summary.bytes_per_step;
        let is_one_process = self.summary.ps == 0;
        self.summary.joined.is_empty().then_some(if is_one_process { 0.0 } else { sent + received - in_process })
    }

    /// The same in a second, over all workers.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let steps_per_second = self.samples_per_second() / self.summary.batch_size.max(1) as f64;
        Some(self.bytes_per_step()? * steps_per_second)
    }
}

/// How many passes over the data the run was given, if it had no other limit; none if `run.toml` cannot be read.
fn epochs(directory: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(directory.join("run.toml")).ok()?;
    let Limits { steps, epochs } = toml::from_str::<RunFile>(&text).ok()?.train;
    epochs.filter(|epochs| *epochs > 0 && steps.is_none())
}
