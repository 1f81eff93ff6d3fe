//! The flags of `windlass train` and `windlass launch`, as they are written. Nothing is checked here but form.
//!
//! Flags are defined with hyphens; [`hyphenate`] lets users write underscores, as TensorFlow's scripts did.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// How events are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// The consistency models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeName {
    /// Every push is applied as it arrives
    Async,
    /// One update a round, from the mean of the workers' gradients
    Sync,
    /// Async, but no worker runs further ahead of the slowest than --staleness
    Ssp,
}

/// A task's place in a cluster.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Cluster (none of these: a whole run in one process)")]
pub(crate) struct ClusterArgs {
    /// What this task does: ps, worker or evaluator (which scores new checkpoints while others train)
    #[arg(long, value_name = "ps|worker|evaluator")]
    pub(crate) job_name: Option<String>,
    /// Which task of its job this is, from 0
    #[arg(long, value_name = "N")]
    pub(crate) task_index: Option<u32>,
    /// The parameter servers, as host:port,host:port…
    #[arg(long, value_name = "HOSTS")]
    pub(crate) ps_hosts: Option<String>,
    /// The workers, as host:port,host:port…; worker 0 is the chief
    #[arg(long, value_name = "HOSTS")]
    pub(crate) worker_hosts: Option<String>,
    /// A cluster file (TOML). Flags go before it, it goes before TF_CONFIG
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// Keep a ps shard inside each worker process, instead of ps tasks
    #[arg(long)]
    pub(crate) colocate: bool,
    /// Listen on this host instead of the one that the cluster names
    #[arg(long, value_name = "HOST")]
    pub(crate) bind: Option<String>,
    /// Show the cluster as it is understood, and where from, and exit
    #[arg(long)]
    pub(crate) print_cluster: bool,
}

/// How to train.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training (defaults are the model's)")]
pub(crate) struct TrainingArgs {
    /// How pushes become updates
    #[arg(long, value_enum, default_value_t = ModeName::Async)]
    pub(crate) mode: ModeName,
    /// With --mode sync: gradients that make a round; fewer than there are workers makes the rest backups
    #[arg(long, value_name = "N")]
    pub(crate) replicas_to_aggregate: Option<u32>,
    /// With --mode ssp: how many steps a worker may be ahead of the slowest
    #[arg(long, value_name = "S")]
    pub(crate) staleness: Option<u64>,
    /// With --mode async or ssp: divide the learning rate of a push by its staleness, the number of updates since the
    /// worker read its parameters
    #[arg(long)]
    pub(crate) staleness_scaling: bool,
    /// sgd, momentum, adagrad, adam, adamw or rmsprop
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<String>,
    /// A constant of the optimizer, such as momentum=0.8 or beta2=0.98; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) optimizer_option: Vec<String>,
    /// The learning rate
    #[arg(long, visible_alias = "lr", value_name = "RATE")]
    pub(crate) learning_rate: Option<f32>,
    /// constant, exponential:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS, by global step
    #[arg(long, visible_alias = "lr-schedule", value_name = "SCHEDULE", default_value = "constant")]
    pub(crate) learning_rate_schedule: String,
    /// Samples a step of a worker
    #[arg(long, value_name = "N")]
    pub(crate) batch_size: Option<usize>,
    /// Stop after this many updates over all workers
    #[arg(long, value_name = "N")]
    pub(crate) steps: Option<u64>,
    /// Stop a worker after this many times through the data
    #[arg(long, value_name = "N")]
    pub(crate) epochs: Option<u64>,
    /// balanced: by bytes, large tensors cut. round_robin: variable by variable, as TensorFlow did
    #[arg(long, value_name = "HOW", default_value = "balanced")]
    pub(crate) sharding: String,
    /// Balanced, a ps gets so many bytes at the least or none [default: 4 MiB if all ps are on one host, else 0]
    #[arg(long, value_name = "N")]
    pub(crate) min_shard_bytes: Option<usize>,
    /// The seed of first values, built-in data and the order of samples
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// The same result bit for bit from run to run: gradients of a sync round are summed in the order of workers
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Share the data out over the workers, instead of each reading all of it in its own order
    #[arg(long)]
    pub(crate) shard_data: bool,
    /// Where the data is; without it, built-in data is used
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// When the network is scored
    #[arg(long, value_enum, default_value_t = Evaluate::Epoch)]
    pub(crate) evaluate: Evaluate,
    /// Threads to compute on; by default one and all are tried and the faster is taken
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// When the chief scores the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Evaluate {
    /// After each of its epochs, and at the end
    Epoch,
    /// At the end only
    End,
}

/// What to show and keep, and how long to wait.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output and patience")]
pub(crate) struct OutputArgs {
    /// Print a line every N steps of a worker
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) log_every: u64,
    /// Print events for people or as JSON lines
    #[arg(long, value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,
    /// Write summary.json, checkpoints, curves for TensorBoard (and with launch every task's log) to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Write histograms of the parameters for TensorBoard, whenever the network is scored (with --run-dir)
    #[arg(long)]
    pub(crate) histograms: bool,
    /// Seconds of silence after which a worker counts as dead
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub(crate) worker_timeout: f64,
    /// Seconds to wait for tasks that have not come or have gone, before giving up
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub(crate) peer_timeout: f64,
    /// When the run was started, in milliseconds since the epoch; set by launch
    #[arg(long, hide = true)]
    pub(crate) started_at: Option<u64>,
    /// With --format json: also tell where training is a few times a second; set by launch for its bars
    #[arg(long, hide = true)]
    pub(crate) progress: bool,
}

/// When and where checkpoints are written, and what training begins from.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Checkpoints (with --run-dir or --checkpoint-dir; what ps 0 is told counts)")]
pub(crate) struct CheckpointArgs {
    /// Where: a directory, or s3://, gs:// or az://BUCKET/PREFIX. By default RUN_DIR/checkpoints
    #[arg(long, value_name = "WHERE")]
    pub(crate) checkpoint_dir: Option<String>,
    /// Seconds between two checkpoints; 0 for none by time
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub(crate) checkpoint_secs: f64,
    /// Global steps between two checkpoints
    #[arg(long, value_name = "N")]
    pub(crate) checkpoint_steps: Option<u64>,
    /// Give up a checkpoint of which nothing was written for so many seconds; a large model has longer
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(crate) checkpoint_stall_secs: f64,
    /// How many checkpoints are kept
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) keep: usize,
    /// What training begins from. auto: the newest whole checkpoint, if there is one. never: first values. Or where
    /// another run's checkpoints are, or one of their manifests
    #[arg(long, value_name = "auto|never|WHERE", default_value = "auto")]
    pub(crate) resume: String,
    /// Take over the checkpoints from a run that still uses them; that run ends
    #[arg(long)]
    pub(crate) take_over: bool,
    /// This task is started again, so what the run has saved is what it goes on from; set by launch
    #[arg(long, hide = true)]
    pub(crate) restarted: bool,
}

/// Every flag that `train` takes beside the model's own.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) checkpoint: CheckpointArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How many tasks `launch` starts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Tasks")]
pub(crate) struct LaunchArgs {
    /// Parameter servers
    #[arg(long, value_name = "P", default_value_t = 1)]
    pub(crate) ps: u32,
    /// Workers
    #[arg(long, value_name = "W", default_value_t = 2)]
    pub(crate) workers: u32,
    /// Keep a ps shard inside each worker process, instead of ps tasks
    #[arg(long, conflicts_with = "ps")]
    pub(crate) colocate: bool,
    /// Start a task that was killed or has failed again, up to this many times in all
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
