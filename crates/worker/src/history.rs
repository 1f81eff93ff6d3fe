//! `RUN_DIR/history.jsonl`: the loss and the scores of a run over time, written by its chief. A failure to write never
//! stops the run.
//!
//! A line is written after the first step, then many times a second, and less and less often as the run grows longer,
//! so that a run of any length leaves a few thousand lines. A resumed run appends to the file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tracing::warn;

use crate::metrics::Metrics;

/// The interval between lines right after the first step, when the loss falls fastest.
const SHORTEST: Duration = Duration::from_millis(20);
/// The interval between lines after some seconds, until the run is a long one.
const USUAL: Duration = Duration::from_millis(200);
/// The divisor of the elapsed time that gives the interval between lines: up to that point, and in long runs.
const EARLY: u32 = 25;
const LATE: u32 = 400;

/// Where the history of a run is written.
#[derive(Debug, Clone)]
pub struct HistoryConfig {
    /// The file; `None` disables the history.
    pub file: Option<PathBuf>,
    /// When the run was started.
    pub started: Instant,
}

/// A line of the file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// Unix time in seconds.
    time: f64,
    /// Seconds since the start of the run, or since it was resumed.
    seconds: f64,
    /// Updates so far.
    step: u64,
    /// Samples so far, over all workers.
    samples: u64,
    /// The mean loss of the chief's steps since the previous line, per sample; `null` if it is not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<f64>,
    #[serde(flatten)]
    scores: Option<&'a Metrics>,
}

/// The history of a run, while this worker is its chief.
pub(crate) struct History {
    config: HistoryConfig,
    samples_an_update: u64,
    file: Option<File>,
    /// When the first step was done.
    first: Option<Instant>,
    /// When the next line is due.
    due: Instant,
    losses: f64,
    steps: u32,
}

impl History {
    pub(crate) fn new(config: HistoryConfig, samples_an_update: usize) -> Self {
        let due = config.started;
        Self {
            config,
            samples_an_update: samples_an_update as u64,
            file: None,
            first: None,
            due,
            losses: 0.0,
            steps: 0,
        }
    }

    /// Called when training begins, or continues after a rollback: the next step is written at once.
    pub(crate) fn begin(&mut self) {
        (self.due, self.losses, self.steps) = (self.config.started, 0.0, 0);
    }

    /// Counts a step of the chief, and writes a line if one is due.
    pub(crate) fn step(&mut self, global_step: u64, loss: f32, now: Instant) {
        self.losses += f64::from(loss);
        self.steps += 1;
        if now < self.due || self.config.file.is_none() {
            return;
        }
        let mean = self.losses / f64::from(self.steps);
        (self.losses, self.steps) = (0.0, 0);
        let since_first = now.saturating_duration_since(*self.first.get_or_insert(now));
        self.due = now + (since_first / EARLY).clamp(SHORTEST, USUAL).max(since_first / LATE);
        self.write(global_step, Some(mean), None);
    }

    /// Writes the scores of the network.
    pub(crate) fn scores(&mut self, global_step: u64, metrics: &Metrics) {
        self.write(global_step, None, Some(metrics));
    }

    /// Writes a line. Logs a failure once and stops writing.
    fn write(&mut self, step: u64, loss: Option<f64>, scores: Option<&Metrics>) {
        let Some(path) = &self.config.file else { return };
        let line = Line {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            seconds: self.config.started.elapsed().as_secs_f64(),
            step,
            samples: step * self.samples_an_update,
            loss,
            scores,
        };
        let opened = match self.file.take() {
            Some(file) => Ok(file),
            None => windlass_files::require_file(path)
                .and_then(|()| OpenOptions::new().create(true).append(true).open(path)),
        };
        let written = opened.and_then(|mut file| {
            let mut text = serde_json::to_vec(&line)?;
            text.push(b'\n');
            file.write_all(&text)?;
            Ok(file)
        });
        match written {
            Ok(file) => self.file = Some(file),
            Err(error) => {
                warn!("cannot write {}: {error}; the loss history ends here", path.display());
                self.config.file = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_tells_the_mean_loss_since_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let started = Instant::now();
        let mut history = History::new(HistoryConfig { file: Some(path.clone()), started }, 10);
        let at = |millis| started + Duration::from_millis(millis);
        history.step(1, 4.0, at(50));
        history.step(2, 3.0, at(60));
        history.step(3, 1.0, at(80));
        history.scores(3, &Metrics::new().fraction("test_accuracy", 0.5));
        history.begin();
        history.step(3, 9.0, at(90));
        let lines = lines(&path);
        let told: Vec<_> = lines.iter().map(|line| (line["step"].as_u64(), line["loss"].as_f64())).collect();
        assert_eq!(told, [(Some(1), Some(4.0)), (Some(3), Some(2.0)), (Some(3), None), (Some(3), Some(9.0))]);
        assert_eq!(
            (lines[1]["samples"].as_u64(), lines[2]["metrics"]["test_accuracy"].as_f64()),
            (Some(30), Some(0.5))
        );
    }

    #[test]
    fn a_long_run_has_some_thousand_lines() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let started = Instant::now();
        let mut history = History::new(HistoryConfig { file: Some(path.clone()), started }, 1);
        (0..=10 * 24 * 3600).for_each(|second| history.step(second, 1.0, started + Duration::from_secs(second)));
        let count = lines(&path).len();
        assert!((2000..8000).contains(&count), "{count}");
    }
}
