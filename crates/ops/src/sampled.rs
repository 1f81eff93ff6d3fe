//! The softmax over a sample of the classes, for vocabularies too large to score in full at every step.

use std::collections::{HashMap, HashSet};

use burn::backend::Dispatch;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{Rng, RngExt};

use crate::backend::FusedOps;
use crate::{composed, is_fused};

/// Draws classes with probability ln((k + 2) / (k + 1)) / ln(range + 1). This is about how often words occur that are
/// numbered by descending frequency.
#[derive(Clone, Copy, Debug)]
pub struct LogUniformSampler {
    range: usize,
}

/// Distinct classes drawn, and how often each class was expected among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// The classes, in the order in which they were drawn.
    pub classes: Vec<usize>,
    tries: u64,
    range: usize,
}

impl LogUniformSampler {
    /// Draws from the classes 0 to `range` - 1.
    pub fn new(range: usize) -> Self {
        assert!(range > 0, "there must be a class to draw");
        Self { range }
    }

    /// Draws until there are `count` distinct classes.
    ///
    /// # Panics
    /// Panics if there are fewer classes than that.
    pub fn sample(&self, count: usize, random: &mut impl Rng) -> Candidates {
        assert!(count <= self.range, "{count} distinct classes cannot be drawn from {}", self.range);
        let mut drawn = HashSet::with_capacity(count);
        let mut classes = Vec::with_capacity(count);
        let mut tries = 0;
        while classes.len() < count {
            tries += 1;
            let power: f64 = random.random::<f64>() * (self.range as f64).ln_1p();
            let class = (power.exp() as usize).saturating_sub(1).min(self.range - 1);
            if drawn.insert(class) {
                classes.push(class);
            }
        }
        Candidates { classes, tries, range: self.range }
    }
}

impl Candidates {
    /// Restores distinct classes that another process has drawn from `range` in this many tries.
    pub fn drawn(classes: Vec<usize>, tries: u64, range: usize) -> Self {
        Self { classes, tries, range }
    }

    /// The number of tries in which they were drawn, and the number of classes.
    pub fn tries_and_range(&self) -> (u64, usize) {
        (self.tries, self.range)
    }

    /// The expected count of `class` in that many tries, where repeated draws of a class count once.
    pub fn expected_count(&self, class: usize) -> f64 {
        let probability = (1.0 / (class + 1) as f64).ln_1p() / (self.range as f64).ln_1p();
        -(self.tries as f64 * (-probability).ln_1p()).exp_m1()
    }

    /// The logarithms of the expected counts of these classes.
    pub fn log_expected_counts(&self, classes: &[usize], device: &Device) -> Tensor<1> {
        let logarithms: Vec<f32> = classes.iter().map(|class| self.expected_count(*class).ln() as f32).collect();
        Tensor::from_data(TensorData::new(logarithms, [classes.len()]), device)
    }

    /// For each row, the index of its target class among the candidates, or -1.
    fn hits(&self, right: &[usize], device: &Device) -> Tensor<1, Int> {
        let places: HashMap<usize, i64> = self.classes.iter().copied().zip(0..).collect();
        let hits: Vec<i64> = right.iter().map(|right| places.get(right).copied().unwrap_or(-1)).collect();
        Tensor::from_data(TensorData::new(hits, [right.len()]), device)
    }
}

/// The rows of the output layer's weights and biases that a step needs: those of the target classes and the candidates.
#[derive(Clone, Debug)]
pub struct SampledSoftmax {
    /// [rows, size]: the weights of the target class of each row.
    pub right_weights: Tensor<2>,
    /// `[rows]`
    pub right_bias: Tensor<1>,
    /// [candidates, size]
    pub candidate_weights: Tensor<2>,
    /// `[candidates]`
    pub candidate_bias: Tensor<1>,
}

impl SampledSoftmax {
    /// The loss of every row of `hidden` [rows, size], as in TensorFlow's `sampled_softmax_loss`: the cross-entropy of
    /// the target class against the candidates. Each score is reduced by the logarithm of its class's expected count,
    /// and candidates that equal the target class are left out.
    pub fn loss(self, hidden: Tensor<2>, candidates: &Candidates, right: &[usize]) -> Tensor<1> {
        let device = hidden.device();
        let hits = candidates.hits(right, &device);
        let corrected = Self {
            right_bias: self.right_bias - candidates.log_expected_counts(right, &device),
            candidate_bias: self.candidate_bias - candidates.log_expected_counts(&candidates.classes, &device),
            ..self
        };
        sampled_cross_entropy(hidden, corrected, hits)
    }
}

/// The cross-entropy of the target class against the candidates, except those at `hits`.
pub(crate) fn sampled_cross_entropy(hidden: Tensor<2>, softmax: SampledSoftmax, hits: Tensor<1, Int>) -> Tensor<1> {
    if !is_fused(&hidden) {
        return composed::sampled_cross_entropy(hidden, softmax, hits);
    }
    Tensor::from_dispatch(Dispatch::fused_sampled_cross_entropy(
        hidden.into_dispatch(),
        softmax.right_weights.into_dispatch(),
        softmax.right_bias.into_dispatch(),
        softmax.candidate_weights.into_dispatch(),
        softmax.candidate_bias.into_dispatch(),
        hits.into_dispatch(),
    ))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_distinct_classes() {
        let sampler = LogUniformSampler::new(1000);
        let draw = |seed| sampler.sample(200, &mut StdRng::seed_from_u64(seed));
        let candidates = draw(5);
        assert_eq!(candidates, draw(5));
        assert_ne!(candidates, draw(6));
        assert_eq!(candidates.classes.iter().collect::<HashSet<_>>().len(), 200);
        assert!(candidates.classes.iter().all(|class| *class < 1000));
        let mut all = sampler.sample(1000, &mut StdRng::seed_from_u64(1)).classes;
        all.sort();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn classes_are_drawn_as_often_as_expected() {
        let (sampler, seed, rounds) = (LogUniformSampler::new(50), 7, 4000);
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let mut seen = [0.0; 50];
        let mut expected = [0.0; 50];
        for _ in 0..rounds {
            let candidates = sampler.sample(10, &mut random);
            candidates.classes.iter().for_each(|class| seen[*class] += 1.0);
            (0..50).for_each(|class| expected[class] += candidates.expected_count(class));
        }
        for class in 0..50 {
            let (seen, expected): (f64, f64) = (seen[class] / rounds as f64, expected[class] / rounds as f64);
            assert!((seen - expected).abs() < 0.03, "class {class}: {seen} seen, {expected} expected");
        }
    }

    /// Worked by hand: one of the two candidates is the target class, so one score stands against one other.
    #[test]
    fn the_loss_corrects_for_sampling_and_leaves_accidental_hits_out() {
        let device = Device::flex();
        let candidates = Candidates { classes: vec![3, 1], tries: 4, range: 10 };
        let matrix = |values: [[f32; 2]; 2]| Tensor::<2>::from_data(TensorData::from(values), &device);
        let vector = |values: Vec<f32>| {
            let count = values.len();
            Tensor::<1>::from_data(TensorData::new(values, [count]), &device)
        };
        let softmax = SampledSoftmax {
            right_weights: matrix([[0.5, 1.0], [2.0, -1.0]]),
            right_bias: vector(vec![0.1, 0.2]),
            candidate_weights: matrix([[0.5, 1.0], [-1.0, 0.25]]),
            candidate_bias: vector(vec![0.1, -0.3]),
        };
        let loss = softmax.loss(matrix([[1.0, 2.0], [0.5, -1.0]]), &candidates, &[3, 7]);
        let log = |class| candidates.expected_count(class).ln();
        let against =
            |right: f64, others: &[f64]| (others.iter().map(|other| (other - right).exp()).sum::<f64>() + 1.0).ln();
        let first = against(2.6 - log(3), &[-0.8 - log(1)]);
        let second = against(2.2 - log(7), &[-0.65 - log(3), -1.05 - log(1)]);
        let loss: Vec<f64> = loss.into_data().iter::<f64>().collect();
        assert!((loss[0] - first).abs() < 1e-5 && (loss[1] - second).abs() < 1e-5, "{loss:?} {first} {second}");
    }
}
