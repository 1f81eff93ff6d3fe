//! Operations fused for the CPU, with written backward passes.
//!
//! Burn composes these from several passes over memory, with scalar exponentials; here each is one pass that the
//! compiler turns into vector instructions. They are extensions of Burn's `Flex` backend and of its autodiff.

mod activation;
mod backward;
mod convolution;
mod exponential;
mod floats;
mod loss;
mod matrix;
mod sampler;
mod softplus;
mod squared_error;

pub use convolution::{ConvolutionOps, convolution_relu};
pub use sampler::{SamplerOps, affine_sample};
pub use softplus::{SoftplusOps, softplus};
pub use squared_error::{SquaredErrorOps, half_squared_error};

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::tensor::{Int, Tensor};

/// The fused operations, as a backend implements them.
#[backend_extension(Flex, Autodiff)]
pub trait FusedOps: Backend {
    /// 1 / (1 + e^-x), element by element.
    fn fused_sigmoid(input: FloatTensor<Self>) -> FloatTensor<Self>;

    /// For rows of scores and the right class of each row: the cross-entropy of the row's softmax, and that softmax.
    fn fused_cross_entropy(
        scores: FloatTensor<Self>,
        classes: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// The gradient of the scores, from the softmax, the classes, and the gradient of each row's cross-entropy.
    fn fused_cross_entropy_backward(
        softmax: FloatTensor<Self>,
        classes: IntTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// 1 / (1 + e^-x), element by element.
pub fn sigmoid<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::fused_sigmoid(input.into_dispatch()))
}

/// The softmax cross-entropy of every row of scores with the right class of that row.
pub fn cross_entropy(scores: Tensor<2>, classes: Tensor<1, Int>) -> Tensor<1> {
    let (loss, _softmax) = Dispatch::fused_cross_entropy(scores.into_dispatch(), classes.into_dispatch());
    Tensor::from_dispatch(loss)
}

#[cfg(test)]
mod tests {
    use burn::tensor::activation::log_softmax;
    use burn::tensor::{Device, TensorData, Tolerance};

    use super::*;

    fn device() -> Device {
        Device::flex().autodiff()
    }

    fn scores(device: &Device) -> Tensor<2> {
        let values: Vec<f32> = (0..40).map(|index| ((index * 37) % 23) as f32 / 3.0 - 4.0).collect();
        Tensor::from_data(TensorData::new(values, [8, 5]), device).require_grad()
    }

    fn classes(device: &Device) -> Tensor<1, Int> {
        Tensor::from_data(TensorData::new(vec![0i64, 4, 2, 1, 3, 3, 0, 4], [8]), device)
    }

    fn weights(device: &Device) -> Tensor<1> {
        Tensor::from_data(TensorData::from([1.0f32, -2.0, 0.5, 3.0, 1.5, 0.25, -1.0, 2.0]), device)
    }

    #[test]
    fn sigmoid_and_its_gradient_equal_the_composed_form() {
        let device = device();
        let (ours, theirs) = (scores(&device), scores(&device));
        let fused = sigmoid(ours.clone());
        let composed = burn::tensor::activation::sigmoid(theirs.clone());
        let tolerance = Tolerance::<f32>::rel_abs(1e-5, 1e-6);
        fused.clone().inner().into_data().assert_approx_eq(&composed.clone().inner().into_data(), tolerance);
        let square = |output: Tensor<2>| (output.clone() * output).sum();
        let gradients = square(fused).backward();
        let expected = square(composed).backward();
        let (gradient, expected) = (ours.grad(&gradients).unwrap(), theirs.grad(&expected).unwrap());
        gradient.into_data().assert_approx_eq(&expected.into_data(), tolerance);
    }

    #[test]
    fn cross_entropy_and_its_gradient_equal_the_composed_form() {
        let device = device();
        let (ours, theirs) = (scores(&device), scores(&device));
        let fused = cross_entropy(ours.clone(), classes(&device));
        let chosen = log_softmax(theirs.clone(), 1).gather(1, classes(&device).unsqueeze_dim(1));
        let composed = chosen.neg().squeeze_dim::<1>(1);
        let tolerance = Tolerance::<f32>::rel_abs(1e-5, 1e-6);
        fused.clone().inner().into_data().assert_approx_eq(&composed.clone().inner().into_data(), tolerance);
        let gradients = (fused * weights(&device)).sum().backward();
        let expected = (composed * weights(&device)).sum().backward();
        let (gradient, expected) = (ours.grad(&gradients).unwrap(), theirs.grad(&expected).unwrap());
        gradient.into_data().assert_approx_eq(&expected.into_data(), tolerance);
    }

    /// Central differences in single precision are good to about three digits.
    #[test]
    fn gradients_agree_with_finite_differences() {
        let device = device();
        let loss = |scores: Tensor<2>| cross_entropy(sigmoid(scores) * 3.0, classes(&device)).mean();
        let input = scores(&device);
        let gradients = loss(input.clone()).backward();
        let gradient: Vec<f32> = input.grad(&gradients).unwrap().into_data().iter::<f32>().collect();
        let values: Vec<f32> = input.inner().into_data().iter::<f32>().collect();
        let step = 1e-2;
        for index in 0..values.len() {
            let at = |offset: f32| {
                let mut moved = values.clone();
                moved[index] += offset;
                let moved = Tensor::from_data(TensorData::new(moved, [8, 5]), &device);
                loss(moved).into_data().iter::<f32>().next().unwrap()
            };
            let difference = (at(step) - at(-step)) / (2.0 * step);
            assert!((difference - gradient[index]).abs() < 2e-4, "{index}: {difference} {}", gradient[index]);
        }
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        let device = Device::flex();
        let input = Tensor::<1>::from_data(TensorData::from([f32::NAN, 1e30, -1e30, 0.0]), &device);
        let output: Vec<f32> = sigmoid(input).into_data().iter::<f32>().collect();
        assert!(output[0].is_nan());
        assert_eq!(output[1..], [1.0, output[2], 0.5]);
        assert!(output[2] < 1e-37);
        let scores = Tensor::<2>::from_data(TensorData::from([[f32::NAN, 1.0]]), &device);
        let class = Tensor::<1, Int>::from_data(TensorData::from([1i64]), &device);
        assert!(cross_entropy(scores, class).into_data().iter::<f32>().all(f32::is_nan));
    }
}
