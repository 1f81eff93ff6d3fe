//! A gradient or running state that is not finite is never pushed, even if the loss is finite: the run ends and names
//! it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use windlass::burn::module::{Module, Param, RunningState};
use windlass::burn::tensor::{Device, Tensor};
use windlass::optimizer::Optimizer;
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::stream::frame::{Request, RequestKind};
use windlass_worker::task::RunConfig;

use crate::in_process::{AllEnded, Layout, train, train_until_ended};

/// The sample at which the loss has no derivative.
const BAD: usize = 3;

/// One half of the model is accessed by row. With the bad sample, one part of the loss is the root of zero, or its
/// running state is not a number.
#[derive(Clone, Copy, Default)]
struct Roots {
    /// The parameter that the bad sample affects, if any.
    bad: Option<&'static str>,
    /// Whether its loss is a sum over the batch.
    sums: bool,
}

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    dense: Param<Tensor<1>>,
    table: Param<Tensor<2>>,
    state: RunningState<Tensor<1>>,
}

impl Model for Roots {
    const NAME: &'static str = "roots";
    const ABOUT: &'static str = "a loss that is finite where its gradient is not";
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
        Network {
            dense: Param::from_tensor(Tensor::ones([40], device)),
            table: Param::from_tensor(Tensor::ones([10, 4], device)),
            state: RunningState::new(Tensor::zeros([20], device)),
        }
    }

    fn samples(&self) -> usize {
        8
    }

    fn batch(&self, samples: &[usize], _device: &Device, _random: &mut StdRng) -> anyhow::Result<usize> {
        Ok(if samples.contains(&BAD) { BAD } else { samples[0] })
    }

    fn loss(&self, network: &Network, sample: usize) -> Tensor<1> {
        let factor = |name| if sample == BAD && self.bad == Some(name) { 0.0 } else { 1.0 };
        let (dense, table) = (network.dense.val(), network.table.val());
        network.state.update((network.state.value() + 1.0) / factor("state"));
        (dense.sum() * factor("dense")).sqrt() + (table.sum() * factor("table")).sqrt()
    }

    fn evaluate(&self, _network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        Ok(Metrics::new())
    }

    fn row_parameters(&self) -> &[&str] {
        &["table"]
    }

    fn rows(&self, sample: &usize) -> Vec<Vec<u32>> {
        vec![vec![*sample as u32, 9]]
    }

    fn loss_is_summed(&self) -> bool {
        self.sums
    }
}

fn run() -> RunConfig {
    RunConfig {
        mode: Mode::Async,
        optimizer: Optimizer::Sgd,
        learning_rate: 0.01,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: 1,
        steps: Some(8),
        epochs: None,
        seed: 3,
        shuffle: false,
        shard_data: false,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        accumulate: 1,
        towers: 1,
        evaluate_epochs: false,
        log_every: 1,
        model_flags: BTreeMap::new(),
        data_dir: None,
    }
}

/// A shard that counts the pushes that it receives.
struct Counted {
    shard: Arc<dyn Shard>,
    pushes: Arc<AtomicUsize>,
}

impl Shard for Counted {
    fn serve(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        if request.kind == RequestKind::Push {
            self.pushes.fetch_add(1, Ordering::Relaxed);
        }
        self.shard.serve(request, peer)
    }
}

#[test]
fn a_gradient_that_is_not_finite_ends_the_run_before_it_is_pushed() {
    for bad in ["dense", "table"] {
        for clip_norm in [None, Some(1.0)] {
            let model = Roots { bad: Some(bad), ..Roots::default() };
            assert_ends_before_a_push(model, clip_norm, &format!("the gradient of {bad} contains NaN"));
        }
    }
}

#[test]
fn running_state_that_is_not_finite_ends_the_run_before_it_is_pushed() {
    for clip_norm in [None, Some(1.0)] {
        let model = Roots { bad: Some("state"), ..Roots::default() };
        assert_ends_before_a_push(model, clip_norm, "the running state state contains inf");
    }
}

/// Asserts that the step with the bad sample ends the run, and that the worker reports what is wrong.
fn assert_ends_before_a_push(model: Roots, clip_norm: Option<f32>, what: &str) {
    let pushes = Arc::new(AtomicUsize::new(0));
    let count = |shard| Arc::new(Counted { shard, pushes: pushes.clone() }) as Arc<dyn Shard>;
    let run = RunConfig { clip_norm, ..run() };
    let ended = train_until_ended(Layout { servers: 0, workers: 1 }, &run, || model, count);
    let AllEnded { workers, servers, losses } = ended;
    let reason = &workers[0].outcome.reason;
    assert_eq!(workers[0].outcome.exit_code, exit_code::NUMERIC, "{reason}");
    let what = format!("worker 0: {what} at step 4 (global step 4), where the loss is ");
    assert!(reason.starts_with(&what), "{reason}");
    assert!(reason[what.len()..].parse::<f32>().unwrap().is_finite(), "{reason}");
    assert_eq!(servers[0].exit_code, exit_code::NUMERIC, "{servers:?}");
    assert_eq!((losses.len(), pushes.load(Ordering::Relaxed)), (BAD, BAD), "steps and pushes");
}

#[test]
fn the_loss_beside_a_gradient_that_is_not_finite_is_that_of_a_sample() {
    let loss = |sums| {
        let model = Roots { bad: Some("dense"), sums };
        let run = RunConfig { batch_size: 2, ..run() };
        let ended = train_until_ended(Layout { servers: 0, workers: 1 }, &run, || model, |shard| shard);
        let reason = &ended.workers[0].outcome.reason;
        reason.rsplit(' ').next().unwrap().parse::<f32>().unwrap_or_else(|_| panic!("{reason}"))
    };
    assert_eq!(loss(true), loss(false) / 2.0);
}

#[test]
fn all_tasks_are_told_whose_gradient_was_not_finite() {
    let model = Roots { bad: Some("table"), ..Roots::default() };
    for mode in [Mode::Async, Mode::Sync { replicas_to_aggregate: None }] {
        let run = RunConfig { mode, ..run() };
        let ended = train_until_ended(Layout { servers: 2, workers: 2 }, &run, || model, |shard| shard);
        let workers = ended.workers.iter().map(|ended| &ended.outcome);
        for Outcome { exit_code, reason } in workers.chain(&ended.servers) {
            assert_eq!(*exit_code, exit_code::NUMERIC, "{reason}");
            assert!(reason.contains(": the gradient of table contains NaN at step 4 (global step "), "{reason}");
        }
    }
}

#[test]
fn the_same_model_without_the_root_of_zero_trains_to_its_end() {
    let model = Roots::default();
    let trained = train(Layout { servers: 0, workers: 1 }, &run(), || model);
    assert_eq!(trained.losses.len(), 8);
}
