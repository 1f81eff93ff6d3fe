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
    /// Whether the last check found the coordinator suspended.
    was_suspended: bool,
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

    /// Moves on after a deadline has passed. Returns true if tasks with parameters have more time, which they do unless
    /// the coordinator is suspended: without it nothing is saved. It counts as suspended once two checks in a row find it
    /// so, because a launcher that was suspended with it may wake first.
    pub(super) fn pass(&mut self, now: Instant, is_suspended: bool) -> bool {
        let stays_suspended = std::mem::replace(&mut self.was_suspended, is_suspended) && is_suspended;
        self.save_until = self.save_until.filter(|until| now < *until && !stays_suspended);
        self.at = self.save_until.map(|until| until.min(now + GRACE));
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
        assert!(deadline.pass(now + DRAIN, false));
        assert_eq!(deadline.at(), Some(now + DRAIN + GRACE));
        assert!(deadline.pass(now + SAVE - GRACE / 2, false));
        assert_eq!(deadline.at(), Some(now + SAVE));
        assert!(!deadline.pass(now + SAVE, false));
        assert_eq!(deadline.at(), None);
    }

    #[test]
    fn a_suspended_coordinator_is_given_up_at_the_second_check() {
        let (now, mut deadline) = (Instant::now(), Deadline::default());
        deadline.let_save(now);
        deadline.set(now + DRAIN);
        let checks = |deadline: &mut Deadline, suspended: &[bool]| -> Vec<bool> {
            suspended.iter().map(|is_suspended| deadline.pass(now + DRAIN, *is_suspended)).collect()
        };
        assert_eq!(checks(&mut deadline, &[true, false, true, false, false]), [true; 5]);
        assert_eq!(checks(&mut deadline, &[true, true]), [true, false]);
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
        assert!(!deadline.pass(now + GRACE, false));
    }
}
