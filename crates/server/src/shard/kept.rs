//! A piece of the parameters that can be read as it was at a cut, while pushes go on changing it.

use std::time::{Duration, Instant};

/// Whether a change belongs before the cut that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Age {
    /// The number of the cut; 0 if none is under way.
    pub(super) cut: u64,
    /// True if the change is part of what the cut keeps.
    pub(super) before: bool,
}

impl Age {
    /// How much of a wait for a lock is the checkpoint's: all of it while one is under way.
    pub(super) fn held_up(self, waited: Duration) -> Duration {
        if self.cut > 0 { waited } else { Duration::ZERO }
    }
}

/// A value, and a copy of it as of a cut if it has changed since.
#[derive(Debug)]
pub(super) struct Kept<T> {
    now: T,
    copy: Option<T>,
    /// The last cut for which the value has been copied or taken.
    cut: u64,
}

impl<T> Kept<T> {
    pub(super) fn new(now: T) -> Self {
        Self { now, copy: None, cut: 0 }
    }

    pub(super) fn get(&self) -> &T {
        &self.now
    }

    /// The value, to be changed where no cut can be under way: before training.
    pub(super) fn get_mut(&mut self) -> &mut T {
        &mut self.now
    }

    /// Changes the value, and the copy too if the change belongs before the cut. Returns how long the cut has held up
    /// the change.
    pub(super) fn change(&mut self, age: Age, copy: impl FnOnce(&T) -> T, change: impl Fn(&mut T)) -> Duration {
        let mut held_up = Duration::ZERO;
        if age.cut > self.cut && !age.before {
            let since = Instant::now();
            self.copy = Some(copy(&self.now));
            self.cut = age.cut;
            held_up = since.elapsed();
        } else if age.cut == self.cut
            && age.before
            && let Some(copy) = &mut self.copy
        {
            change(copy);
        }
        change(&mut self.now);
        held_up
    }

    /// The value as of a cut, every change before which has been made. `None` if a later cut has been made: this one was
    /// given up, and what is kept belongs to the other.
    pub(super) fn take(&mut self, cut: u64, copy: impl FnOnce(&T) -> T) -> Option<T> {
        if self.cut > cut {
            return None;
        }
        let kept = self.copy.take().filter(|_| self.cut == cut);
        self.cut = cut;
        Some(kept.unwrap_or_else(|| copy(&self.now)))
    }

    /// Lets go of a copy that nobody will take.
    pub(super) fn forget(&mut self) -> Option<T> {
        self.copy.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Age = Age { cut: 0, before: true };

    fn add(kept: &mut Kept<i32>, age: Age, amount: i32) {
        kept.change(age, i32::clone, |value| *value += amount);
    }

    #[test]
    fn a_cut_has_every_change_before_it_and_none_after_in_whatever_order_they_come() {
        let before = Age { cut: 1, before: true };
        let after = Age { cut: 1, before: false };
        for order in [[(before, 10), (after, 100)], [(after, 100), (before, 10)]] {
            let mut kept = Kept::new(1);
            add(&mut kept, NONE, 1);
            for (age, amount) in order {
                add(&mut kept, age, amount);
            }
            assert_eq!((*kept.get(), kept.take(1, i32::clone)), (112, Some(12)));
        }
    }

    #[test]
    fn what_has_not_changed_since_the_cut_is_taken_as_it_is() {
        let mut kept = Kept::new(5);
        assert_eq!(kept.take(1, i32::clone), Some(5));
        add(&mut kept, Age { cut: 1, before: false }, 1);
        assert!(kept.copy.is_none(), "it has been taken already");
        assert_eq!(kept.take(2, i32::clone), Some(6));
    }

    #[test]
    fn a_copy_for_a_cut_that_was_given_up_is_not_taken_for_the_next() {
        let mut kept = Kept::new(5);
        add(&mut kept, Age { cut: 1, before: false }, 1);
        add(&mut kept, Age { cut: 2, before: true }, 1);
        assert_eq!(kept.take(2, i32::clone), Some(7));
    }

    #[test]
    fn whoever_still_reads_a_cut_that_was_given_up_takes_nothing_from_the_next() {
        let mut kept = Kept::new(5);
        add(&mut kept, Age { cut: 2, before: false }, 1);
        assert_eq!(kept.take(1, i32::clone), None);
        assert_eq!(kept.take(2, i32::clone), Some(5));
    }
}
