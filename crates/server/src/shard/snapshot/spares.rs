//! Buffers for a checkpoint's copies of blocks.
//!
//! The first use of a page of memory is much slower than a copy to it. With fresh memory for every checkpoint, the push
//! after a cut would wait for that. So the buffers are allocated before the first cut, and are returned once they are
//! written.

use std::mem;
use std::sync::{Arc, Mutex};

use windlass_core::block::{BLOCK_ELEMENTS, Block};

use crate::shard::lock;

/// Buffers, each of which fits the numbers of any block.
#[derive(Debug)]
pub(crate) struct Spares {
    free: Mutex<Vec<Vec<f32>>>,
    /// The maximum number of buffers.
    most: usize,
    /// The capacity of each buffer, in numbers.
    len: usize,
}

impl Spares {
    /// Creates an empty pool for a copy of this many elements with this many slots.
    pub(in crate::shard) fn new(elements: usize, slots: usize) -> Self {
        let most = elements.div_ceil(BLOCK_ELEMENTS) * (1 + slots);
        Self { free: Mutex::default(), most, len: elements.min(BLOCK_ELEMENTS) }
    }

    /// Allocates the buffers and touches their memory. Stops once no other owner is left.
    pub(crate) fn fill(self: &Arc<Self>) {
        while lock(&self.free).len() < self.most && Arc::strong_count(self) > 1 {
            // Not zeros: the system would only reserve the memory and not touch it.
            self.give_back(vec![1.0; self.len]);
        }
    }

    pub(in crate::shard) fn copy(&self, block: &Block) -> Block {
        Block {
            values: self.copy_numbers(&block.values),
            slots: block.slots.iter().map(|slot| self.copy_numbers(slot)).collect(),
        }
    }

    fn copy_numbers(&self, numbers: &[f32]) -> Vec<f32> {
        let free = lock(&self.free).pop();
        let mut copy = free.unwrap_or_else(|| Vec::with_capacity(self.len));
        copy.clear();
        copy.extend_from_slice(numbers);
        copy
    }

    /// Takes back the buffers of a copy that is not needed.
    pub(in crate::shard) fn give_back_block(&self, block: Block) {
        std::iter::once(block.values).chain(block.slots).for_each(|numbers| self.give_back(numbers));
    }

    fn give_back(&self, numbers: Vec<f32>) {
        let mut free = lock(&self.free);
        if free.len() < self.most {
            free.push(numbers);
        }
    }

    /// Lends numbers of a copy, which return to the pool on drop.
    pub(crate) fn lend(self: &Arc<Self>, numbers: Vec<f32>) -> Lent {
        Lent { numbers, spares: self.clone() }
    }
}

/// Numbers whose buffer returns to the pool on drop.
#[derive(Debug)]
pub(crate) struct Lent {
    numbers: Vec<f32>,
    spares: Arc<Spares>,
}

impl AsRef<[f32]> for Lent {
    fn as_ref(&self) -> &[f32] {
        &self.numbers
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.spares.give_back(mem::take(&mut self.numbers));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(spares: &Spares) -> Vec<*const f32> {
        lock(&spares.free).iter().map(|buffer| buffer.as_ptr()).collect()
    }

    #[test]
    fn a_copy_is_made_in_buffers_that_are_there_and_they_come_back() {
        let elements = BLOCK_ELEMENTS + 5;
        let spares = Arc::new(Spares::new(elements, 1));
        let other = spares.clone();
        other.fill();
        let before = free(&spares);
        assert_eq!(before.len(), 4, "values and a slot of two blocks");
        for len in [BLOCK_ELEMENTS, 5] {
            let block = Block { values: vec![2.0; len], slots: vec![vec![3.0; len]] };
            let copy = spares.copy(&block);
            assert_eq!(copy, block);
            assert_eq!(free(&spares).len(), 2);
            let lent = [spares.lend(copy.values), spares.lend(copy.slots.into_iter().next().unwrap())];
            assert_eq!([lent[0].as_ref()[0], lent[1].as_ref()[0]], [2.0, 3.0]);
            drop(lent);
        }
        let mut after = free(&spares);
        after.sort_unstable();
        let mut before = before;
        before.sort_unstable();
        assert_eq!(after, before);
    }

    #[test]
    fn without_buffers_they_are_made_and_no_more_are_kept_than_a_copy_needs() {
        let spares = Arc::new(Spares::new(3, 0));
        let block = Block { values: vec![1.0, 2.0, 3.0], slots: vec![] };
        let copies = [spares.copy(&block), spares.copy(&block)];
        copies.into_iter().for_each(|copy| spares.give_back_block(copy));
        assert_eq!(free(&spares).len(), 1);
    }

    #[test]
    fn nothing_is_made_for_a_shard_that_is_gone() {
        let spares = Arc::new(Spares::new(3, 0));
        spares.fill();
        assert_eq!(free(&spares).len(), 0);
    }
}
