//! Runs and gradients to test with, and the straight loop that the servers must agree with.

use std::ops::Range;

use windlass_core::block::Block;
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::optimizer::{Optimizer, Update};
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;
use windlass_core::splitmix::SplitMix64;

/// Rounds of all workers.
pub const SYNC: Mode = Mode::Sync { replicas_to_aggregate: None };

/// Random numbers from a seed.
pub struct Random(SplitMix64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// Random numbers that depend on all of these.
    pub fn of(keys: &[u64]) -> Self {
        keys.iter().fold(Self::new(0), |mut random, key| Self::new(random.next() ^ key))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Returns the seeds of a random test, and prints each before it is used: `few`, as many as `WINDLASS_SEEDS` asks for,
/// or the one that `WINDLASS_SEED` names.
pub fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number of a seed or seeds"));
    let seeds: Range<u64> = match number("WINDLASS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WINDLASS_SEEDS").unwrap_or(few),
    };
    seeds.inspect(|seed| println!("seed {seed}"))
}

/// A dense parameter.
pub fn dense(name: &str, shape: &[usize]) -> ParameterSpec {
    ParameterSpec { name: name.into(), shape: shape.into(), access: Access::Dense, kind: ParameterKind::Trained }
}

/// A parameter that is accessed by row.
pub fn by_rows(name: &str, shape: &[usize]) -> ParameterSpec {
    ParameterSpec { name: name.into(), shape: shape.into(), access: Access::Rows, kind: ParameterKind::Trained }
}

/// A run with plain gradient descent at rate 1 and no end, to be changed by the test.
pub fn run(mode: Mode, parameters: Vec<ParameterSpec>) -> RunSpec {
    RunSpec {
        model: "synthetic".into(),
        mode,
        optimizer: Optimizer::Sgd,
        learning_rate: 1.0,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: None,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new(parameters).unwrap(),
        identity: Identity::default(),
        data: None,
    }
}

/// A matrix of more than one block, a vector and a scalar.
pub fn several_blocks() -> Vec<ParameterSpec> {
    vec![dense("hidden.weight", &[300, 256]), dense("hidden.bias", &[4000]), dense("scale", &[])]
}

/// One small vector.
pub fn one_vector() -> Vec<ParameterSpec> {
    vec![dense("w", &[5])]
}

/// The same number everywhere.
pub fn constant(run: &RunSpec, value: f32) -> Vec<Vec<f32>> {
    run.parameters.iter().map(|(_, spec)| vec![value; dense_elements(spec)]).collect()
}

/// A gradient that depends on the step and the worker.
pub fn gradient(run: &RunSpec, step: u64, worker: u32) -> Vec<Vec<f32>> {
    let mut random = Random::new(step << 20 ^ u64::from(worker) << 50);
    let values = |spec: &ParameterSpec| (0..dense_elements(spec)).map(|_| random.unit()).collect();
    run.parameters.iter().map(|(_, spec)| spec).map(values).collect()
}

/// How many of a parameter's values travel densely.
pub fn dense_elements(spec: &ParameterSpec) -> usize {
    if spec.access == Access::Dense { spec.elements() } else { 0 }
}

/// Returns what a single process computes from the mean gradient of some workers over some steps.
pub fn straight_loop(run: &RunSpec, first: &[Vec<f32>], steps: u64, workers: u32) -> Vec<Vec<f32>> {
    let mut blocks: Vec<Block> = Vec::new();
    for values in first {
        let mut block = Block::new(values.len(), &run.optimizer);
        block.values.copy_from_slice(values);
        blocks.push(block);
    }
    for step in 1..=steps {
        let mut mean = constant(run, 0.0);
        for worker in 0..workers {
            for (mean, gradient) in mean.iter_mut().zip(gradient(run, step, worker)) {
                mean.iter_mut().zip(gradient).for_each(|(mean, value)| *mean += value / workers as f32);
            }
        }
        let update = Update { learning_rate: run.learning_rate, step, scale: 1.0 };
        for (block, mean) in blocks.iter_mut().zip(&mean) {
            block.apply(&run.optimizer, &update, mean);
        }
    }
    blocks.into_iter().map(|block| block.values).collect()
}

/// Asserts equality up to rounding.
pub fn assert_close(got: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (parameter, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.len(), expected.len(), "{what}: parameter {parameter}");
        for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
            let tolerance = 1e-5 * expected.abs().max(0.1);
            assert!((got - expected).abs() <= tolerance, "{what}: {got} for {expected} at {parameter}[{index}]");
        }
    }
}

/// Asserts equality to the last bit.
pub fn assert_same_bits(got: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    let bits = |values: &[Vec<f32>]| values.concat().iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(bits(got) == bits(expected), "{what}: some bits differ");
}
