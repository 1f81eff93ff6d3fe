//! Files that a model needs besides its values, such as vocabularies. They are named by their content, so that many
//! checkpoints can share one and none is ever overwritten.

use bytes::Bytes;
use object_store::ObjectStoreExt;
use windlass_core::identity::Fingerprint;

use crate::error::{CheckpointError, Damage};
use crate::manifest::Manifest;
use crate::store::Store;

impl Store {
    /// Stores a file, unless it already exists.
    pub async fn keep_file(&self, content: &str) -> Result<(), CheckpointError> {
        let object = file_object(Fingerprint::of(content.as_bytes()));
        let there = self.objects.head(&self.path(&object)).await.is_ok_and(|there| there.size == content.len() as u64);
        if !there {
            // Remove a file that a crash has truncated.
            self.remove(&object).await?;
            self.create(&object, Bytes::copy_from_slice(content.as_bytes())).await?;
        }
        Ok(())
    }

    /// The file of this name that a checkpoint was published with; `None` if it has none.
    pub async fn file(&self, manifest: &Manifest, name: &str) -> Result<Option<String>, CheckpointError> {
        let Some(fingerprint) = manifest.run.identity.files.get(name) else { return Ok(None) };
        let object = file_object(*fingerprint);
        let damaged = |damage| CheckpointError::Damaged { object: object.clone(), damage };
        let bytes = self.read(&object).await?.ok_or_else(|| damaged(Damage::Missing))?;
        let length = bytes.len() as u64;
        let content =
            String::from_utf8(bytes.into()).ok().filter(|text| Fingerprint::of(text.as_bytes()) == *fingerprint);
        content.map(Some).ok_or_else(|| damaged(Damage::Edited { bytes: 0..length }))
    }
}

fn file_object(fingerprint: Fingerprint) -> String {
    format!("files/{fingerprint}")
}
