//! Removes what a failed attempt leaves behind at once, so that a full store does not fill up further.
//!
//! A failure to remove something does no harm: it belongs to no checkpoint, and a later prune removes it.

use std::fs;
use std::path::Path;

use object_store::ObjectStoreExt;

use crate::error::CheckpointError;
use crate::id::CheckpointId;
use crate::store::Store;

impl Store {
    /// Removes a part that will belong to no checkpoint, whole or not, and its folder if nothing else is in it.
    pub async fn discard_part(&self, object: &str) {
        if let Err(error) = self.remove(object).await {
            tracing::debug!(object, %error, "a part of no checkpoint could not be removed");
        }
        if let Some(directory) = &self.directory {
            let path = directory.join(object);
            let _ = tokio::task::spawn_blocking(move || discard_staged(&path)).await;
        }
    }

    /// Removes all parts of an attempt that could not be published. If it was published after all, they stay.
    pub async fn discard(&self, id: &CheckpointId) {
        let manifest = self.objects.head(&self.path(&id.manifest_object())).await;
        let discarded = match manifest {
            Err(object_store::Error::NotFound { .. }) => self.remove_parts(id).await,
            _ => Ok(()),
        };
        if let Err(error) = discarded {
            tracing::debug!(checkpoint = %id, %error, "parts of no checkpoint could not be removed");
        }
    }
}

/// Removes the unfinished files (`name#1`) of an object, and the folder if it is empty then.
fn discard_staged(object: &Path) {
    let (Some(folder), Some(name)) = (object.parent(), object.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let staged =
            entry.file_name().to_str().and_then(|file| file.strip_prefix(name)).map(|rest| rest.starts_with('#'));
        if staged == Some(true) {
            let _ = fs::remove_file(entry.path());
        }
    }
    // This fails if the folder is not empty.
    let _ = fs::remove_dir(folder);
}

/// Removes what there is of a part whose writing failed, and returns the error to report.
pub(crate) async fn discarded(store: &Store, object: &str, error: object_store::Error) -> CheckpointError {
    store.discard_part(object).await;
    CheckpointError::writing(&store.location, object, error)
}
