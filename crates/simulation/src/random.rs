//! Random numbers derived from a seed, the same on every machine.

use std::time::Duration;

use windlass_core::splitmix::SplitMix64;

/// A generator of random numbers.
#[derive(Debug, Clone)]
pub struct Random(SplitMix64);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        // Neighbouring seeds would have overlapping numbers.
        Self(SplitMix64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, which must not be zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// A number in this range, including both ends.
    pub fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True with this probability, in percent.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A duration between two numbers of microseconds.
    pub fn micros(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_micros(self.within(first, last))
    }

    /// A duration between two numbers of milliseconds.
    pub fn millis(&mut self, first: u64, last: u64) -> Duration {
        self.micros(first * 1000, last * 1000)
    }
}
