//! Weights drawn from a normal distribution cut off at two standard deviations.

use burn::module::Param;
use burn::tensor::{Device, Distribution, Tensor};

/// Values further out than this many standard deviations are drawn anew.
const CUT: f64 = 2.0;

/// A parameter of this shape with such weights, from Burn's random numbers.
pub(crate) fn truncated_normal<const D: usize>(
    shape: [usize; D],
    standard_deviation: f64,
    device: &Device,
) -> Param<Tensor<D>> {
    let draw = || Tensor::<D>::random(shape, Distribution::Normal(0.0, standard_deviation), device);
    let limit = CUT * standard_deviation;
    let mut weights = draw();
    // One draw in twenty-two is outside; after this many rounds none is, even of billions.
    for _ in 0..16 {
        let outside = weights.clone().abs().greater_elem(limit);
        weights = weights.mask_where(outside, draw());
    }
    Param::from_tensor(weights.clamp(-limit, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_stay_within_two_deviations_and_have_the_right_spread() {
        let device = Device::flex();
        device.seed(1);
        let weights = truncated_normal([200, 200], 0.1, &device).val().into_data();
        let weights: Vec<f64> = weights.iter::<f64>().collect();
        assert!(weights.iter().all(|weight| weight.abs() <= 0.2 + 1e-9));
        let variance = weights.iter().map(|weight| weight * weight).sum::<f64>() / weights.len() as f64;
        // The deviation of a normal distribution cut off at two is 0.880 of it.
        assert!((variance.sqrt() - 0.0880).abs() < 0.001, "{}", variance.sqrt());
    }
}
