//! Properties of the fused operations' results: they have the same bits on any number of threads, and vanishing
//! gradients become zero before they become denormal.

use burn::tensor::{Device, Int, Tensor, TensorData};
use windlass_ops::{
    Attended, GruDecoderParameters, GruParameters, LstmParameters, LstmState, attention, cross_entropy, gru,
    gru_decoder, linear_cross_entropy, lstm, sigmoid,
};

/// Pseudorandom values between -0.5 and 0.5 that are the same on every machine.
fn values<const D: usize>(seed: u32, shape: [usize; D]) -> Tensor<D> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    tensor((0..shape.iter().product()).map(next).collect(), shape).require_grad()
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
}

fn classes(rows: usize, width: usize) -> Tensor<1, Int> {
    let classes = (0..rows).map(|row| ((row * 7 + 3) % width) as i64).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(classes, [rows]), &Device::flex().autodiff())
}

/// The values of an output and the gradients of its inputs.
macro_rules! with_gradients {
    ($output:expr, $($input:expr),+) => {{
        let output = $output;
        let gradients = (output.clone() * output.clone()).sum().backward();
        vec![numbers(output.inner()), $(numbers($input.grad(&gradients).unwrap())),+]
    }};
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// Compares the bits of results on one thread and on several.
fn assert_same_bits_on_any_threads(what: &str, compute: impl Fn() -> Vec<Vec<f32>> + Send + Sync) {
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let all = pool.install(&compute);
        all.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect::<Vec<Vec<u32>>>()
    };
    let one = on(1);
    for threads in [2, 3, 4, 7, 16] {
        let several = on(threads);
        let differ: Vec<usize> = (0..one.len()).filter(|index| one[*index] != several[*index]).collect();
        assert!(differ.is_empty(), "{what} on {threads} threads: the output (0) or gradients {differ:?} differ");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_an_attention() {
    assert_same_bits_on_any_threads("attention", || {
        let (keys, found) = (values(1, [41, 20, 100]), values(2, [41, 20, 60]));
        let (query, direction) = (values(3, [41, 100]), values(4, [100]));
        let (context, _) = attention(keys.clone(), found.clone(), query.clone(), direction.clone());
        with_gradients!(context, keys, found, query, direction)
    });
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_wide_softmax() {
    // With 16 threads, a row is left over.
    for (rows, size, width) in [(129, 200, 2000), (1000, 600, 40), (96, 700, 60)] {
        assert_same_bits_on_any_threads(&format!("{rows} rows of {width}"), || {
            let (hidden, weight, bias) = (values(1, [rows, size]), values(2, [size, width]), values(3, [width]));
            let loss = linear_cross_entropy(hidden.clone(), weight.clone(), bias.clone(), classes(rows, width));
            with_gradients!(loss, hidden, weight, bias)
        });
    }
}

fn gru_parameters(input: usize, hidden: usize) -> GruParameters {
    GruParameters {
        input_weight: values(11, [input, 3 * hidden]),
        recurrent_weight: values(12, [hidden, 3 * hidden]),
        bias: values(13, [3 * hidden]),
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_recurrent_layers() {
    // With 4 threads, a row is left over.
    let (time, batch, hidden) = (12, 37, 100);
    assert_same_bits_on_any_threads("gru", || {
        let (input, state, parameters) =
            (values(1, [time, batch, 30]), values(2, [batch, hidden]), gru_parameters(30, 100));
        let states = gru(input.clone(), state.clone(), parameters.clone());
        let GruParameters { input_weight, recurrent_weight, bias } = parameters;
        with_gradients!(states, input, state, input_weight, recurrent_weight, bias)
    });
    assert_same_bits_on_any_threads("lstm", || {
        let (input, start) = (values(1, [time, batch, 30]), values(2, [batch, hidden]));
        let parameters = LstmParameters {
            input_weight: values(3, [30, 4 * hidden]),
            recurrent_weight: values(4, [hidden, 4 * hidden]),
            bias: values(5, [4 * hidden]),
            forget_bias: 1.0,
        };
        let state = LstmState { hidden: start.clone(), cell: start.clone() };
        let (states, _) = lstm(input.clone(), state, parameters.clone());
        let LstmParameters { input_weight, recurrent_weight, bias, .. } = parameters;
        with_gradients!(states, input, start, input_weight, recurrent_weight, bias)
    });
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_decoder() {
    let (time, batch, hidden, length) = (9, 37, 100, 15);
    assert_same_bits_on_any_threads("decoder", || {
        let input = values(1, [time, batch, hidden]);
        let attended = Attended { keys: values(2, [batch, length, 80]), values: values(3, [batch, length, 90]) };
        let parameters = GruDecoderParameters {
            layers: vec![gru_parameters(hidden, hidden); 2],
            attended: values(4, [90, hidden]),
            query_weight: values(5, [2 * hidden, 80]),
            query_bias: values(6, [80]),
            direction: values(7, [80]),
        };
        let start = values(8, [batch, hidden]);
        let said = gru_decoder(input.clone(), attended.clone(), vec![start.clone(); 2], parameters.clone());
        let GruDecoderParameters { layers, attended: mapped, query_weight, query_bias, direction } = parameters;
        let GruParameters { input_weight, recurrent_weight, bias } = &layers[0];
        let Attended { keys, values } = attended;
        with_gradients!(
            said,
            input,
            keys,
            values,
            start,
            mapped,
            query_weight,
            query_bias,
            direction,
            input_weight,
            recurrent_weight,
            bias
        )
    });
}

/// The number of a gradient's values that are not zero. Fails if any of them is denormal.
fn normal<const D: usize>(gradient: Tensor<D>) -> usize {
    let gradient = numbers(gradient);
    let denormal = gradient.iter().filter(|value| value.is_subnormal()).count();
    assert_eq!(denormal, 0, "denormal numbers of {}", gradient.len());
    gradient.iter().filter(|value| **value != 0.0).count()
}

#[test]
fn the_gradient_of_a_confident_softmax_is_zero_before_it_is_denormal() {
    let width = 200;
    // Scores from 0 down to -199, the loss weighted as by the mean over a batch.
    let scores = tensor((0..width).map(|score| -(score as f32)).collect(), [1, width]).require_grad();
    let class = Tensor::<1, Int>::from_data(TensorData::from([0i64]), &Device::flex().autodiff());
    let gradients = (cross_entropy(scores.clone(), class) * 0.001).sum().backward();
    // e^-55 is the smallest that counts.
    assert_eq!(normal(scores.grad(&gradients).unwrap()), 56);
}

#[test]
fn the_gradient_of_a_saturated_sigmoid_is_zero_before_it_is_denormal() {
    let inputs = tensor((0..100).map(|input| -(input as f32)).collect(), [100]).require_grad();
    let gradients = (sigmoid(inputs.clone()) * 1e-5).sum().backward();
    // 1e-5 · e^-43 is above 2^-80, 1e-5 · e^-44 is not.
    assert_eq!(normal(inputs.grad(&gradients).unwrap()), 44);
}

#[test]
fn a_gradient_that_vanishes_over_time_is_zero_before_it_is_denormal() {
    let (time, hidden) = (200, 8);
    let zeros = |shape: [usize; 2]| Tensor::<2>::zeros(shape, &Device::flex().autodiff());
    let input = Tensor::<3>::zeros([time, 1, 1], &Device::flex().autodiff()).require_grad();
    // An update gate of sigmoid(-1), a forget gate of sigmoid(-1): each step keeps a quarter of the gradient.
    let bias = |gates| Tensor::<1>::full([gates * hidden], -1.0, &Device::flex().autodiff());
    let state = zeros([1, hidden]);
    let parameters = GruParameters {
        input_weight: values(1, [1, 3 * hidden]),
        recurrent_weight: zeros([hidden, 3 * hidden]),
        bias: bias(3),
    };
    let last = gru(input.clone(), state.clone(), parameters).narrow(0, time - 1, 1);
    let of_gru = normal(input.grad(&last.sum().backward()).unwrap());
    let parameters = LstmParameters {
        input_weight: values(1, [1, 4 * hidden]),
        recurrent_weight: zeros([hidden, 4 * hidden]),
        bias: bias(4),
        forget_bias: 0.0,
    };
    let last = lstm(input.clone(), LstmState { hidden: state.clone(), cell: state }, parameters).1;
    let of_lstm = normal(input.grad(&last.hidden.sum().backward()).unwrap());
    // 0.27^t falls below 2^-80 after about 42 steps.
    assert!((30..60).contains(&of_gru) && (30..60).contains(&of_lstm), "{of_gru} and {of_lstm} steps count");
}
