//! Records the ending of a launched run in its `status.json`. The coordinator knows only that it was told to stop, or
//! was killed and could not record anything; the launcher knows why.

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tracing::debug;
use windlass_core::lifecycle::exit_code;
use windlass_page::{LastStatus, Phase, STATUS_FILE};

/// How long the record may take: a disk may hang, and the user is to learn how the run ended all the same.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a run ended, as its record tells.
pub(super) struct LastWord {
    pub(super) exit_code: u8,
    pub(super) phase: Phase,
}

impl LastWord {
    /// The run was told to stop.
    pub(super) fn stopped(why: String) -> Self {
        Self { exit_code: exit_code::TERMINATED, phase: Phase::Stopped { why } }
    }

    /// The run failed, for the reason at the beginning of this message.
    pub(super) fn failed(exit_code: u8, message: &str) -> Self {
        let line = message.lines().next().unwrap_or_default();
        let why = line.split_once("; the end of ").map_or(line, |(why, _)| why);
        Self { exit_code, phase: Phase::Failed { why: why.to_owned() } }
    }

    /// Writes this into the status of a run that began at `began`, in seconds since 1970. A coordinator that has
    /// recorded an ending other than being told to stop knows better, and the status of an earlier run is left alone.
    pub(super) fn record(self, run_dir: &Path, began: u64) {
        let path = run_dir.join(STATUS_FILE);
        let (done, written) = mpsc::channel();
        thread::spawn(move || {
            self.write(&path, began);
            let _ = done.send(());
        });
        if written.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            debug!("cannot record how the run ended within {} s", PATIENCE.as_secs());
        }
    }

    fn write(self, path: &Path, began: u64) {
        let Some(last) = read(path) else { return };
        if last.written < began || !matches!(last.exit_code, None | Some(exit_code::TERMINATED)) {
            return;
        }
        let last = LastStatus { exit_code: Some(self.exit_code), status: last.status.ended(self.phase), ..last };
        let mut json = serde_json::to_vec(&last).unwrap_or_default();
        json.push(b'\n');
        if let Err(error) = windlass_files::write(path, &[&json]) {
            debug!(%error, "cannot record how the run ended");
        }
    }
}

fn read(path: &Path) -> Option<LastStatus> {
    windlass_files::require_file(path).ok()?;
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use windlass_page::Status;

    use super::*;

    const BEGAN: u64 = 1000;

    /// Records a failure in a status that was written at `written`, and returns the resulting exit code and phase.
    fn recorded(written: u64, exit_code: Option<u8>) -> (Option<u8>, Phase) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(STATUS_FILE);
        let status = Status { phase: Phase::Training, step: 7, ..Status::default() };
        let last = LastStatus { written, exit_code, status, ..LastStatus::default() };
        fs::write(&path, serde_json::to_vec(&last).unwrap()).unwrap();
        let message = "worker 1 was killed by signal 9; the end of run/worker-1.log:\n  step 3";
        LastWord::failed(1, message).record(directory.path(), BEGAN);
        let last: LastStatus = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(last.status.step, 7);
        (last.exit_code, last.status.phase)
    }

    #[test]
    fn a_run_that_said_nothing_or_that_it_was_told_to_stop_has_ended_as_the_launcher_knows() {
        let failed = Phase::Failed { why: "worker 1 was killed by signal 9".to_owned() };
        for said in [None, Some(exit_code::TERMINATED)] {
            assert_eq!(recorded(BEGAN, said), (Some(1), failed.clone()));
        }
    }

    #[test]
    fn a_reason_that_the_coordinator_knows_and_the_record_of_an_earlier_run_stay() {
        assert_eq!(recorded(BEGAN, Some(3)), (Some(3), Phase::Training));
        assert_eq!(recorded(BEGAN - 1, None), (None, Phase::Training));
    }
}
