//! Turns flags into a validated run: invalid combinations are refused here, before anything is started.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use windlass_core::cluster::{ClusterInput, ClusterSpec, Environment, ResolvedTask, Source, resolve};
use windlass_core::consistency::Mode;
use windlass_core::membership::Patience;
use windlass_core::plan::Sharding;
use windlass_server::{CheckpointConfig, Resume};
use windlass_wire::client::Interrupt;
use windlass_worker::board::BoardConfig;
use windlass_worker::model::{Defaults, Setup};
use windlass_worker::task::RunConfig;

use crate::args::{CheckpointArgs, ClusterArgs, Evaluate, ModeName, OutputArgs, TrainArgs, TrainingArgs};
use crate::failure::Failure;
use crate::in_graph;
use crate::optimizer_options;
use crate::output::count;
use crate::placement::Placement;
use crate::settings::{Origin, Settings};
use crate::signals::{StoppedBy, unix_seconds};
use crate::stage_placement::StagePlacement;
use crate::store_location::{self, CHECKPOINTS};

/// The minimum number of bytes of a model on a ps where all ps are on one host.
const ONE_HOST_MIN_BYTES: usize = 4 << 20;

/// The longest timeout: any multiple of it can still be added to the time of day.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Everything that a task needs to know and the user decides.
#[derive(Debug, Clone)]
pub(crate) struct TaskConfig {
    pub(crate) run: RunConfig,
    pub(crate) setup: Setup,
    pub(crate) threads: Option<usize>,
    /// What each worker computes on.
    pub(crate) placement: Placement,
    /// How one model is divided among devices, if it is.
    pub(crate) stages: Option<StagePlacement>,
    pub(crate) patience: Patience,
    pub(crate) peer_timeout: Duration,
    /// How long a joined worker may be silent before it is considered lost.
    pub(crate) silence: Duration,
    /// Whether joined workers compute.
    pub(crate) in_graph: bool,
    /// Whether joined workers share batches in proportion to their speed.
    pub(crate) balance: bool,
    pub(crate) started: Instant,
    pub(crate) stop: Arc<Interrupt>,
    /// The signal that told this process to stop, if any.
    pub(crate) stopped_by: StoppedBy,
    /// When this process began, in seconds since 1970.
    pub(crate) began: u64,
    pub(crate) checkpoints: Option<CheckpointConfig>,
    pub(crate) board: BoardConfig,
}

impl TaskConfig {
    pub(crate) fn new(args: &TrainArgs, defaults: &Defaults, workers: Option<u32>) -> Result<Self, Failure> {
        let TrainArgs { training, device, output, checkpoint, .. } = args;
        in_graph::check(args)?;
        let placement = Placement::new(training.towers, device)?;
        let run = run_config(training, output, defaults, workers)?;
        let towers = placement.replicas(run.batch_size * run.accumulate)?;
        // In an in-graph run the towers are those that each joined worker was started with.
        let run = RunConfig { towers: if training.in_graph { 1 } else { towers }, ..run };
        let stages = StagePlacement::new(args, run.batch_size)?;
        output.run_dir.as_deref().map(check_run_dir).transpose()?;
        if training.threads == Some(0) {
            return Err(Failure::usage("--threads is 0, but must be at least 1"));
        }
        Ok(Self {
            run,
            setup: Setup { seed: training.seed, data_dir: training.data_dir.clone() },
            threads: training.threads,
            placement,
            stages,
            patience: Patience::new(seconds("--worker-timeout", output.worker_timeout)?),
            peer_timeout: seconds("--peer-timeout", output.peer_timeout)?,
            silence: seconds("--worker-timeout", output.worker_timeout)?,
            in_graph: in_graph::is_led(args),
            balance: training.balance,
            started: started(output.started_at),
            stop: Arc::new(Interrupt::default()),
            stopped_by: StoppedBy::default(),
            began: unix_seconds(),
            checkpoints: checkpoints(checkpoint, output.run_dir.as_deref())?,
            board: BoardConfig {
                directory: output.run_dir.as_deref().map(|directory| directory.join("tensorboard")),
                command_line: command_line(),
                histograms: output.histograms,
            },
        })
    }

    /// Places a small model on fewer of the servers if all of them are on one host and the user has not decided
    /// otherwise.
    pub(crate) fn fit_to(&mut self, cluster: &ClusterSpec, args: &TrainingArgs) {
        if let Sharding::Balanced { min_bytes } = &mut self.run.sharding
            && args.min_shard_bytes.is_none()
            && cluster.has_servers_on_one_host()
        {
            *min_bytes = ONE_HOST_MIN_BYTES;
        }
    }
}

/// Refuses flags about checkpoints and curves for a run that has no place for them, since their user must believe that
/// it has. In files and variables, which several runs may share, such settings are simply unused.
pub(crate) fn check_places(args: &TrainArgs) -> Result<(), Failure> {
    let is_flag = |name: &str| args.settings.origin(name) == Some(&Origin::Flag);
    if checkpoint_location(&args.checkpoint, args.output.run_dir.as_deref()).is_none()
        && let Some(flag) =
            ["checkpoint-secs", "checkpoint-stall-secs", "keep", "take-over"].into_iter().find(|flag| is_flag(flag))
    {
        return Err(no_place_for_checkpoints(&format!("--{flag} has no effect: ")));
    }
    if args.output.run_dir.is_none() && args.output.histograms && is_flag("histograms") {
        return Err(Failure::usage("--histograms needs --run-dir"));
    }
    Ok(())
}

fn no_place_for_checkpoints(consequence: &str) -> Failure {
    Failure::usage(format!("{consequence}there is nowhere to write checkpoints"))
        .with_hint("--run-dir DIR keeps them with the run, --checkpoint-dir WHERE elsewhere".to_owned())
}

/// The location of the run's checkpoints, if it has any.
pub(crate) fn checkpoint_location(args: &CheckpointArgs, run_dir: Option<&Path>) -> Option<String> {
    let in_run_dir = || run_dir.map(|directory| directory.join(CHECKPOINTS).display().to_string());
    args.checkpoint_dir.clone().or_else(in_run_dir)
}

/// The configuration of the run's checkpoints, if it has a place for them.
fn checkpoints(args: &CheckpointArgs, run_dir: Option<&Path>) -> Result<Option<CheckpointConfig>, Failure> {
    if args.keep == 0 {
        return Err(Failure::usage("--keep must be at least 1"));
    }
    if args.checkpoint_steps == Some(0) {
        return Err(Failure::usage("--checkpoint-steps must be at least 1"));
    }
    let every = match args.checkpoint_secs {
        0.0 => None,
        _ => Some(seconds("--checkpoint-secs", args.checkpoint_secs)?),
    };
    let stall = seconds("--checkpoint-stall-secs", args.checkpoint_stall_secs)?;
    let Some(location) = checkpoint_location(args, run_dir) else {
        if args.resume != "auto" && args.resume != "never" || args.checkpoint_steps.is_some() {
            return Err(no_place_for_checkpoints(""));
        }
        return Ok(None);
    };
    Ok(Some(CheckpointConfig {
        location: absolute(&location)?,
        every,
        every_steps: args.checkpoint_steps,
        keep: args.keep,
        resume: resume(&args.resume)?,
        restarted: args.restarted,
        stall,
        take_over: args.take_over,
        description: command_line(),
    }))
}

/// The variable in which the launcher passes the user's command line to its tasks.
pub(crate) const COMMAND_VARIABLE: &str = "WINDLASS_LAUNCHED_AS";

/// The user's command line, quoted for a shell.
pub(crate) fn command_line() -> String {
    if let Ok(launched) = std::env::var(COMMAND_VARIABLE) {
        return launched;
    }
    let words = std::env::args_os().skip(1).map(|word| crate::resume::quoted(&word));
    std::iter::once(crate::program::name()).chain(words).collect::<Vec<_>>().join(" ")
}

fn resume(text: &str) -> Result<Resume, Failure> {
    match text {
        "auto" => Ok(Resume::Auto),
        "never" => Ok(Resume::Never),
        place => {
            let (location, id) = store_location::split(place)?;
            Ok(Resume::From(absolute(&store_location::store_in(location))?, id))
        }
    }
}

/// Makes a directory absolute, so that every task on this machine finds it; the address of a store is unchanged.
fn absolute(location: &str) -> Result<String, Failure> {
    if location.contains("://") {
        return Ok(location.to_owned());
    }
    let path = std::path::absolute(location)
        .map_err(|error| Failure::usage(format!("cannot keep checkpoints in {location:?}: {error}")))?;
    Ok(path.display().to_string())
}

/// The absolute form of a path, if it can be determined.
pub(crate) fn absolute_path(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

/// The role of this process, as determined by settings, cluster file and `TF_CONFIG`.
pub(crate) enum Role {
    /// Train by itself.
    Alone,
    /// Run a task of a cluster.
    Task(ResolvedTask),
    /// Score the checkpoints of a run.
    Evaluator,
}

/// Determines the role of this process.
pub(crate) fn resolve_role(args: &ClusterArgs, settings: &Settings) -> Result<Role, Failure> {
    let cluster_file = match &args.cluster {
        None => None,
        Some(path) => Some((path.display().to_string(), read_text(path, "the cluster file")?)),
    };
    let input = ClusterInput {
        job_name: args.job_name.clone(),
        task_index: args.task_index,
        ps_hosts: args.ps_hosts.clone(),
        worker_hosts: args.worker_hosts.clone(),
        colocate: args.colocate,
        cluster_file,
        tf_config: std::env::var("TF_CONFIG").ok(),
        environment: Environment::read(|name| std::env::var(name).ok()),
    };
    if input.is_evaluator() {
        return Ok(Role::Evaluator);
    }
    let resolved = resolve(&input).map_err(|error| Failure::usage(&error).with_hint(error.hint()))?;
    let Some(mut resolved) = resolved else { return Ok(Role::Alone) };
    for (source, flag) in [(&mut resolved.cluster_source, "worker-hosts"), (&mut resolved.task_source, "job-name")] {
        let origin = settings.origin(flag).filter(|origin| **origin != Origin::Flag);
        if let (Source::Flags, Some(origin)) = (&source, origin) {
            *source = Source::File(origin.to_string());
        }
    }
    Ok(Role::Task(resolved))
}

/// Reads a file that the user names. It must be a regular file: reading a pipe without a writer would block.
pub(crate) fn read_text(path: &Path, what: &str) -> Result<String, Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::usage(format!("cannot read {what} {}: {why}", path.display()));
    let kind = std::fs::metadata(path).map_err(|error| bad(&error))?;
    if kind.is_dir() {
        return Err(bad(&"it is a directory"));
    }
    if !kind.is_file() {
        return Err(bad(&"it is not a regular file"));
    }
    std::fs::read_to_string(path).map_err(|error| bad(&error))
}

/// Refuses a directory whose name is not UTF-8: tasks that get the name from a file or a message would use another
/// directory than those that use it unchanged.
fn check_run_dir(directory: &Path) -> Result<(), Failure> {
    match directory.to_str() {
        Some(_) => Ok(()),
        None => Err(Failure::usage(format!("the name of the run directory {} is not UTF-8", directory.display()))
            .with_hint("choose another --run-dir".to_owned())),
    }
}

/// Creates the run directory before anything is written to it.
pub(crate) fn make_run_dir(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::usage(format!("cannot make the run directory {}: {error}", directory.display())))
}

fn run_config(
    args: &TrainingArgs,
    output: &OutputArgs,
    defaults: &Defaults,
    workers: Option<u32>,
) -> Result<RunConfig, Failure> {
    // A limit given by the user replaces the model's own limits.
    let (steps, epochs) = match (args.steps, args.epochs) {
        (None, None) => (defaults.steps, defaults.epochs),
        given => given,
    };
    if steps == Some(0) {
        return Err(Failure::usage("--steps must be at least 1"));
    }
    if epochs == Some(0) {
        return Err(Failure::usage("--epochs must be at least 1"));
    }
    let learning_rate = args.learning_rate.unwrap_or(defaults.learning_rate);
    if !learning_rate.is_finite() || learning_rate < 0.0 {
        return Err(Failure::usage(format!(
            "--learning-rate is {learning_rate}, but must be a finite number, zero or more"
        )));
    }
    if args.batch_size == Some(0) {
        return Err(Failure::usage("--batch-size must be at least 1"));
    }
    if args.accumulate == 0 {
        return Err(Failure::usage("--accumulate must be at least 1"));
    }
    let batch_size = args.batch_size.unwrap_or(defaults.batch_size);
    if batch_size.checked_mul(args.accumulate).is_none() {
        return Err(Failure::usage(format!("--accumulate is {}, which is too large", args.accumulate)));
    }
    if output.log_every == 0 {
        return Err(Failure::usage("--log-every must be at least 1"));
    }
    Ok(RunConfig {
        mode: mode(args, workers)?,
        optimizer: optimizer_options::optimizer(args, defaults.optimizer)?,
        learning_rate,
        schedule: args.learning_rate_schedule.parse().map_err(Failure::usage)?,
        sharding: sharding(args)?,
        batch_size,
        accumulate: args.accumulate,
        towers: 1,
        clip_norm: clip_norm(args.clip_norm, defaults.clip_norm)?,
        steps,
        epochs,
        seed: args.seed,
        shuffle: defaults.shuffle,
        shard_data: args.shard_data,
        deterministic: args.deterministic,
        staleness_scaling: args.staleness_scaling,
        evaluate_epochs: args.evaluate == Evaluate::Epoch,
        log_every: output.log_every,
        model_flags: BTreeMap::new(),
        data_dir: args.data_dir.as_deref().map(absolute_path),
    })
}

/// The norm to which gradients are clipped, as given by the user or else by the model.
fn clip_norm(given: Option<f32>, default: Option<f32>) -> Result<Option<f32>, Failure> {
    match given {
        None => Ok(default),
        Some(0.0) => Ok(None),
        Some(norm) if norm.is_finite() && norm > 0.0 => Ok(Some(norm)),
        Some(bad) => {
            Err(Failure::usage(format!("--clip-norm is {bad}, but must be a positive number, or 0 for no clipping")))
        }
    }
}

fn sharding(args: &TrainingArgs) -> Result<Sharding, Failure> {
    match (args.sharding.parse().map_err(Failure::usage)?, args.min_shard_bytes) {
        (Sharding::Balanced { min_bytes }, given) => Ok(Sharding::Balanced { min_bytes: given.unwrap_or(min_bytes) }),
        (Sharding::RoundRobin, Some(_)) => Err(Failure::usage("--min-shard-bytes needs --sharding balanced")),
        (Sharding::RoundRobin, None) => Ok(Sharding::RoundRobin),
    }
}

fn mode(args: &TrainingArgs, workers: Option<u32>) -> Result<Mode, Failure> {
    if args.replicas_to_aggregate.is_some() && args.mode != ModeName::Sync {
        return Err(Failure::usage("--replicas-to-aggregate needs --mode sync")
            .with_hint("other modes apply every gradient by itself".to_owned()));
    }
    if args.staleness.is_some() && args.mode != ModeName::Ssp {
        return Err(Failure::usage("--staleness needs --mode ssp"));
    }
    if args.staleness_scaling && args.mode == ModeName::Sync {
        return Err(Failure::usage("--staleness-scaling needs --mode async or ssp")
            .with_hint("gradients of a sync round are never stale: omit the flag".to_owned()));
    }
    if args.deterministic && args.mode != ModeName::Sync && workers != Some(1) {
        return Err(Failure::usage("--deterministic needs --mode sync")
            .with_hint("in other modes the result depends on which worker is faster".to_owned()));
    }
    match args.mode {
        ModeName::Async => Ok(Mode::Async),
        ModeName::Sync => match (args.replicas_to_aggregate, workers) {
            (Some(0), _) => Err(Failure::usage("--replicas-to-aggregate must be at least 1")),
            (Some(replicas), Some(workers)) if replicas > workers => {
                let workers = count(workers as usize, "worker");
                Err(Failure::usage(format!("--replicas-to-aggregate is {replicas}, more than the run's {workers}")))
            }
            (replicas_to_aggregate, _) => Ok(Mode::Sync { replicas_to_aggregate }),
        },
        ModeName::Ssp => match args.staleness {
            Some(staleness) => Ok(Mode::Ssp { staleness }),
            None => Err(Failure::usage("--mode ssp needs --staleness")
                .with_hint("how many steps a worker may be ahead of the slowest, such as --staleness 3".to_owned())),
        },
    }
}

pub(crate) fn seconds(flag: &str, value: f64) -> Result<Duration, Failure> {
    if value > LONGEST.as_secs_f64() {
        return Err(Failure::usage(format!(
            "{flag} is {value}, but must be at most {} (ten years)",
            LONGEST.as_secs()
        )));
    }
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| Failure::usage(format!("{flag} is {value}, but must be a number of seconds above zero")))
}

/// The start of the run: that of the launcher, if there is one, or else of this process.
fn started(unix_millis: Option<u64>) -> Instant {
    let now = Instant::now();
    let Some(millis) = unix_millis else { return now };
    let since =
        SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_millis(millis)).unwrap_or_default().min(LONGEST);
    now.checked_sub(since).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_is_started_again_after_hours_knows_when_its_run_began() {
        let age = Duration::from_secs(5 * 3600);
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - age;
        assert!(started(Some(began.as_millis() as u64)).elapsed() >= age);
        assert!(started(None).elapsed() < age);
    }
}
