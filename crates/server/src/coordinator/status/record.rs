//! `RUN_DIR/status.json`: the last known status of a run. While the run is alive, the file holds the address of the
//! live page; afterwards, it records how the run ended. A disk that hangs or is full costs the file, never the
//! coordinator's time.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;
use windlass_core::lifecycle::Phase;
use windlass_page::{LastStatus, STATUS_FILE, Status};

use super::Shown;

/// Between two writes, unless the phase changes.
const EVERY: Duration = Duration::from_secs(1);

/// Writes the status of a run to the file in its directory, if it has one, for as long as there are updates. Sets
/// `end_recorded` once the end of the run is on disk, including the tasks' final reports, or cannot be written.
pub(super) async fn keep(
    run_dir: Option<PathBuf>,
    address: String,
    mut shown: watch::Receiver<Shown>,
    end_recorded: watch::Sender<bool>,
) {
    let mut recorder = match &run_dir {
        Some(run_dir) => Some(Recorder::new(run_dir, address).await),
        None => None,
    };
    while shown.changed().await.is_ok() {
        let Some((run, status, has_trained)) = shown.borrow_and_update().clone() else { continue };
        if let Some(recorder) = &mut recorder {
            // The run may have trained while the disk was slow.
            recorder.has_trained |= has_trained;
            recorder.record(&run.phase, &status).await;
        }
        if run.is_last {
            end_recorded.send_replace(true);
        }
    }
}

/// Writes the file.
struct Recorder {
    path: PathBuf,
    address: String,
    /// What an earlier run left in the file. It is restored if this run ends before it has begun.
    earlier: Option<Vec<u8>>,
    has_trained: bool,
    last: Option<(Instant, Phase)>,
    /// When the run began, in seconds since 1970.
    began: Option<u64>,
    has_warned: bool,
}

impl Recorder {
    /// For a run whose page is at `address`.
    async fn new(run_dir: &Path, address: String) -> Self {
        let path = run_dir.join(STATUS_FILE);
        let read = path.clone();
        let earlier = tokio::task::spawn_blocking(move || {
            windlass_files::require_file(&read).ok()?;
            std::fs::read(read).ok()
        });
        let earlier = earlier.await.ok().flatten();
        Self { path, address, earlier, has_trained: false, last: None, began: None, has_warned: false }
    }

    /// Writes the status if it is time.
    async fn record(&mut self, phase: &Phase, status: &Status) {
        self.has_trained |= *phase == Phase::Training;
        let is_due = match &self.last {
            // Include what the tasks report when they learn of the end.
            Some(_) if matches!(phase, Phase::Over(_)) => true,
            Some((at, before)) => before != phase || at.elapsed() >= EVERY,
            None => true,
        };
        if !is_due {
            return;
        }
        self.last = Some((Instant::now(), phase.clone()));
        let exit_code = match phase {
            Phase::Over(outcome) => Some(outcome.exit_code),
            _ => None,
        };
        let never_began = exit_code.is_some_and(|code| code != 0) && !self.has_trained;
        let bytes = match self.earlier.clone().filter(|_| never_began) {
            Some(earlier) => earlier,
            None => self.json(exit_code, status),
        };
        let path = self.path.clone();
        let written = tokio::task::spawn_blocking(move || {
            windlass_files::require_file(&path)?;
            windlass_files::write(&path, &[&bytes])
        });
        let written = written.await.unwrap_or_else(|error| Err(error.into()));
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_warned, true)
        {
            warn!("cannot write {}: {error}", self.path.display());
        }
    }

    fn json(&mut self, exit_code: Option<u8>, status: &Status) -> Vec<u8> {
        let written = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // Only once: the coordinator's clock does not advance while its process is stopped.
        let began = *self.began.get_or_insert(written.saturating_sub(status.elapsed_secs as u64));
        let (began, address) = (Some(began), self.address.clone());
        let record = LastStatus { written, began, address, exit_code, status: status.clone() };
        let mut json = serde_json::to_vec(&record).unwrap_or_default();
        json.push(b'\n');
        json
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::lifecycle::Outcome;

    use super::*;

    fn read(directory: &Path) -> LastStatus {
        serde_json::from_slice(&std::fs::read(directory.join(STATUS_FILE)).unwrap()).unwrap()
    }

    fn ended(exit_code: u8) -> Phase {
        Phase::Over(Outcome { exit_code, reason: "worker 0 differs".into() })
    }

    fn at(step: u64) -> Status {
        Status { step, ..Status::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_phase_is_written_at_once_and_everything_else_now_and_then() {
        let directory = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(directory.path(), "ps-0:2222".into()).await;
        recorder.record(&Phase::Gathering, &at(0)).await;
        assert_eq!((read(directory.path()).address.as_str(), read(directory.path()).exit_code), ("ps-0:2222", None));
        recorder.record(&Phase::Training, &at(1)).await;
        recorder.record(&Phase::Training, &at(2)).await;
        assert_eq!(read(directory.path()).status.step, 1);
        tokio::time::advance(EVERY).await;
        recorder.record(&Phase::Training, &at(3)).await;
        assert_eq!(read(directory.path()).status.step, 3);
        recorder.record(&ended(3), &at(4)).await;
        assert_eq!((read(directory.path()).status.step, read(directory.path()).exit_code), (4, Some(3)));
        recorder.record(&ended(3), &at(5)).await;
        assert_eq!(read(directory.path()).status.step, 5, "what is said after the end belongs to it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_never_began_leaves_the_record_of_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let mut first = Recorder::new(directory.path(), String::new()).await;
        first.record(&Phase::Training, &at(40)).await;
        first.record(&ended(0), &at(50)).await;
        let before = read(directory.path());
        let mut second = Recorder::new(directory.path(), String::new()).await;
        second.record(&Phase::Gathering, &at(0)).await;
        assert_ne!(read(directory.path()), before);
        second.record(&ended(2), &at(0)).await;
        assert_eq!(read(directory.path()), before);
        let elsewhere = tempfile::tempdir().unwrap();
        Recorder::new(elsewhere.path(), String::new()).await.record(&ended(2), &at(0)).await;
        assert_eq!(read(elsewhere.path()).exit_code, Some(2));
    }
}
