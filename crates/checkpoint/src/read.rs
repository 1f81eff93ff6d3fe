//! Reads parts chunk by chunk, and verifies each chunk before returning it.

use std::ops::Range;

use bytes::Bytes;
use object_store::ObjectStoreExt;

use crate::checksum::{Checksum, chunk_range};
use crate::error::{CheckpointError, Damage};
use crate::manifest::PartRecord;
use crate::store::Store;

/// How many chunks are read at a time.
pub(crate) const READ_AHEAD: usize = 4;

/// Verified bytes of a part.
pub(crate) struct Chunk {
    pub range: Range<u64>,
    pub bytes: Bytes,
}

impl Store {
    /// Reads one chunk of a part.
    pub(crate) async fn read_chunk(&self, part: &PartRecord, chunk: usize) -> Result<Chunk, CheckpointError> {
        let range = chunk_range(chunk, part.bytes);
        let bytes = match self.objects.get_range(&self.path(&part.object), range.clone()).await {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.explain(part, &error).await),
        };
        self.count_read(bytes.len());
        if bytes.len() as u64 != range.end - range.start {
            let found = range.start + bytes.len() as u64;
            return Err(damaged(part, Damage::WrongSize { expected: part.bytes, found }));
        }
        match Checksum::of(&bytes) == part.checksums[chunk] {
            true => Ok(Chunk { range, bytes }),
            false => Err(damaged(part, Damage::Edited { bytes: range })),
        }
    }

    /// Checks that a part exists with the right size.
    pub(crate) async fn check_size(&self, part: &PartRecord) -> Result<(), CheckpointError> {
        match self.objects.head(&self.path(&part.object)).await {
            Ok(found) if found.size == part.bytes => Ok(()),
            Ok(found) => Err(damaged(part, Damage::WrongSize { expected: part.bytes, found: found.size })),
            Err(object_store::Error::NotFound { .. }) => Err(damaged(part, Damage::Missing)),
            Err(error) => Err(CheckpointError::store(&self.location, "read", &part.object, &error)),
        }
    }

    /// Determines whether a failed read is due to the part or to the store.
    async fn explain(&self, part: &PartRecord, error: &object_store::Error) -> CheckpointError {
        match self.check_size(part).await {
            Err(damage) if damage.is_damage() => damage,
            _ => CheckpointError::store(&self.location, "read", &part.object, error),
        }
    }
}

pub(crate) fn damaged(part: &PartRecord, damage: Damage) -> CheckpointError {
    CheckpointError::Damaged { object: part.object.clone(), damage }
}
