//! A run of consecutive values with their optimizer state: the unit that a server locks, updates and sends. It does not
//! count steps or know which parameter it belongs to.

use std::array;
use std::ops::Range;

use crate::optimizer::{Optimizer, Update, flush};

/// How many values one block of a long parameter has: a little under 256 KiB, so that with its slots and gradient it
/// stays in a core's cache, and with the allocator's own bytes in four of its slices of 64 KiB. A fifth would be empty,
/// a quarter of a server's memory.
pub const BLOCK_ELEMENTS: usize = 63 * 1024;

/// Splits this many elements into runs of [`BLOCK_ELEMENTS`]; the last may be shorter.
pub fn block_ranges(elements: usize) -> impl Iterator<Item = Range<usize>> {
    (0..elements).step_by(BLOCK_ELEMENTS).map(move |start| start..start + BLOCK_ELEMENTS.min(elements - start))
}

/// Values that are not simply updated by the optimizer from the run's first step on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// The position of the values.
    pub range: Range<usize>,
    /// How they are updated.
    pub treatment: Treatment,
}

/// How a [`Stretch`] is updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// The values follow training without being trained: each push replaces them, and the optimizer does not see them.
    Assigned,
    /// The optimizer began to train the values after this global step, and counts its steps from there. Adam's
    /// correction for means that start at zero would otherwise assume means that have long settled.
    TrainedSince(u64),
}

/// The part of these stretches that lies in each block, with positions relative to the start of the block.
pub fn stretches_by_block(stretches: &[Stretch], elements: usize) -> Vec<Vec<Stretch>> {
    let within = |block: Range<usize>| {
        let part = |Stretch { range, treatment }: &Stretch| {
            let common = range.start.max(block.start)..range.end.min(block.end);
            let local = || common.start - block.start..common.end - block.start;
            (!common.is_empty()).then(|| Stretch { range: local(), treatment: *treatment })
        };
        stretches.iter().filter_map(part).collect()
    };
    block_ranges(elements).map(within).collect()
}

/// Values and the optimizer's slots for them, all of one length.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The values of the parameter.
    pub values: Vec<f32>,
    /// The optimizer's state: [`Optimizer::slots`] vectors.
    pub slots: Vec<Vec<f32>>,
}

impl Block {
    /// Zero values, with the optimizer state of before the first update.
    pub fn new(len: usize, optimizer: &Optimizer) -> Self {
        let slot = |slot| vec![optimizer.slot_initial(slot); len];
        Self { values: vec![0.0; len], slots: (0..optimizer.slots()).map(slot).collect() }
    }

    /// Updates the values by one gradient, with the optimizer that the block was made for.
    pub fn apply(&mut self, optimizer: &Optimizer, update: &Update, gradient: &[f32]) {
        self.apply_range(0..self.values.len(), optimizer, update, gradient);
    }

    /// Like [`Block::apply`], but treats these stretches separately; they must be in ascending order. The update's step
    /// is the global one, which is later than any [`Treatment::TrainedSince`].
    pub fn apply_around(&mut self, stretches: &[Stretch], optimizer: &Optimizer, update: &Update, pushed: &[f32]) {
        assert_eq!(self.values.len(), pushed.len(), "a push is as long as its values");
        let mut start = 0;
        for Stretch { range, treatment } in stretches {
            self.apply_range(start..range.start, optimizer, update, &pushed[start..range.start]);
            let pushed = &pushed[range.clone()];
            match treatment {
                Treatment::Assigned => {
                    let values = self.values[range.clone()].iter_mut().zip(pushed);
                    values.for_each(|(value, pushed)| *value = flush(flush(*pushed) * update.scale));
                }
                Treatment::TrainedSince(since) => {
                    let update = Update { step: update.step - since, ..*update };
                    self.apply_range(range.clone(), optimizer, &update, pushed);
                }
            }
            start = range.end;
        }
        self.apply_range(start..self.values.len(), optimizer, update, &pushed[start..]);
    }

    /// Appends a copy of a range of `other`.
    pub(crate) fn extend_from(&mut self, other: &Self, range: Range<usize>) {
        self.values.extend_from_slice(&other.values[range.clone()]);
        for (own, other) in self.slots.iter_mut().zip(&other.slots) {
            own.extend_from_slice(&other[range.clone()]);
        }
    }

    /// Copies a range of `other` over a range of the same length.
    pub(crate) fn copy_range(&mut self, to: Range<usize>, other: &Self, from: Range<usize>) {
        self.values[to.clone()].copy_from_slice(&other.values[from.clone()]);
        for (own, other) in self.slots.iter_mut().zip(&other.slots) {
            own[to.clone()].copy_from_slice(&other[from.clone()]);
        }
    }

    /// Like [`Block::apply`], for some of the values.
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
    fn state_becomes_the_mean_of_what_is_pushed_and_no_optimizer_touches_it() {
        for optimizer in Optimizer::all() {
            let mut block = Block::new(5, &optimizer);
            block.values.fill(10.0);
            let mut trained = block.clone();
            let update = Update { learning_rate: 0.1, step: 1, scale: 0.5 };
            trained.apply(&optimizer, &update, &[1.0, 2.0, 3.0, 4.0, 5.0]);
            let before = block.clone();
            let state = [1..2, 3..5].map(|range| Stretch { range, treatment: Treatment::Assigned });
            block.apply_around(&state, &optimizer, &update, &[1.0, 2.0, 3.0, 4.0, 5.0]);
            let [first, third] = [0, 2].map(|index| trained.values[index]);
            assert_eq!(block.values, [first, 1.0, third, 2.0, 2.5], "{optimizer}");
            for ((slot, trained), before) in block.slots.iter().zip(&trained.slots).zip(&before.slots) {
                assert_eq!(slot[..], [trained[0], before[1], trained[2], before[3], before[4]], "{optimizer}");
            }
        }
    }

    #[test]
    fn state_is_never_denormal() {
        let state = [Stretch { range: 0..4, treatment: Treatment::Assigned }];
        let mut block = Block::new(4, &Optimizer::Sgd);
        let update = Update { learning_rate: 0.1, step: 1, scale: 0.5 };
        block.apply_around(&state, &Optimizer::Sgd, &update, &[1e-40, -f32::MIN_POSITIVE, 3.0, f32::INFINITY]);
        assert_eq!(block.values, [0.0, 0.0, 1.5, f32::INFINITY]);
    }

    #[test]
    fn what_is_trained_from_a_later_step_on_moves_as_with_a_new_optimizer() {
        for optimizer in Optimizer::all() {
            let (mut block, mut fresh) = (Block::new(4, &optimizer), Block::new(2, &optimizer));
            let late = [Stretch { range: 1..3, treatment: Treatment::TrainedSince(1000) }];
            for step in 1..=5 {
                let update = Update { learning_rate: 0.1, step: 1000 + step, scale: 1.0 };
                block.apply_around(&late, &optimizer, &update, &[0.0, 0.3, -2.0, 0.0]);
                fresh.apply(&optimizer, &Update { step, ..update }, &[0.3, -2.0]);
                assert_eq!(block.values[1..3], fresh.values, "{optimizer} in step {step}");
            }
        }
    }

    #[test]
    #[should_panic = "a gradient is as long as its values"]
    fn a_gradient_of_another_length_is_a_broken_invariant() {
        let update = Update { learning_rate: 1.0, step: 1, scale: 1.0 };
        Block::new(4, &Optimizer::Sgd).apply(&Optimizer::Sgd, &update, &[1.0; 3]);
    }

    #[test]
    fn stretches_are_cut_where_blocks_are() {
        let block = BLOCK_ELEMENTS;
        let late = |range| Stretch { range, treatment: Treatment::TrainedSince(7) };
        let state = |range| Stretch { range, treatment: Treatment::Assigned };
        let stretches = [late(5..7), state(block - 1..2 * block + 3), late(2 * block + 4..2 * block + 5)];
        assert_eq!(
            stretches_by_block(&stretches, 2 * block + 5),
            [vec![late(5..7), state(block - 1..block)], vec![state(0..block)], vec![state(0..3), late(4..5)]]
        );
        assert_eq!(stretches_by_block(&[], block), [vec![]]);
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
