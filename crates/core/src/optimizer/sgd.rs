//! Plain gradient descent. It keeps no state.

use super::tiny::flush;
use super::{Rule, Slots, Update};

/// `p -= lr·g`
pub(super) struct Sgd;

impl Rule for Sgd {
    fn slot_names(&self) -> &'static [&'static str] {
        &[]
    }

    #[inline(always)]
    fn pass(&self, update: &Update, values: &mut [f32], _slots: Slots<'_>, gradient: &[f32]) {
        let rate = update.learning_rate * update.scale;
        for (value, gradient) in values.iter_mut().zip(gradient) {
            *value = flush(*value - rate * flush(*gradient));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::optimizer::Optimizer;
    use crate::optimizer::tests::assert_trajectory;

    #[test]
    fn sgd_steps_against_the_gradient() {
        // 1 - 0.1·0.5, then + 0.1·0.25, then - 0.1·1
        assert_trajectory(Optimizer::Sgd, 0.1, &[0.5, -0.25, 1.0], &[0.95, 0.975, 0.875]);
    }
}
