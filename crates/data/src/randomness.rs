//! The random numbers behind one made-up sample.
//!
//! Cheap to seed and to draw from, and the same on every machine: integer steps, then products and
//! sums. It must not use functions whose last bit differs between platforms, such as `sin` or `ln`.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

/// Which of the three independent streams of samples to draw from.
#[derive(Clone, Copy)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

/// A stream of random numbers of its own for every sample.
pub(crate) struct Randomness(Xoshiro256PlusPlus);

impl Randomness {
    /// The stream of sample `index` of `split` under `seed`.
    pub(crate) fn of_sample(seed: u64, split: Split, index: usize) -> Self {
        let split = match split {
            Split::Train => 1,
            Split::Validation => 2,
            Split::Test => 3,
        };
        // Mixing between the parts keeps (seed 1, sample 0) apart from (seed 0, sample 1).
        let key = mix(mix(mix(seed).wrapping_add(split)).wrapping_add(index as u64));
        Self(Xoshiro256PlusPlus::seed_from_u64(key))
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A whole number below `limit`, all as likely (up to one part in 2³²/`limit`).
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (((self.bits() >> 32) * limit as u64) >> 32) as usize
    }

    /// A number between `low` and `high`, all as likely.
    pub(crate) fn between(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.bits() >> 40) as f32 / (1u64 << 24) as f32;
        low + unit * (high - low)
    }

    /// Whether something that happens with this probability happens.
    pub(crate) fn chance(&mut self, probability: f32) -> bool {
        self.between(0.0, 1.0) < probability
    }

    /// A number of mean 0 and the given deviation that is close to normally distributed and never
    /// further out than 3.5 deviations: the sum of four uniform ones.
    pub(crate) fn normal(&mut self, deviation: f32) -> f32 {
        const MEAN: f32 = 2.0 * 65_535.0;
        /// √(4 · 65536² / 12)
        const DEVIATION: f32 = 37_837.2;
        let bits = self.bits();
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        (sum as f32 - MEAN) / DEVIATION * deviation
    }
}

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the argument.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
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
    }
}
