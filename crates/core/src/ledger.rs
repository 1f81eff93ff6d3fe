//! Exactly once: which push of which worker has been taken, so that a retry is answered and not applied again.
//!
//! A worker's pushes are in order and one at a time, so one number a worker is enough. A push is applied block
//! by block as it arrives; the ledger also keeps how many of its blocks were, so that a push cut off in the
//! middle goes on where it stopped.

use std::collections::BTreeMap;

use crate::cluster::WorkerId;

/// A worker process: the same worker started again has a later incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

/// What a push is, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Not seen before.
    New,
    /// Seen before; blocks before `blocks` have been applied.
    Again {
        /// How many of its blocks have been applied.
        blocks: usize,
    },
    /// From a process that was declared dead, or replaced.
    Fenced,
    /// Neither the next push nor the last one again.
    OutOfOrder {
        /// The number that was expected.
        expected: u64,
    },
}

#[derive(Debug, Default)]
struct Account {
    incarnation: Incarnation,
    sequence: u64,
    blocks: usize,
}

/// The last push of every worker.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<WorkerId, Account>,
}

impl Ledger {
    /// Raises the incarnation below which a worker's pushes are refused, and starts its numbers anew.
    pub fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) {
        let account = self.accounts.entry(worker).or_default();
        if incarnation > account.incarnation {
            *account = Account { incarnation, ..Account::default() };
        }
    }

    /// Looks a push up and, if it is new, makes it the worker's last. Numbers start at one.
    pub fn enter(&mut self, worker: WorkerId, incarnation: Incarnation, sequence: u64) -> Entry {
        self.fence(worker, incarnation);
        let account = self.accounts.entry(worker).or_default();
        if incarnation < account.incarnation {
            Entry::Fenced
        } else if sequence == account.sequence + 1 {
            account.sequence = sequence;
            account.blocks = 0;
            Entry::New
        } else if sequence == account.sequence && sequence > 0 {
            Entry::Again { blocks: account.blocks }
        } else {
            Entry::OutOfOrder { expected: account.sequence + 1 }
        }
    }

    /// Notes that one more block of the worker's last push has been applied.
    pub fn block_applied(&mut self, worker: WorkerId) {
        self.accounts.entry(worker).or_default().blocks += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(3);
    const FIRST: Incarnation = Incarnation(1);
    const SECOND: Incarnation = Incarnation(2);

    #[test]
    fn the_same_push_again_is_recognised_with_what_was_applied_of_it() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.enter(WORKER, FIRST, 1), Entry::New);
        ledger.block_applied(WORKER);
        ledger.block_applied(WORKER);
        assert_eq!(ledger.enter(WORKER, FIRST, 1), Entry::Again { blocks: 2 });
        assert_eq!(ledger.enter(WORKER, FIRST, 2), Entry::New);
        assert_eq!(ledger.enter(WORKER, FIRST, 2), Entry::Again { blocks: 0 });
    }

    #[test]
    fn a_push_out_of_order_is_refused() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.enter(WORKER, FIRST, 2), Entry::OutOfOrder { expected: 1 });
        assert_eq!(ledger.enter(WORKER, FIRST, 0), Entry::OutOfOrder { expected: 1 });
    }

    #[test]
    fn a_restarted_worker_starts_its_numbers_anew_and_fences_the_old_process() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.enter(WORKER, FIRST, 1), Entry::New);
        assert_eq!(ledger.enter(WORKER, SECOND, 1), Entry::New);
        assert_eq!(ledger.enter(WORKER, FIRST, 2), Entry::Fenced);
    }

    #[test]
    fn a_worker_declared_dead_is_fenced_before_its_successor_comes() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.enter(WORKER, FIRST, 1), Entry::New);
        ledger.fence(WORKER, SECOND);
        assert_eq!(ledger.enter(WORKER, FIRST, 2), Entry::Fenced);
    }
}
