//! Random numbers that are the same on every machine and with every version of every library.
//!
//! Cheap to draw: integer steps, then products and sums. This module must not use functions whose last bit differs
//! between platforms, such as `sin` or `ln`, nor anything that may change between versions, such as the ranges and
//! shuffles of `rand`. Built-in data is derived from these numbers: drawing one differently would change the data.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};
use windlass_core::splitmix::mix;

/// Which of the three independent streams of samples to draw from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// The training samples.
    Train,
    /// The samples for scores during training.
    Validation,
    /// The samples for final scores.
    Test,
}

/// A stream of random numbers, determined by its seed or key alone.
#[derive(Debug, Clone)]
pub struct Randomness(Xoshiro256PlusPlus);

impl Randomness {
    /// The stream of sample `index` of `split` under `seed`.
    pub fn of_sample(seed: u64, split: Split, index: usize) -> Self {
        let split = match split {
            Split::Train => 1,
            Split::Validation => 2,
            Split::Test => 3,
        };
        // Mixing between the parts keeps (seed 1, sample 0) apart from (seed 0, sample 1).
        let key = mix(mix(mix(seed).wrapping_add(split)).wrapping_add(index as u64));
        Self(Xoshiro256PlusPlus::seed_from_u64(key))
    }

    /// The stream of a key of any length. Keys that differ anywhere have unrelated streams. Slower to create than that
    /// of a sample.
    pub fn of_key(key: impl IntoIterator<Item = u64>) -> Self {
        let mut digest = Sha256::new();
        key.into_iter().for_each(|part| digest.update(part.to_le_bytes()));
        Self(Xoshiro256PlusPlus::from_seed(digest.finalize().into()))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A whole number below `limit`, uniformly distributed (up to one part in 2³²/`limit`).
    pub fn below(&mut self, limit: usize) -> usize {
        (((self.bits() >> 32) * limit as u64) >> 32) as usize
    }

    /// As [`Randomness::below`], for limits of any size (up to one part in 2⁶⁴/`limit`).
    pub fn below_u64(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// A number between `low` and `high`, uniformly distributed.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1u64 << 24) as f32;
        low + unit * (high - low)
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f32) -> bool {
        self.between(0.0, 1.0) < probability
    }

    /// A number with mean 0 and the given standard deviation. It is approximately normally distributed and never
    /// farther out than 3.5 standard deviations: the sum of four uniform numbers.
    pub fn normal(&mut self, deviation: f32) -> f32 {
        const MEAN: f32 = 2.0 * 65_535.0;
        /// √(4 · 65536² / 12)
        const DEVIATION: f32 = 37_837.2;
        let bits = self.bits();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        (sum as f32 - MEAN) / DEVIATION * deviation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first_bits(seed: u64, split: Split, index: usize) -> u64 {
        Randomness::of_sample(seed, split, index).bits()
    }

    #[test]
    fn seed_split_and_index_each_make_another_stream() {
        let base = first_bits(1, Split::Train, 2);
        assert_eq!(base, first_bits(1, Split::Train, 2));
        assert_ne!(base, first_bits(2, Split::Train, 2));
        assert_ne!(base, first_bits(1, Split::Test, 2));
        assert_ne!(base, first_bits(1, Split::Train, 3));
        assert_ne!(base, first_bits(2, Split::Train, 1));
    }

    #[test]
    fn a_stream_follows_from_every_part_of_its_key() {
        let first = |key: &[u64]| Randomness::of_key(key.iter().copied()).below_u64(u64::MAX);
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1, 2]), first(&[1, 3]));
        assert_ne!(first(&[1, 0]), first(&[1]));
    }

    #[test]
    fn normal_numbers_have_the_mean_and_deviation_asked_for() {
        let mut randomness = Randomness::of_sample(1, Split::Train, 0);
        let numbers: Vec<f32> = (0..100_000).map(|_| randomness.normal(3.0)).collect();
        let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
        let variance = numbers.iter().map(|n| (n - mean).powi(2)).sum::<f32>() / numbers.len() as f32;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((variance.sqrt() - 3.0).abs() < 0.05, "{}", variance.sqrt());
    }

    #[test]
    fn every_number_below_the_limit_comes_up() {
        let mut randomness = Randomness::of_sample(1, Split::Train, 0);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[randomness.below(10)] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
        seen.fill(0);
        (0..10_000).for_each(|_| seen[randomness.below_u64(10) as usize] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
