//! Adagrad (Duchi, Hazan and Singer, 2011) with TensorFlow's initial accumulator, and epsilon
//! outside the root as in TensorFlow 2 and PyTorch.

use serde::{Deserialize, Serialize};

use super::tiny::{flush, flush_root};
use super::{Rule, Slots, Update};

/// `a += g²; p -= lr·g / (√a + ε)`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adagrad {
    /// The initial value of `a`, which keeps the first steps small.
    pub initial_accumulator: f32,
    /// Keeps the divisor from zero, `ε`.
    pub epsilon: f32,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self { initial_accumulator: 0.1, epsilon: 1e-7 }
    }
}

impl Rule for Adagrad {
    fn slot_names(&self) -> &'static [&'static str] {
        &["accumulator"]
    }

    fn slot_initial(&self, _slot: usize) -> f32 {
        self.initial_accumulator
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        let Update { learning_rate, scale, .. } = *update;
        let epsilon = self.epsilon;
        let [accumulator, _] = slots;
        for ((value, accumulator), gradient) in values.iter_mut().zip(accumulator).zip(gradient) {
            let gradient = flush_root(*gradient) * scale;
            *accumulator = flush(*accumulator + gradient * gradient);
            *value = flush(*value - learning_rate * gradient / (accumulator.sqrt() + epsilon));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::optimizer::tests::assert_trajectory;

    #[test]
    fn adagrad_divides_by_the_root_of_all_squares_so_far() {
        // a = 0.11 + 0.5² = 0.36, + 0.8² = 1, + 1.5² = 3.25
        let optimizer = Optimizer::Adagrad(Adagrad { initial_accumulator: 0.11, epsilon: 0.0 });
        let first = 1.0 - 0.1 * 0.5 / 0.6;
        let second = first + 0.1 * 0.8 / 1.0;
        let third = second - 0.1 * 1.5 / 3.25_f64.sqrt();
        assert_trajectory(optimizer, 0.1, &[0.5, -0.8, 1.5], &[first, second, third]);
    }

    #[test]
    fn adagrad_adds_epsilon_outside_the_root() {
        // a = 0.11 + 0.5² = 0.36; 0.1·0.5 / (0.6 + 0.4)
        let optimizer = Optimizer::Adagrad(Adagrad { initial_accumulator: 0.11, epsilon: 0.4 });
        assert_trajectory(optimizer, 0.1, &[0.5], &[0.95]);
    }
}
