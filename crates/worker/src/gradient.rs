//! The gradient of a step as one vector over all parameters, dense or by row: its norm, and whether it may be pushed.

use windlass_core::vector::vectorised;

use crate::buffer::TensorBuffer;

/// The number of partial sums, so that the compiler adds them with vector instructions.
const LANES: usize = 8;

/// Returns the norm. In double precision it cannot overflow: it is finite if and only if every value is.
pub(crate) fn norm(gradients: &[TensorBuffer]) -> f64 {
    gradients.iter().map(|values| sum_of_squares(values)).sum::<f64>().sqrt()
}

/// Scales a gradient with this norm down to `largest` if the norm exceeds it. The direction stays the same.
pub(crate) fn clip(gradients: &mut [TensorBuffer], norm: f64, largest: f32) {
    if norm > f64::from(largest) {
        // In single precision, the norm of a finite gradient may be infinite, and the scale zero.
        let scale = f64::from(largest) / norm;
        let scaled = |value: &mut f32| *value = (f64::from(*value) * scale) as f32;
        gradients.iter_mut().for_each(|values| values.iter_mut().for_each(scaled));
    }
}

/// Returns the first value that is infinite or NaN, and the index of its parameter.
pub(crate) fn not_finite(gradients: &[TensorBuffer]) -> Option<(usize, f32)> {
    gradients.iter().enumerate().find_map(|(parameter, values)| Some((parameter, first_not_finite(values)?)))
}

/// Returns the first value that is infinite or NaN.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<f32> {
    // The search cannot be vectorised, so it runs only if there is something to find.
    if all_finite(values) { None } else { values.iter().copied().find(|value| !value.is_finite()) }
}

/// Has no early return, which would keep the loop from being vectorised.
fn all_finite(values: &[f32]) -> bool {
    vectorised(
        #[inline(always)]
        || values.iter().fold(true, |finite, value| finite & value.is_finite()),
    )
}

fn sum_of_squares(values: &[f32]) -> f64 {
    vectorised(
        #[inline(always)]
        || {
            let mut lanes = [0.0; LANES];
            let (chunks, rest) = values.as_chunks::<LANES>();
            for chunk in chunks {
                for (lane, value) in lanes.iter_mut().zip(chunk) {
                    *lane += f64::from(*value) * f64::from(*value);
                }
            }
            for (lane, value) in lanes.iter_mut().zip(rest) {
                *lane += f64::from(*value) * f64::from(*value);
            }
            lanes.iter().sum()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(gradients: Vec<Vec<f32>>) -> Vec<TensorBuffer> {
        gradients.into_iter().map(TensorBuffer::from).collect()
    }

    #[test]
    fn a_large_gradient_is_scaled_as_a_whole() {
        let mut gradients = buffers(vec![vec![3.0, 0.0], vec![], vec![0.0; 20]]);
        gradients[2][17] = -4.0;
        let norm = norm(&gradients);
        assert_eq!(norm, 5.0);
        clip(&mut gradients, norm, 2.5);
        assert_eq!((&gradients[0][..], gradients[2][17]), (&[1.5, 0.0][..], -2.0));
    }

    #[test]
    fn a_small_gradient_is_left_alone() {
        let mut gradients = buffers(vec![vec![3.0], vec![4.0]]);
        clip(&mut gradients, 5.0, 5.0);
        assert_eq!([gradients[0][0], gradients[1][0]], [3.0, 4.0]);
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_wherever_it_is() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 1, 30, 31, 32, 99] {
                let mut gradients = buffers(vec![vec![f32::MAX; 7], vec![-1.0; 100]]);
                assert_eq!(not_finite(&gradients), None);
                gradients[1][place] = bad;
                let (parameter, found) = not_finite(&gradients).unwrap();
                assert_eq!((parameter, found.to_bits()), (1, bad.to_bits()));
                assert!(!norm(&gradients).is_finite());
            }
        }
    }

    #[test]
    fn the_largest_finite_gradient_has_a_finite_norm() {
        assert!(norm(&buffers(vec![vec![f32::MAX; 1000]; 3])).is_finite());
    }

    #[test]
    fn a_gradient_whose_norm_overflows_single_precision_is_clipped_to_the_norm_and_not_to_zero() {
        let mut gradients = buffers(vec![vec![f32::MAX; 300], vec![-f32::MAX; 100]]);
        let before = norm(&gradients);
        assert!((before as f32).is_infinite());
        clip(&mut gradients, before, 2.0);
        assert!((norm(&gradients) - 2.0).abs() < 1e-6, "{}", norm(&gradients));
        assert_eq!((gradients[0][0], gradients[1][0]), (0.1, -0.1));
    }

    #[test]
    fn a_large_gradient_keeps_a_norm_that_is_close_to_the_smallest_number() {
        let mut gradients = buffers(vec![vec![f32::MAX, 0.0]]);
        clip(&mut gradients, f64::from(f32::MAX), 1e-30);
        assert_eq!(&gradients[0][..], &[1e-30, 0.0]);
    }
}
