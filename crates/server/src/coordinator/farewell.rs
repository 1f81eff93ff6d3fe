//! How long ps 0 stays at the end of a run: until every task has heard of it and the lease is released, but not for ever.

use std::time::Duration;

use super::interface::TICK;

/// The wait of ps 0 at the end of a run.
///
/// It is counted in ticks, not by the clock. Otherwise a process that was stopped meanwhile would find its time up when it
/// wakes, and leave without having released its lease. Then the tasks that have not heard of the end would find neither
/// ps 0 nor a record of it.
#[derive(Debug)]
pub struct Farewell {
    ticks_left: u128,
}

impl Farewell {
    /// A wait that takes no longer than this while the process runs.
    pub fn new(longest: Duration) -> Self {
        Self { ticks_left: longest.as_millis() / TICK.as_millis() }
    }

    /// Time has passed. Said every [`TICK`], and not more often after a time in which the process stood still.
    pub fn tick(&mut self) {
        self.ticks_left = self.ticks_left.saturating_sub(1);
    }

    /// True if ps 0 may leave. `nothing_is_left`: the run is over, and all that is to follow its end has happened.
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
