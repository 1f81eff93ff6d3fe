//! Reading a checkpoint from end to end to say exactly what is wrong with it.

use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;

use crate::checksum::chunk_count;
use crate::error::{CheckpointError, Damage};
use crate::header;
use crate::manifest::{Manifest, PartRecord};
use crate::read::READ_AHEAD;
use crate::store::Store;

/// What was found of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifyReport {
    /// Its parts, in the order of the servers.
    pub parts: Vec<PartReport>,
}

/// What was found of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartReport {
    /// Its name within the store.
    pub object: String,
    /// Its size, as it was written.
    pub bytes: u64,
    /// All that is wrong with it.
    pub damage: Vec<Damage>,
}

impl VerifyReport {
    /// True if every byte is as it was written.
    pub fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.damage.is_empty())
    }

    /// The first damage as an error.
    pub fn into_error(self) -> Option<CheckpointError> {
        let first = |part: PartReport| Some((part.object, part.damage.into_iter().next()?));
        let (object, damage) = self.parts.into_iter().find_map(first)?;
        Some(CheckpointError::Damaged { object, damage })
    }
}

impl Store {
    /// Reads all parts of a checkpoint and compares their checksums. An error means that the store failed, not that
    /// the checkpoint is damaged.
    pub async fn verify(&self, manifest: &Manifest) -> Result<VerifyReport, CheckpointError> {
        let mut parts = Vec::new();
        for part in &manifest.parts {
            let damage = self.verify_part(part).await?;
            parts.push(PartReport { object: part.object.clone(), bytes: part.bytes, damage });
        }
        Ok(VerifyReport { parts })
    }

    async fn verify_part(&self, part: &PartRecord) -> Result<Vec<Damage>, CheckpointError> {
        if let Err(error) = self.check_size(part).await {
            return only_damage(error).map(|damage| vec![damage]);
        }
        let chunks = 0..chunk_count(part.bytes) as usize;
        let mut chunks = stream::iter(chunks).map(|chunk| self.read_chunk(part, chunk)).buffered(READ_AHEAD);
        let mut found = Vec::new();
        while let Some(chunk) = chunks.next().await {
            if let Err(error) = chunk {
                found.push(only_damage(error)?);
            }
        }
        if found.iter().any(|damage| matches!(damage, Damage::Edited { bytes } if bytes.start < part.header_bytes))
            && let Some(reason) = self.header_problem(part).await?
        {
            found.insert(0, Damage::Header { reason });
        }
        Ok(found)
    }

    /// Why the header of a part cannot be read, if it cannot.
    async fn header_problem(&self, part: &PartRecord) -> Result<Option<String>, CheckpointError> {
        let head = self.objects.get_range(&self.path(&part.object), 0..part.header_bytes).await;
        let head = head.map_err(|error| CheckpointError::store(&self.location, "read", &part.object, &error))?;
        Ok(header::decode(&head).err())
    }
}

fn only_damage(error: CheckpointError) -> Result<Damage, CheckpointError> {
    match error {
        CheckpointError::Damaged { damage, .. } => Ok(damage),
        error => Err(error),
    }
}
