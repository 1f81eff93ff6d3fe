//! Cuts a shard for a checkpoint: the shard is held for a moment, told where to cut, and read as of the cut while
//! training continues.
//!
//! `windlass_core::checkpoint` defines marks and cuts, and the gate decides where this shard is cut; this module waits
//! for the cut and reads the shard. A hold expires by itself, so that pushes do not wait for a coordinator that does
//! not answer.

mod rows_copy_on_cut;
mod spares;

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use windlass_core::admission::{CutError, Gate};
use windlass_core::block::Block;
use windlass_core::checkpoint::{CutPoint, Notes};
use windlass_core::rows::RowTable;
use windlass_core::run::LearningRate;

use super::{ParameterShard, ServedTable, lock};
pub(super) use rows_copy_on_cut::RowsCopyOnCut;
pub(super) use spares::Spares;

/// A shard as of a cut.
#[derive(Debug)]
pub struct Snapshot {
    /// Its version, and the pushes that are in it.
    pub mark: CutPoint,
    /// The notes of the last of those pushes.
    pub notes: Notes,
    /// The learning rate at that time.
    pub learning_rate: LearningRate,
    /// The dense values.
    pub blocks: Vec<Block>,
    /// The values by row.
    pub tables: Vec<RowTable>,
}

impl ParameterShard {
    /// Holds back new pushes for the checkpoint of this number, and returns where this shard stands. Does not block:
    /// the result of a round that is being applied is already known.
    pub fn mark(&self, number: u64) -> CutPoint {
        lock(&self.gate).hold(number, self.now())
    }

    /// Cuts here, or as soon as everything that belongs before the cut has arrived.
    pub fn cut(&self, number: u64, cut: &CutPoint) -> Result<(), CutError> {
        let made = lock(&self.gate).cut(number, cut);
        self.changed.notify_all();
        made
    }

    /// Abandons the checkpoint of this number. A thread that still reads it notices.
    pub fn abandon(&self, number: u64) {
        if !lock(&self.gate).end_cut(number) {
            return;
        }
        self.changed.notify_all();
        for copy in self.blocks.iter().filter_map(|block| lock(block).forget()) {
            self.spares.give_back_block(copy);
        }
        self.rows.iter().for_each(|rows| lock(&rows.table).forget());
    }

    /// Reads the shard as of a cut. Blocks until everything before the cut has been applied. The last block is read
    /// first, so that a concurrent push, which goes through them in order, has to copy at most half of them.
    pub fn snapshot(&self, number: u64) -> Result<Snapshot, CutError> {
        let (mark, notes, learning_rate) = self.await_cut(number)?;
        let mut blocks = Vec::new();
        let read = self.read_blocks(number, &mut blocks).and_then(|()| self.read_rows(number));
        // If the cut was given up meanwhile, what has been read belongs to no cut.
        let whole = lock(&self.gate).end_cut(number);
        match read {
            Some(tables) if whole => {
                blocks.reverse();
                Ok(Snapshot { mark, notes, learning_rate, blocks, tables })
            }
            _ => {
                blocks.into_iter().for_each(|block| self.spares.give_back_block(block));
                Err(CutError::GivenUp)
            }
        }
    }

    /// Reads the blocks as of a cut, last one first; `None` if the cut has been given up.
    fn read_blocks(&self, number: u64, blocks: &mut Vec<Block>) -> Option<()> {
        for block in self.blocks.iter().rev() {
            if !lock(&self.gate).is_cutting(number) {
                return None;
            }
            blocks.push(lock(block).take(number, |block| self.spares.copy(block))?);
        }
        Some(())
    }

    /// Reads the tables as of a cut, stretch by stretch, letting pushes in between; `None` if the cut has been given
    /// up.
    fn read_rows(&self, number: u64) -> Option<Vec<RowTable>> {
        let read = |rows: &ServedTable| {
            let mut read = {
                let table = lock(&rows.table);
                RowTable::empty_like(table.get(), table.get().rows())
            };
            while lock(&rows.table).take(number, &mut read)? {
                if !lock(&self.gate).is_cutting(number) {
                    return None;
                }
            }
            Some(read)
        };
        self.rows.iter().map(read).collect()
    }

    /// Returns the buffers for copies.
    pub(crate) fn spares(&self) -> &Arc<Spares> {
        &self.spares
    }

    /// Returns the longest time that the last checkpoint has held up a push: before the push was admitted, and while it
    /// was applied, by copying and locks.
    pub fn longest_held_up(&self) -> Duration {
        lock(&self.gate).longest_held_up()
    }

    fn await_cut(&self, number: u64) -> Result<(CutPoint, Notes, LearningRate), CutError> {
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

    /// Waits while a mark holds back new pushes, but no longer than a hold may last. Returns the time waited as well.
    pub(super) fn await_release<'a>(&self, mut gate: MutexGuard<'a, Gate>) -> (MutexGuard<'a, Gate>, Duration) {
        let since = self.now();
        let mut now = since;
        while let Some(left) = gate.held_for(now) {
            gate = self.changed.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
            now = self.now();
        }
        (gate, now - since)
    }
}

#[cfg(test)]
#[path = "cut_tests.rs"]
mod tests;
