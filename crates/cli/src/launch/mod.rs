//! `windlass launch MODEL`: a whole cluster on this machine, as child processes of this one.
//!
//! The launcher trains nothing. It starts the tasks, shows what they tell, and sees to it that all of them are
//! gone when it is.

mod child;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tracing::warn;
use windlass_core::cluster::{Job, TaskId};
use windlass_worker::event::Event;
use windlass_worker::model::Defaults;

use crate::args::{Format, LaunchArgs, TrainArgs, hyphenate};
use crate::config::{TaskConfig, make_run_dir};
use crate::failure::Failure;
use crate::logging;
use crate::output::count;
use crate::progress::Progress;
use crate::terminal::Terminal;
use crate::train::SAME_SIGNAL;
pub(crate) use child::inherited_listener;
use child::{Child, Ended, Message, Plan};

/// How long tasks have to end after one has failed.
const GRACE: Duration = Duration::from_secs(5);
/// How long they have when the run was told to stop, and a last checkpoint may have to be written: a little longer than
/// they give themselves.
const DRAIN: Duration = Duration::from_secs(70);
/// Lines of a failed task's log that are shown.
const TAIL: usize = 15;

pub(crate) fn run(model: &str, launch: &LaunchArgs, args: &TrainArgs, defaults: &Defaults) -> Result<(), Failure> {
    let terminal = if args.output.format == Format::Human { Terminal::with_bars() } else { Terminal::default() };
    logging::start_beside(&terminal);
    let progress = Progress::of_many(&terminal, args.output.format);
    // Checked here too, so that a mistake is told once and before anything is started.
    TaskConfig::new(args, defaults, Some(launch.workers))?;
    if launch.workers == 0 || (launch.ps == 0 && !launch.colocate) {
        return Err(Failure::usage("a cluster has at least one ps and one worker")
            .with_hint("--colocate needs no ps; `train` needs no cluster".to_owned()));
    }
    let tasks = tasks(launch)?;
    let run_dir = args.output.run_dir.clone().unwrap_or_else(|| default_run_dir(model));
    make_run_dir(&run_dir)?;
    let (sender, messages) = mpsc::channel();
    child::forward_signals(sender.clone())?;
    let mut arguments = child_arguments(model, &tasks, args, &run_dir, launch)?;
    if progress.has_bars() {
        arguments.push("--progress".into());
    }
    let plan = Plan { run_dir: run_dir.clone(), arguments, listeners: tasks.1, messages: sender };
    progress.say(&format!(
        "{model} on {}, logs in {}",
        if launch.colocate {
            format!("{} with a ps shard in each", count(launch.workers as usize, "worker"))
        } else {
            format!("{} ps and {}", launch.ps, count(launch.workers as usize, "worker"))
        },
        run_dir.display()
    ));
    let children = plan.start()?;
    Launcher {
        plan,
        children,
        progress,
        restarts: launch.restart,
        failure: None,
        told_to_stop: None,
        summarised: false,
    }
    .run(&messages)
}

type Listening = Vec<(TaskId, TcpListener)>;

/// The tasks in their order, with a listener on a free port for each. Their numbers are given before the
/// children exist, and nobody can take them in between.
fn tasks(launch: &LaunchArgs) -> Result<(u32, Listening), Failure> {
    let ps = if launch.colocate { 0 } else { launch.ps };
    let tasks = (0..ps).map(TaskId::ps).chain((0..launch.workers).map(TaskId::worker));
    // A machine may have only one of them.
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(|ip| SocketAddr::new(ip, 0));
    let listen = |task| match TcpListener::bind(&loopback[..]) {
        Ok(listener) => Ok((task, listener)),
        Err(error) => Err(Failure::usage(format!("cannot listen for {task}: {error}"))),
    };
    Ok((ps, tasks.map(listen).collect::<Result<_, _>>()?))
}

/// The flags of every task: the user's own, without those that are the launcher's.
fn child_arguments(
    model: &str,
    (_, listening): &(u32, Listening),
    args: &TrainArgs,
    run_dir: &Path,
    launch: &LaunchArgs,
) -> Result<Vec<OsString>, Failure> {
    let hosts = |job| {
        let addresses = listening
            .iter()
            .filter(|(task, _)| task.job == job)
            .map(|(_, listener)| listener.local_addr().map(|address| address.to_string()).map_err(Failure::internal));
        addresses.collect::<Result<Vec<_>, _>>().map(|addresses| addresses.join(","))
    };
    let own = |flag: &str| match flag {
        "--ps" | "--workers" | "--run-dir" | "--format" | "--threads" | "--restart" => Some(1),
        "--colocate" => Some(0),
        _ => None,
    };
    let mut arguments: Vec<OsString> = vec!["train".into(), model.into()];
    let mut skip = 0;
    for argument in hyphenate(std::env::args_os()).into_iter().skip(3) {
        if skip > 0 {
            skip -= 1;
            continue;
        }
        let text = argument.to_string_lossy().into_owned();
        match text.split_once('=') {
            Some((flag, _)) if own(flag).is_some() => {}
            _ => match own(&text) {
                Some(values) => skip = values,
                None => arguments.push(argument),
            },
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.training.threads.unwrap_or((cores / launch.workers as usize).max(1));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    if launch.colocate {
        arguments.push("--colocate".into());
    } else {
        arguments.extend(["--ps-hosts".into(), hosts(Job::Ps)?.into()]);
    }
    arguments.extend(["--worker-hosts".into(), hosts(Job::Worker)?.into()]);
    arguments.extend(["--format".into(), "json".into(), "--run-dir".into(), run_dir.into()]);
    // One worker alone may find out for itself how many threads are best.
    if launch.workers > 1 || args.training.threads.is_some() {
        arguments.extend(["--threads".into(), threads.to_string().into()]);
    }
    arguments.extend(["--started-at".into(), started.to_string().into()]);
    Ok(arguments)
}

fn default_run_dir(model: &str) -> PathBuf {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Path::new("runs").join(format!("{model}-{seconds}"))
}

struct Launcher {
    plan: Plan,
    children: Vec<Child>,
    progress: Progress,
    /// How often a task may still be started again.
    restarts: u32,
    failure: Option<Failure>,
    told_to_stop: Option<Instant>,
    summarised: bool,
}

/// How soon the tasks are to end.
enum End {
    /// They are told, and killed after a while.
    Within(Duration),
    /// They are killed.
    AtOnce,
}

impl Launcher {
    /// Until every task has ended.
    fn run(mut self, messages: &mpsc::Receiver<Message>) -> Result<(), Failure> {
        let mut deadline: Option<Instant> = None;
        while self.children.iter().any(Child::is_running) {
            let message = match deadline {
                None => messages.recv().ok(),
                Some(deadline) => match messages.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(message) => Some(message),
                    Err(mpsc::RecvTimeoutError::Timeout) => {
                        self.children.iter().filter(|child| child.is_running()).for_each(Child::kill);
                        messages.recv().ok()
                    }
                    Err(mpsc::RecvTimeoutError::Disconnected) => None,
                },
            };
            let Some(message) = message else { break };
            match self.handle(message) {
                Some(End::Within(grace)) if deadline.is_none() => {
                    deadline = Some(Instant::now() + grace);
                    self.children.iter().filter(|child| child.is_running()).for_each(Child::terminate);
                }
                Some(End::AtOnce) => deadline = Some(Instant::now()),
                _ => {}
            }
        }
        // What the last task told may still be on its way.
        while let Ok(message) = messages.try_recv() {
            self.handle(message);
        }
        self.progress.finish();
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if !self.summarised => Err(Failure::internal("the run ended without a summary")),
            None => {
                self.progress.say(&format!("logs and checkpoints are in {}", self.plan.run_dir.display()));
                Ok(())
            }
        }
    }

    /// Whether the run is to be ended.
    fn handle(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Event(event) => {
                self.summarised |= matches!(event, Event::Summary(_));
                self.progress.show(&event);
                None
            }
            Message::Ended(task, ended) => self.task_ended(task, ended).then_some(End::Within(GRACE)),
            Message::Signal(exit_code) => match self.told_to_stop {
                None => {
                    self.told_to_stop = Some(Instant::now());
                    self.progress.stopping();
                    self.progress.say("told to stop; ending all tasks");
                    self.failure.get_or_insert(Failure { exit_code, message: "stopped".to_owned(), hint: None });
                    Some(End::Within(DRAIN))
                }
                Some(first) => (first.elapsed() >= SAME_SIGNAL).then_some(End::AtOnce),
            },
        }
    }

    fn task_ended(&mut self, task: TaskId, ended: Ended) -> bool {
        let Some(position) = self.children.iter().position(|child| child.task == task) else { return false };
        self.children[position].ended();
        if self.failure.is_none() && self.start_again(position, ended) {
            return false;
        }
        let others_train = self.children.iter().any(|child| child.task.job == Job::Worker && child.is_running());
        match ended {
            Ended::Exited(0) => false,
            // Training goes on without a worker that was killed, as it would on many machines; but not without the
            // parameters that it may have held.
            Ended::Killed(signal) if task.job == Job::Worker && others_train && self.goes_on_without_workers() => {
                warn!("{task} was killed by signal {signal}; the others go on");
                self.progress.left(task.index, &format!("was killed by signal {signal}"));
                false
            }
            ended => {
                if self.failure.is_none() {
                    self.failure = Some(self.describe_failure(&self.children[position], ended));
                }
                true
            }
        }
    }

    fn goes_on_without_workers(&self) -> bool {
        self.failure.is_none() && self.children.iter().any(|child| child.task.job == Job::Ps)
    }

    /// Starts a task again that came to harm, if that is wanted. One that ended for a reason of the run's would only
    /// end so again.
    fn start_again(&mut self, position: usize, ended: Ended) -> bool {
        let came_to_harm = match ended {
            Ended::Killed(_) => true,
            Ended::Exited(code) => !matches!(code, 0 | 2..=5 | 130 | 143),
        };
        if !came_to_harm || self.restarts == 0 {
            return false;
        }
        self.restarts -= 1;
        let child = &mut self.children[position];
        match self.plan.start_again(child) {
            Ok(()) => {
                warn!("{} {}; started it again ({} restarts left)", child.task, describe(ended), self.restarts);
                true
            }
            Err(error) => {
                warn!("cannot start {} again: {error}", child.task);
                false
            }
        }
    }

    fn describe_failure(&self, child: &Child, ended: Ended) -> Failure {
        let exit_code = match ended {
            Ended::Exited(code) => u8::try_from(code).unwrap_or(1),
            Ended::Killed(_) => 1,
        };
        let how = describe(ended);
        let log = std::fs::read_to_string(&child.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(TAIL)..];
        let message = format!("{} {how}; the end of {}:\n  {}", child.task, child.log.display(), tail.join("\n  "));
        Failure { exit_code, message, hint: None }
    }
}

fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("ended with exit code {code}"),
        Ended::Killed(signal) => format!("was killed by signal {signal}"),
    }
}

impl Drop for Launcher {
    /// However the launcher ends, no task outlives it. (A launcher that is killed takes them along; see `child`.)
    fn drop(&mut self) {
        self.children.iter().filter(|child| child.is_running()).for_each(Child::kill);
    }
}
