//! Clips a gradient by its length as a whole, over all parameters, dense or by rows.

/// Sums that are kept beside each other, so that the compiler adds them with vector instructions.
const LANES: usize = 8;

/// Scales the gradient down to `longest` if it is longer. Its direction stays.
pub(crate) fn clip(gradients: &mut [Vec<f32>], longest: f32) {
    let length = gradients.iter().map(|values| sum_of_squares(values)).sum::<f64>().sqrt() as f32;
    if length > longest {
        let scale = longest / length;
        gradients.iter_mut().for_each(|values| values.iter_mut().for_each(|value| *value *= scale));
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    for values in values.chunks(LANES) {
        for (lane, value) in lanes.iter_mut().zip(values) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gradient_is_scaled_as_a_whole() {
        let mut gradients = vec![vec![3.0, 0.0], vec![], vec![0.0; 20]];
        gradients[2][17] = -4.0;
        clip(&mut gradients, 2.5);
        assert_eq!((&gradients[0][..], gradients[2][17]), (&[1.5, 0.0][..], -2.0));
    }

    #[test]
    fn a_short_gradient_is_left_alone() {
        let gradients = vec![vec![3.0], vec![4.0]];
        let mut clipped = gradients.clone();
        clip(&mut clipped, 5.0);
        assert_eq!(clipped, gradients);
    }
}
