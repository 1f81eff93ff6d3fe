//! A worker's tensor stream, served on a thread of its own: plain blocking reads and writes are the shortest way
//! from a socket to a shard and back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{debug, warn};
use windlass_core::block::BLOCK_ELEMENTS;
use windlass_wire::Socket;
use windlass_wire::frame::{Answer, HEADER_BYTES, Request};
use windlass_wire::handshake;
use windlass_wire::link::{Peer, ServeError, Shard};

/// The connections of a server, to be closed when it ends.
#[derive(Debug, Default, Clone)]
pub(crate) struct Connections(Arc<Mutex<Open>>);

#[derive(Debug, Default)]
struct Open {
    closed: bool,
    next: u64,
    sockets: BTreeMap<u64, Socket>,
}

impl Connections {
    /// Serves a connection until it closes.
    pub(crate) fn serve(&self, socket: Socket, shard: Arc<dyn Shard>) {
        let Some(id) = self.add(&socket) else { return };
        let connections = self.clone();
        let serve = move || {
            run(socket, &*shard);
            connections.remove(id);
        };
        if let Err(error) = std::thread::Builder::new().name("tensor-stream".into()).spawn(serve) {
            warn!(%error, "cannot start a thread for a tensor stream");
            self.remove(id);
        }
    }

    /// Closes every connection, waking its thread, and takes no more.
    pub(crate) fn close(&self) {
        let mut open = self.lock();
        open.closed = true;
        for socket in std::mem::take(&mut open.sockets).values() {
            socket.shutdown();
        }
    }

    /// Keeps a handle to a connection; `None` if it is not to be served.
    fn add(&self, socket: &Socket) -> Option<u64> {
        let handle = socket.try_clone().ok()?;
        let mut open = self.lock();
        if open.closed {
            return None;
        }
        open.next += 1;
        let id = open.next;
        open.sockets.insert(id, handle);
        Some(id)
    }

    /// The connection closes with its last handle.
    fn remove(&self, id: u64) {
        self.lock().sockets.remove(&id);
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn run(socket: Socket, shard: &dyn Shard) {
    match serve(socket, shard) {
        Ok(()) => {}
        Err(ServeError::Io(error)) => debug!(%error, "tensor stream closed"),
        Err(error) => warn!("closed a tensor stream: {error}"),
    }
}

fn serve(socket: Socket, shard: &dyn Shard) -> Result<(), ServeError> {
    let mut peer = SocketPeer { socket: handshake::accept(socket)?, block: Vec::new(), staged: Vec::new() };
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

impl SocketPeer {
    /// Puts bytes straight where the worker will find them, if the socket can do that, or by in `staged`.
    fn put(&mut self, bytes: &[u8]) {
        if !self.staged.is_empty() || !self.socket.stage(bytes) {
            self.staged.extend_from_slice(bytes);
        }
    }
}

impl Peer for SocketPeer {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        assert!(len <= BLOCK_ELEMENTS, "a shard receives block by block");
        if self.socket.receives_in_place() {
            let bytes = self.socket.receive_in_place(len * size_of::<f32>())?;
            return bytemuck::try_cast_slice(bytes).map_err(|_| io::ErrorKind::InvalidData.into());
        }
        if self.block.len() < len {
            self.block.resize(len, 0.0);
        }
        let block = &mut self.block[..len];
        self.socket.read_exact(bytemuck::cast_slice_mut(block))?;
        Ok(block)
    }

    fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.socket.read_exact(bytes)
    }

    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()> {
        self.put(&answer.encode());
        self.put(text.as_bytes());
        Ok(())
    }

    fn stage(&mut self, values: &[f32]) {
        self.put(bytemuck::cast_slice(values));
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.send_staged();
        let sent = self.socket.write_all(&self.staged);
        self.staged.clear();
        sent.and_then(|()| self.socket.flush())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use windlass_wire::frame::preface;

    use super::*;

    /// A shard that no request gets as far as.
    struct Unreached;

    impl Shard for Unreached {
        fn serve(&self, _request: &Request, _peer: &mut dyn Peer) -> Result<(), ServeError> {
            unreachable!("the header is not a request's");
        }
    }

    fn serve_one(connections: &Connections) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connections.serve(Socket::unix(theirs).unwrap(), Arc::new(Unreached));
        ours
    }

    #[test]
    fn a_connection_that_ends_is_closed_and_forgotten() {
        let connections = Connections::default();
        for _ in 0..50 {
            let mut stream = serve_one(&connections);
            stream.write_all(&preface()).unwrap();
            stream.write_all(&[0xee; HEADER_BYTES]).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the other end closes");
        }
        assert!(connections.lock().sockets.is_empty());
    }

    #[test]
    fn a_server_that_ends_closes_its_connections_and_takes_no_more() {
        let connections = Connections::default();
        let mut open = serve_one(&connections);
        connections.close();
        assert_eq!(open.read(&mut [0]).unwrap(), 0);
        assert_eq!(serve_one(&connections).read(&mut [0]).unwrap(), 0);
    }
}
