//! How long ps 0 stays at the end of a run: until every task has learned of the end and the lease is released, within
//! limits.

use std::time::Duration;

use super::interface::TICK;

/// The wait of ps 0 at the end of a run.
///
/// The wait is counted in ticks, not by the clock. Otherwise a process that was stopped meanwhile would find its time
/// up when it resumes, and exit without releasing its lease. Tasks that have not learned of the end would then find
/// neither ps 0 nor a record of it.
#[derive(Debug)]
pub struct Farewell {
    ticks_left: u128,
}

impl Farewell {
    /// Creates a wait that takes at most this long while the process runs.
    pub fn new(longest: Duration) -> Self {
        Self { ticks_left: longest.as_millis() / TICK.as_millis() }
    }

    /// Counts one tick. Called every [`TICK`]; ticks missed while the process was stopped are not made up for.
    pub fn tick(&mut self) {
        self.ticks_left = self.ticks_left.saturating_sub(1);
    }

    /// True if ps 0 may exit. `nothing_is_left` says that the run is over and everything that follows its end is done.
    pub fn is_over(&self, nothing_is_left: bool) -> bool {
        nothing_is_left || self.ticks_left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ps_0_stays_until_all_have_heard_but_not_for_ever() {
        let mut farewell = Farewell::new(20 * TICK);
        assert!(farewell.is_over(true));
        for _ in 0..20 {
            assert!(!farewell.is_over(false));
            farewell.tick();
        }
        assert!(farewell.is_over(false));
    }
}
