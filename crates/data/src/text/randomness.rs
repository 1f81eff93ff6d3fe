//! Random numbers for text that are the same on every machine and with every version of every library.
//!
//! It must not use what may change between versions, such as the ranges and shuffles of `rand`.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

/// A stream of random numbers that follows from its key alone.
pub(super) struct Randomness(Xoshiro256PlusPlus);

impl Randomness {
    /// The stream of a key; keys that differ anywhere have streams that have nothing in common.
    pub(super) fn of(key: impl IntoIterator<Item = u64>) -> Self {
        let mut digest = Sha256::new();
        key.into_iter().for_each(|part| digest.update(part.to_le_bytes()));
        Self(Xoshiro256PlusPlus::from_seed(digest.finalize().into()))
    }

    /// A whole number below `limit`, all as likely (up to one part in 2⁶⁴/`limit`).
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(limit)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_follows_from_every_part_of_its_key() {
        let first = |key: &[u64]| Randomness::of(key.iter().copied()).below(u64::MAX);
        assert_eq!(first(&[1, 2]), first(&[1, 2]));
        assert_ne!(first(&[1, 2]), first(&[2, 1]));
        assert_ne!(first(&[1, 2]), first(&[1, 3]));
        assert_ne!(first(&[1, 0]), first(&[1]));
    }

    #[test]
    fn every_number_below_the_limit_comes_up() {
        let mut randomness = Randomness::of([1]);
        let mut seen = [0; 10];
        (0..10_000).for_each(|_| seen[randomness.below(10) as usize] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
