//! A disk that hangs while the training thread itself assembles a batch: the worker ends without that thread.

use std::sync::{Mutex, mpsc};

use windlass::burn::module::{Module, Param};
use windlass::burn::tensor::{Device, Tensor};
use windlass::rand::rngs::StdRng;
use windlass::{Defaults, Metrics, Model, Setup};
use windlass_core::lifecycle::Outcome;
use windlass_worker::task::RunConfig;

use crate::in_process::train_until_told;
use crate::panics::run;

/// Makes batches quickly, until the training thread makes one itself. That call reports so, and blocks until it is
/// released.
struct Stuck {
    says: mpsc::Sender<()>,
    waits: Mutex<mpsc::Receiver<()>>,
}

#[derive(Clone, windlass::clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Network {
    weights: Param<Tensor<1>>,
}

impl Model for Stuck {
    const NAME: &'static str = "stuck";
    const ABOUT: &'static str = "a model whose data are on a disk that hangs";
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
        if std::thread::current().name().is_some_and(|name| name.starts_with("compute")) {
            self.says.send(())?;
            let _ = self.waits.lock().unwrap().recv();
        }
        Ok(samples[0])
    }

    fn loss(&self, network: &Network, _sample: usize) -> Tensor<1> {
        network.weights.val().powf_scalar(2.0).mean()
    }

    fn evaluate(&self, _network: &Network, _device: &Device) -> anyhow::Result<Metrics> {
        Ok(Metrics::new())
    }
}

#[test]
fn a_worker_that_hangs_on_its_data_ends_when_it_is_told_to_stop() {
    let ((says, told), (let_go, waits)) = (mpsc::channel(), mpsc::channel());
    let run = RunConfig { steps: None, log_every: 1_000_000, ..run() };
    let ended = train_until_told(&run, Stuck { says, waits: Mutex::new(waits) }, told);
    assert_eq!(ended.outcome, Outcome::told_to_stop());
    assert!(ended.was_let_in);
    drop(let_go);
}
