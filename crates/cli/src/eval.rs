//! `windlass eval MODEL`: scores a checkpoint. The evaluator task, in `follow`, scores each new checkpoint while others
//! train.

mod follow;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use tracing::warn;
use windlass_checkpoint::{Manifest, NamedValues};
use windlass_core::identity::Identity;
use windlass_core::lifecycle::exit_code;
use windlass_core::run::DataSpec;
use windlass_worker::event::Event;
use windlass_worker::model::{Metrics, Model, Setup};
use windlass_worker::replica::{Local, LocalConfig, Replica};
use windlass_worker::{spec, task};

use crate::args::Format;
use crate::checkpoint::{find, unusable};
use crate::failure::Failure;
use crate::model_flags::ModelFlags;
use crate::progress::Progress;
use crate::terminal::Terminal;
use crate::{logging, output};

pub(crate) use follow::follow;

/// The flags of `eval`.
#[derive(Debug, Clone, Args)]
pub(crate) struct EvalArgs {
    /// Run directory or checkpoint location (scores the newest), or a manifest (a .json file)
    #[arg(long, value_name = "WHERE")]
    checkpoint: String,
    /// Directory with the data [default: as in training]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Seed of built-in data [default: as in training]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print as text or as JSON
    #[arg(long, value_enum, default_value_t = Format::Human)]
    format: Format,
}

/// The scores of a checkpoint, as printed in JSON.
#[derive(Serialize)]
struct Scored {
    global_step: u64,
    checkpoint: String,
    #[serde(flatten)]
    metrics: Metrics,
}

impl Scored {
    fn new(manifest: &Manifest, metrics: Metrics) -> Self {
        Self { global_step: manifest.id.step, checkpoint: manifest.id.to_string(), metrics }
    }

    fn to_json(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(Failure::internal)
    }
}

/// The manifest of the checkpoint to score.
pub(crate) fn manifest(args: &EvalArgs) -> Result<Manifest, Failure> {
    runtime()?.block_on(find(&args.checkpoint)).map(|(_, manifest)| manifest)
}

pub(crate) fn run<M: Model>(flags: &M::Flags, model_flags: ModelFlags, args: &EvalArgs) -> Result<(), Failure> {
    logging::start();
    let runtime = runtime()?;
    let (store, manifest) = runtime.block_on(find(&args.checkpoint))?;
    check_model(M::NAME, &manifest)?;
    let mut evaluator =
        Evaluator::new::<M>(flags, model_flags, &setup(args.data_dir.as_deref(), args.seed, &manifest)?)?;
    evaluator.check(&manifest)?;
    let metrics = evaluator.score(runtime.block_on(store.load_values(&manifest)).map_err(unusable)?)?;
    match args.format {
        Format::Human => output::print_line(&format!("step {}: {}", manifest.id.step, metrics)),
        Format::Json => output::print_line(&Scored::new(&manifest, metrics).to_json()?),
    }
    let mut watch = Progress::of_one(&Terminal::default(), args.format, false).watcher();
    let written = evaluator.replica.conclude().map_err(|error| Failure::internal(format!("{error:#}")))?;
    written.into_iter().for_each(|path| watch(&Event::Wrote { path }));
    Ok(())
}

/// The data to score with: that of the training, unless the user names another.
fn setup(data_dir: Option<&Path>, seed: Option<u64>, manifest: &Manifest) -> Result<Setup, Failure> {
    let trained = manifest.run.data.as_ref();
    let directory = trained.and_then(|data| data.directory.as_ref()).map(PathBuf::from);
    if let (None, Some(directory)) = (data_dir, directory.as_deref().filter(|directory| !directory.is_dir())) {
        let directory = directory.display();
        return Err(Failure::usage(format!(
            "the checkpoint was trained on the data in {directory}, which does not exist here"
        ))
        .with_hint("pass its location with --data-dir".to_owned()));
    }
    let seed = seed.or(trained.map(|data| data.seed)).unwrap_or(1);
    Ok(Setup { seed, data_dir: data_dir.map(Path::to_owned).or(directory) })
}

struct Evaluator {
    replica: Box<dyn Replica>,
    identity: Identity,
    data: DataSpec,
}

impl Evaluator {
    fn new<M: Model>(flags: &M::Flags, model_flags: ModelFlags, setup: &Setup) -> Result<Self, Failure> {
        let unusable = |error| Failure::usage(format!("{error:#}"));
        let model: M = task::load(flags, setup).map_err(unusable)?;
        let replica = Local::new(model, LocalConfig::on_cpu(setup.seed)).map_err(Failure::internal)?;
        let info = replica.info();
        let identity = spec::identity(model_flags, &spec::model_files(info).map_err(unusable)?);
        let data = DataSpec {
            samples: info.samples as u64,
            fingerprint: info.fingerprint,
            directory: None,
            seed: setup.seed,
            batch_size: 0,
            accumulate: 1,
            towers: 1,
            shard_data: false,
            epochs: None,
        };
        Ok(Self { replica: Box::new(replica), identity, data })
    }

    /// Checks that a checkpoint is of this model, and warns if it was trained on other data.
    fn check(&self, manifest: &Manifest) -> Result<(), Failure> {
        check_model(self.replica.info().name, manifest)?;
        let (this, checkpoint) = ("this evaluation", format!("checkpoint {}", manifest.id));
        if let Some(difference) = self.identity.difference_from_checkpoint(&manifest.run.identity) {
            return Err(misfit(difference.describe(this, &checkpoint))
                .with_hint("omitted flags are taken from the checkpoint".to_owned()));
        }
        if let Some(difference) = self.replica.table().difference_from_checkpoint(&manifest.run.parameters) {
            return Err(misfit(format!("{checkpoint} does not fit: {difference}"))
                .with_hint("pass the same model flags as in training".to_owned()));
        }
        if let Some(difference) = manifest.run.data.as_ref().and_then(|trained| self.data.difference(trained)) {
            warn!("{}", difference.describe(this, &checkpoint));
        }
        Ok(())
    }

    /// Scores the values of a checkpoint.
    fn score(&mut self, values: Vec<NamedValues>) -> Result<Metrics, Failure> {
        self.replica.load(values.into_iter().map(|named| named.values.into()).collect());
        self.replica.evaluate().map_err(|error| Failure::internal(format!("{error:#}")))
    }
}

fn check_model(name: &str, manifest: &Manifest) -> Result<(), Failure> {
    let (id, model) = (manifest.id, &manifest.run.model);
    if model == name { Ok(()) } else { Err(misfit(format!("checkpoint {id} is for {model}, not {name}"))) }
}

fn misfit(message: String) -> Failure {
    Failure { exit_code: exit_code::CHECKPOINT, message, hint: None }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(Failure::internal)
}
