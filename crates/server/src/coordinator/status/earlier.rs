//! The status that an earlier ps 0 of the same run left in `RUN_DIR/status.json`. With it, the run's figures do not
//! start over when a new ps 0 takes its place.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass_page::{Event, EventKind, LastStatus, STATUS_FILE, Status, Timeline};

use crate::coordinator::history::History;

/// How long reading the record may take: a disk may hang, and the page has to work without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A longer time means that the record is damaged.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The run until this coordinator took over.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// How long the run had gone on when this coordinator's clock began.
    pub(super) elapsed: Duration,
    /// The last status.
    pub(super) status: Status,
}

impl Earlier {
    /// Reads the record of the last ps 0. Returns nothing if that ps 0 ended by itself, or longer ago than tasks wait,
    /// or if its record cannot be read quickly. `since` is the age of this coordinator.
    pub(super) async fn read(run_dir: &Path, since: Duration, awaited_for: Duration) -> Option<Self> {
        let path = run_dir.join(STATUS_FILE);
        let reading = tokio::task::spawn_blocking(move || {
            windlass_files::require_file(&path).ok()?;
            serde_json::from_slice(&std::fs::read(path).ok()?).ok()
        });
        let last: LastStatus = tokio::time::timeout(PATIENCE, reading).await.ok()?.ok()??;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_awaited = now.saturating_sub(last.written) <= awaited_for.as_secs();
        Self::new(last, now, since).filter(|_| is_awaited)
    }

    fn new(last: LastStatus, now: u64, since: Duration) -> Option<Self> {
        let recorded = plausible(last.status.elapsed_secs)?;
        plausible(last.status.kept_secs)?;
        let by_the_calendar = now.saturating_sub(last.began.unwrap_or(now));
        let elapsed = recorded.max(Duration::from_secs(by_the_calendar)).saturating_sub(since);
        last.exit_code.is_none().then_some(Self { elapsed, status: last.status })
    }

    /// Returns the earlier events, the restart of ps 0, and the events since.
    pub(super) fn timeline(&self, history: &History) -> Timeline {
        let earlier = &self.status.timeline;
        if history.forgotten > 0 {
            let forgotten = earlier.forgotten().saturating_add(earlier.events().count() as u64 + 1);
            return Timeline::after(forgotten.saturating_add(history.forgotten));
        }
        let mut timeline = earlier.clone();
        let what = "ps 0 was restarted".to_owned();
        timeline.push(Event { at_secs: self.elapsed.as_secs_f64(), kind: EventKind::Joined, what });
        timeline
    }
}

/// Returns the duration if a run can have taken that long.
fn plausible(secs: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(secs).ok().filter(|time| *time <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(began: Option<u64>, exit_code: Option<u8>) -> LastStatus {
        let status = Status { elapsed_secs: 50.0, ..Status::default() };
        LastStatus { written: 1050, began, exit_code, status, ..LastStatus::default() }
    }

    #[test]
    fn the_time_in_which_there_was_no_ps_0_belongs_to_the_run() {
        let elapsed = |began| Earlier::new(last(began, None), 1060, Duration::from_secs(2)).unwrap().elapsed.as_secs();
        assert_eq!(elapsed(Some(1000)), 58);
        // An earlier version did not record when the run began, and a clock may have been set back.
        assert_eq!((elapsed(None), elapsed(Some(2000))), (48, 48));
    }

    #[test]
    fn a_run_that_has_ended_is_not_continued() {
        assert!(Earlier::new(last(Some(1000), Some(0)), 1060, Duration::ZERO).is_none());
    }

    #[test]
    fn times_that_cannot_be_are_those_of_a_damaged_record() {
        let read = |elapsed_secs, kept_secs| {
            let status = Status { elapsed_secs, kept_secs, ..Status::default() };
            Earlier::new(LastStatus { status, ..LastStatus::default() }, 1060, Duration::ZERO)
        };
        assert!(read(50.0, 40.0).is_some());
        for damaged in [f64::NAN, f64::INFINITY, -1.0, 1e18, 1e30] {
            assert!(read(damaged, 40.0).is_none() && read(50.0, damaged).is_none(), "{damaged}");
        }
    }

    #[tokio::test]
    async fn a_record_is_continued_if_it_is_readable_and_not_older_than_tasks_wait() {
        let directory = tempfile::tempdir().unwrap();
        let read = || Earlier::read(directory.path(), Duration::ZERO, Duration::from_secs(300));
        let path = directory.path().join(STATUS_FILE);
        assert!(read().await.is_none());
        std::fs::write(&path, "{\"writ").unwrap();
        assert!(read().await.is_none());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        for (age, is_continued) in [(0, true), (400, false)] {
            let record = LastStatus { written: now - age, ..last(None, None) };
            std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
            assert_eq!(read().await.is_some(), is_continued, "written {age} s ago");
        }
    }
}
