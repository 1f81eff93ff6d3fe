//! `windlass join`: a worker that computes for any client that requests it. The client chooses the model and the data.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use burn::tensor::Device;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use tracing::{info, warn};
use windlass_core::cluster::{Address, TaskId};
use windlass_core::device::{DeviceKind, DeviceName};
use windlass_core::lifecycle::exit_code;
use windlass_instruments::Instruments;
use windlass_wire::client::Interrupt;
use windlass_wire::endpoint;
use windlass_worker::devices::{Chosen, ComputeDevice, Inventory, choose};
use windlass_worker::joined::protocol::{Assignment, Capacity, StageAssigned};
use windlass_worker::joined::{self, Computing, JoinConfig};
use windlass_worker::model::{Model, Setup};
use windlass_worker::replica::{Local, LocalConfig, StageWorker, Towers};

use crate::args::{ConfigArgs, DeviceArgs};
use crate::config::seconds;
use crate::failure::Failure;
use crate::placement::{self, Placement};
use crate::settings::{Settings, arguments};
use crate::signals::{self, StoppedBy};
use crate::terminal::Terminal;
use crate::{launch, logging, model_flags, output, version};

/// Run a worker that computes for clients (in-graph and placed runs)
#[derive(Debug, Parser)]
struct JoinCommand {
    /// Address at which clients reach this worker, as host:port
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Listen on this host only [default: the host of --listen if that is a loopback address, else every interface]
    #[arg(long, value_name = "HOST")]
    bind: Option<String>,
    /// Exit when the run of the first client is over, instead of waiting for the next
    #[arg(long)]
    once: bool,
    /// Split every batch among N replicas of the network, which compute side by side and share the threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    towers: usize,
    /// Compute threads [default: one or all cores, whichever a short trial finds faster]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// With --once: give up on a client that has been silent or disconnected for this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    peer_timeout: f64,
    /// This worker's number, for its metrics; set by launch
    #[arg(long, hide = true)]
    task_index: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Makes a model without its data on these devices and threads.
pub(crate) type Build = fn(&Assignment, &[Device], Option<usize>) -> anyhow::Result<Computing>;

pub(crate) fn command() -> Command {
    let of_join =
        "Read settings from the table [join] of this TOML file. Precedence: flags, then variables, then this file";
    JoinCommand::command().name("join").mut_arg("config", |arg| arg.help(of_join))
}

pub(crate) fn run(
    matches: &ArgMatches,
    settings: &Settings,
    models: Vec<(&'static str, Build)>,
) -> Result<(), Failure> {
    let args = JoinCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    if args.config.print_config {
        output::print_line(settings.to_toml().trim_end());
        return Ok(());
    }
    let terminal = Terminal::default();
    logging::start_beside(&terminal);
    let address: Address = args.listen.parse().map_err(|error| {
        Failure::usage(format!("--listen {:?}: {error}", args.listen))
            .with_hint("for example --listen 0.0.0.0:2222".to_owned())
    })?;
    if args.threads == Some(0) {
        return Err(Failure::usage("--threads is 0, but must be at least 1"));
    }
    let peer_timeout = seconds("--peer-timeout", args.peer_timeout)?;
    let placement = Placement::new(args.towers, &args.device)?;
    let devices = match args.task_index {
        Some(index) => placement.devices(TaskId::worker(index))?,
        None => placement.of_any_worker().devices(TaskId::CHIEF)?,
    };
    let listener = match (launch::inherited_listener(), &args.bind) {
        (Some(listener), _) => Ok(listener),
        (None, Some(host)) => endpoint::listen_on(host, address.port()),
        (None, None) => endpoint::listen(&address),
    };
    let listener = listener.map_err(|error| Failure::usage(&error).with_hint(error.hint()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Failure::internal)?;
    let (stop, stopped_by) = (Arc::new(Interrupt::default()), StoppedBy::default());
    signals::watch(&runtime, stop.clone(), stopped_by.clone(), &terminal);
    let threads = threads(&devices, args.threads);
    let config = JoinConfig {
        capacity: Capacity { devices: placement::names(&devices), threads, towers: devices.len() },
        once: args.once,
        is_launched: args.task_index.is_some(),
        devices: devices.clone(),
        peer_timeout,
        stop,
        instruments: Instruments::new(&version::build(), "joined", args.task_index.unwrap_or(0)),
    };
    let devices: Vec<Device> = devices.into_iter().map(|device| device.device).collect();
    let build = move |assignment: &Assignment| {
        let known = || models.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let model = models.iter().find(|(name, _)| *name == assignment.model);
        let (_, build) = model.with_context(|| {
            let (model, known) = (&assignment.model, known());
            format!(
                "this program has no model {model} (it has {known}); start the worker with the same program as the \
                 client"
            )
        })?;
        build(assignment, &devices, threads)
    };
    let outcome = joined::serve(runtime.handle(), listener, config, Arc::new(build)).map_err(Failure::internal)?;
    runtime.shutdown_timeout(Duration::from_secs(1));
    match stopped_by.get() {
        _ if outcome.exit_code == 0 => {
            info!("the run is over");
            Ok(())
        }
        Some((signal, _)) if outcome.exit_code == exit_code::TERMINATED => {
            Err(Failure { exit_code: signal.exit_code(), message: signal.name().to_owned(), hint: None })
        }
        _ => Err(outcome.into()),
    }
}

/// The number of threads to compute on, or `None` to detect it: the rules are those of a worker in a cluster.
fn threads(devices: &[ComputeDevice], given: Option<usize>) -> Option<usize> {
    let by_devices = match devices {
        [device] => (!device.is_cpu()).then_some(1),
        _ => Some(std::thread::available_parallelism().map_or(1, usize::from)),
    };
    given.or(by_devices)
}

/// Builds the model of an assignment, without its data.
pub(crate) fn build<M: Model>(
    assignment: &Assignment,
    devices: &[Device],
    threads: Option<usize>,
) -> anyhow::Result<Computing> {
    let flags = flags::<M>(assignment)?;
    let setup = Setup { seed: assignment.seed, data_dir: None };
    let model = M::without_data(&flags, &setup, &assignment.files)?;
    let config = LocalConfig { accumulate: assignment.accumulate.max(1), ..LocalConfig::on_cpu(assignment.seed) };
    if let Some(placed) = &assignment.placed {
        if devices.len() > 1 && placed.of(assignment.worker).any(|stage| stage.device.is_none()) {
            warn!("a stage is computed on one device: of {} towers, only the first is used", devices.len());
        }
        let stage = |it: &StageAssigned| Ok((it.stage.clone(), device_of(it, &devices[0], placed.is_soft)?));
        let stages = placed.of(assignment.worker).map(stage).collect::<anyhow::Result<Vec<_>>>()?;
        return Ok(Computing::Stages(StageWorker::of(model, &stages, assignment.seed)?));
    }
    Ok(Computing::Replica(match devices {
        [device] => Box::new(Local::new(model, LocalConfig { device: device.clone(), ..config })?),
        devices => Box::new(Towers::of(model, devices, threads.unwrap_or(1), &config)?),
    }))
}

/// The device for a stage: the one that the client names, or else this worker's own.
fn device_of(stage: &StageAssigned, own: &Device, is_soft: bool) -> anyhow::Result<Device> {
    let Some(name) = &stage.device else { return Ok(own.clone()) };
    let name: DeviceName = name.parse()?;
    let is_processor = name.device.is_some_and(|device| device.kind == DeviceKind::Cpu);
    let inventory = if is_processor { Inventory::of_the_processor() } else { Inventory::of_this_machine() };
    let chosen = choose(&[name], TaskId::CHIEF, is_soft, &inventory);
    let Chosen { devices, fallbacks } =
        chosen.map_err(|error| anyhow::anyhow!("stage {}: {error} ({})", stage.stage, error.hint()))?;
    fallbacks.iter().for_each(|fallback| warn!("stage {}: {fallback}", stage.stage));
    devices.into_iter().next().map(|chosen| chosen.device).context("no device was chosen")
}

/// The model's flags as the client sent them.
fn flags<M: Model>(assignment: &Assignment) -> anyhow::Result<M::Flags> {
    let command = <M::Flags as clap::Args>::augment_args(Command::new(M::NAME));
    let given = model_flags::of_checkpoint(&command, &assignment.flags);
    let words = command.get_arguments().flat_map(|arg| {
        let values = given.get(&crate::settings::name(arg));
        values.map(|values| arguments(arg, values)).unwrap_or_default()
    });
    let words: Vec<OsString> = std::iter::once(OsString::from(M::NAME)).chain(words).collect();
    let parsed = command.clone().try_get_matches_from(words).and_then(|matches| M::Flags::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.to_string();
        anyhow::anyhow!("the model's flags: {}", text.lines().next().unwrap_or_default().trim_start_matches("error: "))
    })
}
