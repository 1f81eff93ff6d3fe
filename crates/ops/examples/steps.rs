//! Times whole training steps made of the fused operations; `benches/peers/torch_steps.py` times the same in PyTorch.
//!
//! `steps CASE [SECONDS]` prints the median milliseconds of one step. `RAYON_NUM_THREADS` sets the number of threads.

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use windlass_ops::{
    GruParameters, LogUniformSampler, LstmParameters, LstmState, SampledSoftmax, attention, gru, gru_cell,
    linear_cross_entropy, lstm,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A step that can be run repeatedly.
type Step = Box<dyn FnMut()>;
/// A recurrent layer with its parameters.
type Layer = Box<dyn Fn(Tensor<3>) -> Tensor<3>>;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or_default();
    let seconds = arguments.next().map_or(2.0, |seconds| seconds.parse().expect("seconds are a number"));
    // On a thread of the pool, as a worker trains: nothing is handed over from outside.
    let pool = rayon::ThreadPoolBuilder::new().build().expect("threads can be started");
    let median = pool.install(|| measure(step(&case), Duration::from_secs_f64(seconds)));
    println!("{:.4}", median.as_secs_f64() * 1e3);
}

fn step(case: &str) -> Step {
    match case {
        "language_model" => language_model(),
        "gru_10" => layers(10, gru_layer),
        "gru_15" => layers(15, gru_layer),
        "lstm_10" => layers(10, lstm_layer),
        "lstm_15" => layers(15, lstm_layer),
        "attention_decoder" => attention_decoder(),
        "sampled_softmax" => sampled_softmax(),
        other => panic!("no case is called {other:?}"),
    }
}

fn measure(mut step: Step, at_least: Duration) -> Duration {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < 10 || began.elapsed() < at_least {
        let start = Instant::now();
        step();
        times.push(start.elapsed());
    }
    // The first fifth warms up caches and the allocator.
    let times = &mut times.split_off(times.len() / 5)[..];
    times.sort();
    times[times.len() / 2]
}

fn device() -> Device {
    Device::flex().autodiff()
}

fn uniform<const D: usize>(shape: [usize; D], bound: f32, random: &mut StdRng) -> Tensor<D> {
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| random.random_range(-bound..bound)).collect();
    Tensor::from_data(TensorData::new(values, shape), &device())
}

fn indices(values: &[usize]) -> Tensor<1, Int> {
    let values: Vec<i64> = values.iter().map(|value| *value as i64).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), &device())
}

/// Parameters as a parameter server holds them: flat, updated in place by plain SGD.
struct Parameter<const D: usize> {
    values: Vec<f32>,
    shape: [usize; D],
}

impl<const D: usize> Parameter<D> {
    fn new(shape: [usize; D], bound: f32, random: &mut StdRng) -> Self {
        Self { values: uniform(shape, bound, random).into_data().iter::<f32>().collect(), shape }
    }

    /// Moves the values into a leaf of the graph; [`Self::update`] takes them back.
    fn leaf(&mut self) -> Tensor<D> {
        Tensor::from_data(TensorData::new(std::mem::take(&mut self.values), self.shape), &device()).require_grad()
    }

    fn update(&mut self, leaf: Tensor<D>, gradients: &mut burn::tensor::Gradients, rate: f32) {
        let gradient = leaf.grad_remove(gradients).expect("every parameter has a gradient").into_data();
        self.values = leaf.inner().into_data().try_into_vec().expect("parameters are f32");
        let gradient = gradient.as_slice::<f32>().expect("gradients are f32");
        self.values.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= rate * gradient);
    }
}

/// Vocabulary 10,000, embedding 256, 256 LSTM units, 20 steps, batch 32, full softmax; forward, backward and SGD. The
/// embedding's gradient covers only the rows that occur, and only those are updated.
fn language_model() -> Step {
    const VOCABULARY: usize = 10_000;
    const SIZE: usize = 256;
    const TIME: usize = 20;
    const BATCH: usize = 32;
    let mut random = StdRng::seed_from_u64(1);
    let mut embedding = Parameter::new([VOCABULARY, SIZE], 0.1, &mut random);
    let mut input_weight = Parameter::new([SIZE, 4 * SIZE], 0.0625, &mut random);
    let mut recurrent_weight = Parameter::new([SIZE, 4 * SIZE], 0.0625, &mut random);
    let mut bias = Parameter::new([4 * SIZE], 0.0625, &mut random);
    let mut output_weight = Parameter::new([SIZE, VOCABULARY], 0.0625, &mut random);
    let mut output_bias = Parameter::new([VOCABULARY], 0.0625, &mut random);
    let words: Vec<usize> = (0..TIME * BATCH).map(|_| random.random_range(0..VOCABULARY)).collect();
    let targets: Vec<usize> = (0..TIME * BATCH).map(|_| random.random_range(0..VOCABULARY)).collect();
    Box::new(move || {
        let mut unique = words.clone();
        unique.sort_unstable();
        unique.dedup();
        let places: Vec<usize> = words.iter().map(|word| unique.binary_search(word).expect("is one of them")).collect();
        let rows: Vec<f32> =
            unique.iter().flat_map(|word| &embedding.values[word * SIZE..(word + 1) * SIZE]).copied().collect();
        let rows = Tensor::<2>::from_data(TensorData::new(rows, [unique.len(), SIZE]), &device()).require_grad();
        let leaves =
            (input_weight.leaf(), recurrent_weight.leaf(), bias.leaf(), output_weight.leaf(), output_bias.leaf());

        let input = rows.clone().select(0, indices(&places)).reshape([TIME, BATCH, SIZE]);
        let zero = Tensor::<2>::zeros([BATCH, SIZE], &device());
        let parameters = LstmParameters {
            input_weight: leaves.0.clone(),
            recurrent_weight: leaves.1.clone(),
            bias: leaves.2.clone(),
            forget_bias: 1.0,
        };
        let (states, _) = lstm(input, LstmState { hidden: zero.clone(), cell: zero }, parameters);
        let hidden = states.reshape([TIME * BATCH, SIZE]);
        let loss = linear_cross_entropy(hidden, leaves.3.clone(), leaves.4.clone(), indices(&targets)).mean();
        let mut gradients = loss.backward();
        assert!(loss.into_scalar::<f32>().is_finite());

        let rate = 0.1;
        let gradient = rows.grad_remove(&mut gradients).expect("the rows have a gradient").into_data();
        let gradient = gradient.as_slice::<f32>().expect("gradients are f32");
        for (word, gradient) in unique.iter().zip(gradient.chunks(SIZE)) {
            let row = &mut embedding.values[word * SIZE..(word + 1) * SIZE];
            row.iter_mut().zip(gradient).for_each(|(value, gradient)| *value -= rate * gradient);
        }
        input_weight.update(leaves.0, &mut gradients, rate);
        recurrent_weight.update(leaves.1, &mut gradients, rate);
        bias.update(leaves.2, &mut gradients, rate);
        output_weight.update(leaves.3, &mut gradients, rate);
        output_bias.update(leaves.4, &mut gradients, rate);
    })
}

const UNITS: usize = 200;
const ROWS: usize = 64;

fn gru_parameters(random: &mut StdRng) -> GruParameters {
    GruParameters {
        input_weight: uniform([UNITS, 3 * UNITS], 0.07, random).require_grad(),
        recurrent_weight: uniform([UNITS, 3 * UNITS], 0.07, random).require_grad(),
        bias: uniform([3 * UNITS], 0.07, random).require_grad(),
    }
}

fn gru_layer(random: &mut StdRng) -> Layer {
    let parameters = gru_parameters(random);
    Box::new(move |input| gru(input, Tensor::zeros([ROWS, UNITS], &device()), parameters.clone()))
}

fn lstm_layer(random: &mut StdRng) -> Layer {
    let parameters = LstmParameters {
        input_weight: uniform([UNITS, 4 * UNITS], 0.07, random).require_grad(),
        recurrent_weight: uniform([UNITS, 4 * UNITS], 0.07, random).require_grad(),
        bias: uniform([4 * UNITS], 0.07, random).require_grad(),
        forget_bias: 0.0,
    };
    Box::new(move |input| {
        let zero = Tensor::zeros([ROWS, UNITS], &device());
        lstm(input, LstmState { hidden: zero.clone(), cell: zero }, parameters.clone()).0
    })
}

/// Two layers of 200 units over a batch of 64: forward and backward, with the gradient of the input.
fn layers(time: usize, layer: fn(&mut StdRng) -> Layer) -> Step {
    let mut random = StdRng::seed_from_u64(1);
    let (first, second) = (layer(&mut random), layer(&mut random));
    let input = uniform([time, ROWS, UNITS], 1.0, &mut random).require_grad();
    let weights = uniform([time, ROWS, UNITS], 1.0, &mut random);
    Box::new(move || {
        let output = second(first(input.clone()));
        black_box((output * weights.clone()).sum().backward());
    })
}

/// A GRU decoder of 15 steps with attention over 10 encoder outputs, batch 64, size 200. The input of a step is a
/// linear function of its word and the previous context.
fn attention_decoder() -> Step {
    const TIME: usize = 15;
    const LENGTH: usize = 10;
    let mut random = StdRng::seed_from_u64(1);
    let cell = gru_parameters(&mut random);
    let encoded = uniform([ROWS, LENGTH, UNITS], 1.0, &mut random).require_grad();
    let key_weight = uniform([UNITS, UNITS], 0.07, &mut random).require_grad();
    let query_weight = uniform([UNITS, UNITS], 0.07, &mut random).require_grad();
    let direction = uniform([UNITS], 0.07, &mut random).require_grad();
    let word_weight = uniform([UNITS, UNITS], 0.07, &mut random).require_grad();
    let context_weight = uniform([UNITS, UNITS], 0.07, &mut random).require_grad();
    let words = uniform([TIME * ROWS, UNITS], 1.0, &mut random).require_grad();
    let weights = uniform([ROWS, UNITS], 1.0, &mut random);
    Box::new(move || {
        let keys = encoded.clone().reshape([ROWS * LENGTH, UNITS]).matmul(key_weight.clone());
        let keys = keys.reshape([ROWS, LENGTH, UNITS]);
        let words = words.clone().matmul(word_weight.clone());
        let mut state = Tensor::zeros([ROWS, UNITS], &device());
        let mut context = Tensor::zeros([ROWS, UNITS], &device());
        let mut total = Tensor::<1>::zeros([1], &device());
        for time in 0..TIME {
            let input = words.clone().narrow(0, time * ROWS, ROWS) + context.matmul(context_weight.clone());
            state = gru_cell(input, state, cell.clone());
            let query = state.clone().matmul(query_weight.clone());
            context = attention(keys.clone(), encoded.clone(), query, direction.clone()).0;
            total = total + (context.clone() * weights.clone() + state.clone()).sum();
        }
        black_box(total.backward());
    })
}

/// 512 of 40,000 classes, 960 rows of 200; the rows of the output layer are leaves, as a worker pulls them.
fn sampled_softmax() -> Step {
    const CLASSES: usize = 40_000;
    const TOKENS: usize = 960;
    let mut random = StdRng::seed_from_u64(1);
    let hidden = uniform([TOKENS, UNITS], 1.0, &mut random).require_grad();
    let right: Vec<usize> = (0..TOKENS).map(|_| random.random_range(0..CLASSES)).collect();
    let softmax = SampledSoftmax {
        right_weights: uniform([TOKENS, UNITS], 0.07, &mut random).require_grad(),
        right_bias: uniform([TOKENS], 0.07, &mut random).require_grad(),
        candidate_weights: uniform([512, UNITS], 0.07, &mut random).require_grad(),
        candidate_bias: uniform([512], 0.07, &mut random).require_grad(),
    };
    let sampler = LogUniformSampler::new(CLASSES);
    Box::new(move || {
        let candidates = sampler.sample(512, &mut random);
        black_box(softmax.clone().loss(hidden.clone(), &candidates, &right).mean().backward());
    })
}
