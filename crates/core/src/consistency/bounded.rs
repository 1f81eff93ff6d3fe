//! Stale-synchronous parallel: as asynchronous, but the fastest worker waits for the slowest.
//!
//! A worker's clock is the number of its pushes that have arrived. A worker that joins late starts at a clock that is
//! the same on all servers: that of the slowest other worker on the first server. If each server chose a clock by
//! itself, a worker could be ahead of another on one server and behind it on the next, and both would wait forever.

use std::collections::BTreeMap;

use super::{Admission, Asynchronous};
use crate::cluster::WorkerId;

/// The workers' clocks and the bound on their difference.
#[derive(Debug)]
pub struct BoundedStaleness {
    order: Asynchronous,
    staleness: u64,
    clocks: BTreeMap<WorkerId, u64>,
}

impl BoundedStaleness {
    /// Starts every worker's clock at zero.
    pub fn new(workers: &[WorkerId], staleness: u64, limit: Option<u64>) -> Self {
        let clocks = workers.iter().map(|worker| (*worker, 0)).collect();
        Self { order: Asynchronous::new(limit), staleness, clocks }
    }

    /// Resumes after this many updates, with all clocks equal.
    pub fn resume_at(&mut self, step: u64) {
        self.order.resume_at(step);
    }

    /// Adds a worker at this clock. The others wait for it from now on: even before its first push they must not get
    /// further ahead of it than the bound.
    pub fn join(&mut self, worker: WorkerId, clock: u64) {
        self.clocks.insert(worker, clock);
    }

    /// Assigns a push the next step. The others wait for its worker from now on.
    pub fn admit(&mut self, worker: WorkerId) -> Admission {
        let slowest = self.slowest();
        self.clocks.entry(worker).or_insert(slowest);
        self.order.admit()
    }

    /// Advances the clock of a worker whose push has arrived completely.
    pub fn advance(&mut self, worker: WorkerId) {
        if let Some(clock) = self.clocks.get_mut(&worker) {
            *clock += 1;
        }
    }

    /// The slowest workers, if `worker` is more than the bound ahead of them.
    pub fn waits_for(&self, worker: WorkerId) -> Option<Vec<WorkerId>> {
        let clock = *self.clocks.get(&worker)?;
        let behind: Vec<WorkerId> = self
            .clocks
            .iter()
            .filter(|(_, other)| clock.saturating_sub(**other) > self.staleness)
            .map(|(other, _)| *other)
            .collect();
        (!behind.is_empty() && !self.is_over()).then_some(behind)
    }

    /// Stops waiting for a worker.
    pub fn leave(&mut self, worker: WorkerId) {
        self.clocks.remove(&worker);
    }

    /// Updates so far.
    pub fn step(&self) -> u64 {
        self.order.step()
    }

    /// True once the last step has been assigned.
    pub fn is_over(&self) -> bool {
        self.order.is_over()
    }

    /// The slowest clock of all.
    pub fn slowest(&self) -> u64 {
        self.clocks.values().copied().min().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: WorkerId = WorkerId(0);
    const SLOW: WorkerId = WorkerId(1);

    fn push(state: &mut BoundedStaleness, worker: WorkerId) {
        assert!(matches!(state.admit(worker), Admission::Apply { .. }));
        state.advance(worker);
    }

    #[test]
    fn a_late_worker_has_the_same_clock_on_every_server_whenever_its_pushes_come() {
        let late = WorkerId(2);
        let mut servers = [(); 2].map(|()| BoundedStaleness::new(&[FAST, SLOW], 0, None));
        for server in &mut servers {
            push(server, FAST);
            push(server, SLOW);
            server.join(late, 1);
        }
        // The late worker's first push arrives before those of the others on one server, and after them on the other.
        let [one, other] = &mut servers;
        for worker in [late, FAST, SLOW] {
            push(one, worker);
        }
        for worker in [FAST, SLOW, late] {
            push(other, worker);
        }
        for server in &servers {
            assert!([FAST, SLOW, late].iter().all(|worker| server.waits_for(*worker).is_none()));
        }
    }

    #[test]
    fn a_worker_may_be_the_bound_ahead_and_not_one_more() {
        let mut state = BoundedStaleness::new(&[FAST, SLOW], 2, None);
        push(&mut state, FAST);
        push(&mut state, FAST);
        assert_eq!(state.waits_for(FAST), None);
        push(&mut state, FAST);
        assert_eq!(state.waits_for(FAST), Some(vec![SLOW]));
        push(&mut state, SLOW);
        assert_eq!(state.waits_for(FAST), None);
    }

    #[test]
    fn a_worker_that_leaves_is_no_longer_waited_for() {
        let mut state = BoundedStaleness::new(&[FAST, SLOW], 0, None);
        push(&mut state, FAST);
        assert_eq!(state.waits_for(FAST), Some(vec![SLOW]));
        state.leave(SLOW);
        assert_eq!(state.waits_for(FAST), None);
    }

    #[test]
    fn a_worker_that_joins_late_starts_at_the_slowest_clock() {
        let late = WorkerId(2);
        let mut state = BoundedStaleness::new(&[FAST], 0, None);
        for _ in 0..5 {
            push(&mut state, FAST);
        }
        push(&mut state, late);
        assert_eq!(state.waits_for(late), Some(vec![FAST]));
        push(&mut state, FAST);
        assert_eq!(state.waits_for(late), None);
        assert_eq!(state.waits_for(FAST), None);
    }

    #[test]
    fn nobody_waits_once_the_run_is_over() {
        let mut state = BoundedStaleness::new(&[FAST, SLOW], 0, Some(1));
        push(&mut state, FAST);
        assert!(state.is_over());
        assert_eq!(state.waits_for(FAST), None);
    }
}
