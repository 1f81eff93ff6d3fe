//! The gradient of a step as one vector over all parameters, dense or by rows: its length, and whether it is fit to be
//! pushed.

use windlass_core::vector::vectorised;

use crate::buffer::TensorBuffer;

/// Sums that are kept beside each other, so that the compiler adds them with vector instructions.
const LANES: usize = 8;

/// Its length. In double precision no finite gradient is too long: the length is finite just if every number is.
pub(crate) fn norm(gradients: &[TensorBuffer]) -> f64 {
    gradients.iter().map(|values| sum_of_squares(values)).sum::<f64>().sqrt()
}

/// Scales the gradient, which has this length, down to `longest` if it is longer. Its direction stays.
pub(crate) fn clip(gradients: &mut [TensorBuffer], norm: f64, longest: f32) {
    let length = norm as f32;
    if length > longest {
        let scale = longest / length;
        gradients.iter_mut().for_each(|values| values.iter_mut().for_each(|value| *value *= scale));
    }
}

/// The first number that is infinite or not one, and the parameter it belongs to.
pub(crate) fn not_finite(gradients: &[TensorBuffer]) -> Option<(usize, f32)> {
    gradients.iter().enumerate().find_map(|(parameter, values)| Some((parameter, first_not_finite(values)?)))
}

/// The first of some numbers that is infinite or not one.
pub(crate) fn first_not_finite(values: &[f32]) -> Option<f32> {
    // Looked for only if there is one: that cannot be vectorised.
    if all_finite(values) { None } else { values.iter().copied().find(|value| !value.is_finite()) }
}

/// Without a way out of the loop, which would keep it from being vectorised.
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
    fn a_long_gradient_is_scaled_as_a_whole() {
        let mut gradients = buffers(vec![vec![3.0, 0.0], vec![], vec![0.0; 20]]);
        gradients[2][17] = -4.0;
        let norm = norm(&gradients);
        assert_eq!(norm, 5.0);
        clip(&mut gradients, norm, 2.5);
        assert_eq!((&gradients[0][..], gradients[2][17]), (&[1.5, 0.0][..], -2.0));
    }

    #[test]
    fn a_short_gradient_is_left_alone() {
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
    fn the_longest_finite_gradient_has_a_finite_length() {
        assert!(norm(&buffers(vec![vec![f32::MAX; 1000]; 3])).is_finite());
    }
}
