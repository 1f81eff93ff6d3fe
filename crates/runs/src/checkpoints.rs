//! The checkpoints of a run, if they are in a directory of this machine. Object stores are not queried.

use std::path::{Path, PathBuf};

use serde::Serialize;
use windlass_checkpoint::{CheckpointError, Manifest, Occupancy, Store};

use crate::names::CHECKPOINTS;
use crate::settings::Settings;

/// A checkpoint of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SavedCheckpoint {
    /// The step at which it was taken.
    pub step: u64,
    /// Its name.
    pub id: String,
    /// When it was taken, in seconds since 1970; `None` if it is damaged.
    pub taken: Option<u64>,
    /// Its size in bytes; `None` if it is damaged.
    pub bytes: Option<u64>,
    /// What is wrong with it.
    pub damage: Option<String>,
    /// Whether this is the last checkpoint of a run that finished.
    #[serde(skip)]
    pub(crate) is_last: bool,
    #[serde(skip)]
    pub(crate) model: Option<String>,
}

/// Where a run keeps its checkpoints: a path, or the address of an object store.
pub(crate) fn location(directory: &Path, settings: Option<&Settings>) -> String {
    let given = settings.and_then(|settings| settings.get("train", "checkpoint-dir"));
    given.map_or_else(|| directory.join(CHECKPOINTS).display().to_string(), str::to_owned)
}

/// Lists all checkpoints, newest first. Fails with a description if they cannot be listed.
pub(crate) fn list(location: &str) -> Result<Vec<SavedCheckpoint>, String> {
    let Some(directory) = local(location) else { return Ok(Vec::new()) };
    let listed = ask(&directory, async |store| store.list().await).map_err(|error| error.to_string())?;
    let saved = listed.into_iter().map(|listed| {
        let (step, id) = (listed.id.step, listed.id.to_string());
        match listed.outcome {
            Ok(manifest) => SavedCheckpoint {
                step,
                id,
                taken: Some(manifest.created),
                bytes: Some(Manifest::bytes(&manifest)),
                damage: None,
                is_last: manifest.last,
                model: Some(manifest.run.model),
            },
            Err(error) => {
                let damage = Some(error.to_string());
                SavedCheckpoint { step, id, taken: None, bytes: None, damage, is_last: false, model: None }
            }
        }
    });
    Ok(saved.collect())
}

/// The holder of the checkpoints of a run directory; `None` if they are not in a directory of this machine.
pub(crate) fn occupancy(directory: &Path) -> Result<Option<Occupancy>, CheckpointError> {
    let Some(store) = store(directory) else { return Ok(None) };
    ask(&store, async |store| store.occupancy().await).map(Some)
}

/// Like [`occupancy`], but watches a process of another machine for some seconds.
pub(crate) fn watched_occupancy(directory: &Path) -> Result<Option<Occupancy>, CheckpointError> {
    let Some(store) = store(directory) else { return Ok(None) };
    ask(&store, async |store| store.watched_occupancy().await).map(Some)
}

/// The directory in which a run keeps its checkpoints, if there is one.
fn store(directory: &Path) -> Option<PathBuf> {
    let settings = Settings::read(directory).ok().flatten();
    local(&location(directory, settings.as_ref()))
}

/// The path of a local store. Opening a store would create its directory, and reading must not.
fn local(location: &str) -> Option<PathBuf> {
    let path = location.strip_prefix("file://").unwrap_or(location);
    (!path.contains("://")).then(|| PathBuf::from(path)).filter(|path| path.is_dir())
}

fn ask<T>(
    directory: &Path,
    question: impl AsyncFnOnce(Store) -> Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    let bad = |reason: &str| CheckpointError::BadLocation {
        location: directory.display().to_string(),
        reason: reason.to_owned(),
    };
    let text = directory.to_str().ok_or_else(|| bad("its name is not Unicode"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| bad(&error.to_string()))?;
    runtime.block_on(question(Store::open(text)?))
}
