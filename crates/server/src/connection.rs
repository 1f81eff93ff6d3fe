//! A worker's tensor stream, served on a thread of its own: plain blocking reads and writes are the shortest way
//! from a socket to a shard and back.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{debug, warn};
use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::cluster::{TaskId, WorkerId};
use windlass_instruments::PsInstruments;
use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::lobby::Visit;
use windlass_wire::stream::frame::{Answer, HEADER_BYTES, Request};
use windlass_wire::stream::{Socket, handshake, is_stalled};

/// A request that makes no progress for this long is dropped. Between requests a worker may take its time.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// The connections of a server, to be closed when it ends.
#[derive(Debug, Default, Clone)]
pub(crate) struct Connections {
    open: Arc<Mutex<Open>>,
    counts: PsInstruments,
}

#[derive(Debug, Default)]
struct Open {
    closed: bool,
    next: u64,
    sockets: BTreeMap<u64, Socket>,
}

/// An entry in the list of open connections, removed when its thread ends for whatever reason.
struct OpenConnection {
    connections: Connections,
    id: u64,
}

impl Connections {
    /// Creates an empty list whose traffic is counted by `counts`.
    pub(crate) fn counted_by(counts: PsInstruments) -> Self {
        Self { open: Arc::default(), counts }
    }

    /// Serves a connection until it closes.
    pub(crate) fn serve(&self, socket: Socket, visit: Visit, shard: Arc<dyn Shard>) {
        let Some(open_connection) = self.add(&socket) else { return };
        let (connections, counts, id) = (self.clone(), self.counts.clone(), open_connection.id);
        visit.on_close(move || connections.shut(id));
        let serve = move || {
            let _open_connection = open_connection;
            run(socket, visit, &*shard, counts);
        };
        if let Err(error) = std::thread::Builder::new().name("tensor-stream".into()).spawn(serve) {
            warn!(%error, "cannot start a thread for a tensor stream");
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
    fn add(&self, socket: &Socket) -> Option<OpenConnection> {
        let handle = socket.try_clone().ok()?;
        let mut open = self.lock();
        if open.closed {
            return None;
        }
        open.next += 1;
        let id = open.next;
        open.sockets.insert(id, handle);
        Some(OpenConnection { connections: self.clone(), id })
    }

    /// Closes a connection, waking its thread.
    fn shut(&self, id: u64) {
        if let Some(socket) = self.lock().sockets.get(&id) {
            socket.shutdown();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenConnection {
    /// Removes the last handle, which closes the connection.
    fn drop(&mut self) {
        self.connections.lock().sockets.remove(&self.id);
    }
}

fn run(socket: Socket, visit: Visit, shard: &dyn Shard, counts: PsInstruments) {
    match serve(socket, visit.clone(), shard, counts) {
        Ok(()) => {}
        Err(ServeError::Io(error)) => debug!(%error, "tensor stream closed"),
        Err(error) => visit.refused(&error),
    }
}

fn serve(socket: Socket, visit: Visit, shard: &dyn Shard, counts: PsInstruments) -> Result<(), ServeError> {
    let mut socket = handshake::accept(socket)?;
    socket.set_stall_timeout(STALL_TIMEOUT)?;
    let mut peer = SocketPeer { socket, visit: Some(visit), block: Vec::new(), staged: Vec::new(), counts };
    while let Some(header) = peer.next_header()? {
        shard.serve(&Request::decode(&header)?, &mut peer)?;
    }
    Ok(())
}

/// The worker at the other end of a socket.
struct SocketPeer {
    socket: Socket,
    /// The slot in the lobby, until the worker has identified itself.
    visit: Option<Visit>,
    /// The buffer for an arriving block: a vector of floats, so that it is aligned.
    block: Vec<f32>,
    staged: Vec<u8>,
    /// Counts the traffic of this connection.
    counts: PsInstruments,
}

impl SocketPeer {
    /// Reads the header of the next request, without a deadline. Returns `None` when the connection has closed.
    fn next_header(&mut self) -> io::Result<Option<[u8; HEADER_BYTES]>> {
        let (mut header, mut filled) = ([0; HEADER_BYTES], 0);
        while filled < HEADER_BYTES {
            match self.socket.read(&mut header[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_stalled(&error) && filled == 0 => {}
                Err(error) => return Err(error),
            }
        }
        self.counts.received(HEADER_BYTES);
        Ok(Some(header))
    }

    /// Writes bytes straight to where the worker reads them, if the socket supports that, and into `staged` otherwise.
    fn put(&mut self, bytes: &[u8]) {
        self.counts.sent(bytes.len());
        if !self.staged.is_empty() || !self.socket.stage(bytes) {
            self.staged.extend_from_slice(bytes);
        }
    }
}

impl Peer for SocketPeer {
    fn is_known(&mut self, worker: WorkerId) {
        if let Some(visit) = self.visit.take() {
            visit.admit(TaskId::from(worker));
        }
    }

    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        assert!(len <= BLOCK_ELEMENTS, "a shard receives block by block");
        self.counts.received(len * size_of::<f32>());
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
        self.counts.received(bytes.len());
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

    use windlass_wire::lobby::{self, Lobby};
    use windlass_wire::stream::frame::preface;

    use super::*;

    /// A shard that no request gets as far as.
    struct Unreached;

    impl Shard for Unreached {
        fn serve(&self, _request: &Request, _peer: &mut dyn Peer) -> Result<(), ServeError> {
            unreachable!("the header is not a request's");
        }
    }

    /// A shard that panics.
    struct Panicking;

    impl Shard for Panicking {
        fn serve(&self, _request: &Request, _peer: &mut dyn Peer) -> Result<(), ServeError> {
            panic!("as the test wants it");
        }
    }

    fn serve_one(connections: &Connections) -> UnixStream {
        serve_one_from(connections, Arc::new(Unreached))
    }

    fn serve_one_from(connections: &Connections, shard: Arc<dyn Shard>) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let visit = Lobby::default().enter(lobby::Caller::Local);
        connections.serve(Socket::unix(theirs).unwrap(), visit, shard);
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
    fn a_connection_whose_thread_panics_is_closed_and_forgotten() {
        let connections = Connections::default();
        let mut stream = serve_one_from(&connections, Arc::new(Panicking));
        stream.write_all(&preface()).unwrap();
        // A pull by worker 0, with all other fields zero.
        let mut header = [0; HEADER_BYTES];
        header[0] = 2;
        stream.write_all(&header).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the other end closes");
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
