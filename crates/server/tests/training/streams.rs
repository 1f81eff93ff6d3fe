//! Tensor streams by hand, for what no client of ours would send.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use windlass_core::run::LearningRate;
use windlass_wire::frame::{Request, RequestKind, preface};

use crate::cluster::{LIMIT, Worker};

/// A connection to a server's port.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

/// A tensor stream to a server.
pub fn open_stream(address: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(&preface()).unwrap();
    stream
}

/// The header of a push by a worker.
pub fn push_header(worker: &Worker, sequence: u64, dense: u64) -> Request {
    Request {
        kind: RequestKind::Push,
        worker: worker.id,
        incarnation: worker.incarnation,
        sequence,
        base: 0,
        learning_rate: LearningRate::initial(1.0),
        dense,
        rows: 0,
        wanted: 0,
    }
}

/// Reads until the other end closes the connection, which it must.
pub fn assert_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the server closes the connection"),
    }
    said
}
