//! Gradient descent with a velocity, in the form that TensorFlow and PyTorch share: the learning rate is outside the
//! velocity.

use serde::{Deserialize, Serialize};

use super::tiny::flush;
use super::{Rule, Slots, Update};

/// `v = m·v + g; p -= lr·v`, and with Nesterov's look-ahead `p -= lr·(g + m·v)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Momentum {
    /// The share of the velocity that is kept from one step to the next, `m`.
    pub momentum: f32,
    /// Whether to use Nesterov's look-ahead.
    pub nesterov: bool,
}

impl Default for Momentum {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false }
    }
}

impl Rule for Momentum {
    fn slot_names(&self) -> &'static [&'static str] {
        &["velocity"]
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], slots: Slots<'_>, gradient: &[f32]) {
        let Update { learning_rate, scale, .. } = *update;
        let momentum = self.momentum;
        let [velocity, _] = slots;
        let state = values.iter_mut().zip(velocity).zip(gradient);
        if self.nesterov {
            for ((value, velocity), gradient) in state {
                let gradient = flush(*gradient) * scale;
                *velocity = flush(momentum * *velocity + gradient);
                *value = flush(*value - learning_rate * (gradient + momentum * *velocity));
            }
        } else {
            for ((value, velocity), gradient) in state {
                *velocity = flush(momentum * *velocity + flush(*gradient) * scale);
                *value = flush(*value - learning_rate * *velocity);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::optimizer::tests::assert_trajectory;

    #[test]
    fn momentum_moves_by_its_velocity() {
        // v = 0.5, 0.9·0.5 - 0.25 = 0.2, 0.9·0.2 + 1 = 1.18
        let optimizer = Optimizer::Momentum(Momentum { momentum: 0.9, nesterov: false });
        assert_trajectory(optimizer, 0.1, &[0.5, -0.25, 1.0], &[0.95, 0.93, 0.812]);
    }

    #[test]
    fn nesterov_momentum_looks_one_step_ahead() {
        // The same velocities; g + 0.9·v = 0.95, -0.07, 2.062
        let optimizer = Optimizer::Momentum(Momentum { momentum: 0.9, nesterov: true });
        assert_trajectory(optimizer, 0.1, &[0.5, -0.25, 1.0], &[0.905, 0.912, 0.7058]);
    }
}
