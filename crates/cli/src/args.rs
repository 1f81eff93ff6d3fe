//! The flags of `windlass train` and `windlass launch`, as they are written. Only their form is checked here. Variables
//! and files set them, too; see `settings`.
//!
//! Flags are defined with hyphens; [`hyphenate`] lets users write underscores, as TensorFlow's scripts did.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::Settings;

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Readable lines.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// The consistency models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeName {
    /// Apply each push as it arrives
    Async,
    /// One update per round, from the mean of the workers' gradients
    Sync,
    /// Async, but no worker gets more than --staleness steps ahead of the slowest
    Ssp,
}

/// A task's place in a cluster.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster (omit all of these to run in one process)")]
pub(crate) struct ClusterArgs {
    /// Role of this task: ps, worker or evaluator (which scores new checkpoints while others train)
    #[arg(long, value_name = "ps|worker|evaluator")]
    pub(crate) job_name: Option<String>,
    /// Index of this task within its job, from 0
    #[arg(long, value_name = "N")]
    pub(crate) task_index: Option<u32>,
    /// Parameter servers, as host:port,host:port…
    #[arg(long, value_name = "HOSTS")]
    pub(crate) ps_hosts: Option<String>,
    /// Workers, as host:port,host:port…; worker 0 is the chief
    #[arg(long, value_name = "HOSTS")]
    pub(crate) worker_hosts: Option<String>,
    /// Read the cluster from this TOML file. Precedence: flags and WINDLASS_ variables, then this file, then TF_CONFIG,
    /// then the variables of Kubernetes and Slurm
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// Host a ps shard in each worker process instead of running ps tasks
    #[arg(long)]
    pub(crate) colocate: bool,
    /// Listen on this host instead of the one in the cluster. A client of joined workers listens on 127.0.0.1 by default
    /// and also accepts HOST:PORT
    #[arg(long, value_name = "HOST")]
    pub(crate) bind: Option<String>,
    /// Print the resolved cluster and where it came from, then exit
    #[arg(long)]
    pub(crate) print_cluster: bool,
}

/// How to train.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training (defaults come from the model)")]
pub(crate) struct TrainingArgs {
    /// When pushes are applied to the parameters
    #[arg(long, value_enum, default_value_t = ModeName::Async)]
    pub(crate) mode: ModeName,
    /// With --mode sync: gradients per round; if fewer than the workers, the rest are backups
    #[arg(long, value_name = "N")]
    pub(crate) replicas_to_aggregate: Option<u32>,
    /// With --mode ssp: how many steps a worker may get ahead of the slowest
    #[arg(long, value_name = "S")]
    pub(crate) staleness: Option<u64>,
    /// With --mode async or ssp: divide the learning rate of a push by its staleness, the number of updates since the
    /// worker read its parameters
    #[arg(long)]
    pub(crate) staleness_scaling: bool,
    /// Optimizer: sgd, momentum, adagrad, adam, adamw or rmsprop
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<String>,
    /// Setting of the optimizer, such as momentum=0.8 or beta2=0.98; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) optimizer_option: Vec<String>,
    /// Learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE")]
    pub(crate) learning_rate: Option<f32>,
    /// Learning rate by global step: constant, exponential:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS
    #[arg(long, visible_alias = "lr-schedule", value_name = "SCHEDULE", default_value = "constant")]
    pub(crate) learning_rate_schedule: String,
    /// Samples per batch. A worker's step is one batch, or N with --accumulate N; an epoch leaves out samples that do not
    /// fill a step
    #[arg(long, value_name = "N")]
    pub(crate) batch_size: Option<usize>,
    /// Compute N batches per step, one after the other, and push a single gradient, that of a batch N times as large
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) accumulate: usize,
    /// Split every batch among N replicas of the network in each worker, which compute side by side and share its threads
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) towers: usize,
    /// Run as the client of an in-graph run: keep the data and training loop here, and compute on the workers in
    /// --worker_hosts (started with `join --listen`)
    #[arg(long)]
    pub(crate) in_graph: bool,
    /// With --in-graph and --mode sync: give each worker a share of the batch in proportion to its speed
    #[arg(long)]
    pub(crate) balance: bool,
    /// Clip each worker's gradient to this global norm; 0 disables clipping
    #[arg(long, alias = "max-gradient-norm", value_name = "NORM")]
    pub(crate) clip_norm: Option<f32>,
    /// Stop after this many updates over all workers
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// Stop each worker after this many passes over its data
    #[arg(long, value_name = "N")]
    pub(crate) epochs: Option<u64>,
    /// How to split the parameters among the ps. balanced: by bytes, cutting large tensors. round_robin: whole variables
    /// in turn, as TensorFlow did
    #[arg(long, value_name = "HOW", default_value = "balanced")]
    pub(crate) sharding: String,
    /// Leave a ps empty rather than give it fewer than N bytes (with --sharding balanced) [default: 4 MiB if all ps are
    /// on one host, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) min_shard_bytes: Option<usize>,
    /// Seed for initial values, built-in data and sample order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// With --mode sync: make runs bitwise reproducible by summing gradients in worker order
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Split the data among the workers, instead of each reading all of it in its own order
    #[arg(long)]
    pub(crate) shard_data: bool,
    /// Directory with the data [default: built-in data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// When to score the network
    #[arg(long, value_enum, default_value_t = Evaluate::Epoch)]
    pub(crate) evaluate: Evaluate,
    /// Compute threads per worker [default: one or all cores, whichever a short trial finds faster; with launch, an equal
    /// share]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// What workers compute on.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Devices (the command `devices` lists those of this machine)")]
pub(crate) struct DeviceArgs {
    /// Device that every worker computes on, such as gpu, gpu:1, cuda:0 or /job:worker/device:GPU:1 [default: cpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Devices, separated by commas: a replica of the network on each of them in every worker, as with --towers
    #[arg(long, value_name = "NAMES", conflicts_with = "device")]
    pub(crate) devices: Option<String>,
    /// What to do if a device does not exist
    #[arg(long, value_enum, default_value_t = SoftPlacement::Off)]
    pub(crate) soft_placement: SoftPlacement,
    /// Print where each parameter is held, and the device it is computed on
    #[arg(long)]
    pub(crate) log_placement: bool,
}

/// How one model is divided.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Placement (one model on several devices)")]
pub(crate) struct PlaceArgs {
    /// Place stages of the model on devices, as stage=device,stage=device… A device belongs to this process (cpu:0, gpu:0)
    /// or to a joined worker (/job:worker/task:1). Several devices, as in stage=gpu:0+gpu:1, take micro-batches in turn.
    /// Stages that are not named stay on --device
    #[arg(long, value_name = "PLACES")]
    pub(crate) place: Option<String>,
    /// With --place: send each batch through the stages in M parts, so that the stages compute at the same time [default:
    /// 1, or the largest number of devices that a stage has]
    #[arg(long, value_name = "M")]
    pub(crate) microbatches: Option<usize>,
    /// With --place: write a trace of the first 20 steps to this file when the run ends, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// What becomes of a worker whose device does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoftPlacement {
    /// Warn, and compute on one that exists
    On,
    /// Refuse to start
    Off,
}

/// When the chief scores the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Evaluate {
    /// After each epoch of the chief, and at the end
    Epoch,
    /// At the end only
    End,
}

/// What to show and keep, and how long to wait.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output and timeouts")]
pub(crate) struct OutputArgs {
    /// Print a line every N steps of each worker
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) log_every: u64,
    /// Print events as text or as JSON lines
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    /// Write run.toml (all settings), summary.json, checkpoints, TensorBoard curves and, with launch, every task's log
    /// to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// With --run-dir: write TensorBoard histograms of the parameters whenever the network is scored
    #[arg(long)]
    pub(crate) histograms: bool,
    /// Declare a task dead after this many seconds of silence
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) worker_timeout: f64,
    /// Give up on a missing task after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub(crate) peer_timeout: f64,
    /// When the run was started, in milliseconds since the epoch; set by launch
    #[arg(long, hide = true)]
    pub(crate) started_at: Option<u64>,
    /// With --format json: also report progress a few times a second; set by launch for its bars
    #[arg(long, hide = true)]
    pub(crate) progress: bool,
}

/// When and where checkpoints are written, and what training begins from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Checkpoints (need --run-dir or --checkpoint-dir; ps 0's flags apply)")]
pub(crate) struct CheckpointArgs {
    /// Directory, or s3://, gs:// or az://BUCKET/PREFIX [default: RUN_DIR/checkpoints]
    #[arg(long, value_name = "WHERE")]
    pub(crate) checkpoint_dir: Option<String>,
    /// Seconds between checkpoints; 0 turns off checkpoints by time
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub(crate) checkpoint_secs: f64,
    /// Global steps between checkpoints
    #[arg(long, value_name = "N")]
    pub(crate) checkpoint_steps: Option<u64>,
    /// Abandon a checkpoint after this many seconds without progress (more for a large model)
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(crate) checkpoint_stall_secs: f64,
    /// How many checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) keep: usize,
    /// What to start from. auto: the newest whole checkpoint, if there is one. never: initial values. WHERE: another
    /// run's checkpoints, or one of their manifests
    #[arg(long, value_name = "auto|never|WHERE", default_value = "auto")]
    pub(crate) resume: String,
    /// Take over the checkpoints of a live run and end that run
    #[arg(long)]
    pub(crate) take_over: bool,
    /// This task was restarted and resumes from what the run has saved; set by launch
    #[arg(long, hide = true)]
    pub(crate) restarted: bool,
}

/// Where else settings come from.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Settings (flags can also be set by variables: --threads by WINDLASS_THREADS)")]
pub(crate) struct ConfigArgs {
    /// Read settings from this TOML file, such as the run.toml of another run. Precedence: flags, then variables, then
    /// this file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print all settings and their origin, as such a file, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// Every flag that `train` takes beside the model's own.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    #[command(flatten)]
    pub(crate) checkpoint: CheckpointArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The same by name, and the model's own, and where they come from.
    #[arg(skip)]
    pub(crate) settings: Settings,
}

/// How many tasks `launch` starts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Tasks")]
pub(crate) struct LaunchArgs {
    /// Parameter servers [default: 1, or 0 with --in-graph, where the client holds the parameters]
    #[arg(long, value_name = "P")]
    pub(crate) ps: Option<u32>,
    /// Workers
    #[arg(long, value_name = "W", default_value_t = 2)]
    pub(crate) workers: u32,
    /// Host a ps shard in each worker process instead of running ps tasks
    #[arg(long, conflicts_with = "ps")]
    pub(crate) colocate: bool,
    /// Restart killed or failed tasks, up to N times in all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restart: u32,
}

/// Lets flags be written with underscores: `--ps_hosts` becomes `--ps-hosts`. Values stay as they are.
pub(crate) fn hyphenate(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut flags_ended = false;
    arguments
        .into_iter()
        .map(|argument| {
            flags_ended |= argument == "--";
            let Some(text) = argument.to_str().filter(|text| text.starts_with("--") && !flags_ended) else {
                return argument;
            };
            let (name, value) = text.split_at(text.find('=').unwrap_or(text.len()));
            OsString::from(format!("{}{value}", name.replace('_', "-")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn underscores_in_flags_become_hyphens_and_values_stay() {
        let words = ["windlass", "--ps_hosts=my_host:1", "--job_name", "my_job", "a_b", "--", "--x_y"];
        let hyphenated = hyphenate(words.map(OsString::from));
        assert_eq!(hyphenated, ["windlass", "--ps-hosts=my_host:1", "--job-name", "my_job", "a_b", "--", "--x_y"]);
    }
}
