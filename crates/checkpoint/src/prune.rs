//! Removes checkpoints that are no longer needed, and what crashes have left behind. A manifest is removed before its
//! parts, so that a half-removed checkpoint is none.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::{fs, io};

use crate::error::CheckpointError;
use crate::id::CheckpointId;
use crate::store::Store;

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Checkpoints: old ones, and damaged ones older than the newest whole one.
    pub checkpoints: Vec<CheckpointId>,
    /// Attempts that were never published and no longer can be.
    pub attempts: Vec<CheckpointId>,
}

impl Store {
    /// Removes all but the newest `keep` whole checkpoints, after reading every byte of them. The newest whole one
    /// always stays, and so does everything newer than it: it may still be being written, or be evidence of what went
    /// wrong. Checkpoints of a later format are left to the program that wrote them.
    pub async fn prune(&self, keep: usize) -> Result<Pruned, CheckpointError> {
        let mut whole = 0;
        for manifest in self.list().await?.into_iter().filter_map(|listed| listed.outcome.ok()) {
            if whole == keep.max(1) {
                break;
            }
            match self.verify(&manifest).await?.is_whole() {
                true => whole += 1,
                false => drop(self.known_damaged().insert(manifest.id)),
            }
        }
        self.prune_since(0, keep, None).await
    }

    /// Like [`Store::prune`], for the checkpoints since a generation; earlier ones belong to other runs and stay.
    /// Nothing is read: a checkpoint counts as damaged only if its sizes show it, or if [`Store::newest_verified`] has
    /// found it. Fails with [`CheckpointError::Fenced`] once another coordinator has taken over from the one of
    /// generation `own`.
    pub async fn prune_since(&self, generation: u64, keep: usize, own: Option<u64>) -> Result<Pruned, CheckpointError> {
        let mut pruned = Pruned::default();
        let mut kept: Vec<CheckpointId> = Vec::new();
        for listed in self.list().await?.into_iter().filter(|listed| listed.id.generation >= generation) {
            match &listed.outcome {
                Ok(_) if kept.len() < keep.max(1) && !self.known_damaged().contains(&listed.id) => kept.push(listed.id),
                Err(CheckpointError::LaterFormat { .. }) => {}
                _ if kept.is_empty() => {}
                _ => {
                    self.check_own(own).await?;
                    self.delete(&listed.id).await?;
                    pruned.checkpoints.push(listed.id);
                }
            }
        }
        let Some(newest) = kept.first() else {
            return Ok(pruned);
        };
        pruned.attempts = self.orphans(newest).await?;
        pruned.attempts.retain(|id| id.generation >= generation);
        for id in &pruned.attempts {
            self.check_own(own).await?;
            self.remove_parts(id).await?;
        }
        self.check_own(own).await?;
        self.forget_generations().await?;
        self.sweep_staged(*newest).await?;
        Ok(pruned)
    }

    async fn check_own(&self, own: Option<u64>) -> Result<(), CheckpointError> {
        match own {
            Some(generation) => self.check_generation(generation).await,
            None => Ok(()),
        }
    }

    /// Removes a checkpoint.
    pub async fn delete(&self, id: &CheckpointId) -> Result<(), CheckpointError> {
        self.remove(&id.manifest_object()).await?;
        self.remove_parts(id).await
    }

    /// Attempts without a manifest that are older than a checkpoint, so that they are no longer being written.
    async fn orphans(&self, newest: &CheckpointId) -> Result<Vec<CheckpointId>, CheckpointError> {
        // List again: a manifest may have been published since the last listing.
        let ids = self.ids().await?;
        let orphans: BTreeSet<_> = ids.attempts.difference(&ids.manifests).copied().collect();
        Ok(orphans.into_iter().filter(|id| id.age() < newest.age()).collect())
    }

    pub(crate) async fn remove_parts(&self, id: &CheckpointId) -> Result<(), CheckpointError> {
        for object in self.list_below(&id.to_string()).await? {
            self.remove(self.name(&object.location)).await?;
        }
        let Some(folder) = self.directory.as_ref().map(|directory| directory.join(id.to_string())) else {
            return Ok(());
        };
        unblocked(move || done(fs::remove_dir_all(folder)))
            .await
            .map_err(|error| self.sweep_failed(&id.to_string(), &error))
    }

    /// In a directory, removes the unfinished files (`name#1`) of manifests and claims that a crash has left.
    async fn sweep_staged(&self, newest: CheckpointId) -> Result<(), CheckpointError> {
        let Some(directory) = self.directory.clone() else {
            return Ok(());
        };
        let swept = unblocked(move || {
            let manifest = |name: &str| name.strip_suffix(".json")?.parse::<CheckpointId>().ok();
            let generation = |name: &str| name.parse::<u64>().ok();
            sweep(&directory, |name| manifest(name).is_some_and(|id| id.age() < newest.age()))?;
            sweep(&directory.join("generations"), |name| generation(name).is_some_and(|it| it < newest.generation))
        });
        swept.await.map_err(|error| self.sweep_failed("unfinished files", &error))
    }

    fn sweep_failed(&self, object: &str, error: &io::Error) -> CheckpointError {
        let (location, object, reason) = (self.location.clone(), object.to_owned(), error.to_string());
        CheckpointError::Store { location, action: "remove", object, reason }
    }
}

/// Runs a file operation on a separate thread, because a disk may hang.
async fn unblocked(act: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|error| Err(error.into()))
}

/// Removes the files `name#…` of a directory for which `is_old` accepts the name.
fn sweep(directory: &Path, is_old: impl Fn(&str) -> bool) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let name = entry?.file_name();
        let staged = name.to_str().and_then(|name| name.split_once('#'));
        if staged.is_some_and(|(name, _)| is_old(name)) {
            done(fs::remove_file(directory.join(OsStr::new(&name))))?;
        }
    }
    Ok(())
}

/// Treats a missing file as removed.
fn done(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}
