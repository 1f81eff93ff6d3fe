//! A piece of the parameters that can be read as it was at a cut while pushes keep changing it. Measuring what a copy
//! costs is up to the caller.

use std::time::Duration;

use crate::fault::{self, Fault};

/// The side of the current cut that a change belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutSide {
    /// The number of the cut; 0 if none is under way.
    pub cut: u64,
    /// True if the change is part of the state that the cut keeps.
    pub before: bool,
}

impl CutSide {
    /// The part of a wait for a lock that is due to the checkpoint: all of it while a cut is under way.
    pub fn held_up(self, waited: Duration) -> Duration {
        if self.cut > 0 { waited } else { Duration::ZERO }
    }
}

/// A value, and its copy as of a cut if the value has changed since.
#[derive(Debug)]
pub struct CopyOnCut<T> {
    now: T,
    copy: Option<T>,
    /// The last cut for which the value has been copied or taken.
    cut: u64,
}

impl<T> CopyOnCut<T> {
    /// Wraps a value that no cut has been made of.
    pub fn new(now: T) -> Self {
        Self { now, copy: None, cut: 0 }
    }

    /// The current value.
    pub fn get(&self) -> &T {
        &self.now
    }

    /// Mutable access to the value before training, when no cut can be under way.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.now
    }

    /// Changes the value, and its copy too if the change belongs before the cut. The first change after a cut makes the
    /// copy.
    pub fn change(&mut self, side: CutSide, copy: impl FnOnce(&T) -> T, change: impl Fn(&mut T)) {
        if side.cut > self.cut && !side.before {
            self.copy = Some(copy(&self.now));
            self.cut = side.cut;
        } else if side.cut == self.cut
            && side.before
            && let Some(copy) = &mut self.copy
        {
            change(copy);
        }
        change(&mut self.now);
    }

    /// Returns the value as of a cut. All changes before the cut must have been made. Returns `None` if a later cut has
    /// been made: this cut was abandoned, and the copy belongs to the later one.
    pub fn take(&mut self, cut: u64, copy: impl FnOnce(&T) -> T) -> Option<T> {
        let torn = fault::is_back(Fault::TornSnapshot);
        if self.cut > cut && !torn {
            return None;
        }
        let copied = self.copy.take().filter(|_| self.cut == cut || torn);
        self.cut = cut;
        Some(copied.unwrap_or_else(|| copy(&self.now)))
    }

    /// Drops a copy that will not be taken.
    pub fn forget(&mut self) -> Option<T> {
        self.copy.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: CutSide = CutSide { cut: 0, before: true };

    fn add(copied: &mut CopyOnCut<i32>, side: CutSide, amount: i32) {
        copied.change(side, i32::clone, |value| *value += amount);
    }

    #[test]
    fn a_cut_has_every_change_before_it_and_none_after_in_whatever_order_they_come() {
        let before = CutSide { cut: 1, before: true };
        let after = CutSide { cut: 1, before: false };
        for order in [[(before, 10), (after, 100)], [(after, 100), (before, 10)]] {
            let mut copied = CopyOnCut::new(1);
            add(&mut copied, NONE, 1);
            for (side, amount) in order {
                add(&mut copied, side, amount);
            }
            assert_eq!((*copied.get(), copied.take(1, i32::clone)), (112, Some(12)));
        }
    }

    #[test]
    fn what_has_not_changed_since_the_cut_is_taken_as_it_is() {
        let mut copied = CopyOnCut::new(5);
        assert_eq!(copied.take(1, i32::clone), Some(5));
        add(&mut copied, CutSide { cut: 1, before: false }, 1);
        assert!(copied.copy.is_none(), "it has been taken already");
        assert_eq!(copied.take(2, i32::clone), Some(6));
    }

    #[test]
    fn a_copy_for_a_cut_that_was_given_up_is_not_taken_for_the_next() {
        let mut copied = CopyOnCut::new(5);
        add(&mut copied, CutSide { cut: 1, before: false }, 1);
        add(&mut copied, CutSide { cut: 2, before: true }, 1);
        assert_eq!(copied.take(2, i32::clone), Some(7));
    }

    #[test]
    fn whoever_still_reads_a_cut_that_was_given_up_takes_nothing_from_the_next() {
        let mut copied = CopyOnCut::new(5);
        add(&mut copied, CutSide { cut: 2, before: false }, 1);
        assert_eq!(copied.take(1, i32::clone), None);
        assert_eq!(copied.take(2, i32::clone), Some(5));
    }
}
