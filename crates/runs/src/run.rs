//! A run, as described by all files of its directory.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use windlass_page::LastStatus;

use crate::activity::{Activity, activity};
use crate::checkpoints::SavedCheckpoint;
use crate::ending::{Ending, ending};
use crate::error::RunsError;
use crate::files::Files;
use crate::find::must_be_run_dir;
use crate::names::{RUN_FILE, SUMMARY_FILE};
use crate::settings::Settings;
use crate::summary::Summary;

/// A run, as described by its directory.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    /// The directory.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The model; empty if unknown.
    pub model: String,
    /// The layout of its tasks.
    pub layout: Option<Layout>,
    /// How pushes become updates: `async`, `sync`, `ssp 4`.
    pub mode: String,
    /// The optimizer.
    pub optimizer: String,
    /// The last known global step.
    pub step: u64,
    /// The step at which the run ends, if steps limit it.
    pub target: Option<u64>,
    /// The last known loss, per sample.
    pub loss: Option<f64>,
    /// The last known scores, the most significant first.
    pub scores: Vec<Score>,
    /// When the run began, in seconds since 1970.
    pub began: Option<u64>,
    /// When the run last gave a sign of life, in seconds since 1970.
    pub last_heard: Option<u64>,
    /// The disk space that the directory takes.
    pub bytes: u64,
    /// Whether the run is alive.
    pub activity: Activity,
    /// How the run ended.
    pub ending: Ending,
    /// The location of its checkpoints.
    pub checkpoints_in: String,
    /// The checkpoints that are in a directory of this machine, newest first.
    pub checkpoints: Vec<SavedCheckpoint>,
    /// Its settings, if they were recorded.
    pub settings: Option<Settings>,
    /// Its summary, if it finished.
    pub summary: Option<Summary>,
    /// The last status that its coordinator recorded.
    pub last_status: Option<LastStatus>,
    /// Descriptions of files that are damaged or cannot be read.
    pub problems: Vec<String>,
}

/// The layout of a run's tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// The number of parameter servers; zero for a run in one process, and with co-located shards.
    pub ps: u32,
    /// The number of workers.
    pub workers: u32,
    /// Whether each worker hosts a shard.
    pub colocated: bool,
    /// Whether the workers have joined a client, and compute what it sends them.
    pub joined: bool,
}

/// A score of the network.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Its name.
    pub name: String,
    /// The value of the score.
    pub value: f64,
    /// Whether the value is a fraction, from 0 to 1.
    pub is_fraction: bool,
}

impl Run {
    /// Reads a run directory.
    ///
    /// # Errors
    /// Fails if this is not a run directory or cannot be read at all. Damage to single files is listed in `problems`.
    pub fn read(path: &Path) -> Result<Self, RunsError> {
        must_be_run_dir(path)?;
        let (files, problems) = Files::read(path);
        let activity = activity(path);
        let (loss, scores) = files.result();
        Ok(Self {
            path: path.to_owned(),
            model: files.model(),
            layout: files.layout(),
            mode: files.mode(),
            optimizer: files.optimizer(),
            step: files.step(),
            target: files.target(),
            loss,
            scores,
            began: files.began().or_else(|| modified(&path.join(RUN_FILE))).or_else(|| modified(path)),
            last_heard: files.last_heard().or_else(|| modified(&path.join(SUMMARY_FILE))),
            bytes: size(path),
            ending: ending(files.traces(&activity)),
            activity,
            summary: files.final_summary().cloned(),
            checkpoints_in: files.checkpoints_in,
            checkpoints: files.checkpoints,
            settings: files.settings,
            last_status: files.last_status,
            problems,
        })
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.workers == 1 { "" } else { "s" };
        match self {
            Self { workers, colocated: true, .. } => write!(formatter, "{workers} worker{s}, co-located"),
            Self { ps: 0, workers, joined: true, .. } => write!(formatter, "{workers} joined worker{s}"),
            Self { ps, workers, joined: true, .. } => write!(formatter, "{ps} ps, {workers} joined worker{s}"),
            Self { ps: 0, .. } => formatter.write_str("one process"),
            Self { ps, workers, .. } => write!(formatter, "{ps} ps, {workers} worker{s}"),
        }
    }
}

/// Formats the score for display: `test accuracy 97.51%`.
impl fmt::Display for Score {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_fraction {
            true => write!(formatter, "{} {:.2}%", self.name, self.value * 100.0),
            false => write!(formatter, "{} {:.4}", self.name, self.value),
        }
    }
}

/// When a file was last written, in seconds since 1970.
fn modified(path: &Path) -> Option<u64> {
    let time: SystemTime = fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// The disk space that a directory takes. Links are not followed, and files that vanish meanwhile do not count.
fn size(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    let entries = metadata.is_dir().then(|| fs::read_dir(path).ok()).flatten();
    let within: u64 = entries.into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum();
    metadata.blocks() * 512 + within
}

/// Serializes a path as readable text, even if it is not valid Unicode.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}
