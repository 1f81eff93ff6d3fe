//! The interface between a shard and its peer. A socket and a call within the process both implement it, so that a
//! server has only one way to serve a request.

use std::io;

use windlass_core::cluster::WorkerId;

use crate::stream::frame::{Answer, FrameError, Request};

/// The other end of a request, as a shard sees it.
pub trait Peer {
    /// Called as a request begins: it comes from a process of this worker that the coordinator has announced.
    fn is_known(&mut self, worker: WorkerId) {
        let _ = worker;
    }

    /// Receives the next `len` values of the request's dense payload. `len` is at most
    /// [`windlass_core::block::BLOCK_ELEMENTS`].
    fn receive(&mut self, len: usize) -> io::Result<&[f32]>;

    /// Receives the next bytes of the note or of a row section.
    fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()>;

    /// Whether the other end still waits for an answer; called repeatedly while there is none. An error breaks off the
    /// wait; what has been received still counts.
    fn waits(&self) -> io::Result<()> {
        Ok(())
    }

    /// Starts or interrupts an answer with a header and, for the kinds without values, a text.
    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()>;

    /// Copies values for sending. Called under a lock: it must not wait for the other end.
    fn stage(&mut self, values: &[f32]);

    /// Sends the staged values. Called without a lock: it may wait.
    fn flush(&mut self) -> io::Result<()>;
}

/// Why a request was not completely served. The connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The peer sent something invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The request names a process that the coordinator has not announced to this server in time. A real one asks
    /// again.
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
