//! `windlass eval MODEL`: scores a checkpoint; and the evaluator task, which scores each new one while others train.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointId, Manifest, Store};
use windlass_core::identity::Identity;
use windlass_core::lifecycle::exit_code;
use windlass_core::run::DataSpec;
use windlass_tensorboard::RunBoard;
use windlass_worker::event::Event;
use windlass_worker::model::{Metrics, Model, Setup};
use windlass_worker::replica::Replica;
use windlass_worker::task;

use crate::args::{Format, TrainArgs};
use crate::checkpoint::{find, unusable};
use crate::config::TaskConfig;
use crate::failure::Failure;
use crate::model_flags::ModelFlags;
use crate::progress::Progress;
use crate::terminal::Terminal;
use crate::{logging, output, signals};

/// Between two looks for a new checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SPEAK_EVERY: Duration = Duration::from_secs(10);

/// The flags of `eval`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EvalArgs {
    /// A run directory or where the checkpoints are (the newest is scored), or one of the manifests (the .json files)
    #[arg(long, value_name = "WHERE")]
    checkpoint: String,
    /// Where the data is [default: where the checkpoint was trained on it]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The seed of built-in data [default: as in training]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print for people or as JSON
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// The checkpoint that is to be scored.
pub(crate) fn manifest(args: &EvalArgs) -> Result<Manifest, Failure> {
    runtime()?.block_on(find(&args.checkpoint)).map(|(_, manifest)| manifest)
}

pub(crate) fn run<M: Model>(flags: &M::Flags, model_flags: ModelFlags, args: &EvalArgs) -> Result<(), Failure> {
    logging::start();
    let runtime = runtime()?;
    let (store, manifest) = runtime.block_on(find(&args.checkpoint))?;
    check_model::<M>(&manifest)?;
    let mut evaluator = Evaluator::<M>::new(flags, model_flags, &setup(args, &manifest)?)?;
    let metrics = evaluator.score(&runtime, &store, &manifest)?;
    match args.format {
        Format::Human => output::print_line(&format!("step {}: {}", manifest.id.step, output::scores(&metrics))),
        Format::Json => {
            let line = serde_json::json!({ "global_step": manifest.id.step, "checkpoint": manifest.id.to_string(), "metrics": metrics });
            output::print_line(&line.to_string());
        }
    }
    let mut watch = Progress::of_one(&Terminal::default(), args.format, false).watcher();
    let written = evaluator.replica.conclude().map_err(|error| Failure::internal(format!("{error:#}")))?;
    written.into_iter().for_each(|path| watch(&Event::Wrote { path }));
    Ok(())
}

/// Scores every new checkpoint of a run until the last, or until none comes any more.
pub(crate) fn follow<M: Model>(flags: &M::Flags, model_flags: ModelFlags, args: &TrainArgs) -> Result<(), Failure> {
    logging::start();
    let config = TaskConfig::new(args, &M::defaults(flags), None)?;
    let Some(checkpoints) = &config.checkpoints else {
        return Err(Failure::usage("an evaluator needs to know where the checkpoints are")
            .with_hint("--run-dir DIR or --checkpoint-dir WHERE, as the other tasks have it".to_owned()));
    };
    let runtime = runtime()?;
    let store = Store::open(&checkpoints.location).map_err(unusable)?;
    let mut evaluator = Evaluator::<M>::new(flags, model_flags, &config.setup)?;
    let mut board = args.output.run_dir.as_deref().and_then(|directory| {
        RunBoard::resume(directory.join("tensorboard").join("evaluator"), 0, 0)
            .inspect_err(|error| warn!("no curves for TensorBoard: {error}"))
            .ok()
    });
    signals::watch(&runtime, config.stop.clone(), config.stopped_by.clone(), &Terminal::default());
    info!("evaluator: scoring the checkpoints in {}", store.location());
    let (mut scored, mut seen_alive): (Option<CheckpointId>, bool) = (None, false);
    let (mut since, mut spoken) = (Instant::now(), Instant::now());
    while !config.stop.is_set() {
        let found = runtime.block_on(store.newest_whole()).map_err(unusable)?.manifest;
        let Some(manifest) = found.filter(|manifest| scored.is_none_or(|scored| manifest.id > scored)) else {
            let ended = runtime.block_on(store.run_end(None)).map_err(unusable)?.is_some();
            seen_alive |= !ended;
            if ended && (seen_alive || scored.is_some()) {
                let step = scored.map_or_else(String::new, |id| format!(" at step {}", id.step));
                info!("evaluator: the run has ended{step}");
                return Ok(());
            }
            if since.elapsed() > config.peer_timeout {
                let message = format!("gave up waiting for a new checkpoint after {} s", since.elapsed().as_secs());
                return Err(Failure { exit_code: exit_code::PEERS, message, hint: None });
            }
            if spoken.elapsed() >= SPEAK_EVERY {
                spoken = Instant::now();
                info!("waiting for a new checkpoint in {} ({} s)", store.location(), since.elapsed().as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
            continue;
        };
        scored = Some(manifest.id);
        // One that is removed while it is read is old by then.
        match evaluator.score(&runtime, &store, &manifest) {
            Ok(metrics) => {
                output::print_line(&format!("evaluator  step {}: {}", manifest.id.step, output::scores(&metrics)));
                if let Some(board) = &mut board {
                    let points: Vec<(&str, f64)> = metrics.iter().collect();
                    let written = board.eval(manifest.id.step, &points).and_then(|()| board.flush());
                    written.unwrap_or_else(|error| warn!("no curves for TensorBoard: {error}"));
                }
            }
            Err(failure) if runtime.block_on(store.load(&manifest.id)).is_ok() => return Err(failure),
            Err(_) => continue,
        }
        (since, spoken) = (Instant::now(), Instant::now());
        if manifest.last {
            info!("evaluator: that was the last one");
            return Ok(());
        }
    }
    let (exit_code, message) = config
        .stopped_by
        .get()
        .map_or((exit_code::TERMINATED, "told to stop"), |(signal, _)| (signal.exit_code(), signal.name()));
    Err(Failure { exit_code, message: message.to_owned(), hint: None })
}

/// The data to score with: those of the training, unless the user names others.
fn setup(args: &EvalArgs, manifest: &Manifest) -> Result<Setup, Failure> {
    let trained = manifest.run.data.as_ref();
    let directory = trained.and_then(|data| data.directory.as_ref()).map(PathBuf::from);
    if let (None, Some(directory)) = (&args.data_dir, directory.as_deref().filter(|directory| !directory.is_dir())) {
        let directory = directory.display();
        return Err(Failure::usage(format!(
            "the checkpoint was trained on the data in {directory}, which is not here"
        ))
        .with_hint("say where the data is, with --data-dir".to_owned()));
    }
    let seed = args.seed.or(trained.map(|data| data.seed)).unwrap_or(1);
    Ok(Setup { seed, data_dir: args.data_dir.clone().or(directory) })
}

struct Evaluator<M: Model> {
    replica: Replica<M>,
    identity: Identity,
    data: DataSpec,
}

impl<M: Model> Evaluator<M> {
    fn new(flags: &M::Flags, model_flags: ModelFlags, setup: &Setup) -> Result<Self, Failure> {
        let unusable = |error| Failure::usage(format!("{error:#}"));
        let model: M = task::load(flags, setup).map_err(unusable)?;
        let identity = task::identity(model_flags, &task::model_files(&model).map_err(unusable)?);
        let data = DataSpec {
            samples: model.samples() as u64,
            fingerprint: model.data_fingerprint(),
            directory: None,
            seed: setup.seed,
            batch_size: 0,
            shard_data: false,
            epochs: None,
        };
        let replica = Replica::new(model, &burn::tensor::Device::flex(), setup.seed).map_err(Failure::internal)?;
        Ok(Self { replica, identity, data })
    }

    fn score(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        store: &Store,
        manifest: &Manifest,
    ) -> Result<Metrics, Failure> {
        check_model::<M>(manifest)?;
        let (this, checkpoint) = ("this evaluation", format!("checkpoint {}", manifest.id));
        if let Some(difference) = self.identity.difference_from_checkpoint(&manifest.run.identity) {
            return Err(misfit(difference.describe(this, &checkpoint))
                .with_hint("what is not given is taken from the checkpoint".to_owned()));
        }
        if let Some(difference) = self.replica.table().difference_from_checkpoint(&manifest.run.parameters) {
            return Err(misfit(format!("{checkpoint} does not fit: {difference}"))
                .with_hint("give the same model flags as in training".to_owned()));
        }
        if let Some(difference) = manifest.run.data.as_ref().and_then(|trained| self.data.difference(trained)) {
            warn!("{}", difference.describe(this, &checkpoint));
        }
        let values = runtime.block_on(store.load_values(manifest)).map_err(unusable)?;
        self.replica.load(values.into_iter().map(|named| named.values).collect());
        Ok(self.replica.evaluate())
    }
}

fn check_model<M: Model>(manifest: &Manifest) -> Result<(), Failure> {
    let (id, model) = (manifest.id, &manifest.run.model);
    if model == M::NAME { Ok(()) } else { Err(misfit(format!("checkpoint {id} is of {model}, not of {}", M::NAME))) }
}

fn misfit(message: String) -> Failure {
    Failure { exit_code: exit_code::CHECKPOINT, message, hint: None }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(Failure::internal)
}
