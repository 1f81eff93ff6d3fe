//! Reads a shard's cut, one block after another.

use std::time::Duration;

use windlass_core::checkpoint::{CutPoint, Notes};
use windlass_core::run::LearningRate;

use super::{Shard, ShardEffect, Values};

/// A shard as of a cut.
#[derive(Debug)]
pub struct ShardAtCut {
    /// The position of the cut.
    pub mark: CutPoint,
    /// The notes of the last pushes before the cut.
    pub notes: Notes,
    /// The learning rate at the cut.
    pub learning_rate: LearningRate,
    /// The blocks as of the cut.
    pub blocks: Vec<Values>,
}

#[derive(Debug)]
pub(super) struct Reader {
    number: u64,
    found: Option<(CutPoint, Notes, LearningRate)>,
    blocks: Vec<Values>,
}

impl Shard {
    /// Starts to read a cut that has been made, or will be.
    pub fn read(&mut self, number: u64, now: Duration) {
        self.readers.push(Reader { number, found: None, blocks: Vec::new() });
        self.poll(now);
    }

    /// Abandons a cut. Its reader notices.
    pub fn abandon(&mut self, number: u64, now: Duration) {
        if self.gate.end_cut(number) {
            self.blocks.iter_mut().for_each(|block| drop(block.forget()));
            self.poll(now);
        }
    }

    /// Reads the next block of a cut, starting from the last.
    pub fn read_piece(&mut self, number: u64) {
        let Some(index) = self.readers.iter().position(|reader| reader.number == number) else { return };
        let reader = &mut self.readers[index];
        let block = self.blocks.len() - reader.blocks.len();
        let taken = match block {
            0 => {
                let whole = self.gate.end_cut(number);
                let Reader { found, mut blocks, .. } = self.readers.remove(index);
                blocks.reverse();
                let cut = found.filter(|_| whole);
                let cut = cut.map(|(mark, notes, learning_rate)| ShardAtCut { mark, notes, learning_rate, blocks });
                return self.effects.push(ShardEffect::Read(number, cut));
            }
            _ if !self.gate.is_cutting(number) => None,
            _ => self.blocks[block - 1].take(number, Clone::clone),
        };
        match taken {
            Some(values) => {
                reader.blocks.push(values);
                self.effects.push(ShardEffect::ReadPiece(number));
            }
            None => {
                self.readers.remove(index);
                self.effects.push(ShardEffect::Read(number, None));
            }
        }
    }

    /// Starts the readers whose cut has been made, and abandons those whose cut cannot be made.
    pub(super) fn poll_readers(&mut self) {
        let mut given_up = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.found.is_none()) {
            let closed = self.gate.is_closed();
            match self.gate.cut_made(reader.number) {
                Ok(Some(found)) if !closed => {
                    reader.found = Some(found);
                    self.effects.push(ShardEffect::ReadPiece(reader.number));
                }
                Ok(_) if !closed => {}
                _ => given_up.push(reader.number),
            }
        }
        for number in given_up {
            self.readers.retain(|reader| reader.number != number);
            self.effects.push(ShardEffect::Read(number, None));
        }
    }
}
