//! Reports a run in which nothing progresses: once per hang, in the log and in the run directory.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, Utc};
use tracing::warn;
use windlass_core::cluster::TaskId;
use windlass_page::{Status, figures};

use crate::NOTICE;

/// Between two reports on one hang.
const AGAIN: Duration = Duration::from_secs(10);
/// The file in the run directory.
const FILE: &str = "hang-report.txt";

/// Notices that a run hangs.
pub(super) struct HangWatch {
    run_dir: Option<PathBuf>,
    /// When the hang was last reported, and the tasks that were blamed.
    reported: Option<(Instant, Vec<Vec<TaskId>>)>,
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    windlass_files::require_file(path)?;
    windlass_files::write(path, &[text.as_bytes()])
}

impl HangWatch {
    pub(super) fn new(run_dir: Option<PathBuf>) -> Self {
        Self { run_dir, reported: None }
    }

    /// Reports a hang when it is first detected, and again if other tasks turn out to be to blame. Another thread
    /// writes the report, because the disk may be what hangs.
    pub(super) fn look(&mut self, status: &Status) {
        let Some(report) = status.hang() else {
            self.reported = None;
            return;
        };
        let blamed: Vec<Vec<TaskId>> = report.roots.iter().map(|root| root.tasks.clone()).collect();
        if self.reported.as_ref().is_some_and(|(at, before)| *before == blamed || at.elapsed() < AGAIN) {
            return;
        }
        self.reported = Some((Instant::now(), blamed));
        // The file outlives the hang, and perhaps the run.
        let now = DateTime::<Utc>::from(SystemTime::now()).format("%Y-%m-%d %H:%M:%S UTC");
        let text = format!("{now}, step {}: {report}", figures::count(status.step));
        let Some(path) = self.run_dir.as_ref().map(|directory| directory.join(FILE)) else {
            return warn!(target: NOTICE, "{}", text.trim_end());
        };
        warn!(target: NOTICE, "no progress; who waits for whom is in {}", path.display());
        tokio::task::spawn_blocking(move || match write(&path, &text) {
            Ok(()) => {}
            Err(error) => warn!(target: NOTICE, "cannot write {}: {error}; {}", path.display(), text.trim_end()),
        });
    }
}
