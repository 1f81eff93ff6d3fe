//! Moves bytes to and from several servers at once, on the calling thread.
//!
//! Requests are written and answers read as each socket allows, so that a server may answer one part of a push
//! while the next is still on its way, and neither end can block the other. Gradients leave from, and values
//! arrive in, the caller's own buffers.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Socket;
use crate::frame::{Answer, AnswerKind, HEADER_BYTES};

/// How many pieces one system call takes.
const PIECES: usize = 64;

/// Bytes on their way out: how many of a list of pieces have been written.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    written: usize,
    total: usize,
}

impl Outgoing {
    pub(crate) fn new(pieces: &[&[u8]]) -> Self {
        Self { written: 0, total: pieces.iter().map(|piece| piece.len()).sum() }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.written == self.total
    }

    /// Bytes written.
    pub(crate) fn written(&self) -> usize {
        self.written
    }

    /// Writes until all is written or the socket is full.
    pub(crate) fn advance(&mut self, socket: &mut Socket, pieces: &[&[u8]]) -> io::Result<()> {
        while !self.is_done() {
            let mut slices = [IoSlice::new(&[]); PIECES];
            let mut count = 0;
            let mut skip = self.written;
            for piece in pieces {
                if skip >= piece.len() {
                    skip -= piece.len();
                    continue;
                }
                slices[count] = IoSlice::new(&piece[skip..]);
                skip = 0;
                count += 1;
                if count == PIECES {
                    break;
                }
            }
            match socket.write_vectored(&slices[..count]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// What an answer has come to.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// More is to come.
    Partial,
    /// A message without values: its header and text. Another answer may follow.
    Message(Answer, String),
    /// All values are in place.
    Complete(Answer),
}

/// An answer on its way in.
#[derive(Debug)]
pub(crate) struct Incoming {
    header: [u8; HEADER_BYTES],
    answer: Option<Answer>,
    text: Vec<u8>,
    read: usize,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { header: [0; HEADER_BYTES], answer: None, text: Vec::new(), read: 0 }
    }

    /// Bytes read of the present part of the present answer.
    pub(crate) fn read(&self) -> usize {
        self.read
    }

    /// Reads until the answer is whole or the socket is empty. Values go to `places`, in order.
    pub(crate) fn advance(&mut self, socket: &mut Socket, places: &mut [&mut [u8]]) -> io::Result<Arrival> {
        loop {
            let Some(answer) = self.answer else {
                match read_some(socket, &mut [IoSliceMut::new(&mut self.header[self.read..])])? {
                    None => return Ok(Arrival::Partial),
                    Some(read) => self.read += read,
                }
                if self.read == HEADER_BYTES {
                    self.begin(places)?;
                }
                continue;
            };
            if answer.kind.has_values() {
                let total: usize = places.iter().map(|place| place.len()).sum();
                if self.read == total {
                    *self = Self::new();
                    return Ok(Arrival::Complete(answer));
                }
                match read_places(socket, places, self.read)? {
                    None => return Ok(Arrival::Partial),
                    Some(read) => self.read += read,
                }
            } else {
                if self.read == self.text.len() {
                    let text = String::from_utf8_lossy(&self.text).into_owned();
                    *self = Self::new();
                    return Ok(Arrival::Message(answer, text));
                }
                match read_some(socket, &mut [IoSliceMut::new(&mut self.text[self.read..])])? {
                    None => return Ok(Arrival::Partial),
                    Some(read) => self.read += read,
                }
            }
        }
    }

    fn begin(&mut self, places: &[&mut [u8]]) -> io::Result<()> {
        let answer = Answer::decode(&self.header).map_err(io::Error::other)?;
        let expected: usize = places.iter().map(|place| place.len()).sum();
        let coming = answer.dense.saturating_add(answer.rows).saturating_mul(4);
        if answer.kind.has_values() && coming != expected as u64 {
            return Err(io::Error::other(format!("an answer of {coming} bytes where {expected} were asked for")));
        }
        self.text = vec![0; if answer.kind.has_values() { 0 } else { answer.text as usize }];
        self.answer = Some(answer);
        self.read = 0;
        Ok(())
    }
}

fn read_places(socket: &mut Socket, places: &mut [&mut [u8]], mut skip: usize) -> io::Result<Option<usize>> {
    let mut slices: [IoSliceMut<'_>; PIECES] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let mut count = 0;
    for place in places {
        if skip >= place.len() {
            skip -= place.len();
            continue;
        }
        slices[count] = IoSliceMut::new(&mut place[skip..]);
        skip = 0;
        count += 1;
        if count == PIECES {
            break;
        }
    }
    read_some(socket, &mut slices[..count])
}

/// `None` if nothing is there now.
fn read_some(socket: &mut Socket, buffers: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
    loop {
        match socket.read_vectored(buffers) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => return Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits until one of the sockets can be read (or written, where that is asked), or until the time is up.
pub(crate) fn wait_ready(sockets: &[(&Socket, bool)], timeout: Duration) -> io::Result<()> {
    let mut polled: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|(socket, writing)| {
            PollFd::new(socket, if *writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
        })
        .collect();
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// True for the answers that end a request.
pub(crate) fn is_final(kind: AnswerKind) -> bool {
    kind != AnswerKind::Waiting
}
