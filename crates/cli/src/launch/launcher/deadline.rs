//! How long the tasks of an ending run have before they are killed. This module only decides; the launcher signals and
//! kills.

use std::time::{Duration, Instant};

/// The time that tasks have to end after one has failed, or after the run is over.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// The time that tasks have when the run was told to stop and a last checkpoint may have to be written: slightly longer
/// than a server's own timeout for it.
pub(super) const DRAIN: Duration = Duration::from_secs(70);
/// The time that tasks with parameters have. A large checkpoint takes long, and the tasks themselves abort one that
/// makes no progress.
const SAVE: Duration = Duration::from_secs(1800);

/// When the tasks of an ending run are killed.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    at: Option<Instant>,
    /// The time until which tasks with parameters may write the last checkpoint.
    save_until: Option<Instant>,
}

impl Deadline {
    /// The next time to act.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Sets the deadline. Returns false, without changing it, if there is one already.
    pub(super) fn set(&mut self, at: Instant) -> bool {
        let is_first = self.at.is_none();
        self.at.get_or_insert(at);
        is_first
    }

    /// Extends the deadline of tasks with parameters.
    pub(super) fn let_save(&mut self, now: Instant) {
        self.save_until = Some(now + SAVE);
    }

    /// Shortens all deadlines to this time at most, because the tasks can no longer achieve anything.
    pub(super) fn shorten(&mut self, at: Instant) {
        self.save_until = None;
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Moves on after a deadline has passed. Returns true if tasks with parameters have more time.
    pub(super) fn pass(&mut self) -> bool {
        self.at = self.save_until.take();
        self.at.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_hold_parameters_have_longer_than_the_others_once() {
        let (now, mut deadline) = (Instant::now(), Deadline::default());
        deadline.let_save(now);
        assert!(deadline.set(now + DRAIN));
        assert!(!deadline.set(now + GRACE), "a task that ends does not hurry those who save");
        assert_eq!(deadline.at(), Some(now + DRAIN));
        assert!(deadline.pass());
        assert_eq!(deadline.at(), Some(now + SAVE));
        assert!(!deadline.pass());
        assert_eq!(deadline.at(), None);
    }

    #[test]
    fn nobody_is_given_time_to_save_once_the_coordinator_has_ended() {
        let (now, mut deadline) = (Instant::now(), Deadline::default());
        deadline.let_save(now);
        deadline.set(now + DRAIN);
        deadline.shorten(now + GRACE);
        deadline.shorten(now + DRAIN);
        assert_eq!(deadline.at(), Some(now + GRACE));
        assert!(!deadline.pass());
    }
}
