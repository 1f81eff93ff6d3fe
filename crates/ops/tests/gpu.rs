//! Compares every operation on a GPU backend, where it is composed from Burn's own, with the fused one on the CPU.
//!
//! Needs the feature `wgpu` and a Vulkan driver, which may be a software driver: `scripts/gpu-tests` provides both.

use burn::tensor::{Device, DeviceKind, Int, Tensor, TensorData, Tolerance};
use rand::SeedableRng;
use windlass_ops::*;

const BATCH: usize = 3;
const TIME: usize = 4;
const SIZE: usize = 5;

/// An operation on flat inputs of these lengths.
struct Operation {
    name: &'static str,
    inputs: &'static [usize],
    compute: fn(&[Tensor<1>]) -> Tensor<1>,
}

const OPERATIONS: [Operation; 12] = [
    Operation { name: "sigmoid", inputs: &[40], compute: |inputs| weigh(sigmoid(inputs[0].clone())) },
    Operation { name: "tanh", inputs: &[40], compute: |inputs| weigh(tanh(inputs[0].clone())) },
    Operation { name: "softplus", inputs: &[40], compute: |inputs| weigh(softplus(inputs[0].clone())) },
    Operation {
        name: "cross_entropy",
        inputs: &[BATCH * SIZE],
        compute: |inputs| weigh(cross_entropy(shaped(inputs, 0, [BATCH, SIZE]), classes(inputs))),
    },
    Operation {
        name: "linear_cross_entropy",
        inputs: &[BATCH * 2, 2 * SIZE, SIZE],
        compute: |inputs| {
            let (hidden, weight) = (shaped(inputs, 0, [BATCH, 2]), shaped(inputs, 1, [2, SIZE]));
            weigh(linear_cross_entropy(hidden, weight, inputs[2].clone(), classes(inputs)))
        },
    },
    Operation {
        name: "sampled softmax",
        inputs: &[BATCH * SIZE, BATCH * SIZE, BATCH, 7 * SIZE, 7],
        compute: |inputs| {
            let softmax = SampledSoftmax {
                right_weights: shaped(inputs, 1, [BATCH, SIZE]),
                right_bias: inputs[2].clone(),
                candidate_weights: shaped(inputs, 3, [7, SIZE]),
                candidate_bias: inputs[4].clone(),
            };
            let candidates = LogUniformSampler::new(20).sample(7, &mut rand::rngs::StdRng::seed_from_u64(1));
            weigh(softmax.loss(shaped(inputs, 0, [BATCH, SIZE]), &candidates, &[candidates.classes[2], 0, 19]))
        },
    },
    Operation {
        name: "gru",
        inputs: &[TIME * BATCH * 2, BATCH * SIZE, 2 * 3 * SIZE, SIZE * 3 * SIZE, 3 * SIZE],
        compute: |inputs| {
            weigh(gru(shaped(inputs, 0, [TIME, BATCH, 2]), shaped(inputs, 1, [BATCH, SIZE]), gru_layer(inputs, 2, 2)))
        },
    },
    Operation {
        name: "lstm",
        inputs: &[TIME * BATCH * 2, BATCH * SIZE, BATCH * SIZE, 2 * 4 * SIZE, SIZE * 4 * SIZE, 4 * SIZE],
        compute: |inputs| {
            let state = LstmState { hidden: shaped(inputs, 1, [BATCH, SIZE]), cell: shaped(inputs, 2, [BATCH, SIZE]) };
            let parameters = LstmParameters {
                input_weight: shaped(inputs, 3, [2, 4 * SIZE]),
                recurrent_weight: shaped(inputs, 4, [SIZE, 4 * SIZE]),
                bias: inputs[5].clone(),
                forget_bias: 1.0,
            };
            let (states, last) = lstm(shaped(inputs, 0, [TIME, BATCH, 2]), state, parameters);
            weigh(states) + weigh(last.cell)
        },
    },
    Operation {
        name: "attention decoder",
        inputs: &[
            TIME * BATCH * SIZE,
            BATCH * 6 * 2,
            BATCH * 6 * 3,
            BATCH * SIZE,
            3 * SIZE,
            SIZE * 3 * SIZE,
            SIZE * 3 * SIZE,
            3 * SIZE,
            SIZE * 2,
            2,
            2,
        ],
        compute: |inputs| {
            let attended =
                Attended { keys: shaped(inputs, 1, [BATCH, 6, 2]), values: shaped(inputs, 2, [BATCH, 6, 3]) };
            let parameters = GruDecoderParameters {
                layers: vec![gru_layer(inputs, 5, SIZE)],
                attended: shaped(inputs, 4, [3, SIZE]),
                query_weight: shaped(inputs, 8, [SIZE, 2]),
                query_bias: inputs[9].clone(),
                direction: inputs[10].clone(),
            };
            let states = vec![shaped(inputs, 3, [BATCH, SIZE])];
            weigh(gru_decoder(shaped(inputs, 0, [TIME, BATCH, SIZE]), attended, states, parameters))
        },
    },
    Operation {
        name: "half_squared_error",
        inputs: &[BATCH * SIZE],
        compute: |inputs| {
            let output = shaped(inputs, 0, [BATCH, SIZE]);
            let target = Tensor::full([BATCH, SIZE], 0.3, &inputs[0].device());
            half_squared_error(output, target)
        },
    },
    Operation {
        name: "convolution_relu",
        inputs: &[2 * 2 * 8 * 8, 3 * 2 * 3 * 3, 3],
        compute: |inputs| {
            let (images, weight) = (shaped(inputs, 0, [2, 2, 8, 8]), shaped(inputs, 1, [3, 2, 3, 3]));
            weigh(convolution_relu(images, weight, inputs[2].clone(), 2, 1))
        },
    },
    Operation {
        name: "affine_sample",
        inputs: &[2 * 2 * 7 * 6, 2 * 6],
        compute: |inputs| {
            let identity = TensorData::new([1.0f32, 0.0, 0.0, 0.0, 1.0, 0.0].repeat(2), [2, 6]);
            let identity = Tensor::<2>::from_data(identity, &inputs[0].device());
            weigh(affine_sample(shaped(inputs, 0, [2, 2, 7, 6]), identity + shaped(inputs, 1, [2, 6]) * 0.3))
        },
    },
];

fn shaped<const D: usize>(inputs: &[Tensor<1>], index: usize, shape: [usize; D]) -> Tensor<D> {
    inputs[index].clone().reshape(shape)
}

fn gru_layer(inputs: &[Tensor<1>], from: usize, width: usize) -> GruParameters {
    GruParameters {
        input_weight: shaped(inputs, from, [width, 3 * SIZE]),
        recurrent_weight: shaped(inputs, from + 1, [SIZE, 3 * SIZE]),
        bias: inputs[from + 2].clone(),
    }
}

fn classes(inputs: &[Tensor<1>]) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(vec![4i64, 0, 2], [BATCH]), &inputs[0].device())
}

/// Pseudorandom numbers between −1 and 1.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |index: usize| ((index * 7919 + seed * 104_729 + index * index * 31) % 2003) as f32 / 1001.5 - 1.0;
    (0..count).map(number).collect()
}

/// A weighted sum in which every element has its own weight.
fn weigh<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    let weights = TensorData::new(numbers(output.shape().num_elements(), 9), output.shape());
    (output.clone() * Tensor::from_data(weights, &output.device())).sum()
}

/// The value of an operation and the gradients of its inputs.
fn computed(operation: &Operation, device: &Device) -> Vec<TensorData> {
    let input = |(seed, count): (usize, &usize)| {
        Tensor::<1>::from_data(TensorData::new(numbers(*count, seed), [*count]), device).require_grad()
    };
    let inputs: Vec<Tensor<1>> = operation.inputs.iter().enumerate().map(input).collect();
    let value = (operation.compute)(&inputs);
    let gradients = value.backward();
    let of_input = |input: &Tensor<1>| input.grad(&gradients).expect("every input has a gradient").into_data();
    std::iter::once(value.into_data()).chain(inputs.iter().map(of_input)).collect()
}

#[test]
fn every_operation_and_its_gradients_are_the_same_on_a_gpu_backend_as_on_the_cpu() {
    let gpu = Device::wgpu(DeviceKind::DefaultDevice).autodiff();
    for operation in &OPERATIONS {
        println!("{}", operation.name);
        let (ours, theirs) = (computed(operation, &Device::flex().autodiff()), computed(operation, &gpu));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            ours.assert_approx_eq(theirs, Tolerance::<f32>::rel_abs(2e-3, 2e-4));
        }
    }
}
