//! A connection through memory shared by two processes on one host, with a Unix socket as its bell.
//!
//! To the rest of the program it is one more byte stream. In addition, a reader can access bytes in place
//! ([`SharedStream::receive`]), and a writer can place bytes before it sends them ([`SharedStream::stage`]). The socket
//! carries only wake-ups for an end that sleeps, and tells each end when the other has closed.

mod region;
mod ring;
mod spin;

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use region::{Direction, RING_BYTES, Region};
use ring::{Consumer, Producer};

/// Bytes become visible to the other end in portions of this size, so that an end that polls can start on them while
/// the rest is copied. An end that sleeps is woken only by [`SharedStream::send_staged`], or when the ring is full: on
/// a busy machine, waking it earlier would take a core from tasks that compute, only for it to wait again.
const PORTION_BYTES: usize = 64 << 10;

/// One end of a shared connection.
#[derive(Debug)]
pub struct SharedStream {
    bell: UnixStream,
    out: Producer,
    back: Consumer,
    nonblocking: bool,
    /// Bytes that were received in place, to be released before the next are read.
    borrowed: usize,
    /// How long to sleep on the bell before giving up.
    stall_timeout: Option<Duration>,
}

impl SharedStream {
    /// How many bytes can be in flight in one direction.
    pub const CAPACITY: usize = RING_BYTES;

    /// The end that creates the region; also returns the file by which the other end opens it.
    pub(crate) fn create(bell: UnixStream) -> io::Result<(Self, OwnedFd)> {
        let (region, file) = Region::create()?;
        Ok((Self::new(bell, region, Direction::FromCreator, Direction::ToCreator), file))
    }

    /// The other end, which opens the region.
    pub(crate) fn open(bell: UnixStream, file: &OwnedFd) -> io::Result<Self> {
        Ok(Self::new(bell, Region::open(file)?, Direction::ToCreator, Direction::FromCreator))
    }

    fn new(bell: UnixStream, region: Region, out: Direction, back: Direction) -> Self {
        let region = Arc::new(region);
        let (out, back) = (Producer::new(region.clone(), out), Consumer::new(region, back));
        Self { bell, out, back, nonblocking: false, borrowed: 0, stall_timeout: None }
    }

    pub(crate) fn set_nonblocking(&mut self, nonblocking: bool) {
        self.nonblocking = nonblocking;
    }

    pub(crate) fn set_stall_timeout(&mut self, timeout: Duration) {
        self.stall_timeout = Some(timeout);
    }

    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }

    /// The next bytes in place, at most [`SharedStream::CAPACITY`]. They stay valid until the next call.
    pub(crate) fn receive(&mut self, len: usize) -> io::Result<&[u8]> {
        assert!(len <= Self::CAPACITY, "more bytes than can lie in one piece");
        self.give_back();
        self.await_bytes(len)?;
        self.borrowed = len;
        Ok(self.back.peek(len))
    }

    /// Places bytes for the other end without making them visible yet. Returns false, and does nothing, if they do not
    /// fit now.
    pub(crate) fn stage(&mut self, bytes: &[u8]) -> bool {
        self.out.space().is_ok_and(|space| space >= bytes.len()) && self.out.put(bytes).is_ok()
    }

    /// Makes staged and written bytes visible to the other end, and wakes it if it sleeps.
    pub(crate) fn send_staged(&mut self) {
        if self.out.publish() {
            self.ring();
        }
    }

    pub(crate) fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        self.give_back();
        if self.back.available()? == 0 {
            if !self.nonblocking {
                match self.await_bytes(1) {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    other => other?,
                }
            } else if self.is_gone()? && self.back.available()? == 0 {
                return Ok(0);
            }
        }
        let available = self.back.available()?;
        if available == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = self.back.peek(available);
        for buffer in buffers {
            let len = buffer.len().min(bytes.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
        }
        let read = available - bytes.len();
        if self.back.consume(read) {
            self.ring();
        }
        Ok(read)
    }

    pub(crate) fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut written = 0;
        for portion in buffers.iter().flat_map(|buffer| buffer.chunks(PORTION_BYTES)) {
            let put = self.out.put(portion)?;
            self.out.show();
            written += put;
            if put < portion.len() {
                self.send_staged();
                break;
            }
        }
        if written > 0 || buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(written);
        }
        if self.nonblocking {
            return if self.is_gone()? { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        self.await_space()?;
        self.write_vectored(buffers)
    }

    /// True if a read, or a write if requested, would make progress.
    pub(crate) fn is_ready(&self, writing: bool) -> bool {
        let readable = !matches!(self.back.available(), Ok(0));
        readable || writing && !matches!(self.out.space(), Ok(0))
    }

    /// Announces that this end will sleep on its bell. Returns false if it could make progress already.
    pub(crate) fn sleeps(&self, writing: bool) -> bool {
        let unreadable = matches!(self.back.sleeps_for(1), Ok(true));
        let unwritable = !writing || matches!(self.out.sleeps_for_space(PORTION_BYTES), Ok(true));
        unreadable && unwritable
    }

    fn give_back(&mut self) {
        if self.back.consume(std::mem::take(&mut self.borrowed)) {
            self.ring();
        }
    }

    fn await_bytes(&mut self, len: usize) -> io::Result<()> {
        if spin::spin_until(|| Ok(self.back.available()? >= len))? {
            return Ok(());
        }
        while self.back.sleeps_for(len)? {
            self.sleep(len)?;
        }
        Ok(())
    }

    fn await_space(&mut self) -> io::Result<()> {
        if spin::spin_until(|| Ok(self.out.space()? > 0))? {
            return Ok(());
        }
        while self.out.sleeps_for_space(PORTION_BYTES)? {
            self.sleep(0)?;
        }
        Ok(())
    }

    /// Sleeps until the bell rings. Fails on a timeout, or if the other end is gone and has left fewer than `len`
    /// bytes.
    fn sleep(&self, len: usize) -> io::Result<()> {
        let timeout = self
            .stall_timeout
            .map(|timeout| Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) });
        match poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if self.is_gone()? && (len == 0 || self.back.available()? < len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Drains the bell. Returns true if the other end has closed it.
    fn is_gone(&self) -> io::Result<bool> {
        let mut bells = [0; 64];
        match recv(&self.bell, &mut bells, RecvFlags::DONTWAIT) {
            Ok((_, heard)) => Ok(heard == 0),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
            Err(rustix::io::Errno::CONNRESET) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Rings for the other end. If it is gone, this end notices when it waits for it; if its bell is full of unread
    /// rings, it will wake up anyway.
    fn ring(&self) {
        let _ = send(&self.bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for SharedStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// Polls streams for a while before their owner sleeps. Returns true if one of them is ready.
pub(crate) fn spin_until_ready(streams: &[(&SharedStream, bool)]) -> bool {
    let is_ready = || Ok(streams.iter().any(|(stream, writing)| stream.is_ready(*writing)));
    matches!(spin::spin_until(is_ready), Ok(true))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn pair() -> (SharedStream, SharedStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (stream, file) = SharedStream::create(ours).unwrap();
        (stream, SharedStream::open(theirs, &file).unwrap())
    }

    fn write_all(stream: &mut SharedStream, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let written = stream.write_vectored(&[IoSlice::new(bytes)]).unwrap();
            bytes = &bytes[written..];
        }
        stream.send_staged();
    }

    fn read(stream: &mut SharedStream, buffer: &mut [u8]) -> io::Result<usize> {
        stream.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    #[test]
    fn more_than_the_ring_holds_arrives_in_order_both_ways_at_once() {
        let bytes: Vec<u8> = (0..3 * RING_BYTES + 12_345).map(|index| (index % 251) as u8).collect();
        let echo = |mut stream: SharedStream, first: bool| {
            let bytes = bytes.clone();
            thread::spawn(move || {
                let mut arrived = Vec::new();
                let mut buffer = vec![0; 100_000];
                for portion in bytes.chunks(300_000) {
                    if first {
                        write_all(&mut stream, portion);
                    }
                    let until = arrived.len() + portion.len();
                    while arrived.len() < until {
                        let most = (until - arrived.len()).min(buffer.len());
                        let len = read(&mut stream, &mut buffer[..most]).unwrap();
                        arrived.extend_from_slice(&buffer[..len]);
                    }
                    if !first {
                        write_all(&mut stream, portion);
                    }
                }
                assert!(arrived == bytes);
            })
        };
        let (ours, theirs) = pair();
        let threads = [echo(ours, true), echo(theirs, false)];
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn bytes_are_received_where_they_are_and_given_back() {
        let (mut ours, mut theirs) = pair();
        let sender = thread::spawn(move || {
            for round in 0..40 {
                write_all(&mut ours, &[round; 100_000]);
            }
            ours
        });
        for round in 0..40 {
            assert!(theirs.receive(100_000).unwrap().iter().all(|byte| *byte == round));
        }
        let ours = sender.join().unwrap();
        drop(ours);
        assert_eq!(theirs.receive(1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_stream_that_does_not_block_says_so() {
        let (mut ours, mut theirs) = pair();
        ours.set_nonblocking(true);
        let mut buffer = [0; 8];
        assert_eq!(read(&mut ours, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(ours.write_vectored(&[IoSlice::new(&vec![1; 2 * RING_BYTES])]).unwrap(), RING_BYTES);
        assert_eq!(ours.write_vectored(&[IoSlice::new(&[1])]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!ours.is_ready(true) && ours.sleeps(true));
        theirs.receive(RING_BYTES).unwrap();
        theirs.receive(0).unwrap(); // gives the others back
        write_all(&mut theirs, b"12");
        assert!(ours.is_ready(false));
        assert_eq!(read(&mut ours, &mut buffer).unwrap(), 2);
        assert!(ours.is_ready(true));
    }

    #[test]
    fn what_was_sent_before_the_end_is_read_and_then_the_end_is_seen() {
        for nonblocking in [false, true] {
            let (mut ours, mut theirs) = pair();
            write_all(&mut ours, b"last words");
            drop(ours);
            theirs.set_nonblocking(nonblocking);
            let mut buffer = [0; 32];
            assert_eq!(read(&mut theirs, &mut buffer).unwrap(), 10);
            assert_eq!(read(&mut theirs, &mut buffer).unwrap(), 0);
        }
    }

    #[test]
    fn staged_bytes_are_seen_when_they_are_sent() {
        let (mut ours, mut theirs) = pair();
        theirs.set_nonblocking(true);
        assert!(ours.stage(&[1; 10]) && ours.stage(&[2; 10]));
        assert!(!ours.stage(&vec![3; RING_BYTES]), "they do not fit");
        let mut buffer = [0; 32];
        assert_eq!(read(&mut theirs, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        ours.send_staged();
        assert_eq!(read(&mut theirs, &mut buffer).unwrap(), 20);
        assert_eq!(buffer[..20], [[1; 10], [2; 10]].concat());
    }
}
