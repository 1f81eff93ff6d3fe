//! `windlass launch MODEL`: a whole cluster on this machine, as child processes of this one.
//!
//! The launcher trains nothing. It starts the tasks, shows their events, and makes sure that none of them outlives it.

mod child;
mod inbox;
mod launcher;
mod processes;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::cluster::{Job, TaskId};
use windlass_runs::names::RUNS;
use windlass_worker::event::Event;
use windlass_worker::model::Defaults;
use windlass_worker::replica::{Place, PlaceAt};

use crate::args::{Format, LaunchArgs, SoftPlacement, TrainArgs};
use crate::config::{TaskConfig, checkpoint_location, make_run_dir};
use crate::failure::Failure;
use crate::finished;
use crate::in_graph::{is_led, logical_workers};
use crate::listening;
use crate::logging;
use crate::model_flags::ModelFlags;
use crate::output::{self, Trainers, count};
use crate::progress::Progress;
use crate::resume;
use crate::run_file::{self, RunFile};
use crate::signals::{self, StopSignal, Turn, Turns, unix_seconds};
use crate::terminal::Terminal;
use crate::verbosity;
use child::Plan;
pub(crate) use child::inherited_listener;
use inbox::{Message, Outbox, inbox};
use launcher::{Launcher, Resumption};
use processes::Processes;

/// How long a launcher that is told to stop at once has to report what remains of the run: its terminal may be blocked.
const AT_ONCE: Duration = Duration::from_secs(3);

pub(crate) fn run(
    model: &str,
    model_flags: &ModelFlags,
    launch: &LaunchArgs,
    args: &TrainArgs,
    defaults: &Defaults,
) -> Result<(), Failure> {
    let terminal = if args.output.format == Format::Human { Terminal::with_bars() } else { Terminal::default() };
    logging::start_beside(&terminal);
    let progress = Progress::of_many(&terminal, args.output.format);
    // Checked here as well, so that a mistake is reported once and before anything is started.
    let in_graph = is_led(args);
    let logical = if in_graph { logical_workers(args, launch.workers) } else { launch.workers };
    let trainers = if in_graph { Trainers::of_client(logical) } else { Trainers::Workers };
    let progress = progress.with_trainers(trainers);
    let config = TaskConfig::new(args, defaults, Some(logical))?;
    if in_graph && launch.colocate {
        let flag = if args.training.in_graph { "--in-graph" } else { "--place on other tasks" };
        return Err(Failure::usage(format!(
            "--colocate cannot be combined with {flag}: joined workers hold no parameters"
        ))
        .with_hint("omit it: without --ps, the client holds them".to_owned()));
    }
    if launch.workers == 0 && in_graph {
        let flag = if args.training.in_graph { "--in-graph" } else { "--place on other tasks" };
        return Err(Failure::usage(format!("{flag} needs at least one worker")));
    }
    if launch.workers == 0 || (ps(launch, in_graph) == 0 && !launch.colocate && !in_graph) {
        return Err(Failure::usage("a cluster has at least one ps and one worker")
            .with_hint("--colocate needs no ps; `train` needs no cluster".to_owned()));
    }
    let mut settings = args.settings.clone();
    if !launch.colocate {
        settings.resolve("ps", [ps(launch, in_graph).to_string()]);
    }
    let settings = run_file::text(&settings, &config.run)?;
    if args.config.print_config {
        output::print_line(settings.trim_end());
        return Ok(());
    }
    config.placement.check(launch.workers)?;
    let joined = in_graph.then_some(launch.workers as usize);
    let places = config.stages.as_ref().map(|stages| stages.places(joined)).transpose()?;
    if let Some(reason) = finished::already(model, model_flags, args, &config.run, logical)? {
        progress.watcher()(&Event::AlreadyFinished { reason });
        return Ok(());
    }
    let tasks = tasks(launch, in_graph)?;
    let run_dir = match &args.output.run_dir {
        Some(run_dir) => make_run_dir(run_dir).map(|()| run_dir.clone())?,
        None => new_run_dir(model)?,
    };
    let began = unix_seconds();
    let (outbox, messages) = inbox();
    let processes = Processes::default();
    signals::forward(stop_tasks(outbox.clone(), processes.clone()))?;
    let run_file = RunFile::create(&run_dir, settings, args.checkpoint.take_over)?;
    let mut arguments = child_arguments(model, &tasks, args, launch, &run_file)?;
    if progress.has_bars() {
        arguments.push("--progress".into());
    }
    let variables = args.settings.variables().to_vec();
    let page = tasks.first().map(|(_, listener)| listening::local_address(listener)).unwrap_or_default();
    let plan = Plan {
        run_dir: run_dir.clone(),
        run_file,
        arguments,
        joined: in_graph.then(|| join_arguments(args, launch)),
        client: in_graph.then_some(TaskId::worker(launch.workers)),
        trainers,
        needed: with_stages(places.iter().flatten()),
        variables,
        listeners: tasks,
        messages: outbox,
        processes,
    };
    progress.say(&format!(
        "{model} on {}, logs in {}",
        if in_graph {
            let workers = count(launch.workers as usize, "joined worker");
            let how = if args.training.in_graph { "in-graph" } else { "in stages" };
            match ps(launch, in_graph) {
                0 => format!("{workers}, {how}"),
                ps => format!("{ps} ps and {workers}, {how}"),
            }
        } else if launch.colocate {
            format!("{} with a ps shard in each", count(launch.workers as usize, "worker"))
        } else {
            format!("{} ps and {}", ps(launch, in_graph), count(launch.workers as usize, "worker"))
        },
        run_dir.display()
    ));
    progress.say(&format!("live page at http://{page}/"));
    let children = plan.start().inspect_err(|_| plan.run_file.restore())?;
    let resumption = Resumption {
        checkpoints: checkpoint_location(&args.checkpoint, Some(&run_dir)),
        resumes: args.checkpoint.resume != "never",
        began,
        command: resume::command(&args.settings, args.output.run_dir.is_none().then_some(&*run_dir)),
    };
    Launcher::new(plan, children, progress, launch.restart, resumption).run(&messages)
}

/// Signals the tasks as soon as a signal arrives, even if the launcher is busy. The launcher is notified, too, and does
/// the rest.
fn stop_tasks(messages: Outbox, processes: Processes) -> impl FnMut(StopSignal) -> bool + Send + 'static {
    let mut turns = Turns::default();
    move |signal| match turns.next(Instant::now()) {
        Turn::First => {
            // The message is sent first, so that the launcher receives it before it learns how tasks ended.
            let is_heard = messages.send(Message::Signal(signal));
            processes.terminate_all_if_running();
            is_heard
        }
        Turn::Echo => true,
        Turn::Again => {
            messages.send(Message::SignalAgain);
            processes.kill_all();
            std::thread::spawn(move || {
                std::thread::sleep(AT_ONCE);
                std::process::exit(signal.exit_code().into());
            });
            true
        }
    }
}

/// The workers that have stages of the model.
fn with_stages<'a>(places: impl Iterator<Item = &'a (String, Vec<Place>)>) -> BTreeSet<TaskId> {
    let worker = |place: &'a Place| match place.at {
        PlaceAt::Worker(worker, _) => Some(TaskId::worker(worker as u32)),
        PlaceAt::Here(_) => None,
    };
    places.flat_map(|(_, places)| places).filter_map(worker).collect()
}

type Listening = Vec<(TaskId, TcpListener)>;

/// The tasks in order, with a listener on a free port for each. The ports are assigned before the children exist, so
/// nobody can take them in between.
fn tasks(launch: &LaunchArgs, in_graph: bool) -> Result<Listening, Failure> {
    let ps = if launch.colocate { 0 } else { ps(launch, in_graph) };
    // The client of an in-graph run is numbered after the workers, but comes before them in order: without ps, it is
    // the coordinator.
    let client = in_graph.then_some(TaskId::worker(launch.workers));
    let tasks = (0..ps).map(TaskId::ps).chain(client).chain((0..launch.workers).map(TaskId::worker));
    // A machine may have only one of these addresses.
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(|ip| SocketAddr::new(ip, 0));
    let listen = |task| match TcpListener::bind(&loopback[..]) {
        Ok(listener) => Ok((task, listener)),
        Err(error) => Err(Failure::usage(format!("cannot listen for {task}: {error}"))),
    };
    tasks.map(listen).collect()
}

/// The number of parameter servers.
fn ps(launch: &LaunchArgs, in_graph: bool) -> u32 {
    launch.ps.unwrap_or(if in_graph { 0 } else { 1 })
}

/// The flags for every joined worker.
fn join_arguments(args: &TrainArgs, launch: &LaunchArgs) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["join".into(), "--once".into()];
    let mut add = |flag: &str, value: String| arguments.extend([flag.into(), value.into()]);
    if launch.workers > 1 || args.training.threads.is_some() {
        add("--threads", threads(args, launch).to_string());
    }
    if args.device.devices.is_none() {
        add("--towers", args.training.towers.to_string());
    }
    args.device.device.iter().for_each(|device| add("--device", device.clone()));
    args.device.devices.iter().for_each(|devices| add("--devices", devices.clone()));
    if args.device.soft_placement == SoftPlacement::On {
        add("--soft-placement", "on".to_owned());
    }
    add("--peer-timeout", args.output.peer_timeout.to_string());
    arguments.extend(verbosity::passed_on().map(OsString::from));
    arguments
}

/// The number of threads on which each worker computes.
fn threads(args: &TrainArgs, launch: &LaunchArgs) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    args.training.threads.unwrap_or((cores / launch.workers as usize).max(1))
}

/// The flags for every task. The run's settings are in its file; these flags concern only this start.
fn child_arguments(
    model: &str,
    listening: &Listening,
    args: &TrainArgs,
    launch: &LaunchArgs,
    run_file: &RunFile,
) -> Result<Vec<OsString>, Failure> {
    let hosts = |job| {
        let addresses = listening
            .iter()
            .filter(|(task, _)| task.job == job && (job == Job::Ps || task.index < launch.workers))
            .map(|(_, listener)| listener.local_addr().map(|address| address.to_string()).map_err(Failure::internal));
        addresses.collect::<Result<Vec<_>, _>>().map(|addresses| addresses.join(","))
    };
    let mut arguments: Vec<OsString> = vec!["train".into(), model.into(), "--config".into(), run_file.path().into()];
    arguments.extend(args.settings.beyond_files().iter().cloned());
    let threads = threads(args, launch);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    if launch.colocate {
        arguments.push("--colocate".into());
    } else if listening.iter().any(|(task, _)| task.job == Job::Ps) {
        arguments.extend(["--ps-hosts".into(), hosts(Job::Ps)?.into()]);
    }
    arguments.extend(["--worker-hosts".into(), hosts(Job::Worker)?.into()]);
    arguments.extend(["--format".into(), "json".into(), "--run-dir".into(), run_file.directory().into()]);
    // A single worker may determine the best number of threads itself.
    if launch.workers > 1 || args.training.threads.is_some() {
        arguments.extend(["--threads".into(), threads.to_string().into()]);
    }
    arguments.extend(verbosity::passed_on().map(OsString::from));
    arguments.extend(["--started-at".into(), started.to_string().into()]);
    Ok(arguments)
}

/// Creates a unique directory for a run, even if another run is started in the same second.
fn new_run_dir(model: &str) -> Result<PathBuf, Failure> {
    let runs = Path::new(RUNS);
    make_run_dir(runs)?;
    let name = format!("{model}-{}", unix_seconds());
    let names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    for directory in names.map(|name| runs.join(name)) {
        match std::fs::create_dir(&directory) {
            Ok(()) => return Ok(directory),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                let directory = directory.display();
                return Err(Failure::usage(format!("cannot make the run directory {directory}: {error}")));
            }
        }
    }
    unreachable!("there is always another name")
}
