//! RMSProp (Tieleman and Hinton, 2012) as in TensorFlow 1's `RMSPropOptimizer`, not centered: epsilon inside the root,
//! the mean square starting from 1, the learning rate inside the momentum.

use serde::{Deserialize, Serialize};

use super::tiny::{flush, flush_root};
use super::{Rule, Slots, Update};

/// `s = d·s + (1-d)·g²; v = m·v + lr·g / √(s + ε); p -= v`
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RmsProp {
    /// The decay rate of the mean square, `d`.
    pub decay: f32,
    /// The share of the last movement that is kept, `m`; if 0, there is no slot for it.
    pub momentum: f32,
    /// Keeps the divisor from zero, `ε`.
    pub epsilon: f32,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self { decay: 0.9, momentum: 0.0, epsilon: 1e-10 }
    }
}

impl Rule for RmsProp {
    fn slot_names(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &["mean_square"] } else { &["mean_square", "velocity"] }
    }

    fn slot_initial(&self, slot: usize) -> f32 {
        if slot == 0 { 1.0 } else { 0.0 }
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        let Update { learning_rate, scale, .. } = *update;
        let &RmsProp { decay, momentum, epsilon } = self;
        let rest = 1.0 - decay;
        let [square, velocity] = slots;
        let state = values.iter_mut().zip(square).zip(gradient);
        if momentum == 0.0 {
            for ((value, square), gradient) in state {
                let gradient = flush_root(*gradient) * scale;
                *square = flush(decay * *square + rest * (gradient * gradient));
                *value = flush(*value - learning_rate * gradient / (*square + epsilon).sqrt());
            }
        } else {
            for (((value, square), gradient), velocity) in state.zip(velocity) {
                let gradient = flush_root(*gradient) * scale;
                *square = flush(decay * *square + rest * (gradient * gradient));
                *velocity = flush(momentum * *velocity + learning_rate * gradient / (*square + epsilon).sqrt());
                *value = flush(*value - *velocity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::optimizer::tests::assert_trajectory;

    const GRADIENTS: [f64; 3] = [2.0, -4.0, 1.0];

    /// `lr·g / √(s + ε)` for d = 0.75, ε = 0.5 and rate 0.1: the mean squares of those gradients
    /// are 0.75·1 + 0.25·4 = 1.75, 0.75·1.75 + 0.25·16 = 5.3125 and 0.75·5.3125 + 0.25 = 4.234375.
    fn pushes() -> [f64; 3] {
        [0.2 / 2.25_f64.sqrt(), -0.4 / 5.8125_f64.sqrt(), 0.1 / 4.734375_f64.sqrt()]
    }

    #[test]
    fn rmsprop_divides_by_the_root_of_a_mean_square_that_starts_from_one() {
        let [first, second, third] = pushes();
        let optimizer = Optimizer::RmsProp(RmsProp { decay: 0.75, momentum: 0.0, epsilon: 0.5 });
        let expected = [1.0 - first, 1.0 - first - second, 1.0 - first - second - third];
        assert_trajectory(optimizer, 0.1, &GRADIENTS, &expected);
    }

    #[test]
    fn rmsprop_with_momentum_repeats_part_of_the_last_movement() {
        let [first, second, third] = pushes();
        let optimizer = Optimizer::RmsProp(RmsProp { decay: 0.75, momentum: 0.5, epsilon: 0.5 });
        // Half of each push is repeated a step later, and a quarter the step after that.
        let expected = [1.0 - first, 1.0 - 1.5 * first - second, 1.0 - 1.75 * first - 1.5 * second - third];
        assert_trajectory(optimizer, 0.1, &GRADIENTS, &expected);
    }

    #[test]
    fn rmsprop_keeps_a_slot_for_momentum_only_if_there_is_momentum() {
        assert_eq!(RmsProp::default().slot_names(), ["mean_square"]);
        assert_eq!(RmsProp { momentum: 0.9, ..RmsProp::default() }.slot_names(), ["mean_square", "velocity"]);
    }
}
