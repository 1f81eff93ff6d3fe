//! Tests of the operations on pictures, against Burn's own and against finite differences.

use burn::tensor::activation::relu;
use burn::tensor::module::conv2d;
use burn::tensor::ops::{ConvOptions, GridSampleOptions, GridSamplePaddingMode, InterpolateMode};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use windlass_ops::{affine_sample, convolution_relu, half_squared_error, softplus};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Pseudorandom numbers between −1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|index| ((index * 7919 + seed * 104_729 + index * index * 31) % 2003) as f32 / 1001.5 - 1.0)
        .collect()
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &device()).require_grad()
}

fn random<const D: usize>(shape: [usize; D], seed: usize) -> Tensor<D> {
    tensor(numbers(shape.iter().product(), seed), shape)
}

/// A weighted sum in which every element has its own weight.
fn weigh<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    let weights = numbers(output.shape().num_elements(), 9);
    let weights = Tensor::<D>::from_data(TensorData::new(weights, output.shape()), &output.device());
    (output * weights).sum()
}

fn assert_near<const D: usize>(ours: Tensor<D>, theirs: Tensor<D>) {
    ours.into_data().assert_approx_eq(&theirs.into_data(), Tolerance::<f32>::rel_abs(1e-4, 1e-4));
}

fn scalar(value: Tensor<1>) -> f64 {
    value.into_data().iter::<f64>().next().unwrap()
}

/// Compares a gradient with central differences, which are accurate to about three digits in single precision.
fn assert_is_gradient<const D: usize>(
    values: &[f32],
    shape: [usize; D],
    gradient: &Tensor<D>,
    step: f32,
    loss: impl Fn(Tensor<D>) -> Tensor<1>,
) {
    let gradient: Vec<f64> = gradient.clone().into_data().iter::<f64>().collect();
    for index in 0..values.len() {
        let at = |offset: f32| {
            let mut moved = values.to_vec();
            moved[index] += offset;
            scalar(loss(tensor(moved, shape)).inner())
        };
        let difference = (at(step) - at(-step)) / (2.0 * f64::from(step));
        let allowed = 5e-3 + 1e-2 * gradient[index].abs();
        assert!((difference - gradient[index]).abs() < allowed, "{index}: {difference} {}", gradient[index]);
    }
}

#[test]
fn a_convolution_and_its_gradients_equal_burns_for_every_stride_padding_and_size() {
    for (images, channels, filters, (height, width), kernel, stride, padding) in [
        (9, 1, 16, (40, 40), 3, 2, 1),
        (5, 16, 16, (20, 20), 3, 2, 1),
        (2, 3, 4, (7, 5), 3, 1, 1),
        (1, 2, 3, (6, 9), 3, 1, 0),
        (3, 2, 5, (8, 8), 5, 3, 2),
        (4, 3, 2, (5, 5), 1, 1, 0),
        (1, 1, 1, (2, 2), 3, 2, 3),
    ] {
        let leaves = || {
            let weight = random([filters, channels, kernel, kernel], 2);
            (random([images, channels, height, width], 1), weight, random([filters], 3))
        };
        let ((input, weight, bias), (input2, weight2, bias2)) = (leaves(), leaves());
        let ours = convolution_relu(input.clone(), weight.clone(), bias.clone(), stride, padding);
        let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
        let theirs = relu(conv2d(input2.clone(), weight2.clone(), Some(bias2.clone()), options));
        assert_near(ours.clone().inner(), theirs.clone().inner());
        let (ours, theirs) = (weigh(ours).backward(), weigh(theirs).backward());
        assert_near(input.grad(&ours).unwrap(), input2.grad(&theirs).unwrap());
        assert_near(weight.grad(&ours).unwrap(), weight2.grad(&theirs).unwrap());
        assert_near(bias.grad(&ours).unwrap(), bias2.grad(&theirs).unwrap());
    }
}

#[test]
fn a_convolution_is_the_same_for_any_number_of_threads() {
    let computed = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (input, weight, bias) = (random([23, 2, 9, 9], 1), random([4, 2, 3, 3], 2), random([4], 3));
            let gradients = weigh(convolution_relu(input.clone(), weight.clone(), bias.clone(), 1, 1)).backward();
            (weight.grad(&gradients).unwrap().into_data(), bias.grad(&gradients).unwrap().into_data())
        })
    };
    assert_eq!(computed(1), computed(3));
}

#[test]
fn gradients_of_a_convolution_agree_with_finite_differences() {
    let (shape, weights) = ([2, 2, 5, 5], [3, 2, 3, 3]);
    // The kink of ReLU would spoil the differences; a bias that exceeds everything else avoids it.
    let bias = || tensor(vec![25.0, 25.0, 25.0], [3]);
    let (input, weight) = (random(shape, 1), random(weights, 2));
    let gradients = weigh(convolution_relu(input.clone(), weight.clone(), bias(), 2, 1)).backward();
    assert_is_gradient(&numbers(100, 1), shape, &input.grad(&gradients).unwrap(), 0.1, |input| {
        weigh(convolution_relu(input, random(weights, 2), bias(), 2, 1))
    });
    assert_is_gradient(&numbers(54, 2), weights, &weight.grad(&gradients).unwrap(), 0.1, |weight| {
        weigh(convolution_relu(random(shape, 1), weight, bias(), 2, 1))
    });
}

#[test]
fn a_convolution_without_gradients_and_with_what_is_not_a_number() {
    let device = Device::flex();
    let input = Tensor::<4>::from_data(TensorData::new(vec![f32::NAN, 1.0, 2.0, 3.0], [1, 1, 2, 2]), &device);
    let weight = Tensor::<4>::from_data(TensorData::new(vec![1.0f32], [1, 1, 1, 1]), &device);
    let bias = Tensor::<1>::from_data(TensorData::from([-2.5f32]), &device);
    let output: Vec<f32> = convolution_relu(input, weight, bias, 1, 0).into_data().iter::<f32>().collect();
    assert!(output[0].is_nan());
    assert_eq!(output[1..], [0.0, 0.0, 0.5]);
}

/// Within the image, partly outside, turned, mirrored, and seeing nothing. No sampled point lies exactly at the centre
/// of a pixel, where the gradient jumps and depends on rounding.
fn transforms() -> Vec<f32> {
    vec![
        0.7613, 0.0021, 0.0137, 0.0017, 0.7719, 0.0231, //
        0.7031, 0.3117, 0.1319, -0.2917, 0.6413, -0.2311, //
        -1.3117, 0.2013, 0.4139, 0.1119, 1.1723, 0.3719, //
        0.3, 0.0, 5.0, 0.0, 0.3, 0.0,
    ]
}

/// The points that the sampler looks at, in the form that Burn's grid sampler expects.
fn grid(transforms: Tensor<2>, height: usize, width: usize) -> Tensor<4> {
    let coordinate = |index: usize, size: usize| 2.0 * index as f32 / (size - 1) as f32 - 1.0;
    let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    let places: Vec<f32> = places.flat_map(|(x, y)| [coordinate(x, width), coordinate(y, height), 1.0]).collect();
    let count = transforms.dims()[0];
    let places = Tensor::<3>::from_data(TensorData::new(places, [1, height * width, 3]), &transforms.device());
    let seen = places.repeat_dim(0, count).matmul(transforms.reshape([count, 2, 3]).transpose());
    seen.reshape([count, height, width, 2])
}

#[test]
fn the_sampler_and_its_gradients_equal_burns() {
    let shape = [4, 2, 9, 7];
    let (images, numbers) = (random(shape, 1), tensor(transforms(), [4, 6]));
    let (images2, numbers2) = (random(shape, 1), tensor(transforms(), [4, 6]));
    let ours = affine_sample(images.clone(), numbers.clone());
    let options = GridSampleOptions::new(InterpolateMode::Bilinear)
        .with_padding_mode(GridSamplePaddingMode::Zeros)
        .with_align_corners(true);
    let theirs = images2.clone().grid_sample_2d(grid(numbers2.clone(), 9, 7), options);
    assert_near(ours.clone().inner(), theirs.clone().inner());
    let (ours, theirs) = (weigh(ours).backward(), weigh(theirs).backward());
    assert_near(images.grad(&ours).unwrap(), images2.grad(&theirs).unwrap());
    assert_near(numbers.grad(&ours).unwrap(), numbers2.grad(&theirs).unwrap());
}

/// The result of [`weigh`] on sampled images, computed by definition: every pixel has a weight of one minus its
/// distance in each direction, where that is positive. In double precision, so that steps can be too short to cross a
/// kink.
fn weighed_by_definition(shape: [usize; 4], images: &[f64], transforms: &[f64]) -> f64 {
    let [count, channels, height, width] = shape;
    let coordinate = |index: usize, size: usize| 2.0 * index as f64 / (size - 1) as f64 - 1.0;
    let share = |distance: f64| (1.0 - distance.abs()).max(0.0);
    let weights = numbers(count * channels * height * width, 9);
    let places = (0..count * channels * height * width).map(|index| {
        let (x, rest) = (index % width, index / width);
        let (y, plane) = (rest % height, rest / height);
        let transform = &transforms[plane / channels * 6..][..6];
        let seen = |row: &[f64], size: usize| {
            let at = row[0] * coordinate(x, width) + row[1] * coordinate(y, height) + row[2];
            (at + 1.0) * (size - 1) as f64 / 2.0
        };
        let (left, top) = (seen(&transform[..3], width), seen(&transform[3..], height));
        let image = &images[plane * height * width..][..height * width];
        let shares = |pixel: usize| share(left - (pixel % width) as f64) * share(top - (pixel / width) as f64);
        let value: f64 = image.iter().enumerate().map(|(pixel, value)| value * shares(pixel)).sum();
        value * f64::from(weights[index])
    });
    places.sum()
}

#[test]
fn gradients_of_the_sampler_agree_with_finite_differences_of_its_definition() {
    let shape = [4, 2, 6, 5];
    let (images, seen) = (random(shape, 1), tensor(transforms(), [4, 6]));
    let weighed = weigh(affine_sample(images.clone(), seen.clone()));
    let gradients = weighed.backward();
    let doubles = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<_>>();
    let (pixels, transforms) = (doubles(numbers(240, 1)), doubles(transforms()));
    let expected = weighed_by_definition(shape, &pixels, &transforms);
    assert!((scalar(weighed.inner()) - expected).abs() < 1e-4, "{expected}");
    let check = |gradient: Vec<f64>, values: &[f64], loss: &dyn Fn(&[f64]) -> f64| {
        for (index, gradient) in gradient.into_iter().enumerate() {
            let at = |offset: f64| {
                let mut moved = values.to_vec();
                moved[index] += offset;
                loss(&moved)
            };
            let difference = (at(1e-6) - at(-1e-6)) / 2e-6;
            assert!((difference - gradient).abs() < 1e-4, "{index}: {difference} {gradient}");
        }
    };
    let of_images = images.grad(&gradients).unwrap().into_data().iter::<f64>().collect();
    check(of_images, &pixels, &|pixels| weighed_by_definition(shape, pixels, &transforms));
    let of_transforms = seen.grad(&gradients).unwrap().into_data().iter::<f64>().collect();
    check(of_transforms, &transforms, &|transforms| weighed_by_definition(shape, &pixels, transforms));
}

#[test]
fn the_identity_changes_nothing() {
    let images = random([1, 1, 40, 40], 1);
    let identity = tensor(vec![1.0, 0.0, 0.0, 0.0, 1.0, 0.0], [1, 6]);
    assert_near(affine_sample(images.clone(), identity).inner(), images.inner());
}

#[test]
fn a_transform_that_is_no_number_sees_nothing() {
    let images = tensor(vec![1.0; 25], [1, 1, 5, 5]);
    let seen = affine_sample(images, tensor(vec![f32::NAN, 0.0, 0.0, 0.0, f32::INFINITY, 0.0], [1, 6]));
    assert!(seen.into_data().iter::<f32>().all(|value| value == 0.0));
}

#[test]
fn softplus_and_its_gradient_equal_the_formula() {
    let values = [-200.0, -88.0, -20.0, -3.0, -0.1, 0.0, 1e-4, 0.7, 5.0, 30.0, 88.0, 1e4];
    let input = tensor(values.to_vec(), [12]);
    let output = softplus(input.clone());
    let gradients = output.clone().sum().backward();
    let output: Vec<f64> = output.inner().into_data().iter::<f64>().collect();
    let slopes: Vec<f64> = input.grad(&gradients).unwrap().into_data().iter::<f64>().collect();
    for (index, x) in values.iter().map(|x| f64::from(*x)).enumerate() {
        let (expected, slope) = (x.max(0.0) + (-x.abs()).exp().ln_1p(), 1.0 / (1.0 + (-x).exp()));
        assert!((output[index] - expected).abs() <= 4e-7 * expected + 1e-30, "{x}: {} {expected}", output[index]);
        assert!((slopes[index] - slope).abs() <= 4e-7 * slope + 1e-30, "{x}: {} {slope}", slopes[index]);
    }
    assert!(softplus(tensor(vec![f32::NAN], [1])).into_data().iter::<f32>().all(f32::is_nan));
}

#[test]
fn the_squared_error_and_its_gradient_equal_the_composed_form() {
    for shape in [[1, 1], [3, 5], [7, 400]] {
        let (output, output2) = (random(shape, 1), random(shape, 1));
        let target = || random(shape, 2).inner();
        let recorded = |target: Tensor<2>| Tensor::from_inner(target);
        let ours = half_squared_error(output.clone(), recorded(target()));
        let difference = output2.clone() - recorded(target());
        let theirs = (difference.clone() * difference).sum() * 0.5;
        assert_near(ours.clone().inner(), theirs.clone().inner());
        let (ours, theirs) = ((ours * 3.0).backward(), (theirs * 3.0).backward());
        assert_near(output.grad(&ours).unwrap(), output2.grad(&theirs).unwrap());
    }
}

#[test]
fn the_gradient_of_the_squared_error_agrees_with_finite_differences() {
    let shape = [3, 5];
    let output = random(shape, 1);
    let gradients = half_squared_error(output.clone(), random(shape, 2)).backward();
    assert_is_gradient(&numbers(15, 1), shape, &output.grad(&gradients).unwrap(), 0.1, |output| {
        half_squared_error(output, random(shape, 2))
    });
}
