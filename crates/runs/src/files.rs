//! The files of a run directory, and what they show when taken together.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use windlass_page::{LastStatus, STATUS_FILE, Status};

use crate::activity::Activity;
use crate::checkpoints::{self, SavedCheckpoint};
use crate::ending::Traces;
use crate::names::{RUN_FILE, SUMMARY_FILE};
use crate::run::{Layout, Score};
use crate::settings::Settings;
use crate::summary::Summary;

/// The files that were found.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub settings: Option<Settings>,
    pub summary: Option<Summary>,
    pub last_status: Option<LastStatus>,
    pub checkpoints_in: String,
    pub checkpoints: Vec<SavedCheckpoint>,
}

impl Files {
    /// Reads as many files as possible, and lists the problems with the others.
    pub(crate) fn read(path: &Path) -> (Self, Vec<String>) {
        let mut problems = Vec::new();
        let settings = noted(RUN_FILE, Settings::read(path), &mut problems);
        let summary = noted(SUMMARY_FILE, Summary::read(path), &mut problems);
        let last_status = noted(STATUS_FILE, read_status(path), &mut problems);
        let checkpoints_in = checkpoints::location(path, settings.as_ref());
        let saved = noted(&checkpoints_in, checkpoints::list(&checkpoints_in).map(Some), &mut problems);
        let checkpoints = saved.unwrap_or_default();
        let damaged = checkpoints.iter().filter_map(|saved| Some(format!("{}: {}", saved.id, saved.damage.as_ref()?)));
        problems.extend(damaged);
        (Self { settings, summary, last_status, checkpoints_in, checkpoints }, problems)
    }

    /// The summary, unless it was left by an earlier run in the same directory.
    pub(crate) fn final_summary(&self) -> Option<&Summary> {
        let is_of_this_run = |summary: &&Summary| self.status().is_none_or(|status| status.step == summary.global_step);
        self.summary.as_ref().filter(is_of_this_run)
    }

    pub(crate) fn traces<'a>(&'a self, activity: &'a Activity) -> Traces<'a> {
        Traces {
            activity,
            last_status: self.last_status.as_ref(),
            has_finished: self.final_summary().is_some() || self.newest().is_some_and(|saved| saved.is_last),
            has_checkpoint: self.newest().is_some(),
        }
    }

    pub(crate) fn model(&self) -> String {
        let of_settings = self.settings.as_ref().map(|settings| settings.model.as_str());
        let of_checkpoint = self.newest().and_then(|saved| saved.model.as_deref());
        self.first_of(of_settings, |status| &status.model, |summary| &summary.model, of_checkpoint)
    }

    pub(crate) fn mode(&self) -> String {
        let mode = self.first_of(self.set("mode"), |status| &status.mode, |summary| &summary.mode, None);
        match self.set("staleness") {
            Some(staleness) if mode == "ssp" => format!("{mode} {staleness}"),
            _ => mode,
        }
    }

    pub(crate) fn optimizer(&self) -> String {
        let set = self.set("optimizer");
        self.first_of(set, |status| &status.optimizer, |summary| &summary.optimizer, None)
    }

    /// The last known step.
    pub(crate) fn step(&self) -> u64 {
        let saved = self.newest().map_or(0, |saved| saved.step);
        let summed_up = || self.summary.as_ref().map(|summary| summary.global_step);
        // A run that has not started, or never did, reports step 0 even if it has checkpoints from before.
        let seen = self.status().map(|status| status.step).filter(|step| *step > 0);
        seen.or_else(summed_up).unwrap_or(saved)
    }

    pub(crate) fn target(&self) -> Option<u64> {
        self.set("steps").and_then(|steps| steps.parse().ok()).or(self.status().and_then(|status| status.target))
    }

    /// The loss and the scores: the final ones, or else the last ones that were reported to the coordinator.
    pub(crate) fn result(&self) -> (Option<f64>, Vec<Score>) {
        if let Some(summary) = self.final_summary() {
            return (summary.loss, summary.scores());
        }
        let Some(status) = self.status() else { return (None, Vec::new()) };
        let scores = status.scores.iter().filter_map(|curve| {
            let (_, value) = curve.last()?;
            Some(Score { name: curve.name.clone(), value, is_fraction: curve.is_fraction })
        });
        (status.loss.last().map(|(_, loss)| loss), scores.collect())
    }

    pub(crate) fn began(&self) -> Option<u64> {
        let last = self.last_status.as_ref()?;
        Some(last.began.unwrap_or_else(|| last.written.saturating_sub(last.status.elapsed_secs as u64)))
    }

    pub(crate) fn last_heard(&self) -> Option<u64> {
        let written = self.last_status.as_ref().map(|last| last.written);
        written.or_else(|| self.newest().and_then(|saved| saved.taken))
    }

    pub(crate) fn layout(&self) -> Option<Layout> {
        if let Some(settings) = &self.settings {
            return Some(layout_of_settings(settings));
        }
        if let Some(Summary { ps, workers, colocated, ref joined, .. }) = self.summary {
            let workers = if joined.is_empty() { workers } else { joined.len() as u32 };
            return Some(Layout { ps: if colocated { 0 } else { ps }, workers, colocated, joined: !joined.is_empty() });
        }
        let last = self.last_status.as_ref()?;
        let status = &last.status;
        // A run in one process has no address, and a client may hold the parameters itself.
        let has_ps = !last.address.is_empty() && !status.layout.starts_with("a client");
        let ps = if has_ps { status.servers.len() as u32 } else { 0 };
        Some(Layout { ps, workers: status.workers.len() as u32, colocated: false, joined: status.client.is_some() })
    }

    fn status(&self) -> Option<&Status> {
        self.last_status.as_ref().map(|last| &last.status)
    }

    /// The newest undamaged checkpoint.
    fn newest(&self) -> Option<&SavedCheckpoint> {
        self.checkpoints.iter().find(|saved| saved.damage.is_none())
    }

    fn set(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get("train", name)
    }

    /// The first value found in the settings, the last status, the summary, and `otherwise`, in this order.
    fn first_of(
        &self,
        set: Option<&str>,
        status: fn(&Status) -> &str,
        summary: fn(&Summary) -> &str,
        otherwise: Option<&str>,
    ) -> String {
        let candidates = [set, self.status().map(status), self.summary.as_ref().map(summary), otherwise];
        candidates.into_iter().flatten().find(|text| !text.is_empty()).unwrap_or_default().to_owned()
    }
}

/// The layout of a run that was launched, or whose tasks were started one by one with all addresses.
fn layout_of_settings(settings: &Settings) -> Layout {
    let is_launched = settings.is_launched();
    let (table, [ps, workers]) = match is_launched {
        true => ("launch", ["ps", "workers"]),
        false => ("train", ["ps-hosts", "worker-hosts"]),
    };
    let number = |name| {
        let text = settings.get(table, name).filter(|text| !text.is_empty())?;
        if is_launched { text.parse().ok() } else { Some(text.split(',').count() as u32) }
    };
    let colocated = settings.get(table, "colocate") == Some("true");
    let ps = number(ps).filter(|_| !colocated);
    let joined = settings.get("train", "in-graph") == Some("true")
        || settings.get("train", "place").is_some_and(|place| place.contains("task:"));
    Layout { ps: ps.unwrap_or(0), workers: number(workers).unwrap_or(1), colocated, joined }
}

/// The value; if it cannot be read, `None`, with an entry in `problems`.
fn noted<T>(name: &str, read: Result<Option<T>, String>, problems: &mut Vec<String>) -> Option<T> {
    read.unwrap_or_else(|error| {
        problems.push(format!("{name}: {error}"));
        None
    })
}

pub(crate) fn read_status(path: &Path) -> Result<Option<LastStatus>, String> {
    let text = read_if_there(&path.join(STATUS_FILE))?;
    text.map(|text| serde_json::from_slice(&text).map_err(|error| error.to_string())).transpose()
}

/// The contents of a file; `None` if the file does not exist.
pub(crate) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The contents of a regular file. Anything else of that name might have no end, or block the reader.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open(path)?.read_to_end(&mut content)?;
    Ok(content)
}

/// Opens a regular file for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match fs::metadata(path)?.is_file() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}
