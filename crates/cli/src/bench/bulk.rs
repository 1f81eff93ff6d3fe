//! How fast a large model's parameters move between a ps in a process of its own and a worker in this one. The model
//! consists of parameters without any computation.

use std::fmt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use rand::rngs::StdRng;
use serde::Serialize;
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::optimizer::Optimizer;
use windlass_core::plan::Sharding;
use windlass_core::schedule::Schedule;
use windlass_instruments::Instruments;
use windlass_wire::client::Interrupt;
use windlass_wire::control::session::Coordinator;
use windlass_wire::stream::handshake::NO_SHARING_VARIABLE;
use windlass_worker::board::BoardConfig;
use windlass_worker::event::{Event, Watcher};
use windlass_worker::model::{Defaults, Metrics, Model, Setup};
use windlass_worker::replica::{Local, LocalConfig};
use windlass_worker::task::{self, RunConfig, WorkerConfig};

use super::own_program;
use crate::failure::Failure;

const STEPS: u64 = 30;

/// How the worker reaches the ps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    /// Over the transport used within one host.
    Local,
    /// Over TCP, as between hosts.
    Tcp,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp loopback",
            Transport::Local if std::env::var_os(NO_SHARING_VARIABLE).is_some() => "unix socket",
            Transport::Local => "shared memory",
        }
    }
}

struct Bulk {
    elements: usize,
}

#[derive(Debug, Clone, clap::Args)]
struct NoFlags {}

#[derive(Module, Debug)]
struct Values {
    values: Param<Tensor<1>>,
}

impl Model for Bulk {
    const NAME: &'static str = "bulk";
    const ABOUT: &'static str = "all parameters, no computation";
    type Flags = NoFlags;
    type Network = Values;
    type Batch = ();

    fn defaults(_flags: &NoFlags) -> Defaults {
        Defaults { optimizer: Optimizer::Sgd, learning_rate: 0.01, steps: Some(STEPS), ..Defaults::default() }
    }

    fn load(_flags: &NoFlags, _setup: &Setup) -> anyhow::Result<Self> {
        anyhow::bail!("made by the benchmark alone")
    }

    fn network(&self, device: &Device) -> Values {
        Values { values: Param::from_tensor(Tensor::ones([self.elements], device)) }
    }

    fn samples(&self) -> usize {
        STEPS as usize + 1
    }

    fn batch(&self, _samples: &[usize], _device: &Device, _random: &mut StdRng) -> anyhow::Result<()> {
        Ok(())
    }

    fn loss(&self, network: &Values, (): ()) -> Tensor<1> {
        network.values.val().mean()
    }

    fn evaluate(&self, _network: &Values, _device: &Device) -> anyhow::Result<Metrics> {
        Ok(Metrics::new())
    }
}

/// A child process that does not outlive the benchmark.
struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How fast the parameters moved.
#[derive(Debug, Serialize)]
pub(super) struct Moved {
    parameters: usize,
    transport: &'static str,
    push_pull_ms: f64,
    gigabytes_per_second: f64,
    ps_peak_megabytes: f64,
}

impl fmt::Display for Moved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{:.0} M parameters ({:.0} MB) by {}: push and pull {:.1} ms, {:.2} GB/s; ps memory {:.0} MB at its peak",
            self.parameters as f64 / 1e6,
            megabytes(self.parameters),
            self.transport,
            self.push_pull_ms,
            self.gigabytes_per_second,
            self.ps_peak_megabytes,
        )
    }
}

fn megabytes(parameters: usize) -> f64 {
    parameters as f64 * 4e-6
}

/// Runs the benchmark once.
pub(super) fn measure(elements: usize, transport: Transport) -> Result<Moved, Failure> {
    let port = |listener: std::io::Result<std::net::TcpListener>| {
        listener.and_then(|listener| listener.local_addr()).map(|address| address.to_string())
    };
    let ps = port(std::net::TcpListener::bind("127.0.0.1:0")).map_err(Failure::internal)?;
    let worker = port(std::net::TcpListener::bind("127.0.0.1:0")).map_err(Failure::internal)?;
    let mut command = own_program()?;
    command.args(["train", "linear", "--job-name", "ps", "--ps-hosts", &ps, "--worker-hosts", &worker]);
    command.env("RUST_LOG", "warn").stdin(Stdio::null());
    if transport == Transport::Tcp {
        command.env(windlass_wire::endpoint::NO_LOCAL_VARIABLE, "1");
    }
    let server = Guard(command.spawn().map_err(Failure::internal)?);
    let (pid, peak) = (server.0.id(), Arc::new(Mutex::new(0.0)));
    let seen = peak.clone();
    let watch: Watcher = Box::new(move |event| {
        if let (Event::Step(_), Ok(mut seen)) = (event, seen.lock()) {
            *seen = peak_memory_mb(pid).unwrap_or(f64::NAN);
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(Failure::internal)?;
    let config = WorkerConfig {
        id: WorkerId(0),
        workers: Some(1),
        servers: 1,
        coordinator: Coordinator::Remote(ps),
        own_server: None,
        threads: Some(1),
        peer_timeout: Duration::from_secs(30),
        records: None,
        started: Instant::now(),
        stop: Arc::new(Interrupt::default()),
        board: BoardConfig::default(),
        devices: vec!["cpu:0".to_owned()],
        log_placement: false,
        history: None,
        instruments: Instruments::default(),
    };
    let replica = Local::new(Bulk { elements }, LocalConfig::on_cpu(1)).map_err(Failure::internal)?;
    let ended = task::run(runtime.handle(), config, run_config(), Box::new(replica), watch);
    let Some(summary) = ended.summary else { return Err(ended.outcome.into()) };
    let wait_ms = summary.per_worker.first().map_or(f64::NAN, |worker| worker.wait_ms_p50);
    Ok(Moved {
        parameters: elements,
        transport: transport.name(),
        push_pull_ms: wait_ms,
        gigabytes_per_second: 2.0 * megabytes(elements) / wait_ms,
        ps_peak_megabytes: peak.lock().map_or(f64::NAN, |peak| *peak),
    })
}

fn run_config() -> RunConfig {
    let defaults = Bulk::defaults(&NoFlags {});
    RunConfig {
        mode: Mode::Async,
        optimizer: defaults.optimizer,
        learning_rate: defaults.learning_rate,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        batch_size: 1,
        steps: defaults.steps,
        epochs: None,
        seed: 1,
        shuffle: false,
        shard_data: false,
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

/// The peak memory of a process, where the system reports it.
fn peak_memory_mb(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kilobytes| kilobytes * 1.024e-3)
}
