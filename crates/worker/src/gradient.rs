//! The gradient of a step as one vector over all parameters, dense or by rows: its length.

use windlass_core::vector::vectorised;

use crate::buffer::TensorBuffer;

/// Sums that are kept beside each other, so that the compiler adds them with vector instructions.
const LANES: usize = 8;

/// Its length.
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
}
