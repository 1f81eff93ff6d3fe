//! Writes one server's part as a stream, without copying its data. An unfinished part leaves nothing behind, unless the
//! process dies.

use bytes::Bytes;
use object_store::{ObjectStoreExt, WriteMultipart};
use tokio::runtime::Handle;

use crate::checksum::{CHUNK_BYTES, Summing};
use crate::discard::discarded;
use crate::error::CheckpointError;
use crate::id::CheckpointId;
use crate::layout::PartLayout;
use crate::manifest::PartRecord;
use crate::store::Store;

/// The maximum number of pieces in flight at a time.
const IN_FLIGHT: usize = 4;

/// The maximum number of pieces in an upload: object stores accept 10,000.
const MAX_PIECES: usize = 9_000;

impl Store {
    /// Starts to write a server's part of a checkpoint.
    pub async fn begin_part(&self, id: &CheckpointId, layout: &PartLayout) -> Result<PartWriter, CheckpointError> {
        let object = id.part_object(layout.server, layout.servers);
        self.check_directory().await?;
        let upload = match self.objects.put_multipart(&self.path(&object)).await {
            Ok(upload) => upload,
            Err(error) => return Err(discarded(self, &object, error).await),
        };

        let header = layout.header(id);
        let bytes = header.len() + layout.tensor_bytes();
        // S3 requires at least 5 MiB; pieces are whole chunks.
        let piece = bytes.div_ceil(MAX_PIECES).next_multiple_of(CHUNK_BYTES).max(2 * CHUNK_BYTES);
        let record = PartRecord {
            server: layout.server,
            object,
            bytes: bytes as u64,
            header_bytes: header.len() as u64,
            checksums: Vec::with_capacity(bytes.div_ceil(CHUNK_BYTES)),
            plan: layout.plan.clone(),
        };
        let mut writer = PartWriter {
            upload: Some(WriteMultipart::new_with_chunk_size(upload, piece)),
            chunk: Summing::new(),
            written: 0,
            steps_end: header.len() + layout.step_bytes(),
            record,
            store: self.clone(),
        };
        writer.append(header.into()).await?;
        Ok(writer)
    }
}

/// A part being written: the steps of all rows, then the numbers in the order of its layout, in pieces of any size.
#[derive(Debug)]
pub struct PartWriter {
    /// `None` once it has failed.
    upload: Option<WriteMultipart>,
    /// The checksum of the incomplete chunk so far.
    chunk: Summing,
    written: usize,
    /// The offset at which the steps of rows end and the floats begin.
    steps_end: usize,
    record: PartRecord,
    store: Store,
}

impl PartWriter {
    /// Writes the step counts of the next rows.
    pub async fn write_steps(&mut self, steps: &[u64]) -> Result<(), CheckpointError> {
        if self.written + size_of_val(steps) > self.steps_end {
            return self.refuse("has no more rows to count the steps of").await;
        }
        self.append(Bytes::copy_from_slice(bytemuck::cast_slice(steps))).await
    }

    /// Writes the next values or slots. They are freed when the store has them.
    pub async fn write(&mut self, numbers: impl Into<Vec<f32>>) -> Result<(), CheckpointError> {
        self.write_owned(numbers.into()).await
    }

    /// Like [`PartWriter::write`], for any owner of numbers. The owner is dropped once they are written.
    pub async fn write_owned(&mut self, numbers: impl AsRef<[f32]> + Send + 'static) -> Result<(), CheckpointError> {
        let bytes = size_of_val(numbers.as_ref());
        if self.written < self.steps_end && bytes > 0 {
            return self.refuse("lacks the steps of some rows, which must be written first").await;
        }
        if self.written + bytes > self.record.bytes as usize {
            return self.refuse("has no room for more numbers").await;
        }
        self.append(Bytes::from_owner(Numbers(numbers))).await
    }

    /// Makes the part durable. It belongs to no checkpoint until a manifest names it.
    pub async fn finish(mut self) -> Result<PartRecord, CheckpointError> {
        if (self.written as u64) < self.record.bytes {
            let reason = format!("is not finished: {} of {} bytes were written", self.written, self.record.bytes);
            self.refuse(&reason).await?;
        }
        if self.chunk.bytes() > 0 {
            self.record.checksums.push(self.chunk.finish());
        }
        let upload = self.upload.take().ok_or_else(|| self.failed_before())?;
        match upload.finish().await {
            Ok(_) => Ok(self.record.clone()),
            Err(error) => Err(discarded(&self.store, &self.record.object, error).await),
        }
    }

    async fn append(&mut self, mut bytes: Bytes) -> Result<(), CheckpointError> {
        self.written += bytes.len();
        while !bytes.is_empty() {
            let now = bytes.split_to(bytes.len().min(CHUNK_BYTES - self.chunk.bytes()));
            self.chunk.add(&now);
            self.send(now).await?;
            if self.chunk.bytes() == CHUNK_BYTES {
                self.record.checksums.push(self.chunk.finish());
                self.chunk = Summing::new();
            }
        }
        Ok(())
    }

    async fn send(&mut self, bytes: Bytes) -> Result<(), CheckpointError> {
        let Some(upload) = &mut self.upload else {
            return Err(self.failed_before());
        };
        if let Err(error) = upload.wait_for_capacity(IN_FLIGHT).await {
            self.abort().await;
            return Err(CheckpointError::writing(&self.store.location, &self.record.object, error));
        }
        upload.put(bytes);
        Ok(())
    }

    async fn refuse(&mut self, reason: &str) -> Result<(), CheckpointError> {
        self.abort().await;
        Err(CheckpointError::WrongContents { object: self.record.object.clone(), reason: reason.to_owned() })
    }

    fn failed_before(&self) -> CheckpointError {
        let reason = "cannot be continued after a failed write".to_owned();
        CheckpointError::WrongContents { object: self.record.object.clone(), reason }
    }

    async fn abort(&mut self) {
        if let Some(upload) = self.upload.take() {
            abort(upload, &self.store, &self.record.object).await;
        }
    }
}

/// Numbers as the bytes they are in memory.
struct Numbers<T>(T);

impl<T: AsRef<[f32]>> AsRef<[u8]> for Numbers<T> {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.as_ref())
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        if let (Some(upload), Ok(runtime)) = (self.upload.take(), Handle::try_current()) {
            let (store, object) = (self.store.clone(), self.record.object.clone());
            runtime.spawn(async move { abort(upload, &store, &object).await });
        }
    }
}

/// Whatever cannot be cleaned up is removed by a later prune.
async fn abort(upload: WriteMultipart, store: &Store, object: &str) {
    if let Err(error) = upload.abort().await {
        tracing::debug!(object, %error, "an unfinished part could not be removed");
    }
    store.discard_part(object).await;
}
