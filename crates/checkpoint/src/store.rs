//! A place that keeps checkpoints: its names, and the few plain operations the rest is made of.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload};

use crate::error::CheckpointError;
use crate::id::CheckpointId;
use crate::location::{self, OpenedLocation};
use crate::manifest::Manifest;

/// A directory or an object store that keeps checkpoints. Cheap to clone; one run, one store.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    prefix: Path,
    pub(crate) location: String,
    pub(crate) directory: Option<PathBuf>,
    read: ReadCounter,
    /// Checkpoints whose sizes are right and whose bytes were found not to be.
    known_damaged: Arc<Mutex<BTreeSet<CheckpointId>>>,
    /// Checkpoints that do not count, should they still be published.
    disowned: Arc<Mutex<BTreeSet<CheckpointId>>>,
}

/// How many bytes have been read from the stores that share it, as a sign of progress for those who wait.
#[derive(Debug, Clone, Default)]
pub struct ReadCounter(Arc<AtomicU64>);

impl ReadCounter {
    /// The bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Store {
    /// Opens a directory (made if missing) or a URL: `file://`, `s3://bucket/prefix`, `gs://…`, `az://…`, and for
    /// tests `memory://`. Object stores are configured by the usual environment variables (`AWS_…`, `GOOGLE_…`,
    /// `AZURE_…`; for one of your own, `AWS_ENDPOINT_URL` and `AWS_ALLOW_HTTP=true`).
    pub fn open(location: &str) -> Result<Self, CheckpointError> {
        let OpenedLocation { objects, prefix, directory } = location::open(location)?;
        Ok(Self {
            objects,
            prefix,
            location: location.to_owned(),
            directory,
            read: ReadCounter::default(),
            known_damaged: Arc::default(),
            disowned: Arc::default(),
        })
    }

    /// [`Store::open`] for those who must not block: a disk may hang. What is read is counted.
    pub async fn open_counted(location: &str, read: ReadCounter) -> Result<Self, CheckpointError> {
        let location = location.to_owned();
        let opened = tokio::task::spawn_blocking(move || Self::open(&location)).await;
        Ok(Self { read, ..opened.expect("opening a store does not panic")? })
    }

    /// A store over any implementation; `location` is what messages call it.
    pub fn over(objects: Arc<dyn ObjectStore>, location: &str) -> Self {
        Self {
            objects,
            prefix: Path::default(),
            location: location.to_owned(),
            directory: None,
            read: ReadCounter::default(),
            known_damaged: Arc::default(),
            disowned: Arc::default(),
        }
    }

    /// Its name in messages.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Makes a checkpoint of parts that have all been written. It never replaces one.
    ///
    /// The generation is checked before the manifest is written, not atomically with it. That is enough: if another
    /// coordinator takes over in between, whatever it publishes is newer than this.
    pub async fn publish(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let (id, json) = (manifest.id, manifest.to_json()?);
        self.check_generation(id.generation).await?;
        self.check_owned(&id)?;
        match self.create(&id.manifest_object(), json.into()).await? {
            true if self.check_owned(&id).is_err() => {
                // The store took too long, and the run has rolled back to an earlier one.
                self.delete(&id).await?;
                self.check_owned(&id)
            }
            true => Ok(()),
            false => Err(CheckpointError::AlreadyPublished { id }),
        }
    }

    /// Gives up a checkpoint that is being published: the run continues from an earlier one. If it is published all the
    /// same, it is removed, and clones of this store do not find it meanwhile.
    pub fn disown(&self, id: CheckpointId) {
        self.disowned.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Fails with [`CheckpointError::GivenUp`] if this checkpoint does not count.
    pub fn check_owned(&self, id: &CheckpointId) -> Result<(), CheckpointError> {
        match self.disowned.lock().unwrap_or_else(PoisonError::into_inner).contains(id) {
            true => Err(CheckpointError::GivenUp { id: *id }),
            false => Ok(()),
        }
    }

    /// The checkpoints that were found damaged when all of their bytes were read.
    pub(crate) fn known_damaged(&self) -> MutexGuard<'_, BTreeSet<CheckpointId>> {
        self.known_damaged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_read(&self, bytes: usize) {
        self.read.add(bytes);
    }

    pub(crate) fn path(&self, object: &str) -> Path {
        Path::parse(format!("{}/{object}", self.prefix)).expect("our names are valid")
    }

    /// The name within the store of something the store lists.
    pub(crate) fn name<'a>(&self, path: &'a Path) -> &'a str {
        path.as_ref().strip_prefix(self.prefix.as_ref()).unwrap_or(path.as_ref()).trim_start_matches('/')
    }

    /// Writes a small object; false if it is there already.
    pub(crate) async fn create(&self, object: &str, contents: Bytes) -> Result<bool, CheckpointError> {
        self.check_directory().await?;
        let payload = PutPayload::from_bytes(contents);
        match self.objects.put_opts(&self.path(object), payload, PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(CheckpointError::writing(&self.location, object, error)),
        }
    }

    /// Writes a small object in place of what is there.
    pub(crate) async fn replace(&self, object: &str, contents: Bytes) -> Result<(), CheckpointError> {
        self.check_directory().await?;
        let written = self.objects.put(&self.path(object), PutPayload::from_bytes(contents)).await;
        written.map(drop).map_err(|error| CheckpointError::writing(&self.location, object, error))
    }

    /// Reads a small object whole; `None` if it is not there.
    pub(crate) async fn read(&self, object: &str) -> Result<Option<Bytes>, CheckpointError> {
        let bytes = async { self.objects.get(&self.path(object)).await?.bytes().await };
        match bytes.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(CheckpointError::store(&self.location, "read", object, &error)),
        }
    }

    /// Everything below a folder.
    pub(crate) async fn list_below(&self, folder: &str) -> Result<Vec<ObjectMeta>, CheckpointError> {
        let listed = self.objects.list(Some(&self.path(folder))).try_collect().await;
        listed.map_err(|error| CheckpointError::store(&self.location, "list", folder, &error))
    }

    /// Removes an object; one that is not there is as good as removed.
    pub(crate) async fn remove(&self, object: &str) -> Result<(), CheckpointError> {
        match self.objects.delete(&self.path(object)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(CheckpointError::store(&self.location, "remove", object, &error)),
        }
    }

    /// The next write would recreate a directory that was removed, without its contents.
    pub(crate) async fn check_directory(&self) -> Result<(), CheckpointError> {
        let Some(directory) = self.directory.clone() else { return Ok(()) };
        // A disk may hang.
        let is_there = tokio::task::spawn_blocking(move || directory.is_dir()).await;
        match is_there.unwrap_or(true) {
            true => Ok(()),
            false => Err(CheckpointError::Vanished { location: self.location.clone() }),
        }
    }

    pub(crate) fn list_failed(&self, error: &object_store::Error) -> CheckpointError {
        CheckpointError::store(&self.location, "list", "/", error)
    }

    pub(crate) fn root(&self) -> Option<&Path> {
        (!self.prefix.as_ref().is_empty()).then_some(&self.prefix)
    }
}
