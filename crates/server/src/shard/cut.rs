//! How a shard is cut for a checkpoint: held for a moment, told where, and read as of there while training goes on.
//!
//! `windlass_core::checkpoint` says what a mark and a cut are. A hold ends by itself after a while, so that no push
//! waits for a coordinator that does not answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use windlass_core::block::Block;
use windlass_core::checkpoint::{HOLD, Mark, Notes};
use windlass_core::rows::RowTable;
use windlass_core::run::LearningRate;

use super::gate::Gate;
use super::kept::Kept;
use super::kept_rows::KeptRows;
use super::spares::Spares;
use super::{ParameterShard, lock};

/// Where a shard stands between a mark and the end of its cut.
#[derive(Debug, Default)]
pub(super) enum CutStage {
    /// No checkpoint is under way.
    #[default]
    None,
    /// Nothing new is applied until then, or until it is known where the cut is.
    Held { until: Instant },
    /// The cut is after a round that is still to come.
    Coming { number: u64, version: u64 },
    /// This is the state that is kept.
    Made { number: u64, mark: Mark, notes: Notes, learning_rate: LearningRate },
}

/// A shard as of a cut.
#[derive(Debug)]
pub struct Snapshot {
    /// Its version, and the pushes that are in it.
    pub mark: Mark,
    /// What came with the last of those pushes.
    pub notes: Notes,
    /// The learning rate at that time.
    pub learning_rate: LearningRate,
    /// The dense values.
    pub blocks: Vec<Block>,
    /// The values by row.
    pub tables: Vec<RowTable>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CutError {
    /// The hold had ended before the cut was known.
    #[error("the cut came more than {} ms after the mark", HOLD.as_millis())]
    Late,
    /// The cut cannot be made from where this shard stands.
    #[error("this server is at step {at}, and the cut at {cut}")]
    Passed {
        /// Where it stands.
        at: u64,
        /// Where the cut is.
        cut: u64,
    },
    /// It was given up, or the run has ended.
    #[error("the checkpoint was given up")]
    GivenUp,
}

impl ParameterShard {
    /// Holds back what is new, and says where this shard stands: not between two rounds, so one that is being applied
    /// comes to its end first.
    pub fn mark(&self) -> Mark {
        let _round = lock(&self.round);
        lock(&self.gate).hold(Instant::now())
    }

    /// Cuts here, or as soon as what belongs before the cut has come.
    pub fn cut(&self, number: u64, cut: &Mark) -> Result<(), CutError> {
        let made = lock(&self.gate).cut(number, cut, Instant::now());
        self.changed.notify_all();
        made
    }

    /// Gives up a checkpoint.
    pub fn abandon(&self) {
        lock(&self.gate).end_cut();
        self.changed.notify_all();
        for copy in self.blocks.iter().filter_map(|block| lock(block).forget()) {
            self.spares.give_back_block(copy);
        }
        self.rows.iter().for_each(|rows| lock(&rows.table).forget());
    }

    /// Reads the shard as of a cut. Blocks until everything before the cut has been applied. The last block is read
    /// first: a push that goes through them in order meanwhile has to copy half of them at most.
    pub fn snapshot(&self, number: u64) -> Result<Snapshot, CutError> {
        let (mark, notes, learning_rate) = self.await_cut(number)?;
        let take = |block: &Mutex<Kept<Block>>| lock(block).take(number, |block| self.spares.copy(block));
        let mut blocks: Vec<Block> = self.blocks.iter().rev().map(take).collect();
        blocks.reverse();
        let tables = self.rows.iter().map(|rows| take_rows(&rows.table, number)).collect();
        lock(&self.gate).end_cut();
        Ok(Snapshot { mark, notes, learning_rate, blocks, tables })
    }

    /// What copies are made in.
    pub(crate) fn spares(&self) -> &Arc<Spares> {
        &self.spares
    }

    /// For how long at the most the last checkpoint has held up a push: before it was let in, and by what had to be
    /// copied or was locked while it was applied.
    pub fn longest_held_up(&self) -> Duration {
        lock(&self.gate).longest_held_up()
    }

    fn await_cut(&self, number: u64) -> Result<(Mark, Notes, LearningRate), CutError> {
        let mut gate = lock(&self.gate);
        loop {
            if gate.is_closed() {
                return Err(CutError::GivenUp);
            }
            match gate.cut_made(number)? {
                Some(made) => return Ok(made),
                None => gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Waits while a mark holds back what is new, and no longer than a hold may last. Returns how long that was, too.
    pub(super) fn await_release<'a>(&self, mut gate: MutexGuard<'a, Gate>) -> (MutexGuard<'a, Gate>, Duration) {
        let since = Instant::now();
        let mut now = since;
        while let Some(left) = gate.held_for(now) {
            gate = self.changed.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
            now = Instant::now();
        }
        (gate, now - since)
    }
}

/// Takes a table stretch by stretch, letting pushes in between.
fn take_rows(table: &Mutex<KeptRows>, number: u64) -> RowTable {
    let mut taken = {
        let table = lock(table);
        RowTable::empty_like(table.get(), table.get().rows())
    };
    while lock(table).take(number, &mut taken) {}
    taken
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
