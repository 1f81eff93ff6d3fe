//! Moves bytes to and from several servers at once, on the calling thread.
//!
//! Requests are written and answers read as each socket allows, so that a server can answer one part of a push while
//! the next is still on its way, and neither end can block the other. Gradients are sent from, and values received
//! into, the caller's own buffers.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::stream::Socket;
use crate::stream::frame::{Answer, AnswerKind, HEADER_BYTES};
use crate::stream::shared_memory::{SharedStream, spin_until_ready};

/// How many pieces one system call writes.
const PIECES: usize = 64;

/// Outgoing bytes: how many of a list of pieces have been written.
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

/// The progress of an answer.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// More is to come.
    Partial,
    /// A message without values: its header and text. Another answer may follow.
    Message(Answer, String),
    /// All values are in place.
    Complete(Answer),
}

/// An answer being received.
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

    /// Bytes read of the current part of the current answer.
    pub(crate) fn read(&self) -> usize {
        self.read
    }

    /// Reads until the answer is complete or the socket is empty. Values go to `places`, in order.
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

/// Reads what is available; `None` if nothing is.
pub(crate) fn read_some(socket: &mut Socket, buffers: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
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

/// Waits until one of the sockets can be read (or written, if requested), or until the timeout.
pub(crate) fn wait_ready(sockets: &[(&Socket, bool)], timeout: Duration) -> io::Result<()> {
    if shared_are_ready(sockets) {
        return Ok(());
    }
    let mut polled: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|(socket, writing)| {
            // For shared memory the socket is only the bell, which can always be rung.
            let writing = *writing && !matches!(socket, Socket::Shared(_));
            PollFd::new(socket, if writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
        })
        .collect();
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    match poll(&mut polled, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Polls the streams in shared memory for a moment. If none is ready, each will ring.
fn shared_are_ready(sockets: &[(&Socket, bool)]) -> bool {
    let mut streams: Vec<(&SharedStream, bool)> = Vec::new();
    for (socket, writing) in sockets {
        if let Socket::Shared(stream) = socket {
            streams.push((stream, *writing));
        }
    }
    spin_until_ready(&streams) || streams.iter().any(|(stream, writing)| !stream.sleeps(*writing))
}

/// True for answers that end a request.
pub(crate) fn is_final(kind: AnswerKind) -> bool {
    kind != AnswerKind::Waiting
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use windlass_core::run::LearningRate;

    use super::*;

    /// Both ends of a connection that buffers at most a few kilobytes.
    fn narrow_pair() -> (Socket, Socket) {
        let (left, right) = UnixStream::pair().unwrap();
        for end in [&left, &right] {
            socket2::SockRef::from(end).set_send_buffer_size(1).unwrap();
            end.set_nonblocking(true).unwrap();
        }
        (Socket::Unix(left), Socket::Unix(right))
    }

    fn answer(kind: AnswerKind, values: u64, text: &str) -> Answer {
        let learning_rate = LearningRate { version: 3, rate: 0.5 };
        let (over, rounds, text) = (false, true, text.len() as u32);
        Answer { kind, over, rounds, version: 7, learning_rate, dense: values, rows: 0, text, held_back: 0 }
    }

    /// Writes the pieces at one end while reading at the other, until the answer there is complete.
    fn exchange(pieces: &[&[u8]], incoming: &mut Incoming, places: &mut [&mut [u8]]) -> io::Result<Arrival> {
        let (mut left, mut right) = narrow_pair();
        let mut outgoing = Outgoing::new(pieces);
        for _ in 0..1_000_000 {
            outgoing.advance(&mut left, pieces)?;
            match incoming.advance(&mut right, places)? {
                Arrival::Partial => {}
                arrival => {
                    assert!(outgoing.is_done());
                    return Ok(arrival);
                }
            }
        }
        panic!("nothing moves any more");
    }

    #[test]
    fn values_in_many_pieces_arrive_in_many_places_through_a_narrow_pipe() {
        let values: Vec<u8> = (0..400_000u32).map(|index| (index % 251) as u8).collect();
        let header = answer(AnswerKind::Values, 100_000, "").encode();
        let mut pieces: Vec<&[u8]> = vec![&header];
        pieces.extend(values.chunks(3_001));
        pieces.insert(5, &[]);
        assert!(pieces.len() > 2 * PIECES, "more pieces than one system call takes");
        let mut arrived = vec![0; values.len()];
        let mut places: Vec<&mut [u8]> = arrived.chunks_mut(1_999).collect();
        let arrival = exchange(&pieces, &mut Incoming::new(), &mut places).unwrap();
        assert!(matches!(arrival, Arrival::Complete(answer) if answer.version == 7));
        assert!(arrived == values);
    }

    #[test]
    fn a_message_may_come_before_the_values() {
        let text = "worker 1 in step 8";
        let waiting = answer(AnswerKind::Waiting, 0, text).encode();
        let values = answer(AnswerKind::Values, 2, "").encode();
        let (mut left, mut right) = narrow_pair();
        let pieces: [&[u8]; 4] = [&waiting, text.as_bytes(), &values, &[1; 8]];
        Outgoing::new(&pieces).advance(&mut left, &pieces).unwrap();
        let mut incoming = Incoming::new();
        let mut place = [0; 8];
        let message = incoming.advance(&mut right, &mut [&mut place]).unwrap();
        assert!(matches!(message, Arrival::Message(answer, said) if !is_final(answer.kind) && said == text));
        assert!(matches!(incoming.advance(&mut right, &mut [&mut place]).unwrap(), Arrival::Complete(_)));
        assert_eq!(place, [1; 8]);
    }

    #[test]
    fn an_answer_without_values_is_whole_with_its_header() {
        let header = answer(AnswerKind::Values, 0, "").encode();
        let arrival = exchange(&[&header], &mut Incoming::new(), &mut []).unwrap();
        assert!(matches!(arrival, Arrival::Complete(_)));
    }

    #[test]
    fn an_answer_of_another_length_is_an_error_before_anything_is_read() {
        let header = answer(AnswerKind::Values, u64::MAX, "").encode();
        let error = exchange(&[&header], &mut Incoming::new(), &mut [&mut [0; 8]]).unwrap_err();
        assert!(error.to_string().ends_with("where 8 were asked for"), "{error}");
    }

    #[test]
    fn a_connection_that_closes_within_an_answer_is_an_error() {
        let (mut left, mut right) = narrow_pair();
        let header = answer(AnswerKind::Values, 2, "").encode();
        let pieces: [&[u8]; 2] = [&header, &[1; 7]];
        Outgoing::new(&pieces).advance(&mut left, &pieces).unwrap();
        drop(left);
        let error = Incoming::new().advance(&mut right, &mut [&mut [0; 8]]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
