//! Exactly once: which push of each worker has been accepted, so that a retry is answered but not applied again.
//!
//! A worker's pushes arrive in order and one at a time, so one number per worker is enough. A push is applied piece by
//! piece as it arrives, and after a broken connection the same push may arrive on two connections at once. Each piece
//! is applied by the request that claims it first, so a push that was cut off continues where it stopped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Pushes;
use crate::cluster::WorkerId;

/// A worker process: when the same worker is started again, it has a later incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Incarnation(pub u64);

/// Identifies a push: process and sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushId {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's process.
    pub incarnation: Incarnation,
    /// The number of the push, from one.
    pub sequence: u64,
}

/// What is known about the worker process that sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquaintance {
    /// The process plays the worker now.
    Living,
    /// The process has finished or was declared dead, and no successor has been announced.
    Left,
    /// The process has been replaced by a later one.
    Former,
    /// The coordinator has not announced the process, at least not yet.
    Unannounced,
}

/// The status of a push, judged by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Not seen before.
    New,
    /// Seen before, with this fate.
    Again(Fate),
    /// From a process that does not play the worker: it was declared dead, replaced, or never announced.
    Fenced,
    /// Neither the next push nor the last one again.
    OutOfOrder {
        /// The number that was expected.
        expected: u64,
    },
}

/// The decision about a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// Undecided: the push has not arrived completely.
    #[default]
    Pending,
    /// The push is, or is part of, this update.
    Taken {
        /// The number of the update.
        step: u64,
    },
    /// The push was dropped.
    Dropped,
}

#[derive(Debug, Default)]
struct Account {
    incarnation: Incarnation,
    sequence: u64,
    fate: Fate,
    pieces: usize,
    /// True if every piece has been applied.
    whole: bool,
    /// True if the process before this incarnation has left and has no successor yet.
    vacant: bool,
}

/// The last push of every worker.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<WorkerId, Account>,
    /// Processes up to this one are alive only if they are announced.
    latest: Incarnation,
}

impl Ledger {
    /// Records the coordinator's announcement that this process plays the worker, and refuses earlier ones from now on.
    /// What a request claims about its own incarnation never gets here.
    pub fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        let account = self.accounts.entry(worker).or_default();
        let fills = account.vacant && incarnation == account.incarnation;
        if fills || incarnation > account.incarnation {
            *account = Account { incarnation, ..Account::default() };
        }
    }

    /// Records the coordinator's report that every process up to this incarnation that is not announced is dead: for
    /// example, it was suspended while the run rolled back.
    pub fn fence_up_to(&mut self, latest: Incarnation) {
        self.latest = self.latest.max(latest);
    }

    /// Refuses a process that has left, and those before it. May be called repeatedly. False if its successor is
    /// already here.
    pub fn retire(&mut self, worker: WorkerId, incarnation: Incarnation) -> bool {
        let account = self.accounts.entry(worker).or_default();
        let next = Incarnation(incarnation.0.saturating_add(1));
        if account.incarnation < next {
            *account = Account { incarnation: next, vacant: true, ..Account::default() };
        }
        account.incarnation == next && account.vacant
    }

    /// True if a process was declared dead, or replaced.
    pub fn is_fenced(&self, worker: WorkerId, incarnation: Incarnation) -> bool {
        matches!(self.acquaintance(worker, incarnation), Acquaintance::Left | Acquaintance::Former)
    }

    /// What is known about a process.
    pub fn acquaintance(&self, worker: WorkerId, incarnation: Incarnation) -> Acquaintance {
        match self.accounts.get(&worker) {
            Some(account) if account.incarnation == incarnation && !account.vacant => Acquaintance::Living,
            Some(account) if account.vacant && account.incarnation.0.checked_sub(1) == Some(incarnation.0) => {
                Acquaintance::Left
            }
            Some(account) if incarnation < account.incarnation => Acquaintance::Former,
            _ if incarnation <= self.latest => Acquaintance::Former,
            _ => Acquaintance::Unannounced,
        }
    }

    /// True if this process plays the worker now, as far as is known.
    pub fn is_living(&self, worker: WorkerId, incarnation: Incarnation) -> bool {
        self.acquaintance(worker, incarnation) == Acquaintance::Living
    }

    /// True if a later process is known to play the worker.
    pub fn is_replaced(&self, worker: WorkerId, incarnation: Incarnation) -> bool {
        self.accounts.get(&worker).is_some_and(|account| incarnation < account.incarnation && !account.vacant)
    }

    /// Looks up a push and, if it is new, makes it the worker's last. Only a push of the living process changes
    /// anything.
    pub fn enter(&mut self, push: PushId) -> Entry {
        let living = self.is_living(push.worker, push.incarnation);
        let Some(account) = self.accounts.get_mut(&push.worker).filter(|_| living) else { return Entry::Fenced };
        if push.sequence == account.sequence + 1 {
            *account = Account { incarnation: push.incarnation, sequence: push.sequence, ..Account::default() };
            Entry::New
        } else if push.sequence == account.sequence && push.sequence > 0 {
            Entry::Again(account.fate)
        } else {
            Entry::OutOfOrder { expected: account.sequence + 1 }
        }
    }

    /// The fate of a push; `None` if it is not its worker's last.
    pub fn fate(&self, push: PushId) -> Option<Fate> {
        self.account(push).map(|account| account.fate)
    }

    /// Records the fate of a worker's last push.
    pub fn settle(&mut self, push: PushId, fate: Fate) {
        if let Some(account) = self.account_mut(push) {
            account.fate = fate;
        }
    }

    /// True for the first caller that claims this piece of a worker's last push; that caller must apply it.
    pub fn claim(&mut self, push: PushId, piece: usize) -> bool {
        match self.account_mut(push) {
            Some(account) if account.pieces == piece => {
                account.pieces += 1;
                true
            }
            _ => false,
        }
    }

    /// Records that every piece of a worker's last push has been applied.
    pub fn complete(&mut self, push: PushId) {
        if let Some(account) = self.account_mut(push) {
            account.whole = true;
        }
    }

    /// Each worker's last push whose fate is decided.
    pub fn decided(&self) -> Pushes {
        let decided = |(worker, account): (&WorkerId, &Account)| {
            let sequence = account.sequence - u64::from(account.fate == Fate::Pending && account.sequence > 0);
            (*worker, (account.incarnation, sequence))
        };
        self.accounts.iter().map(decided).collect()
    }

    /// The workers whose last push in `pushes` has not been completely applied here, but still may be.
    pub fn outstanding(&self, pushes: &Pushes) -> Vec<WorkerId> {
        let is_outstanding = |worker: &WorkerId, (incarnation, sequence): (Incarnation, u64)| {
            let Some(account) = self.accounts.get(worker) else { return sequence > 0 };
            if account.incarnation != incarnation {
                return account.incarnation < incarnation && sequence > 0;
            }
            let applying = matches!(account.fate, Fate::Taken { .. }) && !account.whole;
            account.sequence < sequence || account.sequence == sequence && applying
        };
        pushes.iter().filter(|(worker, push)| is_outstanding(worker, **push)).map(|(worker, _)| *worker).collect()
    }

    /// The number of pushes up to `pushes` that have not arrived here yet.
    pub fn outstanding_sequences(&self, pushes: &Pushes) -> u64 {
        let to_come = |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| {
            let account = self.accounts.get(worker);
            let here = account.filter(|account| account.incarnation >= *incarnation);
            here.map_or(*sequence, |account| match account.incarnation == *incarnation {
                true => sequence.saturating_sub(account.sequence),
                false => 0,
            })
        };
        pushes.iter().map(to_come).sum()
    }

    fn account(&self, push: PushId) -> Option<&Account> {
        self.accounts.get(&push.worker).filter(|account| account.is_of(push))
    }

    fn account_mut(&mut self, push: PushId) -> Option<&mut Account> {
        self.accounts.get_mut(&push.worker).filter(|account| account.is_of(push))
    }
}

impl Account {
    fn is_of(&self, push: PushId) -> bool {
        (self.incarnation, self.sequence) == (push.incarnation, push.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(3);
    const FIRST: Incarnation = Incarnation(1);
    const SECOND: Incarnation = Incarnation(2);

    fn push(incarnation: Incarnation, sequence: u64) -> PushId {
        PushId { worker: WORKER, incarnation, sequence }
    }

    /// A ledger to which the worker's first process has been announced.
    fn announced() -> Ledger {
        let mut ledger = Ledger::default();
        ledger.fence(WORKER, FIRST);
        ledger
    }

    #[test]
    fn a_push_of_a_process_that_was_not_announced_is_refused_and_fences_nobody() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::Fenced);
        assert_eq!(ledger.acquaintance(WORKER, FIRST), Acquaintance::Unannounced);
        ledger.fence(WORKER, FIRST);
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::New);
        for later in [SECOND, Incarnation(u64::MAX)] {
            assert_eq!(ledger.enter(push(later, 1)), Entry::Fenced);
            assert_eq!(ledger.acquaintance(WORKER, later), Acquaintance::Unannounced);
        }
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::New);
        ledger.retire(WORKER, FIRST);
        assert_eq!(ledger.enter(push(SECOND, 1)), Entry::Fenced, "its place is free, but not yet taken");
    }

    #[test]
    fn a_process_from_before_a_restore_is_a_former_one_though_its_successor_has_not_come() {
        let mut ledger = Ledger::default();
        ledger.fence_up_to(Incarnation(9));
        ledger.fence(WORKER, Incarnation(8));
        ledger.retire(WorkerId(4), Incarnation(0));
        assert_eq!(ledger.acquaintance(WORKER, Incarnation(8)), Acquaintance::Living, "it was announced");
        for slept in [WORKER, WorkerId(4), WorkerId(5)] {
            assert_eq!(ledger.acquaintance(slept, Incarnation(7)), Acquaintance::Former);
            assert_eq!(
                ledger.enter(PushId { worker: slept, incarnation: Incarnation(7), sequence: 1131 }),
                Entry::Fenced
            );
            assert_eq!(ledger.acquaintance(slept, Incarnation(10)), Acquaintance::Unannounced, "it comes back");
        }
    }

    #[test]
    fn a_process_is_living_then_has_left_then_is_a_former_one() {
        let mut ledger = announced();
        assert_eq!(ledger.acquaintance(WORKER, FIRST), Acquaintance::Living);
        assert_eq!(ledger.acquaintance(WORKER, Incarnation(0)), Acquaintance::Former);
        ledger.retire(WORKER, FIRST);
        assert_eq!(ledger.acquaintance(WORKER, FIRST), Acquaintance::Left);
        ledger.fence(WORKER, SECOND);
        assert_eq!(ledger.acquaintance(WORKER, FIRST), Acquaintance::Former);
        assert_eq!(ledger.acquaintance(WORKER, SECOND), Acquaintance::Living);
    }

    #[test]
    fn the_same_push_again_is_recognised_with_its_fate() {
        let mut ledger = announced();
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::New);
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::Again(Fate::Pending));
        ledger.settle(push(FIRST, 1), Fate::Taken { step: 7 });
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::Again(Fate::Taken { step: 7 }));
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::New);
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::Again(Fate::Pending));
    }

    #[test]
    fn a_piece_is_claimed_once_and_in_order() {
        let mut ledger = announced();
        ledger.enter(push(FIRST, 1));
        assert!(ledger.claim(push(FIRST, 1), 0));
        assert!(!ledger.claim(push(FIRST, 1), 0), "the same push on another connection");
        assert!(ledger.claim(push(FIRST, 1), 1));
        ledger.enter(push(FIRST, 2));
        assert!(!ledger.claim(push(FIRST, 1), 2), "the push before");
        assert!(ledger.claim(push(FIRST, 2), 0));
        ledger.fence(WORKER, SECOND);
        assert!(!ledger.claim(push(FIRST, 2), 1), "a process that was declared dead");
    }

    #[test]
    fn a_push_is_outstanding_until_it_is_whole_or_its_process_is_gone() {
        let mut ledger = announced();
        ledger.enter(push(FIRST, 1));
        assert_eq!(ledger.decided()[&WORKER], (FIRST, 0), "nothing is decided yet");
        ledger.settle(push(FIRST, 1), Fate::Taken { step: 1 });
        let cut = ledger.decided();
        assert_eq!(cut[&WORKER], (FIRST, 1));
        assert_eq!(ledger.outstanding(&cut), [WORKER]);
        let ahead = [(WORKER, (FIRST, 2))].into();
        ledger.complete(push(FIRST, 1));
        assert!(ledger.outstanding(&cut).is_empty());
        assert_eq!(ledger.outstanding(&ahead), [WORKER], "another server has the next already");
        ledger.retire(WORKER, FIRST);
        assert!(ledger.outstanding(&ahead).is_empty(), "it will not come any more");
    }

    #[test]
    fn a_dropped_push_is_not_outstanding() {
        let mut ledger = announced();
        ledger.enter(push(FIRST, 1));
        ledger.settle(push(FIRST, 1), Fate::Dropped);
        assert!(ledger.outstanding(&ledger.decided()).is_empty());
    }

    #[test]
    fn who_has_left_may_be_said_to_have_left_again_until_another_is_there() {
        let mut ledger = announced();
        ledger.enter(push(FIRST, 1));
        assert!(ledger.retire(WORKER, FIRST));
        assert!(ledger.retire(WORKER, FIRST));
        ledger.fence(WORKER, SECOND);
        assert!(!ledger.retire(WORKER, FIRST));
    }

    #[test]
    fn a_push_out_of_order_is_refused() {
        let mut ledger = announced();
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::OutOfOrder { expected: 1 });
        assert_eq!(ledger.enter(push(FIRST, 0)), Entry::OutOfOrder { expected: 1 });
    }

    #[test]
    fn a_restarted_worker_starts_its_numbers_anew_and_fences_the_old_process() {
        let mut ledger = announced();
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::New);
        ledger.fence(WORKER, SECOND);
        assert_eq!(ledger.enter(push(SECOND, 1)), Entry::New);
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::Fenced);
        assert!(ledger.is_fenced(WORKER, FIRST) && !ledger.is_fenced(WORKER, SECOND));
        assert!(!ledger.is_living(WORKER, FIRST) && ledger.is_living(WORKER, SECOND));
        assert!(ledger.is_replaced(WORKER, FIRST) && !ledger.is_replaced(WORKER, SECOND));
        ledger.retire(WORKER, SECOND);
        assert!(!ledger.is_replaced(WORKER, SECOND), "not yet");
        assert!(!ledger.is_living(WORKER, SECOND) && !ledger.is_living(WORKER, Incarnation(3)), "nobody is");
    }

    #[test]
    fn a_worker_declared_dead_is_fenced_before_its_successor_comes() {
        let mut ledger = announced();
        assert_eq!(ledger.enter(push(FIRST, 1)), Entry::New);
        assert!(ledger.retire(WORKER, FIRST));
        assert_eq!(ledger.enter(push(FIRST, 2)), Entry::Fenced);
        ledger.fence(WORKER, SECOND);
        assert_eq!(ledger.enter(push(SECOND, 1)), Entry::New);
    }

    #[test]
    fn news_of_a_death_that_come_after_the_successor_change_nothing() {
        let mut ledger = announced();
        ledger.enter(push(FIRST, 1));
        ledger.fence(WORKER, SECOND);
        ledger.enter(push(SECOND, 1));
        assert!(!ledger.retire(WORKER, FIRST));
        assert_eq!(ledger.enter(push(SECOND, 2)), Entry::New);
    }
}
