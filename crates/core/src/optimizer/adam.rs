//! Adam (Kingma and Ba, 2015, algorithm 1) and AdamW (Loshchilov and Hutter, 2019, algorithm 2), as
//! PyTorch computes them: epsilon is added to the bias-corrected root, and AdamW's decay is
//! multiplied by the learning rate.

use serde::{Deserialize, Serialize};

use super::tiny::{flush, flush_below, flush_square, least_root};
use super::{Rule, Slots, Update};

/// `m = β₁·m + (1-β₁)·g; v = β₂·v + (1-β₂)·g²; p -= lr·m̂ / (√v̂ + ε)`, where in step `t`
/// `m̂ = m / (1-β₁ᵗ)` and `v̂ = v / (1-β₂ᵗ)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// The decay rate of the mean gradient, `β₁`.
    pub beta1: f32,
    /// The decay rate of the mean squared gradient, `β₂`.
    pub beta2: f32,
    /// Keeps the divisor from zero, `ε`.
    pub epsilon: f32,
}

/// As [`Adam`], after `p -= lr·λ·p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// The decay rate of the mean gradient, `β₁`.
    pub beta1: f32,
    /// The decay rate of the mean squared gradient, `β₂`.
    pub beta2: f32,
    /// Keeps the divisor from zero, `ε`.
    pub epsilon: f32,
    /// The share of a value that decays per unit of learning rate, `λ`.
    pub weight_decay: f32,
}

impl Default for Adam {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }
    }
}

impl Default for AdamW {
    fn default() -> Self {
        let Adam { beta1, beta2, epsilon } = Adam::default();
        Self { beta1, beta2, epsilon, weight_decay: 0.01 }
    }
}

impl Rule for Adam {
    fn slot_names(&self) -> &'static [&'static str] {
        &["first_moment", "second_moment"]
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        let &Adam { beta1, beta2, epsilon } = self;
        AdamW { beta1, beta2, epsilon, weight_decay: 0.0 }.pass(update, values, slots, gradient);
    }
}

impl Rule for AdamW {
    fn slot_names(&self) -> &'static [&'static str] {
        &["first_moment", "second_moment"]
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        let Update { learning_rate, step, scale } = *update;
        let &AdamW { beta1, beta2, epsilon, weight_decay } = self;
        let (rest1, rest2) = (1.0 - beta1, 1.0 - beta2);
        let rate = (f64::from(learning_rate) / bias_correction(beta1, step)) as f32;
        let root = (1.0 / bias_correction(beta2, step).sqrt()) as f32;
        let keep = 1.0 - learning_rate * weight_decay;
        let least = least_root(rest2) / scale;
        let [mean, square] = slots;
        for (((value, mean), square), gradient) in values.iter_mut().zip(mean).zip(square).zip(gradient) {
            let gradient = flush_below(*gradient, least) * scale;
            *square = flush_square(beta2 * *square + rest2 * (gradient * gradient));
            let moved = flush(beta1 * *mean + rest1 * gradient);
            // Flush both or neither: with an even smaller epsilon, a mean without its root would make a huge step.
            *mean = if *square == 0.0 { 0.0 } else { moved };
            *value = flush(keep * *value - rate * *mean / (square.sqrt() * root + epsilon));
        }
    }
}

/// `1 - βᵗ`, in f64 because a β near 1 leaves few significant digits in f32.
fn bias_correction(beta: f32, step: u64) -> f64 {
    1.0 - f64::from(beta).powi(i32::try_from(step).unwrap_or(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::optimizer::Optimizer;
    use crate::optimizer::tests::assert_trajectory;

    const GRADIENTS: [f64; 3] = [0.5, -0.25, 1.0];

    /// The amount that Adam subtracts in each of three steps with β₁ = 0.5, β₂ = 0.75, ε = 0.1 and rate 0.1, with the
    /// moments written out as weighted means of the gradients so far.
    fn steps() -> [f64; 3] {
        let [a, b, c] = GRADIENTS;
        let means = [a, (a + 2.0 * b) / 3.0, (a + 2.0 * b + 4.0 * c) / 7.0];
        let squares = [a * a, (3.0 * a * a + 4.0 * b * b) / 7.0, (9.0 * a * a + 12.0 * b * b + 16.0 * c * c) / 37.0];
        [0, 1, 2].map(|step| 0.1 * means[step] / (squares[step].sqrt() + 0.1))
    }

    #[test]
    fn adam_moves_by_the_corrected_mean_over_the_corrected_root() {
        let [first, second, third] = steps();
        let optimizer = Optimizer::Adam(Adam { beta1: 0.5, beta2: 0.75, epsilon: 0.1 });
        let expected = [1.0 - first, 1.0 - first - second, 1.0 - first - second - third];
        assert_trajectory(optimizer, 0.1, &GRADIENTS, &expected);
    }

    #[test]
    fn adamw_decays_the_value_before_each_step_of_adam() {
        let [first, second, third] = steps();
        let (beta1, beta2, epsilon) = (0.5, 0.75, 0.1);
        let optimizer = Optimizer::AdamW(AdamW { beta1, beta2, epsilon, weight_decay: 0.2 });
        // Each step keeps 1 - 0.1·0.2 = 0.98 of the value.
        let expected = [0.98 - first, 0.98 * (0.98 - first) - second, 0.98 * (0.98 * (0.98 - first) - second) - third];
        assert_trajectory(optimizer, 0.1, &GRADIENTS, &expected);
    }

    #[test]
    fn adam_with_the_usual_constants_first_moves_by_the_learning_rate() {
        let optimizer = Optimizer::Adam(Adam::default());
        assert_trajectory(optimizer, 0.001, &[3e-3], &[0.999]);
        assert_trajectory(optimizer, 0.001, &[-7e3], &[1.001]);
    }

    /// Adam in double precision, starting from the value 0.
    fn oracle(adam: Adam, learning_rate: f64, gradients: impl Iterator<Item = f64>) -> f64 {
        let [beta1, beta2, epsilon] = [adam.beta1, adam.beta2, adam.epsilon].map(f64::from);
        let (mut value, mut mean, mut square) = (0.0, 0.0, 0.0);
        for (step, gradient) in (1..).zip(gradients) {
            mean = beta1 * mean + (1.0 - beta1) * gradient;
            square = beta2 * square + (1.0 - beta2) * gradient * gradient;
            let corrected = [(mean, beta1), (square, beta2)].map(|(mean, beta)| mean / (1.0 - f64::powi(beta, step)));
            value -= learning_rate * corrected[0] / (corrected[1].sqrt() + epsilon);
        }
        value
    }

    /// The result of training the value 0.
    fn trained(adam: Adam, learning_rate: f32, gradients: impl Iterator<Item = f64>, scale: f32) -> f64 {
        let optimizer = Optimizer::Adam(adam);
        let mut block = Block::new(1, &optimizer);
        for (step, gradient) in (1..).zip(gradients) {
            block.apply(&optimizer, &Update { learning_rate, step, scale }, &[(gradient / f64::from(scale)) as f32]);
        }
        block.values[0].into()
    }

    #[test]
    fn with_a_tiny_epsilon_tiny_gradients_move_a_value_as_the_formula_has_it() {
        let adam = Adam { epsilon: 1e-15, ..Adam::default() };
        for scale in [1.0, 1.0 / 64.0] {
            for gradient in [1e-10, 1e-13, 1e-14, -1e-14, 1e-15, 1e-16] {
                // Ten gradients, and then none.
                let gradients = || (0..1000).map(|step| if step < 10 { gradient } else { 0.0 });
                let (expected, got) = (oracle(adam, 0.01, gradients()), trained(adam, 0.01, gradients(), scale));
                assert!((got / expected - 1.0).abs() < 1e-3, "{gradient:e}: expected {expected}, got {got}");
            }
        }
    }

    #[test]
    fn however_small_a_gradient_is_it_never_moves_a_value_further_than_the_formula() {
        let adam = Adam { epsilon: 1e-20, ..Adam::default() };
        for power in 0..30 {
            // The gradients fade, so that both means reach the limit below which they are zero.
            let gradients = || (0..5000).map(|step| 1e-12 * 0.5_f64.powi(power) * 0.99_f64.powi(step));
            let (expected, got) = (oracle(adam, 0.01, gradients()), trained(adam, 0.01, gradients(), 1.0));
            assert!(got.abs() <= expected.abs() * 1.001, "2^-{power}: {got} instead of {expected}");
        }
    }

    #[test]
    fn the_bias_correction_of_very_late_steps_is_one() {
        assert_eq!(bias_correction(0.999, u64::MAX), 1.0);
    }
}
