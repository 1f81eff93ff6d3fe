//! A worker's tensor stream, served on a thread of its own: plain blocking reads and writes are the shortest way
//! from a socket to a shard and back.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{debug, warn};
use windlass_core::block::BLOCK_ELEMENTS;
use windlass_wire::Socket;
use windlass_wire::frame::{Answer, HEADER_BYTES, PREFACE_BYTES, Request, read_preface};
use windlass_wire::link::{Peer, ServeError, Shard};

/// The connections of a server, to be closed when it ends.
#[derive(Debug, Default, Clone)]
pub(crate) struct Connections(Arc<Mutex<Vec<Socket>>>);

impl Connections {
    /// Serves a connection until it closes.
    pub(crate) fn serve(&self, socket: Socket, shard: Arc<dyn Shard>) {
        if let Ok(handle) = socket.try_clone() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
        let spawned = std::thread::Builder::new().name("tensor-stream".into()).spawn(move || run(socket, &*shard));
        if let Err(error) = spawned {
            warn!(%error, "cannot start a thread for a tensor stream");
        }
    }

    /// Closes every connection, waking its thread.
    pub(crate) fn close(&self) {
        for socket in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            socket.shutdown();
        }
    }
}

fn run(socket: Socket, shard: &dyn Shard) {
    match serve(socket, shard) {
        Ok(()) => {}
        Err(ServeError::Io(error)) => debug!(%error, "tensor stream closed"),
        Err(ServeError::Frame(error)) => warn!("closed a tensor stream: {error}"),
    }
}

fn serve(mut socket: Socket, shard: &dyn Shard) -> Result<(), ServeError> {
    let mut preface = [0; PREFACE_BYTES];
    socket.read_exact(&mut preface)?;
    read_preface(&preface)?;
    let mut peer = SocketPeer { socket, block: Vec::new(), staged: Vec::new() };
    loop {
        let mut header = [0; HEADER_BYTES];
        match peer.socket.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        shard.serve(&Request::decode(&header)?, &mut peer)?;
    }
}

/// The worker at the other end of a socket.
struct SocketPeer {
    socket: Socket,
    /// Where a block arrives; a vector of floats, so that it is aligned.
    block: Vec<f32>,
    staged: Vec<u8>,
}

impl Peer for SocketPeer {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        assert!(len <= BLOCK_ELEMENTS, "a shard receives block by block");
        if self.block.len() < len {
            self.block.resize(len, 0.0);
        }
        let block = &mut self.block[..len];
        self.socket.read_exact(bytemuck::cast_slice_mut(block))?;
        Ok(block)
    }

    fn receive_words(&mut self, words: &mut [u32]) -> io::Result<()> {
        self.socket.read_exact(bytemuck::cast_slice_mut(words))
    }

    fn receive_values(&mut self, values: &mut [f32]) -> io::Result<()> {
        self.socket.read_exact(bytemuck::cast_slice_mut(values))
    }

    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()> {
        self.staged.extend_from_slice(&answer.encode());
        self.staged.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn stage(&mut self, values: &[f32]) {
        self.staged.extend_from_slice(bytemuck::cast_slice(values));
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = self.socket.write_all(&self.staged);
        self.staged.clear();
        sent
    }
}
