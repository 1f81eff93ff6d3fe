//! Finds in the store which checkpoint a run begins from or rolls back to, and which checkpoints belong to the same
//! run.

use std::sync::Arc;

use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, Followed, Manifest, ReadCounter, Store};

use super::checkpoints::Beginning;
use crate::checkpoint::{CheckpointConfig, Resume};

/// Finds the checkpoint to begin from. A restarted task continues from what its run has saved or, if that is nothing
/// yet, begins as the run did. `generation` is that of the lease; `followed` held the store before.
pub(in crate::coordinator) async fn find(
    config: &CheckpointConfig,
    (store, read): (&Arc<Store>, ReadCounter),
    generation: u64,
    followed: Option<Followed>,
) -> Result<Beginning, CheckpointError> {
    let crashed = followed.is_some_and(|followed| followed.crashed);
    let own = followed.filter(|_| config.restarted).map(|followed| followed.first_generation);
    let first_generation = own.unwrap_or(generation);
    if let Some(first_generation) = own
        && let Some(found) = newest(store, first_generation).await?
    {
        let finished = found.last && crashed;
        return Ok(Beginning { location: store.location().to_owned(), found: Some(found), first_generation, finished });
    }
    match &config.resume {
        Resume::Never => {
            let others = store.list().await?.len();
            if others > 0 {
                info!("the {others} checkpoints of earlier runs in {} are kept", store.location());
            }
            Ok(Beginning { location: store.location().to_owned(), found: None, first_generation, finished: false })
        }
        Resume::Auto => {
            let found = newest(store, 0).await?;
            let first_generation = found.as_ref().map_or(first_generation, |found| found.first_generation);
            let finished = crashed && found.as_ref().is_some_and(|found| found.last);
            Ok(Beginning { location: store.location().to_owned(), found, first_generation, finished })
        }
        Resume::From(location, id) => {
            // Opening the store would create a missing directory.
            if !location.contains("://") && tokio::fs::metadata(location).await.is_err() {
                return Err(CheckpointError::NoneWhole { location: location.clone() });
            }
            let store = Store::open_counted(location, read).await?;
            let found = match id {
                Some(id) => Some(store.load(id).await?),
                None => newest(&store, 0).await?,
            };
            match found {
                Some(_) => {
                    Ok(Beginning { location: store.location().to_owned(), found, first_generation, finished: false })
                }
                None => Err(CheckpointError::NoneWhole { location: location.clone() }),
            }
        }
    }
}

/// Finds what to roll back to: the newest checkpoint that the run has saved, or where it began.
pub(in crate::coordinator) async fn find_again(first: Beginning, store: &Store) -> Result<Beginning, CheckpointError> {
    match newest(store, first.first_generation).await {
        Ok(Some(found)) => {
            Ok(Beginning { location: store.location().to_owned(), found: Some(found), finished: false, ..first })
        }
        Ok(None) => Ok(Beginning { finished: false, ..first }),
        Err(CheckpointError::AllDamaged { .. }) if first.found.is_some() => Ok(first),
        Err(error) => Err(error),
    }
}

/// Returns the newest undamaged checkpoint since a generation. If all of them are damaged, training must not silently
/// start over: that is for the user to decide.
async fn newest(store: &Store, since: u64) -> Result<Option<Manifest>, CheckpointError> {
    let found = store.newest_verified().await?;
    for (id, error) in &found.skipped {
        warn!("skipped checkpoint {id}: {error}");
    }
    let manifest = found.manifest.filter(|manifest| manifest.id.generation >= since);
    let mut damaged = found.skipped.into_iter().filter(|(id, _)| id.generation >= since);
    match (manifest, damaged.next()) {
        (None, Some((newest, error))) => Err(CheckpointError::AllDamaged {
            location: store.location().to_owned(),
            count: 1 + damaged.count(),
            newest,
            error: Box::new(error),
        }),
        (manifest, _) => Ok(manifest),
    }
}
