//! Until when the tasks of a run that ends have before they are killed. It decides; the launcher tells and kills.

use std::time::{Duration, Instant};

/// How long tasks have to end after one has failed, or after the run is over.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// How long they have when the run was told to stop, and a last checkpoint may have to be written: a little longer than
/// a server waits for word of it.
pub(super) const DRAIN: Duration = Duration::from_secs(70);
/// How long those have that hold parameters. A large checkpoint takes its time, and one that does not get on is given up
/// by themselves.
const SAVE: Duration = Duration::from_secs(1800);

/// When tasks are killed, if the run ends.
#[derive(Debug, Default)]
pub(super) struct Deadline {
    at: Option<Instant>,
    /// Until when those who hold parameters may write the last checkpoint.
    save_until: Option<Instant>,
    /// Whether the coordinator was suspended at the last look.
    was_suspended: bool,
}

impl Deadline {
    /// When it has to be looked at again.
    pub(super) fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Gives tasks until then. False if they have a deadline already, which stays.
    pub(super) fn set(&mut self, at: Instant) -> bool {
        let is_first = self.at.is_none();
        self.at.get_or_insert(at);
        is_first
    }

    /// Gives those who hold parameters longer than the others.
    pub(super) fn let_save(&mut self, now: Instant) {
        self.save_until = Some(now + SAVE);
    }

    /// Nobody is left to whom the tasks could be of use: whatever they had been given, they have no longer than this.
    pub(super) fn shorten(&mut self, at: Instant) {
        self.save_until = None;
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    /// It has passed. True if those who hold parameters have longer, which they do as long as the coordinator is not
    /// suspended: without it nothing is saved. It counts as suspended when two looks in a row find it so, because a
    /// launcher that was suspended along with it may be the first to wake.
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
    fn a_suspended_coordinator_has_one_more_look_to_wake() {
        let (now, mut deadline) = (Instant::now(), Deadline::default());
        deadline.let_save(now);
        deadline.set(now + DRAIN);
        let looks = |deadline: &mut Deadline, suspended: &[bool]| -> Vec<bool> {
            suspended.iter().map(|is_suspended| deadline.pass(now + DRAIN, *is_suspended)).collect()
        };
        assert_eq!(looks(&mut deadline, &[true, false, true, false, false]), [true; 5]);
        assert_eq!(looks(&mut deadline, &[true, true]), [true, false]);
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
