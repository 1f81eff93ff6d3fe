//! Synchronous rounds: one update from the gradients of distinct workers, who then all continue together.
//!
//! A round tracks who has contributed and who is missing; it shrinks when a worker finishes or dies. It waits for a
//! worker that joins during the run only once a push of that worker has begun to arrive, so that servers which learn of
//! the worker at different moments still end their rounds alike.

use std::collections::BTreeSet;

use super::Admission;
use crate::cluster::WorkerId;

/// The open round and the workers it waits for.
#[derive(Debug)]
pub struct Synchronous {
    version: u64,
    limit: Option<u64>,
    replicas_to_aggregate: Option<u32>,
    members: BTreeSet<WorkerId>,
    contributors: BTreeSet<WorkerId>,
    closed: bool,
}

impl Synchronous {
    /// Opens the first round, which expects all `workers`.
    pub fn new(workers: &[WorkerId], replicas_to_aggregate: Option<u32>, limit: Option<u64>) -> Self {
        Self {
            version: 0,
            limit,
            replicas_to_aggregate,
            members: workers.iter().copied().collect(),
            contributors: BTreeSet::new(),
            closed: false,
        }
    }

    /// Resumes after this many rounds.
    pub fn resume_at(&mut self, version: u64) {
        self.version = version;
    }

    /// Decides about a push, which belongs to the open round if it was computed from its parameters.
    pub fn admit(&mut self, worker: WorkerId, base: u64) -> Admission {
        if self.is_over() {
            Admission::Over
        } else if base != self.version || self.closed || self.contributors.contains(&worker) {
            Admission::Stale
        } else {
            self.members.insert(worker);
            Admission::Collect
        }
    }

    /// Counts a gradient that has arrived completely. True if the round is now complete and closed.
    ///
    /// The round may have closed, or ended, while the gradient was on its way. Then the gradient is not counted, and
    /// [`Synchronous::takes`] has told the caller to drop it.
    pub fn collected(&mut self, worker: WorkerId) -> bool {
        if self.closed || !self.members.contains(&worker) {
            return false;
        }
        self.contributors.insert(worker);
        self.close_if_complete()
    }

    /// True if the round still accepts a gradient that `worker` computed from version `base`.
    pub fn takes(&self, worker: WorkerId, base: u64) -> bool {
        let expected = self.members.contains(&worker) && !self.contributors.contains(&worker);
        expected && !self.closed && base == self.version && !self.is_over()
    }

    /// True if the open round holds a gradient of `worker`.
    pub fn has(&self, worker: WorkerId) -> bool {
        self.contributors.contains(&worker)
    }

    /// Opens the next round, after the update of the closed one.
    pub fn end_round(&mut self) {
        assert!(self.closed, "only a complete round ends");
        self.version += 1;
        self.closed = false;
        self.contributors.clear();
    }

    /// The workers that are missing before the parameters reach this version. `None` if they have it, or if no worker
    /// is left to bring them there.
    pub fn waits_for(&self, version: u64) -> Option<Vec<WorkerId>> {
        let nobody = self.members.is_empty() && self.contributors.is_empty();
        (self.version < version && !nobody && !self.is_over())
            .then(|| self.members.difference(&self.contributors).copied().collect())
    }

    /// Removes a worker from this and later rounds until it contributes again; its contribution to this round stays.
    /// True if the round is now complete and closed.
    pub fn leave(&mut self, worker: WorkerId) -> bool {
        self.members.remove(&worker);
        !self.closed && self.close_if_complete()
    }

    /// Rounds ended so far.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// True once the last round has ended.
    pub fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.version >= limit)
    }

    fn close_if_complete(&mut self) -> bool {
        let possible = self.members.union(&self.contributors).count();
        let required = self.replicas_to_aggregate.map_or(possible, |replicas| possible.min(replicas as usize));
        self.closed = !self.contributors.is_empty() && self.contributors.len() >= required;
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(1);
    const C: WorkerId = WorkerId(2);

    fn contribute(state: &mut Synchronous, worker: WorkerId, base: u64) -> bool {
        assert_eq!(state.admit(worker, base), Admission::Collect, "{worker:?} from {base}");
        state.collected(worker)
    }

    #[test]
    fn a_round_ends_when_every_worker_has_contributed() {
        let mut state = Synchronous::new(&[A, B], None, None);
        assert!(!contribute(&mut state, A, 0));
        assert_eq!(state.waits_for(1), Some(vec![B]));
        assert!(contribute(&mut state, B, 0));
        state.end_round();
        assert_eq!(state.version(), 1);
        assert_eq!(state.waits_for(1), None);
    }

    #[test]
    fn a_backup_workers_late_gradient_is_stale() {
        let mut state = Synchronous::new(&[A, B, C], Some(2), None);
        assert!(!contribute(&mut state, A, 0));
        assert!(contribute(&mut state, C, 0));
        assert_eq!(state.admit(B, 0), Admission::Stale, "the round is being applied");
        state.end_round();
        assert_eq!(state.admit(B, 0), Admission::Stale, "the round has gone by");
        assert_eq!(state.admit(B, 1), Admission::Collect);
    }

    #[test]
    fn a_gradient_that_arrives_after_its_round_closed_is_not_counted() {
        let mut state = Synchronous::new(&[A, B, C], Some(2), None);
        assert_eq!(state.admit(B, 0), Admission::Collect);
        contribute(&mut state, A, 0);
        assert!(contribute(&mut state, C, 0));
        assert!(!state.collected(B));
        assert!(!state.has(B));
    }

    #[test]
    fn a_finished_worker_does_not_block_the_round() {
        let mut state = Synchronous::new(&[A, B], None, None);
        assert!(!contribute(&mut state, A, 0));
        assert!(state.leave(B));
        state.end_round();
        assert!(contribute(&mut state, A, 1));
    }

    #[test]
    fn a_worker_that_died_after_contributing_still_counts_in_that_round() {
        let mut state = Synchronous::new(&[A, B], None, None);
        assert!(!contribute(&mut state, A, 0));
        assert!(!state.leave(A));
        assert_eq!(state.contributors.len(), 1);
        assert!(contribute(&mut state, B, 0));
        assert_eq!(state.contributors.len(), 2);
    }

    #[test]
    fn a_worker_that_died_after_contributing_does_not_close_a_round_that_the_living_can_fill() {
        let mut state = Synchronous::new(&[A, B], Some(2), None);
        assert!(!contribute(&mut state, A, 0));
        assert!(!state.leave(A));
        assert!(contribute(&mut state, B, 0));
    }

    #[test]
    fn nobody_waits_for_a_round_that_nobody_can_fill() {
        let mut state = Synchronous::new(&[A, B], None, None);
        state.leave(A);
        assert_eq!(state.waits_for(1), Some(vec![B]));
        state.leave(B);
        assert_eq!(state.waits_for(1), None);
    }

    #[test]
    fn a_gradient_is_taken_once() {
        let mut state = Synchronous::new(&[A, B], None, None);
        assert_eq!(state.admit(A, 0), Admission::Collect);
        assert!(state.takes(A, 0));
        state.collected(A);
        assert!(!state.takes(A, 0));
    }

    #[test]
    fn fewer_workers_than_asked_for_still_make_a_round() {
        let mut state = Synchronous::new(&[A, B, C], Some(2), None);
        state.leave(B);
        state.leave(C);
        assert!(contribute(&mut state, A, 0));
    }

    #[test]
    fn a_worker_that_joins_late_is_waited_for_once_it_has_contributed() {
        let mut state = Synchronous::new(&[A], None, None);
        assert!(contribute(&mut state, A, 0));
        state.end_round();
        assert!(!contribute(&mut state, B, 1));
        assert_eq!(state.waits_for(2), Some(vec![A]));
        assert!(contribute(&mut state, A, 1));
        state.end_round();
        assert!(!contribute(&mut state, A, 2));
        assert_eq!(state.waits_for(3), Some(vec![B]));
    }

    #[test]
    fn a_worker_contributes_once_a_round() {
        let mut state = Synchronous::new(&[A, B], None, None);
        contribute(&mut state, A, 0);
        assert_eq!(state.admit(A, 0), Admission::Stale);
    }

    #[test]
    fn the_last_round_ends_the_run() {
        let mut state = Synchronous::new(&[A], None, Some(1));
        assert!(contribute(&mut state, A, 0));
        state.end_round();
        assert!(state.is_over());
        assert_eq!(state.admit(A, 1), Admission::Over);
        assert_eq!(state.waits_for(2), None);
    }
}
