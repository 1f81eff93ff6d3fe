//! Burn's random numbers: those of its `Dropout`, of `Tensor::random`, and of a network's initial values.
//!
//! Burn has one generator for the whole process, which continues from wherever the last draw left it. It is therefore
//! reseeded for everything that draws: what a step draws depends only on the run's seed, the worker and the position of
//! its batch in the data, and is the same again after a restart. Nothing else in the process draws meanwhile. Batches
//! are made on another thread while a step is computed, so they draw from their own generator, seeded from here.

use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Distribution, Tensor};
pub use windlass_core::splitmix::mix;

use crate::batches::order::DataPosition;

static GENERATOR: Mutex<()> = Mutex::new(());

/// What numbers are drawn for. Each purpose has its own sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Putting a batch together.
    Batch,
    /// The forward pass.
    Step,
    /// Scoring a network.
    Score,
}

/// The batch that numbers are drawn for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The worker.
    pub worker: u32,
    /// The position of its batch in the data.
    pub position: DataPosition,
    /// The number of the first of the parts in which the batch is computed.
    pub first_part: usize,
}

impl Draw {
    /// The seed for a purpose in one part of this batch, in a run with this seed.
    pub(crate) fn seed(self, run: u64, purpose: Purpose, part: usize) -> u64 {
        let DataPosition { epoch, batch } = self.position;
        let words = [u64::from(self.worker), epoch, batch as u64, purpose as u64];
        let seed = words.into_iter().fold(mix(run), |key, word| mix(key ^ word));
        let part = self.first_part + part;
        if part == 0 { seed } else { mix(seed ^ part as u64) }
    }
}

/// The seed for scoring, which belongs to no worker's step, by its number in a run with this seed.
pub(crate) fn scoring_seed(run: u64, number: u64) -> u64 {
    mix(mix(mix(run) ^ number) ^ Purpose::Score as u64)
}

/// Runs `work`, which may draw random numbers, with this seed.
pub(crate) fn seeded<T>(device: &Device, seed: u64, work: impl FnOnce() -> T) -> T {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    work()
}

/// Like [`seeded`], and also returns whether any numbers were drawn.
pub(crate) fn watched<T>(device: &Device, seed: u64, work: impl FnOnce() -> T) -> (T, bool) {
    let next = || {
        let numbers = Tensor::<1>::random([4], Distribution::Default, &device.clone().inner());
        numbers.into_data().iter::<f32>().collect::<Vec<f32>>()
    };
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    let done = work();
    let after = next();
    device.seed(seed);
    (done, after != next())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64) -> Vec<f32> {
        let device = Device::flex();
        let numbers = seeded(&device, seed, || Tensor::<1>::random([8], Distribution::Default, &device));
        numbers.into_data().iter::<f32>().collect()
    }

    #[test]
    fn it_is_seen_whether_numbers_are_drawn() {
        let device = Device::flex();
        let draw = || drop(Tensor::<1>::random([1], Distribution::Default, &device));
        assert!(watched(&device, 5, draw).1);
        assert!(!watched(&device, 5, || ()).1);
    }

    #[test]
    fn every_worker_batch_part_and_purpose_has_numbers_of_its_own() {
        let mut seeds = Vec::new();
        for (worker, epoch, batch) in [(0, 1, 1), (1, 1, 1), (0, 2, 1), (0, 1, 2), (1, 2, 1)] {
            let draw = Draw { worker, position: DataPosition { epoch, batch }, first_part: 0 };
            for part in 0..3 {
                seeds.extend([Purpose::Batch, Purpose::Step].map(|purpose| draw.seed(7, purpose, part)));
            }
            seeds.push(draw.seed(8, Purpose::Step, 0));
        }
        seeds.push(scoring_seed(7, 0));
        let count = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), count);
    }

    #[test]
    fn what_is_drawn_depends_on_the_seed_and_not_on_what_was_drawn_before() {
        let first = drawn(1);
        let other = drawn(2);
        assert_ne!(first, other);
        assert_eq!(drawn(1), first);
    }

    #[test]
    fn threads_that_draw_at_the_same_time_do_not_disturb_each_other() {
        let expected = [drawn(1), drawn(2)];
        std::thread::scope(|scope| {
            for (seed, expected) in (1..).zip(&expected) {
                scope.spawn(move || (0..200).for_each(|_| assert_eq!(drawn(seed), *expected)));
            }
        });
    }
}
