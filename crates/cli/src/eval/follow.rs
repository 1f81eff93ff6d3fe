//! The evaluator task: scores each new checkpoint of a run while others train, with the model that the run has. It may be
//! started before the run, so what that model is it learns from the first checkpoint, and does not ask anybody else.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ArgMatches;
use tokio::runtime::Runtime;
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointId, Manifest, Store};
use windlass_core::lifecycle::exit_code;
use windlass_tensorboard::{BoardError, EventWriter, Moment};
use windlass_worker::board::curves;
use windlass_worker::model::{Metrics, Model};

use super::{Evaluator, check_model, runtime, setup};
use crate::args::TrainArgs;
use crate::checkpoint::unusable;
use crate::config::TaskConfig;
use crate::failure::Failure;
use crate::program::parse;
use crate::terminal::Terminal;
use crate::{logging, model_flags, output, signals};

/// Between two looks for a new checkpoint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const SPEAK_EVERY: Duration = Duration::from_secs(10);

/// Scores every new checkpoint of a run until the last, or until none comes any more.
pub(crate) fn follow<M: Model>(matches: &ArgMatches, args: &TrainArgs) -> Result<(), Failure> {
    logging::start();
    let config = TaskConfig::new(args, &M::defaults(&parse(matches)?), None)?;
    let Some(checkpoints) = &config.checkpoints else {
        return Err(Failure::usage("an evaluator needs to know where the checkpoints are")
            .with_hint("--run-dir DIR or --checkpoint-dir WHERE, as the other tasks have it".to_owned()));
    };
    let runtime = runtime()?;
    let store = Store::open(&checkpoints.location).map_err(unusable)?;
    let mut board =
        args.output.run_dir.as_deref().map(|run| Curves::Unopened(run.join("tensorboard").join("evaluator")));
    signals::watch(&runtime, config.stop.clone(), config.stopped_by.clone(), &Terminal::default());
    info!("evaluator: scoring the checkpoints in {}", store.location());
    let mut following =
        Following { runtime: &runtime, store: &store, config: &config, scored: None, seen_alive: false };
    let Some(mut manifest) = following.next()? else { return Ok(()) };
    let mut evaluator = evaluator_of::<M>(matches, args, &manifest)?;
    loop {
        match evaluator.score(&runtime, &store, &manifest) {
            Ok(metrics) => tell(manifest.id.step, &metrics, &mut board),
            // One that is removed while it is read is old by then.
            Err(failure) if runtime.block_on(store.load(&manifest.id)).is_ok() => return Err(failure),
            Err(_) => {}
        }
        if manifest.last {
            info!("evaluator: that was the last one");
            return Ok(());
        }
        match following.next()? {
            Some(next) => manifest = next,
            None => return Ok(()),
        }
    }
}

/// Scores with the flags and data of the run, except those that the user has given.
fn evaluator_of<M: Model>(matches: &ArgMatches, args: &TrainArgs, manifest: &Manifest) -> Result<Evaluator, Failure> {
    check_model(M::NAME, manifest)?;
    let completed = model_flags::completed::<M>(matches, &args.settings, manifest)?;
    let seed = args.settings.is_given("seed").then_some(args.training.seed);
    let setup = setup(args.training.data_dir.as_deref(), seed, manifest)?;
    Evaluator::new::<M>(&parse(&completed)?, model_flags::recorded::<M>(&completed), &setup)
}

fn tell(step: u64, metrics: &Metrics, board: &mut Option<Curves>) {
    output::print_line(&format!("evaluator  step {step}: {}", metrics));
    *board = board.take().and_then(|curves| {
        curves.with(step, metrics).inspect_err(|error| warn!("no more curves for TensorBoard: {error}")).ok()
    });
}

/// The evaluator's curves.
enum Curves {
    /// In this directory, once there is something to write.
    Unopened(PathBuf),
    Open(EventWriter),
}

impl Curves {
    /// Writes scores. Those of an earlier evaluator before this step remain.
    fn with(self, step: u64, metrics: &Metrics) -> Result<Self, BoardError> {
        let mut writer = match self {
            Self::Unopened(directory) => EventWriter::resume(directory, step)?,
            Self::Open(writer) => writer,
        };
        let scores = curves::of_scores(metrics);
        let points: Vec<(&str, f64)> = scores.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        writer.scalars(Moment::now(step), &points)?;
        writer.flush()?;
        Ok(Self::Open(writer))
    }
}

/// The checkpoints of a run, one after the other.
struct Following<'a> {
    runtime: &'a Runtime,
    store: &'a Store,
    config: &'a TaskConfig,
    /// The last one that was handed out.
    scored: Option<CheckpointId>,
    /// Whether the run has been seen to live.
    seen_alive: bool,
}

impl Following<'_> {
    /// Waits for the next one; there is none when the run has ended.
    fn next(&mut self) -> Result<Option<Manifest>, Failure> {
        let since = Instant::now();
        let mut spoken = since;
        while !self.config.stop.is_set() {
            let found = self.runtime.block_on(self.store.newest_whole()).map_err(unusable)?.manifest;
            if let Some(manifest) = found.filter(|found| self.scored.is_none_or(|scored| found.id > scored)) {
                self.scored = Some(manifest.id);
                return Ok(Some(manifest));
            }
            if self.has_ended()? {
                let step = self.scored.map_or_else(String::new, |id| format!(" at step {}", id.step));
                info!("evaluator: the run has ended{step}");
                return Ok(None);
            }
            let waited = since.elapsed();
            if waited > self.config.peer_timeout {
                let message = format!("gave up waiting for a new checkpoint after {} s", waited.as_secs());
                return Err(Failure { exit_code: exit_code::PEERS, message, hint: None });
            }
            if spoken.elapsed() >= SPEAK_EVERY {
                spoken = Instant::now();
                info!("waiting for a new checkpoint in {} ({} s)", self.store.location(), waited.as_secs());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        let (exit_code, message) = match self.config.stopped_by.get() {
            Some((signal, _)) => (signal.exit_code(), signal.name()),
            None => (exit_code::TERMINATED, "told to stop"),
        };
        Err(Failure { exit_code, message: message.to_owned(), hint: None })
    }

    /// True if the run that is followed is over. One that ended before this task began was another.
    fn has_ended(&mut self) -> Result<bool, Failure> {
        let ended = self.runtime.block_on(self.store.run_end(None)).map_err(unusable)?.is_some();
        self.seen_alive |= !ended;
        Ok(ended && (self.seen_alive || self.scored.is_some()))
    }
}
