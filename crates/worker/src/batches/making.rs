//! Whether a batch is being made on the training thread, and for how long. That thread cannot be interrupted, so
//! another one checks on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::info;

use super::{SPEAK_EVERY, TimeAwake, gave_up};
use crate::train::TrainError;
use windlass_wire::client::{ClientError, Interrupt};

/// How often to check on the training thread.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How long a batch in progress may still take when the process is to end.
const GRACE: Duration = Duration::from_secs(2);

/// The batch in progress, if there is one.
#[derive(Debug, Clone)]
pub(crate) struct Making {
    /// When it was begun, in microseconds after `origin`; 0 if no batch is being made.
    since: Arc<AtomicU64>,
    origin: Instant,
}

impl Making {
    pub(super) fn new() -> Self {
        Self { since: Arc::default(), origin: Instant::now() }
    }

    /// Runs `make`, and records when it began.
    pub(super) fn note<T>(&self, make: impl FnOnce() -> T) -> T {
        self.since.store(self.origin.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
        let made = make();
        self.since.store(0, Ordering::Relaxed);
        made
    }

    /// Returns when the batch in progress was begun.
    fn since(&self) -> Option<u64> {
        Some(self.since.load(Ordering::Relaxed)).filter(|since| *since > 0)
    }
}

/// Watches the batches that the training thread makes.
pub(crate) struct Watch {
    pub(crate) making: Making,
    pub(crate) patience: Duration,
    pub(crate) interrupt: Arc<Interrupt>,
    /// The batch in progress at the last check, identified by its start, and how long it has been observed.
    seen: Option<(u64, TimeAwake)>,
    /// How long the batch had taken when it was last logged.
    spoken: Duration,
}

impl Watch {
    pub(crate) fn new(making: Making, patience: Duration, interrupt: Arc<Interrupt>) -> Self {
        Self { making, patience, interrupt, seen: None, spoken: Duration::ZERO }
    }

    /// Returns why to stop waiting for the batch in progress, if it is time to. Must be called every [`CHECK_EVERY`].
    pub(crate) fn check(&mut self) -> Option<TrainError> {
        let taken = self.taken(self.making.since(), Instant::now());
        let (is_told, error) = self.judge(taken, self.interrupt.ends_all_waits());
        if is_told {
            info!("waiting for a batch of training data ({} s)", taken.as_secs());
        }
        error
    }

    /// Returns how long the batch with this start has been observed.
    fn taken(&mut self, since: Option<u64>, now: Instant) -> Duration {
        match (since, &mut self.seen) {
            (Some(since), Some((seen, time))) if *seen == since => time.at(now),
            (since, seen) => {
                *seen = since.map(|since| (since, TimeAwake::new(CHECK_EVERY, now)));
                Duration::ZERO
            }
        }
    }

    /// Returns whether to log a batch that has taken this long, and the error to give it up with, if any.
    fn judge(&mut self, taken: Duration, is_over: bool) -> (bool, Option<TrainError>) {
        self.spoken = self.spoken.min(taken);
        let is_told = taken >= self.spoken + SPEAK_EVERY;
        if is_told {
            self.spoken = taken;
        }
        let error = if is_over && taken > GRACE {
            Some(ClientError::Interrupted.into())
        } else if taken > self.patience {
            Some(gave_up(taken))
        } else {
            None
        };
        (is_told, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        Watch::new(Making::new(), Duration::from_secs(10), Arc::default())
    }

    #[test]
    fn a_batch_that_takes_long_is_told_of_now_and_then_and_given_up_in_the_end() {
        let mut watch = watch();
        let mut told = Vec::new();
        for second in 0..=10 {
            let (is_told, error) = watch.judge(Duration::from_secs(second), false);
            assert!(error.is_none(), "after {second} s");
            told.extend(is_told.then_some(second));
        }
        assert_eq!(told, [3, 6, 9]);
        let (_, error) = watch.judge(Duration::from_secs(11), false);
        assert_eq!(error.unwrap().to_string(), "gave up waiting for a batch of training data after 11 s");
        assert!(watch.judge(Duration::ZERO, false).1.is_none(), "the next one");
    }

    #[test]
    fn a_process_that_is_to_end_does_not_wait_for_a_batch() {
        let mut watch = watch();
        assert!(watch.judge(Duration::ZERO, true).1.is_none(), "none is being made");
        let (_, error) = watch.judge(GRACE + Duration::from_secs(1), true);
        assert!(matches!(error, Some(TrainError::Client(ClientError::Interrupted))));
    }

    #[test]
    fn a_batch_counts_only_while_it_is_made() {
        let making = Making::new();
        assert_eq!(making.since(), None);
        assert!(making.note(|| making.since()).is_some());
        assert_eq!(making.since(), None);
    }

    #[test]
    fn neither_an_earlier_batch_nor_the_time_in_which_the_process_stands_still_counts() {
        let (mut watch, began) = (watch(), Instant::now());
        assert_eq!(watch.taken(Some(7), began), Duration::ZERO);
        assert_eq!(watch.taken(Some(7), began + CHECK_EVERY), CHECK_EVERY);
        assert_eq!(watch.taken(Some(7), began + Duration::from_secs(3600)), 3 * CHECK_EVERY);
        let later = began + Duration::from_secs(3601);
        assert_eq!(watch.taken(Some(8), later), Duration::ZERO, "the next one");
        assert_eq!(watch.taken(None, later + CHECK_EVERY), Duration::ZERO);
        assert_eq!(watch.taken(Some(8), later + 2 * CHECK_EVERY), Duration::ZERO);
    }
}
