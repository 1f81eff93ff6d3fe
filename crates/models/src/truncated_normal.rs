//! Weights drawn from a normal distribution cut off at two standard deviations.

use burn::module::Param;
use burn::tensor::{Device, Distribution, Tensor, TensorData};

/// Values further from the mean than this many standard deviations are redrawn.
const CUT: f64 = 2.0;

/// A parameter of this shape with such weights, from Burn's random numbers.
pub(crate) fn truncated_normal<const D: usize>(
    shape: [usize; D],
    standard_deviation: f64,
    device: &Device,
) -> Param<Tensor<D>> {
    let draw = |count: usize| {
        let drawn = Tensor::<1>::random([count], Distribution::Normal(0.0, standard_deviation), device);
        drawn.into_data().try_into_vec::<f32>().expect("weights are f32")
    };
    let limit = (CUT * standard_deviation) as f32;
    let mut weights = draw(shape.iter().product());
    let mut outside: Vec<usize> = (0..weights.len()).filter(|index| weights[*index].abs() > limit).collect();
    while !outside.is_empty() {
        let drawn = draw(outside.len());
        outside.iter().zip(drawn).for_each(|(index, weight)| weights[*index] = weight);
        outside.retain(|index| weights[*index].abs() > limit);
    }
    Param::from_tensor(Tensor::from_data(TensorData::new(weights, shape), device))
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
        // A normal distribution cut off at two deviations has 0.880 of its original deviation.
        assert!((variance.sqrt() - 0.0880).abs() < 0.001, "{}", variance.sqrt());
    }
}
