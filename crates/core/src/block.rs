//! A run of consecutive values with their optimizer state: what a server locks, updates and sends
//! as one. It does not count steps or know which parameter it belongs to.

use std::array;
use std::ops::Range;

use crate::optimizer::{Optimizer, Update};

/// How many values one block of a long parameter has: a little under 256 KiB, so that with its slots and gradient it
/// stays in a core's cache, and with the allocator's own bytes in four of its slices of 64 KiB. A fifth would be empty,
/// a quarter of a server's memory.
pub const BLOCK_ELEMENTS: usize = 63 * 1024;

/// Splits that many elements into runs of [`BLOCK_ELEMENTS`]; the last may be shorter.
pub fn block_ranges(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(BLOCK_ELEMENTS).map(move |start| start..start + BLOCK_ELEMENTS.min(elements - start))
}

/// Values and the optimizer's slots for them, all of one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The values of the parameter.
    pub values: Vec<f32>,
    /// The optimizer's state, [`Optimizer::slots`] of them.
    pub slots: Vec<Vec<f32>>,
}

impl Block {
    /// Zeros, with state as before the first update.
    pub fn new(len: usize, optimizer: &Optimizer) -> Self {
        let slot = |slot| vec![optimizer.slot_initial(slot); len];
        Self { values: vec![0.0; len], slots: (0..optimizer.slots()).map(slot).collect() }
    }

    /// Moves the values by one gradient, with the optimizer the block was made for.
    pub fn apply(&mut self, optimizer: &Optimizer, update: &Update, gradient: &[f32]) {
        self.apply_range(0..self.values.len(), optimizer, update, gradient);
    }

    /// Adds a copy of some of `other`'s numbers after its own.
    pub(crate) fn extend_from(&mut self, other: &Self, range: Range<usize>) {
        self.values.extend_from_slice(&other.values[range.clone()]);
        for (own, other) in self.slots.iter_mut().zip(&other.slots) {
            own.extend_from_slice(&other[range.clone()]);
        }
    }

    /// Makes some of the numbers the same as as many of `other`'s.
    pub(crate) fn copy_range(&mut self, to: Range<usize>, other: &Self, from: Range<usize>) {
        self.values[to.clone()].copy_from_slice(&other.values[from.clone()]);
        for (own, other) in self.slots.iter_mut().zip(&other.slots) {
            own[to.clone()].copy_from_slice(&other[from.clone()]);
        }
    }

    /// As [`Block::apply`], to some of the values.
    pub(crate) fn apply_range(
        &mut self,
        range: Range<usize>,
        optimizer: &Optimizer,
        update: &Update,
        gradient: &[f32],
    ) {
        let mut slots = self.slots.iter_mut().map(|slot| &mut slot[range.clone()]);
        let slots = array::from_fn(|_| slots.next().unwrap_or_default());
        optimizer.apply(update, &mut self.values[range.clone()], slots, gradient);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::RmsProp;

    #[test]
    fn a_new_block_is_zero_with_the_slots_as_the_optimizer_starts_them() {
        let optimizer = Optimizer::RmsProp(RmsProp { momentum: 0.9, ..RmsProp::default() });
        let block = Block::new(3, &optimizer);
        assert_eq!(block.values, [0.0; 3]);
        assert_eq!(block.slots, [[1.0; 3], [0.0; 3]]);
    }

    #[test]
    fn an_optimizer_without_slots_needs_none() {
        let mut block = Block::new(2, &Optimizer::Sgd);
        let update = Update { learning_rate: 0.5, step: 1, scale: 1.0 };
        block.apply(&Optimizer::Sgd, &update, &[2.0, -4.0]);
        assert_eq!(block, Block { values: vec![-1.0, 2.0], slots: vec![] });
    }

    #[test]
    fn a_range_is_moved_and_the_rest_stays() {
        let optimizer = Optimizer::named("momentum").unwrap();
        let mut block = Block::new(4, &optimizer);
        let update = Update { learning_rate: 1.0, step: 1, scale: 1.0 };
        block.apply_range(1..3, &optimizer, &update, &[2.0, 3.0]);
        assert_eq!(block.values, [0.0, -2.0, -3.0, 0.0]);
        assert_eq!(block.slots, [[0.0, 2.0, 3.0, 0.0]]);
    }

    #[test]
    #[should_panic = "a gradient is as long as its values"]
    fn a_gradient_of_another_length_is_a_broken_invariant() {
        let update = Update { learning_rate: 1.0, step: 1, scale: 1.0 };
        Block::new(4, &Optimizer::Sgd).apply(&Optimizer::Sgd, &update, &[1.0; 3]);
    }

    #[test]
    fn block_ranges_cover_everything_and_only_the_last_is_short() {
        let ends = |elements| block_ranges(elements).map(|range| (range.start, range.end)).collect::<Vec<_>>();
        assert_eq!(ends(0), []);
        assert_eq!(ends(1), [(0, 1)]);
        let block = BLOCK_ELEMENTS;
        assert_eq!(ends(block), [(0, block)]);
        assert_eq!(ends(2 * block + 5), [(0, block), (block, 2 * block), (2 * block, 2 * block + 5)]);
    }
}
