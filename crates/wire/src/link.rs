//! A shard and its peer, seen from each other: the one interface that a socket and a call within the process
//! both implement, so that a server has a single way to serve a request.

use std::io;

use windlass_core::cluster::WorkerId;

use crate::stream::frame::{Answer, FrameError, Request};

/// The other end of a request, as a shard sees it.
pub trait Peer {
    /// Is told, as a request begins, that it comes from a process of this worker that the coordinator has announced.
    fn is_known(&mut self, worker: WorkerId) {
        let _ = worker;
    }

    /// The next `len` values of the request's dense payload. `len` is at most
    /// [`windlass_core::block::BLOCK_ELEMENTS`].
    fn receive(&mut self, len: usize) -> io::Result<&[f32]>;

    /// The next bytes of the note or of a row section.
    fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()>;

    /// Whether the other end still waits for an answer; asked from time to time while there is none. An error breaks the
    /// wait off; what has been received counts all the same.
    fn waits(&self) -> io::Result<()> {
        Ok(())
    }

    /// Starts or interrupts an answer with a header and, for the kinds without values, a text.
    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()>;

    /// Takes a copy of values to send. Called under a lock: it must not wait for the other end.
    fn stage(&mut self, values: &[f32]);

    /// Sends what was staged. Called without a lock: it may wait.
    fn flush(&mut self) -> io::Result<()>;
}

/// Why a request was not served to its end. The connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The peer sent something that does not fit.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The request names a process that the coordinator has not announced to this server in time. If it is a real one,
    /// it asks again.
    #[error("the coordinator has not announced this process as {0}")]
    Unannounced(WorkerId),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A shard of the parameters.
pub trait Shard: Send + Sync {
    /// Serves one request, waiting as long as the run's consistency demands.
    fn serve(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError>;
}
