//! Tensor streams by hand, for what our client would never send, or never at that moment.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use windlass_core::run::LearningRate;
use windlass_wire::link::Peer;
use windlass_wire::stream::frame::{Answer, AnswerKind, Request, RequestKind, preface};

use crate::cluster::LIMIT;
use crate::worker::Worker;

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
        note: 0,
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

/// A worker that pushes ones, does something of the test's before each block, and leaves when it is told to wait.
pub struct Scripted<F> {
    before_block: F,
    blocks: usize,
    ones: Vec<f32>,
    /// The answers that it has received.
    pub answers: Vec<(AnswerKind, String)>,
}

impl<F: FnMut(usize)> Scripted<F> {
    pub fn new(before_block: F) -> Self {
        Self { before_block, blocks: 0, ones: Vec::new(), answers: Vec::new() }
    }
}

impl<F: FnMut(usize)> Peer for Scripted<F> {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        (self.before_block)(self.blocks);
        self.blocks += 1;
        self.ones.resize(len, 1.0);
        Ok(&self.ones)
    }

    fn receive_bytes(&mut self, _bytes: &mut [u8]) -> io::Result<()> {
        Err(ErrorKind::UnexpectedEof.into())
    }

    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()> {
        self.answers.push((answer.kind, text.to_owned()));
        if answer.kind == AnswerKind::Waiting { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
    }

    fn stage(&mut self, _values: &[f32]) {}

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
