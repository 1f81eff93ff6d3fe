//! Treats numbers too small to matter as zero, long before they are denormal.
//!
//! A mean that decays ends among the denormal numbers, below 2^-126, and stays there: rounding stops it before zero.
//! Intel's processors take a hundred times as long for each of them. TensorFlow sets the processor to flush them to
//! zero, but Rust code must not run in that mode; and this way the same zeros are stored on every processor. The limits
//! are far enough above 2^-126 that products with rates and decays are not denormal either.

/// Numbers closer to zero than this, about 8e-31, become zero: 2^-100.
const TINY: f32 = f32::from_bits((127 - 100) << 23);
/// The same limit for numbers that will be squared, about 9e-16: 2^-50.
const TINY_ROOT: f32 = f32::from_bits((127 - 50) << 23);
/// The same limit for means of squares whose root divides equally small numbers, about 8e-37: 2^-120. Such a mean only
/// ever decays and has its root taken, and for that this is far enough from 2^-126.
const TINY_SQUARE: f32 = f32::from_bits((127 - 120) << 23);

/// Returns a value, slot or gradient, or zero if it is tiny. NaN stays NaN.
#[inline(always)]
pub(crate) fn flush(value: f32) -> f32 {
    if value.abs() < TINY { 0.0 } else { value }
}

/// Returns a gradient that will be squared, or zero if its square would be tiny.
#[inline(always)]
pub(super) fn flush_root(gradient: f32) -> f32 {
    if gradient.abs() < TINY_ROOT { 0.0 } else { gradient }
}

/// Returns a mean of squares, or zero if it is tiny.
#[inline(always)]
pub(super) fn flush_square(mean: f32) -> f32 {
    if mean < TINY_SQUARE { 0.0 } else { mean }
}

/// The smallest gradient whose square, weighted by this share, leaves a mean of squares that is not tiny.
pub(super) fn least_root(share: f32) -> f32 {
    (TINY_SQUARE / share).sqrt()
}

/// Returns a gradient, or zero if its absolute value is less than `least`.
#[inline(always)]
pub(super) fn flush_below(gradient: f32, least: f32) -> f32 {
    if gradient.abs() < least { 0.0 } else { gradient }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::optimizer::tests::variants;
    use crate::optimizer::{Adam, MAX_SLOTS, Optimizer, Update};

    fn numbers(block: &Block) -> impl Iterator<Item = f32> {
        block.values.iter().chain(block.slots.iter().flatten()).copied()
    }

    fn update(step: u64) -> Update {
        Update { learning_rate: 0.01, step, scale: 1.0 }
    }

    /// Gradients from 1 down to the smallest denormal number, by factors of two and with both signs.
    fn gradients() -> Vec<f32> {
        (0..150).map(|power| 0.5_f32.powi(power) * if power % 2 == 0 { 1.0 } else { -1.0 }).collect()
    }

    #[test]
    fn no_optimizer_leaves_a_denormal_number_behind() {
        let gradients = gradients();
        let none = vec![0.0; gradients.len()];
        for optimizer in variants() {
            let mut block = Block::new(gradients.len(), &optimizer);
            // Values as small as the gradients that change them.
            block.values.copy_from_slice(&gradients);
            for step in 1..=2_000 {
                // Three gradients, and then none: all means decay.
                let gradient = if step <= 3 { &gradients } else { &none };
                block.apply(&optimizer, &update(step), gradient);
                let denormal = numbers(&block).find(|number| number.is_subnormal());
                assert_eq!(denormal, None, "{optimizer:?} in step {step}");
            }
        }
    }

    #[test]
    fn a_mean_decays_by_the_formula_to_2_to_the_minus_100_and_then_is_zero() {
        let optimizer = Optimizer::Adam(Adam::default());
        let mut block = Block::new(1, &optimizer);
        let (mut mean, mut gone) = (0.0_f32, 0);
        for step in 1..=1_000 {
            let gradient = if step == 1 { 0.7 } else { 0.0 };
            block.apply(&optimizer, &update(step), &[gradient]);
            mean = 0.9 * mean + (1.0 - 0.9) * gradient;
            let expected = if mean < TINY { 0.0 } else { mean };
            assert_eq!(block.slots[0][0].to_bits(), expected.to_bits(), "in step {step}");
            gone += u32::from(expected == 0.0);
        }
        // 0.07·0.9^t is below 2^-100 from t = 633 on.
        assert_eq!(gone, 1_000 - 633);
    }

    #[test]
    fn what_is_not_tiny_keeps_its_bits() {
        for value in [TINY, -TINY, 1e-30, -3.0, f32::MAX, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(flush(value).to_bits(), value.to_bits());
        }
        assert_eq!([TINY_ROOT, -TINY_ROOT].map(flush_root), [TINY_ROOT, -TINY_ROOT]);
        assert!(flush(f32::NAN).is_nan() && flush_root(f32::NAN).is_nan());
        assert_eq!([0.99 * TINY, -1e-40, -0.0].map(|tiny| flush(tiny).to_bits()), [0; 3]);
        assert_eq!([0.99 * TINY_ROOT, -1e-40].map(|tiny| flush_root(tiny).to_bits()), [0; 2]);
    }

    #[test]
    fn wide_vectors_compute_the_same_bits_as_narrow_ones() {
        let gradients = gradients();
        for optimizer in variants() {
            let mut wide = Block::new(gradients.len(), &optimizer);
            wide.values.copy_from_slice(&gradients);
            let mut narrow = wide.clone();
            for step in 1..=5 {
                wide.apply(&optimizer, &update(step), &gradients);
                let mut slots = narrow.slots.iter_mut().map(Vec::as_mut_slice);
                let slots: [&mut [f32]; MAX_SLOTS] = std::array::from_fn(|_| slots.next().unwrap_or_default());
                optimizer.rule().pass(&update(step), &mut narrow.values, slots, &gradients);
            }
            let bits = |block: &Block| numbers(block).map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(&wide), bits(&narrow), "{optimizer:?}");
        }
    }
}
