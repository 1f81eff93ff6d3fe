//! The evaluator task: scores each new checkpoint of a run while others train. It may be started before the run, so it
//! learns the model of the run from the first checkpoint.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ArgMatches;
use tokio::runtime::Runtime;
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest, Pulse, RunEnd, Store};
use windlass_core::lifecycle::exit_code;
use windlass_tensorboard::{BoardError, EventWriter, Moment};
use windlass_worker::board::curves;
use windlass_worker::model::{Metrics, Model};
use windlass_worker::threads;

use super::{Evaluator, Scored, check_model, runtime, setup};
use crate::args::{Format, TrainArgs};
use crate::checkpoint::unusable;
use crate::config::TaskConfig;
use crate::failure::Failure;
use crate::program::parse;
use crate::terminal::Terminal;
use crate::{logging, model_flags, output, signals};

/// How often to look for a new checkpoint, and to retry when the store fails.
const POLL_EVERY: Duration = Duration::from_secs(1);
const SPEAK_EVERY: Duration = Duration::from_secs(10);

/// Scores every new checkpoint of a run until the run has ended.
pub(crate) fn follow<M: Model>(matches: &ArgMatches, args: &TrainArgs) -> Result<(), Failure> {
    logging::start();
    let config = TaskConfig::new(args, &M::defaults(&parse(matches)?), None)?;
    let Some(checkpoints) = &config.checkpoints else {
        return Err(Failure::usage("an evaluator needs to know where the checkpoints are")
            .with_hint("--run-dir DIR or --checkpoint-dir WHERE, as the other tasks have it".to_owned()));
    };
    let runtime = runtime()?;
    let mut telling = Telling { format: args.output.format, board: args.output.run_dir.as_deref().map(Curves::within) };
    let threads = config.threads.map(threads::pool).transpose().map_err(Failure::internal)?;
    signals::watch(&runtime, config.stop.clone(), config.stopped_by.clone(), &Terminal::default());
    info!("evaluator: scoring the checkpoints in {}", checkpoints.location);
    let opening = patiently(config.peer_timeout, || async { Store::open(&checkpoints.location) });
    let store = unless_stopped(&runtime, &config, opening)?.map_err(unusable)?;
    let mut following =
        Following { runtime: &runtime, store: &store, config: &config, newest: None, seen_alive: false };
    let Some(mut manifest) = following.next()? else { return Ok(()) };
    let mut evaluator = evaluator_of::<M>(matches, args, &manifest)?;
    loop {
        evaluator.check(&manifest)?;
        match following.unless_stopped(patiently(config.peer_timeout, || store.load_values(&manifest)))? {
            Ok(values) => {
                let metrics = match &threads {
                    Some(threads) => threads.install(|| evaluator.score(values)),
                    None => evaluator.score(values),
                }?;
                telling.tell(&manifest, metrics)?;
            }
            // If the checkpoint has been removed while it was read, it is outdated, and the error does not matter.
            Err(error) if following.unless_stopped(store.load(&manifest.id))?.is_ok() => return Err(unusable(error)),
            Err(_) => {}
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

/// The outputs to which scores are written.
struct Telling {
    format: Format,
    board: Option<Curves>,
}

impl Telling {
    fn tell(&mut self, manifest: &Manifest, metrics: Metrics) -> Result<(), Failure> {
        let step = manifest.id.step;
        self.board = self.board.take().and_then(|curves| {
            curves
                .with(step, &metrics)
                .inspect_err(|error| warn!("cannot write TensorBoard curves, stopping them: {error}"))
                .ok()
        });
        let line = match self.format {
            Format::Human => format!("evaluator  step {step}: {metrics}"),
            Format::Json => Scored::new(manifest, metrics).to_json()?,
        };
        output::print_line(&line);
        Ok(())
    }
}

/// The evaluator's curves.
enum Curves {
    /// Will be written to this directory, once there is something to write.
    Unopened(PathBuf),
    Open(EventWriter),
}

impl Curves {
    fn within(run_dir: &Path) -> Self {
        Self::Unopened(run_dir.join("tensorboard").join("evaluator"))
    }

    /// Writes scores. Scores that an earlier evaluator wrote before this step are kept.
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

/// Follows the checkpoints of a run, one after the other.
struct Following<'a> {
    runtime: &'a Runtime,
    store: &'a Store,
    config: &'a TaskConfig,
    /// The newest checkpoint returned so far, and whether it is the last of its run.
    newest: Option<(CheckpointId, bool)>,
    /// Whether the run has been seen alive.
    seen_alive: bool,
}

impl Following<'_> {
    /// Waits for the next checkpoint; returns `None` when the run has ended.
    fn next(&mut self) -> Result<Option<Manifest>, Failure> {
        let mut waiting = Waiting::new(Instant::now());
        let mut spoken = Instant::now();
        loop {
            match self.poll()? {
                Seen::New(manifest) => {
                    self.newest = Some((manifest.id, manifest.last));
                    return Ok(Some(*manifest));
                }
                // A run that ended before this task started is not the one to follow.
                Seen::Ended if self.seen_alive || self.newest.is_some() => return Ok(self.ended()),
                Seen::Ended => {}
                Seen::Nothing(pulse) => {
                    self.seen_alive = true;
                    waiting.sees(pulse, Instant::now());
                }
            }
            match waiting.is_in_vain(Instant::now(), self.config.peer_timeout) {
                // The coordinator was killed before it could record the end of the run.
                Some(_) if self.newest.is_some_and(|(_, last)| last) => return Ok(self.ended()),
                Some(waited) => {
                    return Err(gave_up(format!(
                        "gave up waiting for a new checkpoint after {} s without a sign of life of the run",
                        waited.as_secs()
                    )));
                }
                None => {}
            }
            if spoken.elapsed() >= SPEAK_EVERY {
                spoken = Instant::now();
                let waited = waiting.began.elapsed().as_secs();
                info!("waiting for a new checkpoint in {} ({waited} s)", self.store.location());
            }
            self.unless_stopped(async { tokio::time::sleep(POLL_EVERY).await })?;
        }
    }

    /// Polls the store once, and retries while it fails with transient errors.
    fn poll(&self) -> Result<Seen, Failure> {
        let patience = self.config.peer_timeout;
        let newest = self.newest.map(|(id, _)| id);
        let looking = patiently(patience, || newer_than(newest, self.store));
        let Ok(seen) = self.unless_stopped(async { tokio::time::timeout(patience, looking).await })? else {
            let (location, waited) = (self.store.location(), patience.as_secs());
            return Err(gave_up(format!("gave up waiting for the checkpoint store {location} after {waited} s")));
        };
        seen.map_err(unusable)
    }

    fn ended(&self) -> Option<Manifest> {
        match self.newest {
            Some((_, true)) => info!("evaluator: scored the last checkpoint; exiting"),
            Some((id, false)) => info!("evaluator: the run has ended at step {}; exiting", id.step),
            None => info!("evaluator: the run has ended; exiting"),
        }
        None
    }

    fn unless_stopped<T>(&self, answer: impl Future<Output = T>) -> Result<T, Failure> {
        unless_stopped(self.runtime, self.config, answer)
    }
}

/// Waits for the result of `answer`, unless the task is told to stop first.
fn unless_stopped<T>(runtime: &Runtime, config: &TaskConfig, answer: impl Future<Output = T>) -> Result<T, Failure> {
    let told_to_stop = || {
        let (exit_code, message) = match config.stopped_by.get() {
            Some((signal, _)) => (signal.exit_code(), signal.name()),
            None => (exit_code::TERMINATED, "told to stop"),
        };
        Failure { exit_code, message: message.to_owned(), hint: None }
    };
    runtime.block_on(async {
        tokio::select! {
            answer = answer => Ok(answer),
            () = signals::stopped(&config.stop) => Err(told_to_stop()),
        }
    })
}

/// Runs a store operation, and retries it while it fails with transient errors and there is time for another attempt.
async fn patiently<T, F: Future<Output = Result<T, CheckpointError>>>(
    patience: Duration,
    attempt: impl Fn() -> F,
) -> Result<T, CheckpointError> {
    let began = Instant::now();
    let mut told = String::new();
    loop {
        let error = match attempt().await {
            Err(error) if error.may_pass() && began.elapsed() + POLL_EVERY < patience => error.to_string(),
            done => return done,
        };
        if told != error {
            warn!("{error}; trying again");
            told = error;
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
}

fn gave_up(message: String) -> Failure {
    Failure { exit_code: exit_code::PEERS, message, hint: None }
}

/// The result of polling a store.
enum Seen {
    /// A checkpoint that is newer than those seen before.
    New(Box<Manifest>),
    /// Nothing new, and the newest claim is released: its run has ended.
    Ended,
    /// Nothing new so far, but a run may be alive. A resumed run publishes nothing for a while, and until then the newest
    /// checkpoint is the last one of the run that it continues.
    Nothing(Option<Pulse>),
}

async fn newer_than(newest: Option<CheckpointId>, store: &Store) -> Result<Seen, CheckpointError> {
    let is_new = |manifest: &Manifest| newest.is_none_or(|newest| manifest.id > newest);
    if let Some(manifest) = store.newest_whole().await?.manifest.filter(is_new) {
        return Ok(Seen::New(Box::new(manifest)));
    }
    let pulse = store.pulse().await?;
    if !pulse.is_some_and(|pulse| pulse.released) {
        return Ok(Seen::Nothing(pulse));
    }
    // The last checkpoint may have been published since.
    match store.run_end(None).await? {
        Some(RunEnd { newest, .. }) => Ok(newest.filter(is_new).map_or(Seen::Ended, |last| Seen::New(Box::new(last)))),
        None => Ok(Seen::Nothing(store.pulse().await?)),
    }
}

/// How long there has been neither a new checkpoint nor a sign of life.
struct Waiting {
    began: Instant,
    /// When the run last gave a sign of life.
    alive: Instant,
    pulse: Option<Pulse>,
}

impl Waiting {
    fn new(now: Instant) -> Self {
        Self { began: now, alive: now, pulse: None }
    }

    fn sees(&mut self, pulse: Option<Pulse>, now: Instant) {
        let earlier = std::mem::replace(&mut self.pulse, pulse);
        if earlier.is_some() && earlier != pulse {
            self.alive = now;
        }
    }

    /// How long the run has given no sign of life, if that is longer than `patience`.
    fn is_in_vain(&self, now: Instant, patience: Duration) -> Option<Duration> {
        Some(now.saturating_duration_since(self.alive)).filter(|silent| *silent > patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn pulse(renewals: u64) -> Option<Pulse> {
        Some(Pulse { generation: 1, renewals, released: false })
    }

    #[test]
    fn an_evaluator_waits_as_long_as_the_run_lives() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        let mut waiting = Waiting::new(began);
        for look in 0..1000 {
            waiting.sees(pulse(look / 3), after(look));
            assert_eq!(waiting.is_in_vain(after(look), PATIENCE), None, "after {look} s");
        }
    }

    #[test]
    fn an_evaluator_gives_a_run_up_that_gives_no_sign_of_life() {
        let began = Instant::now();
        let after = |seconds| began + Duration::from_secs(seconds);
        for silent in [pulse(7), None] {
            let mut waiting = Waiting::new(began);
            (0..=301).for_each(|second| waiting.sees(silent, after(second)));
            assert_eq!(waiting.is_in_vain(after(300), PATIENCE), None);
            assert_eq!(waiting.is_in_vain(after(301), PATIENCE), Some(Duration::from_secs(301)));
        }
    }
}
