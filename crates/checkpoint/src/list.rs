//! Lists the checkpoints of a store, and finds those that can be used.

use std::collections::{BTreeSet, HashMap};

use tracing::debug;

use crate::error::{CheckpointError, Damage};
use crate::id::CheckpointId;
use crate::manifest::Manifest;
use crate::read::damaged;
use crate::store::Store;

/// A checkpoint that was published.
#[derive(Debug)]
pub struct Listed {
    /// Its id.
    pub id: CheckpointId,
    /// The manifest if all parts exist with the right sizes; otherwise the first problem.
    pub outcome: Result<Manifest, CheckpointError>,
}

impl Listed {
    /// True if all parts are there with the right sizes.
    pub fn is_whole(&self) -> bool {
        self.outcome.is_ok()
    }
}

/// The newest checkpoint that can be used.
#[derive(Debug)]
pub struct Found {
    /// The checkpoint, if there is one.
    pub manifest: Option<Manifest>,
    /// Newer checkpoints that were skipped, newest first, and why.
    pub skipped: Vec<(CheckpointId, CheckpointError)>,
}

/// The checkpoints of a store, by name alone.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    pub manifests: BTreeSet<CheckpointId>,
    /// Attempts that have a folder of parts, with or without a manifest.
    pub attempts: BTreeSet<CheckpointId>,
}

impl Store {
    /// All checkpoints, newest first.
    pub async fn list(&self) -> Result<Vec<Listed>, CheckpointError> {
        let mut listed = Vec::new();
        for id in self.ids().await?.manifests.into_iter().rev() {
            // Skip a checkpoint that is being removed at the same time.
            match self.load_whole(&id).await {
                Err(CheckpointError::NotFound { .. }) => {}
                Err(error) if !usable_elsewhere(&error) => return Err(error),
                outcome => listed.push(Listed { id, outcome }),
            }
        }
        Ok(listed)
    }

    /// Loads the manifest of a checkpoint. Does not look at the parts.
    pub async fn load(&self, id: &CheckpointId) -> Result<Manifest, CheckpointError> {
        let object = id.manifest_object();
        match self.read(&object).await? {
            Some(json) => Manifest::from_json(&object, &json),
            None => Err(CheckpointError::NotFound { location: self.location.clone(), id: *id }),
        }
    }

    /// Finds the newest checkpoint whose parts all exist with the right sizes. Checksums are only compared when the
    /// parts are read. Since all servers must restore the same checkpoint, use [`Store::newest_verified`] before they
    /// start.
    pub async fn newest_whole(&self) -> Result<Found, CheckpointError> {
        self.newest(false).await
    }

    /// Finds the newest checkpoint of which every byte is as it was written.
    pub async fn newest_verified(&self) -> Result<Found, CheckpointError> {
        self.newest(true).await
    }

    async fn newest(&self, verified: bool) -> Result<Found, CheckpointError> {
        let mut skipped = Vec::new();
        for id in self.ids().await?.manifests.into_iter().rev() {
            let mut outcome = self.load_whole(&id).await;
            if let (true, Ok(manifest)) = (verified, &outcome)
                && let Some(error) = self.verify(manifest).await?.into_error()
            {
                self.known_damaged().insert(id);
                outcome = Err(error);
            }
            match outcome {
                Ok(manifest) => return Ok(Found { manifest: Some(manifest), skipped }),
                Err(CheckpointError::NotFound { .. }) => {}
                // A later format is not damage: silently skipping it would lose what it holds.
                Err(error) if error.is_damage() => {
                    debug!(checkpoint = %id, %error, "skipped a checkpoint");
                    skipped.push((id, error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Found { manifest: None, skipped })
    }

    /// The manifest of a checkpoint whose parts are all there with the right sizes.
    async fn load_whole(&self, id: &CheckpointId) -> Result<Manifest, CheckpointError> {
        let manifest = self.load(id).await?;
        let objects = self.list_below(&id.to_string()).await?;
        let sizes: HashMap<_, _> = objects.iter().map(|object| (self.name(&object.location), object.size)).collect();
        for part in &manifest.parts {
            match sizes.get(part.object.as_str()) {
                Some(&size) if size == part.bytes => {}
                Some(&found) => return Err(damaged(part, Damage::WrongSize { expected: part.bytes, found })),
                None => return Err(damaged(part, Damage::Missing)),
            }
        }
        Ok(manifest)
    }

    pub(crate) async fn ids(&self) -> Result<Ids, CheckpointError> {
        let listed = self.objects.list_with_delimiter(self.root()).await;
        let listed = listed.map_err(|error| self.list_failed(&error))?;
        let manifests = listed.objects.iter().filter_map(|object| self.name(&object.location).strip_suffix(".json"));
        let attempts = listed.common_prefixes.iter().map(|path| self.name(path));
        // Ignore objects with other names: they are not ours.
        Ok(Ids {
            manifests: manifests
                .filter_map(|name| name.parse().ok())
                .filter(|id| self.check_owned(id).is_ok())
                .collect(),
            attempts: attempts.filter_map(|name| name.parse().ok()).collect(),
        })
    }
}

/// True if the trouble is with this checkpoint, not with the store.
pub(crate) fn usable_elsewhere(error: &CheckpointError) -> bool {
    error.is_damage() || matches!(error, CheckpointError::LaterFormat { .. })
}
