//! A worker's description of its run, on which all tasks must agree.

use std::collections::BTreeMap;

use windlass_core::identity::{Fingerprint, Identity, ModelFlag};
use windlass_core::run::{DataSpec, RunSpec};
use windlass_wire::control::proto::ModelFile;

use crate::config::RunConfig;
use crate::replica::{ModelInfo, Replica};

/// The size limit of a model's files, which go to the coordinator in one message.
const FILES_BYTES: usize = windlass_wire::MESSAGE_BYTES / 2;

/// Describes the run for all tasks to agree on.
pub(crate) fn of_run(run: &RunConfig, replica: &dyn Replica, files: &[ModelFile]) -> RunSpec {
    let model = replica.info();
    let data = DataSpec {
        samples: model.samples as u64,
        fingerprint: model.fingerprint,
        directory: run.data_dir.clone(),
        seed: run.seed,
        batch_size: run.samples_a_step() as u64,
        accumulate: run.accumulate as u64,
        towers: run.towers as u64,
        shard_data: run.shard_data,
        epochs: run.epochs,
    };
    RunSpec {
        model: model.name.to_owned(),
        mode: run.mode,
        optimizer: run.optimizer,
        learning_rate: run.learning_rate,
        schedule: run.schedule,
        clip_norm: run.clip_norm,
        sharding: run.sharding,
        steps: run.steps,
        deterministic: run.deterministic,
        staleness_scaling: run.staleness_scaling,
        parameters: replica.table().clone(),
        identity: identity(run.model_flags.clone(), files),
        data: Some(data),
    }
}

/// Describes a trained model apart from its parameters: the flags it was given, and its files.
pub fn identity(flags: BTreeMap<String, ModelFlag>, files: &[ModelFile]) -> Identity {
    let fingerprint = |file: &ModelFile| (file.name.clone(), Fingerprint::of(file.content.as_bytes()));
    Identity { flags, files: files.iter().map(fingerprint).collect() }
}

/// The model's files, as they are kept with checkpoints.
pub fn model_files(model: &ModelInfo) -> anyhow::Result<Vec<ModelFile>> {
    let files =
        model.files.iter().map(|(name, content)| ModelFile { name: (*name).to_owned(), content: content.clone() });
    let files: Vec<ModelFile> = files.collect();
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    anyhow::ensure!(
        bytes <= FILES_BYTES,
        "the files that {} keeps with its checkpoints are {:.0} MB, but the limit is {:.0} MB",
        model.name,
        bytes as f64 * 1e-6,
        FILES_BYTES as f64 * 1e-6
    );
    Ok(files)
}
