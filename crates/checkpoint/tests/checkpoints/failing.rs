//! An object store that stops working at a chosen operation.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// Fails every modifying operation from the `limit`-th on with the given kind of error. In a crash, all other
/// operations fail as well, and an upload in progress stays as it is.
#[derive(Debug, Clone)]
pub struct Failing {
    objects: Arc<dyn ObjectStore>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    done: AtomicUsize,
    limit: usize,
    kind: io::ErrorKind,
    crash: bool,
}

impl Failing {
    /// The process dies after `limit` changes.
    pub fn crash(objects: Arc<dyn ObjectStore>, limit: usize) -> Self {
        Self::new(objects, limit, io::ErrorKind::BrokenPipe, true)
    }

    /// Fails modifications after `limit` of them, while reads keep working.
    pub fn refuse(objects: Arc<dyn ObjectStore>, limit: usize, kind: io::ErrorKind) -> Self {
        Self::new(objects, limit, kind, false)
    }

    fn new(objects: Arc<dyn ObjectStore>, limit: usize, kind: io::ErrorKind, crash: bool) -> Self {
        Self { objects, state: Arc::new(State { done: AtomicUsize::new(0), limit, kind, crash }) }
    }
}

impl State {
    fn change(&self) -> Result<()> {
        if self.done.fetch_add(1, Ordering::SeqCst) < self.limit { Ok(()) } else { Err(self.error()) }
    }

    fn fail_if_due(&self) -> Result<()> {
        match self.crash && self.done.load(Ordering::SeqCst) > self.limit {
            true => Err(self.error()),
            false => Ok(()),
        }
    }

    fn error(&self) -> Error {
        Error::Generic { store: "Failing", source: Box::new(io::Error::from(self.kind)) }
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Failing({})", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.state.change()?;
        self.objects.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, at: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.state.change()?;
        let upload = self.objects.put_multipart_opts(at, options).await?;
        Ok(Box::new(FailingUpload { upload: Some(upload), state: self.state.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.state.fail_if_due()?;
        self.objects.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.state.fail_if_due()?;
        self.objects.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let state = self.state.clone();
        self.objects.delete_stream(locations.map(move |location| state.change().and(location)).boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.state.fail_if_due() {
            Ok(()) => self.objects.list(prefix),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.state.fail_if_due()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.state.change()?;
        self.objects.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FailingUpload {
    upload: Option<Box<dyn MultipartUpload>>,
    state: Arc<State>,
}

#[async_trait]
impl MultipartUpload for FailingUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        match self.state.change() {
            Ok(()) => self.upload.as_mut().unwrap().put_part(data),
            Err(error) => async { Err(error) }.boxed(),
        }
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.state.change()?;
        self.upload.as_mut().unwrap().complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.state.fail_if_due()?;
        self.upload.as_mut().unwrap().abort().await
    }
}

impl Drop for FailingUpload {
    fn drop(&mut self) {
        // A dead process cleans nothing up.
        if self.state.fail_if_due().is_err() {
            std::mem::forget(self.upload.take());
        }
    }
}
