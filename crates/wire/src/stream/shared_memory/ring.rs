//! The two ends of a byte ring in shared memory, and the notes that they leave each other before sleeping.
//!
//! An end that has to wait notes the position it waits for and checks once more; the other end, after it has moved on,
//! checks for such a note and rings. The fences ensure that at least one of the two sees the other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::region::{Direction, RING_BYTES, Region, RingCursors};

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer {
    region: Arc<Region>,
    direction: Direction,
    /// Bytes written, and how many there were when a sleeper was last checked for.
    written: u64,
    published: u64,
}

impl Producer {
    pub(super) fn new(region: Arc<Region>, direction: Direction) -> Self {
        Self { region, direction, written: 0, published: 0 }
    }

    /// How many bytes fit now.
    pub(super) fn space(&self) -> io::Result<usize> {
        let read = self.cursors().read.0.load(Ordering::Acquire);
        let used = self.written.wrapping_sub(read);
        if used > RING_BYTES as u64 {
            return Err(broken());
        }
        Ok(RING_BYTES - used as usize)
    }

    /// Copies in as many of the bytes as fit. They stay invisible until [`Producer::show`] or
    /// [`Producer::publish`].
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.space()?);
        self.region.copy_in(self.direction, self.written, &bytes[..len]);
        self.written += len as u64;
        Ok(len)
    }

    /// Makes the bytes visible to the other end, if it polls.
    pub(super) fn show(&self) {
        self.cursors().written.0.store(self.written, Ordering::Release);
    }

    /// Makes the bytes visible. Returns true if the other end sleeps and must be woken.
    pub(super) fn publish(&mut self) -> bool {
        if self.published == self.written {
            return false;
        }
        self.published = self.written;
        self.show();
        wakes(&self.cursors().reader_sleeps.0, self.written)
    }

    /// Announces that this end will sleep until `bytes` more fit. Returns false if they fit already.
    pub(super) fn sleeps_for_space(&self, bytes: usize) -> io::Result<bool> {
        let position = (self.written + bytes.min(RING_BYTES) as u64).saturating_sub(RING_BYTES as u64);
        sleeps(&self.cursors().writer_sleeps.0, position.max(1));
        Ok(self.space()? < bytes.min(RING_BYTES))
    }

    fn cursors(&self) -> &RingCursors {
        self.region.cursors(self.direction)
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer {
    region: Arc<Region>,
    direction: Direction,
    read: u64,
}

impl Consumer {
    pub(super) fn new(region: Arc<Region>, direction: Direction) -> Self {
        Self { region, direction, read: 0 }
    }

    /// How many bytes can be read.
    pub(super) fn available(&self) -> io::Result<usize> {
        let written = self.cursors().written.0.load(Ordering::Acquire);
        let available = written.wrapping_sub(self.read);
        if available > RING_BYTES as u64 {
            return Err(broken());
        }
        Ok(available as usize)
    }

    /// The next `len` bytes, which must be available.
    pub(super) fn peek(&self, len: usize) -> &[u8] {
        self.region.bytes(self.direction, self.read, len)
    }

    /// Releases bytes. Returns true if the other end sleeps and must be woken.
    pub(super) fn consume(&mut self, len: usize) -> bool {
        if len == 0 {
            return false;
        }
        self.read += len as u64;
        self.cursors().read.0.store(self.read, Ordering::Release);
        wakes(&self.cursors().writer_sleeps.0, self.read)
    }

    /// Announces that this end will sleep until `bytes` are available. Returns false if they are already.
    pub(super) fn sleeps_for(&self, bytes: usize) -> io::Result<bool> {
        sleeps(&self.cursors().reader_sleeps.0, self.read + bytes as u64);
        Ok(self.available()? < bytes)
    }

    fn cursors(&self) -> &RingCursors {
        self.region.cursors(self.direction)
    }
}

fn sleeps(note: &AtomicU64, position: u64) {
    note.store(position, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

fn wakes(note: &AtomicU64, position: u64) -> bool {
    fence(Ordering::SeqCst);
    let wanted = note.load(Ordering::Relaxed);
    // Ring once per sleep: a later position must not ring again before the sleeper has looked.
    wanted != 0 && position >= wanted && note.swap(0, Ordering::Relaxed) != 0
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other end broke the rules of the shared ring")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> (Producer, Consumer) {
        let region = Arc::new(Region::create().unwrap().0);
        (Producer::new(region.clone(), Direction::FromCreator), Consumer::new(region, Direction::FromCreator))
    }

    #[test]
    fn bytes_are_seen_once_they_are_published() {
        let (mut producer, mut consumer) = ring();
        assert_eq!(producer.put(b"hello").unwrap(), 5);
        assert_eq!(consumer.available().unwrap(), 0);
        assert!(!producer.publish(), "nobody sleeps");
        assert_eq!(consumer.peek(consumer.available().unwrap()), b"hello");
        consumer.consume(5);
        assert_eq!(consumer.available().unwrap(), 0);
    }

    #[test]
    fn a_full_ring_takes_no_more_until_bytes_are_given_back() {
        let (mut producer, mut consumer) = ring();
        assert_eq!(producer.put(&vec![7; RING_BYTES + 9]).unwrap(), RING_BYTES);
        assert_eq!(producer.put(b"x").unwrap(), 0);
        producer.publish();
        assert!(producer.sleeps_for_space(10).unwrap());
        assert!(!consumer.consume(9), "ten are wanted");
        assert!(consumer.consume(1));
        assert!(!consumer.consume(1), "one bell for one sleep");
        assert_eq!(producer.put(&[8; 20]).unwrap(), 11);
    }

    #[test]
    fn a_sleeper_is_woken_when_what_it_waits_for_is_there() {
        let (mut producer, consumer) = ring();
        assert!(consumer.sleeps_for(100).unwrap());
        producer.put(&[1; 60]).unwrap();
        assert!(!producer.publish());
        producer.put(&[1; 60]).unwrap();
        assert!(producer.publish());
        assert!(!consumer.sleeps_for(100).unwrap(), "they are there already");
    }

    #[test]
    fn positions_that_cannot_be_are_an_error() {
        let (producer, consumer) = ring();
        producer.cursors().written.0.store(u64::MAX / 2, Ordering::Relaxed);
        assert_eq!(consumer.available().unwrap_err().kind(), io::ErrorKind::InvalidData);
        producer.cursors().read.0.store(5, Ordering::Relaxed);
        assert_eq!(producer.space().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
