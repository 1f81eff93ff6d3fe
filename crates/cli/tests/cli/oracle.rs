//! Numbers against an oracle: k workers in sync mode, each with a batch of B, compute what a single process computes
//! with a batch of k·B; and repeating a run gives the same results bit for bit.
//!
//! Worker j of k reads samples j, j + k, j + 2k… in that order, so that the k batches of a round are together the next
//! k·B samples: the batch of the single process.

use serde_json::Value;
use windlass::burn::module::Module;
use windlass::burn::nn::{Linear, LinearConfig};
use windlass::burn::tensor::{Device, Tensor, TensorData, activation::tanh};
use windlass::optimizer::Optimizer;
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup, Summary};
use windlass_core::consistency::Mode;
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_worker::task::RunConfig;

use crate::cluster::summary;
use crate::digits::DigitFiles;
use crate::in_process::{Layout, train};
use crate::process::{Told, windlass};

/// Samples of a round: the batch of the single process.
const ROUND: usize = 32;
const STEPS: u64 = 40;

/// A small network on made-up data. Its scores are its parameters.
struct Waves;

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    hidden: Linear,
    output: Linear,
}

impl Network {
    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        self.output.forward(tanh(self.hidden.forward(input)))
    }
}

impl Model for Waves {
    const NAME: &'static str = "waves";
    const ABOUT: &'static str = "follow two waves";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = (Tensor<2>, Tensor<2>);

    fn defaults(_flags: &NoFlags) -> Defaults {
        unreachable!("the test says how to train")
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self)
    }

    fn network(&self, device: &Device) -> Network {
        Network { hidden: LinearConfig::new(3, 16).init(device), output: LinearConfig::new(16, 2).init(device) }
    }

    /// Training covers an epoch and a half.
    fn samples(&self) -> usize {
        ROUND * STEPS as usize * 2 / 3
    }

    fn batch(&self, samples: &[usize], device: &Device, _random: &mut StdRng) -> anyhow::Result<Self::Batch> {
        let rows = |width: usize, value: fn(f32, f32) -> f32| {
            let row = |sample: usize| (0..width).map(move |column| value(sample as f32, column as f32));
            let values: Vec<f32> = samples.iter().copied().flat_map(row).collect();
            Tensor::from_data(TensorData::new(values, [samples.len(), width]), device)
        };
        Ok((
            rows(3, |sample, column| (0.37 * sample + 1.3 * column).sin()),
            rows(2, |sample, column| (0.37 * sample + 2.1 * column).cos() + 0.5),
        ))
    }

    fn loss(&self, network: &Network, (input, expected): Self::Batch) -> Tensor<1> {
        let error = network.forward(input) - expected;
        (error.clone() * error).mean()
    }

    fn evaluate(&self, network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        let layers = [&network.hidden, &network.output];
        let values = layers.into_iter().flat_map(|layer| {
            let weight: Vec<f64> = layer.weight.val().into_data().iter::<f64>().collect();
            let bias: Vec<f64> = layer.bias.as_ref().unwrap().val().into_data().iter::<f64>().collect();
            [weight, bias].concat()
        });
        Ok(values.enumerate().fold(Metrics::new(), |metrics, (index, value)| metrics.number(&index.to_string(), value)))
    }
}

/// A sync run in which each worker has its share of the data, as described at the top of the file.
fn run(optimizer: Optimizer, layout: Layout) -> RunConfig {
    RunConfig {
        mode: Mode::Sync { replicas_to_aggregate: None },
        optimizer,
        learning_rate: 0.05,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: ROUND / layout.workers as usize,
        steps: Some(STEPS),
        epochs: None,
        seed: 1,
        shuffle: false,
        shard_data: true,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        accumulate: 1,
        towers: 1,
        evaluate_epochs: false,
        log_every: 1,
        model_flags: std::collections::BTreeMap::new(),
        data_dir: None,
    }
}

const SINGLE: Layout = Layout { servers: 0, workers: 1 };

fn parameters(summary: &Summary) -> Vec<f64> {
    let values: Vec<f64> = summary.metrics.iter().map(|metric| metric.value).collect();
    assert_eq!(values.len(), 3 * 16 + 16 + 16 * 2 + 2);
    values
}

/// Asserts that two vectors are close: the distance between them is a tiny fraction of their length.
fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    let length = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let distance = length(&mut got.iter().zip(expected).map(|(got, expected)| got - expected));
    let relative = distance / length(&mut expected.iter().copied());
    assert!(relative < 1e-5, "{what}: {relative:e} apart");
}

fn equals_the_single_process(optimizer: Optimizer) {
    let single = train(SINGLE, &run(optimizer, SINGLE), || Waves).summary;
    assert_eq!(single.global_step, STEPS);
    for (servers, workers) in [(1, 1), (1, 2), (2, 2), (1, 4), (3, 4)] {
        let layout = Layout { servers, workers };
        let together = train(layout, &run(optimizer, layout), || Waves).summary;
        assert_eq!(together.global_step, STEPS);
        let what = format!("{} on {layout:?}", optimizer.name());
        assert_close(&parameters(&together), &parameters(&single), &what);
    }
}

mod workers_in_step_equal_the_single_process {
    use super::*;
    use windlass::optimizer::{Adagrad, Adam, AdamW, Momentum, RmsProp};

    #[test]
    fn with_sgd() {
        equals_the_single_process(Optimizer::Sgd);
    }

    #[test]
    fn with_momentum() {
        equals_the_single_process(Optimizer::Momentum(Momentum::default()));
    }

    #[test]
    fn with_adagrad() {
        equals_the_single_process(Optimizer::Adagrad(Adagrad::default()));
    }

    #[test]
    fn with_adam() {
        equals_the_single_process(Optimizer::Adam(Adam::default()));
    }

    #[test]
    fn with_adamw() {
        equals_the_single_process(Optimizer::AdamW(AdamW::default()));
    }

    #[test]
    fn with_rmsprop() {
        equals_the_single_process(Optimizer::RmsProp(RmsProp::default()));
    }
}

/// Two workers with two parts each, or one worker with four: a round consists of the same samples.
#[test]
fn steps_in_parts_equal_the_single_process() {
    let single = train(SINGLE, &run(Optimizer::Sgd, SINGLE), || Waves).summary;
    for (servers, workers, accumulate) in [(0, 1, 4), (2, 2, 2)] {
        let layout = Layout { servers, workers };
        let batch_size = ROUND / workers as usize / accumulate;
        let run = RunConfig { batch_size, accumulate, ..run(Optimizer::Sgd, layout) };
        let together = train(layout, &run, || Waves).summary;
        assert_eq!((together.global_step, together.batch_size), (STEPS, ROUND / workers as usize));
        assert_close(&parameters(&together), &parameters(&single), &format!("{accumulate} parts on {layout:?}"));
    }
}

#[test]
fn the_oracle_can_tell_runs_apart() {
    let sgd = |seed| train(SINGLE, &RunConfig { seed, ..run(Optimizer::Sgd, SINGLE) }, || Waves).summary;
    let distance = std::panic::catch_unwind(|| assert_close(&parameters(&sgd(2)), &parameters(&sgd(1)), "seeds"));
    assert!(distance.is_err(), "networks of two seeds are alike");
}

#[test]
fn a_schedule_gives_every_round_the_rate_of_its_step() {
    let layout = Layout { servers: 2, workers: 2 };
    let decaying =
        |layout| RunConfig { schedule: "exponential:0.5:10".parse().unwrap(), ..run(Optimizer::Sgd, layout) };
    let single = train(SINGLE, &decaying(SINGLE), || Waves).summary;
    let together = train(layout, &decaying(layout), || Waves).summary;
    assert_close(&parameters(&together), &parameters(&single), "a schedule");
}

#[test]
fn two_workers_in_step_give_the_same_bits_every_time() {
    let layout = Layout { servers: 2, workers: 2 };
    let once = || train(layout, &run(Optimizer::named("adam").unwrap(), layout), || Waves);
    let (first, second) = (once(), once());
    assert_eq!(first.losses.len(), 2 * STEPS as usize);
    assert_eq!(first.losses, second.losses);
    assert_eq!(parameters(&first.summary), parameters(&second.summary));
}

#[test]
fn four_deterministic_workers_in_step_give_the_same_bits_every_time() {
    let layout = Layout { servers: 2, workers: 4 };
    let run = RunConfig { deterministic: true, ..run(Optimizer::named("adam").unwrap(), layout) };
    let once = || train(layout, &run, || Waves);
    let (first, second) = (once(), once());
    assert_eq!(first.losses, second.losses);
    assert_eq!(parameters(&first.summary), parameters(&second.summary));
}

/// The losses of all steps, by worker and step.
fn losses(told: &Told) -> Vec<(Option<u64>, Option<u64>, Value)> {
    let events = told.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let steps = events.filter(|event| event["event"] == "step");
    let mut losses: Vec<_> =
        steps.map(|step| (step["worker"].as_u64(), step["local_step"].as_u64(), step["loss"].clone())).collect();
    losses.sort_by_key(|(worker, step, _)| (*worker, *step));
    losses
}

#[test]
fn two_processes_in_step_read_digits_with_the_same_bits_every_time() {
    let files = DigitFiles::new(2400, 200);
    let words = "launch mnist --mode sync --ps 2 --min-shard-bytes 0 --steps 60 --log-every 1 --format json --run-dir run --data-dir";
    let once = || windlass(words).with(files.path()).run().succeeded();
    let (first, second) = (once(), once());
    assert_eq!(losses(&first).len(), 120);
    assert_eq!(losses(&first), losses(&second));
    assert_eq!(summary(&first)["metrics"], summary(&second)["metrics"]);
}

#[test]
fn processes_in_step_find_the_same_line_as_one() {
    let line = |words: &str| {
        let told = windlass(&format!("{words} --epochs 10 --run-dir run")).run().succeeded();
        let metrics = summary(&told)["metrics"].clone();
        ["w", "b"].map(|name| metrics[name].as_f64().unwrap())
    };
    let single = line("train linear --batch-size 20");
    for workers in [1, 2, 4] {
        let batch_size = 20 / workers;
        let layout = format!(
            "--ps 2 --min-shard-bytes 0 --workers {workers} --mode sync --shard-data --batch-size {batch_size}"
        );
        assert_close(&line(&format!("launch linear {layout}")), &single, &layout);
    }
}
