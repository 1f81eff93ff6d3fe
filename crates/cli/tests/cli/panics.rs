//! A model that panics ends the run of all tasks with its message, wherever the panic occurs.

use std::collections::BTreeMap;

use windlass::burn::module::{Module, Param};
use windlass::burn::tensor::{Device, Tensor};
use windlass::optimizer::Optimizer;
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_worker::task::RunConfig;

use crate::in_process::{AllEnded, Layout, train_until_ended, try_out};

/// A model that panics in one of its functions.
#[derive(Clone, Copy)]
struct Clumsy(&'static str);

impl Clumsy {
    fn may_panic(self, place: &str) {
        if self.0 == place {
            // Unwinds like a panic, but without a message on the terminal.
            std::panic::resume_unwind(Box::new(format!("in {place}")));
        }
    }
}

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    weights: Param<Tensor<1>>,
}

impl Model for Clumsy {
    const NAME: &'static str = "clumsy";
    const ABOUT: &'static str = "a model with a mistake in it";
    type Flags = NoFlags;
    type Network = Network;
    type Batch = usize;

    fn defaults(_flags: &NoFlags) -> Defaults {
        unreachable!("the test says how to train")
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        unreachable!("the test makes the model")
    }

    fn network(&self, device: &Device) -> Network {
        Network { weights: Param::from_tensor(Tensor::ones([4], device)) }
    }

    fn samples(&self) -> usize {
        8
    }

    fn batch(&self, samples: &[usize], _device: &Device, _random: &mut StdRng) -> anyhow::Result<usize> {
        Ok(samples[0])
    }

    fn loss(&self, network: &Network, sample: usize) -> Tensor<1> {
        match sample {
            0 => self.may_panic("the first step"),
            3 => self.may_panic("loss"),
            _ => {}
        }
        network.weights.val().powf_scalar(2.0).mean()
    }

    fn evaluate(&self, _network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        self.may_panic("evaluate");
        Ok(Metrics::new())
    }

    fn conclude(&self, _network: &Network, _device: &Device) -> anyhow::Result<Vec<std::path::PathBuf>> {
        self.may_panic("conclude");
        Ok(Vec::new())
    }
}

pub fn run() -> RunConfig {
    RunConfig {
        mode: Mode::Async,
        optimizer: Optimizer::Sgd,
        learning_rate: 0.01,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: 1,
        accumulate: 1,
        towers: 1,
        clip_norm: None,
        steps: Some(16),
        epochs: None,
        seed: 3,
        shuffle: false,
        shard_data: false,
        deterministic: false,
        staleness_scaling: false,
        evaluate_epochs: false,
        log_every: 1,
        model_flags: BTreeMap::new(),
        data_dir: None,
    }
}

fn ended(place: &'static str) -> AllEnded {
    train_until_ended(Layout { servers: 2, workers: 2 }, &run(), || Clumsy(place), |shard| shard)
}

#[test]
fn all_tasks_are_told_of_a_panic_in_a_step_or_while_scoring() {
    for place in ["loss", "evaluate"] {
        let AllEnded { workers, servers, .. } = ended(place);
        for Outcome { exit_code, reason } in workers.iter().map(|ended| &ended.outcome).chain(&servers) {
            assert_eq!(*exit_code, exit_code::INTERNAL, "{reason}");
            assert!(reason.ends_with(&format!(": panicked while computing: in {place}")), "{reason}");
        }
    }
}

/// The run has already succeeded, and only the chief fails.
#[test]
fn a_panic_while_the_model_concludes_leaves_the_run_a_success() {
    let AllEnded { workers, servers, .. } = ended("conclude");
    assert!(servers.iter().all(|outcome| *outcome == Outcome::done()), "{servers:?}");
    let chief = workers.iter().find(|ended| ended.summary.is_some()).expect("a summary");
    let reason = "panicked while computing: in conclude".to_owned();
    assert_eq!(chief.outcome, Outcome { exit_code: exit_code::INTERNAL, reason });
}

#[test]
fn a_panic_in_the_step_that_is_tried_first_is_told() {
    let Outcome { exit_code, reason } = try_out(&run(), Clumsy("the first step")).outcome;
    assert_eq!(exit_code, exit_code::INTERNAL, "{reason}");
    assert!(reason.ends_with("panicked while computing: in the first step"), "{reason}");
}
