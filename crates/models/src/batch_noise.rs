//! The random numbers that a step needs: noise on inputs, units to drop, draws of a latent code.
//!
//! They are derived only from the run's seed and the batch's samples. A global generator would give other numbers after
//! a restart, or when a trial step or another worker in the process draws from it too. Each epoch and each worker has
//! its own order, so the same list of samples hardly ever forms a batch twice, and the numbers are fresh; a run that is
//! repeated or resumed gets the same lists and so the same numbers, bit for bit. (Only a batch of one sample recurs
//! every epoch, with the same numbers.) Every row has its own stream, so any number of threads draws the same.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use windlass_worker::randomness::mix;

/// What the numbers are used for. Each purpose has its own streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Corrupting inputs.
    Corruption,
    /// Drawing a latent code.
    Latent,
    /// Dropping units of the localisation network.
    LocalisationDropout,
    /// Dropping units of the fully connected layer.
    Dropout,
}

/// The random numbers of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchNoise(u64);

impl BatchNoise {
    /// The random numbers of a batch of these samples, in this order.
    pub(crate) fn of_batch(seed: u64, samples: &[usize]) -> Self {
        Self(samples.iter().fold(mix(seed), |key, sample| mix(key ^ *sample as u64)))
    }

    /// Rows of numbers from N(0, 1).
    pub(crate) fn normal(self, purpose: Purpose, rows: usize, width: usize) -> Vec<f32> {
        self.rows(purpose, rows, width, |stream, row| {
            row.iter_mut().for_each(|value| *value = StandardNormal.sample(stream));
        })
    }

    /// Rows of factors that keep a unit with this probability or set it to zero. Kept units are scaled up by the
    /// inverse probability, so sums stay the same on average and nothing needs to be done when nothing is dropped.
    pub(crate) fn keep(self, purpose: Purpose, rows: usize, width: usize, probability: f32) -> Vec<f32> {
        // Compared with 32 random bits; 2³² itself keeps all.
        let limit = (f64::from(probability) * 4_294_967_296.0) as u64;
        let factor = 1.0 / probability;
        self.rows(purpose, rows, width, |stream, row| {
            for pair in row.chunks_mut(2) {
                let bits = stream.next_u64();
                let halves = [bits >> 32, bits & 0xffff_ffff];
                pair.iter_mut().zip(halves).for_each(|(value, half)| *value = if half < limit { factor } else { 0.0 });
            }
        })
    }

    fn rows(
        self,
        purpose: Purpose,
        rows: usize,
        width: usize,
        fill: impl Fn(&mut Xoshiro256PlusPlus, &mut [f32]) + Sync,
    ) -> Vec<f32> {
        let key = mix(self.0 ^ purpose as u64);
        let mut values = vec![0.0; rows * width];
        values.par_chunks_mut(width.max(1)).enumerate().for_each(|(index, row)| {
            fill(&mut Xoshiro256PlusPlus::seed_from_u64(mix(key ^ index as u64)), row);
        });
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(seed: u64, samples: &[usize]) -> Vec<f32> {
        BatchNoise::of_batch(seed, samples).normal(Purpose::Corruption, 3, 5)
    }

    #[test]
    fn seed_samples_and_their_order_each_make_other_numbers() {
        let base = draw(1, &[3, 4, 5]);
        assert_eq!(draw(1, &[3, 4, 5]), base);
        assert_ne!(draw(2, &[3, 4, 5]), base);
        assert_ne!(draw(1, &[3, 4, 6]), base);
        assert_ne!(draw(1, &[4, 3, 5]), base);
    }

    #[test]
    fn rows_and_purposes_have_numbers_of_their_own() {
        let randomness = BatchNoise::of_batch(1, &[7]);
        let numbers = randomness.normal(Purpose::Corruption, 2, 8);
        assert_ne!(numbers[..8], numbers[8..]);
        assert_ne!(randomness.normal(Purpose::Latent, 2, 8), numbers);
    }

    #[test]
    fn any_number_of_threads_draws_the_same() {
        let drawn = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| BatchNoise::of_batch(1, &[1, 2]).normal(Purpose::Latent, 64, 33))
        };
        assert_eq!(drawn(1), drawn(3));
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let numbers = BatchNoise::of_batch(1, &[1]).normal(Purpose::Corruption, 100, 1000);
        let mean = numbers.iter().sum::<f32>() / 1e5;
        let variance = numbers.iter().map(|number| number * number).sum::<f32>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn units_are_kept_as_often_as_asked_for_and_scaled_up() {
        let randomness = BatchNoise::of_batch(1, &[1]);
        let factors = randomness.keep(Purpose::Dropout, 100, 1000, 0.8);
        assert!(factors.iter().all(|factor| [0.0, 1.25].contains(factor)));
        let mean = factors.iter().sum::<f32>() / 1e5;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!(randomness.keep(Purpose::Dropout, 10, 7, 1.0).iter().all(|factor| *factor == 1.0));
    }
}
