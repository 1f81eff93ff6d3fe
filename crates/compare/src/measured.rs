//! A finished run as its directory describes it, for the table and the picture.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, de};

use crate::error::RunError;
use crate::history::History;
use crate::utilization::{self, Utilization};

/// Tasks report their usage once a second, from the second report on, so a shorter run may have no record.
const SHORT_SECS: f64 = 5.0;

/// A finished run.
#[derive(Debug, Clone)]
pub struct Measured {
    /// What was trained, in which layout, how fast, and how well.
    pub summary: Summary,
    /// The resources it used; `None` if the run was too short to measure them or did not record them.
    pub utilization: Option<Utilization>,
    /// Its loss over time.
    pub history: History,
    /// The number of passes over each worker's data, if that limited the run.
    pub epochs: Option<u64>,
}

/// `summary.json`, reduced to the fields needed here.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Summary {
    /// The model.
    pub model: String,
    /// How pushes became updates.
    pub mode: String,
    /// How pushes became updates (async, sync, ssp).
    pub ps: u32,
    /// Workers.
    pub workers: u32,
    /// Whether the servers lived in the workers' processes.
    #[serde(default)]
    pub colocated: bool,
    /// The batch size of a worker's step.
    pub batch_size: u64,
    /// The global step from which it was last resumed.
    #[serde(default)]
    pub resumed_at: u64,
    /// The time from the start to the end.
    pub wall_seconds: f64,
    /// The time from the start to the first update.
    pub first_step_seconds: f64,
    /// The time from the first update to the last.
    pub training_seconds: f64,
    /// Samples per second over all workers.
    pub samples_per_second: f64,
    /// The time of a step.
    pub step_ms: Percentiles,
    /// The traffic of a worker's step.
    pub bytes_per_step: Bytes,
    /// The loss over the last batches.
    pub loss: Option<f64>,
    /// A problem with its training.
    #[serde(default)]
    pub warning: Option<Warning>,
    /// The final scores, in the order of the file.
    #[serde(default)]
    pub metrics: Scores,
    /// The kind of each score, such as `fraction`.
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
    /// The names of those stages.
    #[serde(default)]
    pub stages: Vec<String>,
}

/// Percentiles in milliseconds.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
}

/// Bytes of a step.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Bytes {
    /// To the servers.
    pub sent: f64,
    /// From the servers.
    pub received: f64,
    /// The part of sent and received bytes that stayed within the worker's process.
    #[serde(default)]
    pub in_process: f64,
}

/// A problem with the training of a run.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Warning {
    /// The warning text.
    pub message: String,
}

/// One worker's share of a run.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Worker {
    /// The mean time of a step.
    #[serde(default)]
    pub step_ms: f64,
    /// The part of it that was spent waiting for servers.
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

/// `run.toml`, reduced to the fields needed here.
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
    /// Reads the results in a run directory.
    ///
    /// # Errors
    /// Fails if this is not a run directory, the run has not finished, or a file is damaged.
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

    /// The layout as users write it.
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

    /// Whether the run was a single process with an undivided model.
    pub fn is_single(&self) -> bool {
        let Summary { ps, joined, devices, .. } = &self.summary;
        *ps == 0 && joined.is_empty() && devices.is_empty()
    }

    /// Whether the run ended so soon that its resource usage may not have been measured.
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

    /// The time from the start to the end, without interruptions.
    pub fn total_seconds(&self) -> f64 {
        self.history.earlier_seconds + self.summary.wall_seconds
    }

    /// The step from which the run was last resumed, if it was.
    pub fn resumed_at(&self) -> Option<u64> {
        Some(self.summary.resumed_at).filter(|step| *step > 0)
    }

    /// Samples per second over all workers. The summary of a resumed run covers only what followed, which may be a few
    /// steps, but its history covers everything.
    pub fn samples_per_second(&self) -> f64 {
        let all = self.resumed_at().and_then(|_| self.history.samples_per_second());
        all.unwrap_or(self.summary.samples_per_second)
    }

    /// The time from the start to the first step.
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

    /// The share of workers' time that was spent waiting for servers.
    pub fn wait_share(&self) -> Option<f64> {
        let sum = |pick: fn(&Worker) -> f64| self.summary.per_worker.iter().map(pick).sum::<f64>();
        let steps = sum(|worker| worker.step_ms);
        (steps > 0.0).then(|| sum(|worker| worker.wait_ms) / steps)
    }

    /// The mean traffic between processes per step of a worker; `None` if joined workers computed it, since the traffic
    /// to them is not counted.
    pub fn bytes_per_step(&self) -> Option<f64> {
        let Bytes { sent, received, in_process } = self.summary.bytes_per_step;
        let is_one_process = self.summary.ps == 0;
        self.summary.joined.is_empty().then_some(if is_one_process { 0.0 } else { sent + received - in_process })
    }

    /// The traffic per second, over all workers.
    pub fn bytes_per_second(&self) -> Option<f64> {
        let steps_per_second = self.samples_per_second() / self.summary.batch_size.max(1) as f64;
        Some(self.bytes_per_step()? * steps_per_second)
    }
}

/// The number of passes over the data that the run was limited to, if it had no other limit; `None` if `run.toml`
/// cannot be read.
fn epochs(directory: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(directory.join("run.toml")).ok()?;
    let Limits { steps, epochs } = toml::from_str::<RunFile>(&text).ok()?.train;
    epochs.filter(|epochs| *epochs > 0 && steps.is_none())
}
