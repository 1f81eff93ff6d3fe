//! Memory shared by two processes: two byte rings, one in each direction, and their cursors.
//!
//! This is the only module that touches raw memory. Each ring is mapped twice, end to end, so that any run of bytes up
//! to a ring's length is contiguous, however it wraps around. The other end cannot truncate a mapping: the file behind
//! it is sealed, and a region that is not sealed is refused.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// The size of a ring. A step of a small network fits in whole, and stays in a core's cache.
pub(super) const RING_BYTES: usize = 1 << 20;
/// The offset of the rings, after the cursors. A multiple of every page size in use.
const CURSORS_BYTES: usize = 64 << 10;
const FILE_BYTES: usize = CURSORS_BYTES + 2 * RING_BYTES;
const MAPPED_BYTES: usize = CURSORS_BYTES + 4 * RING_BYTES;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// The progress of both ends of a ring, in bytes since the beginning, each on its own cache line.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct RingCursors {
    pub(super) written: CacheLine,
    pub(super) read: CacheLine,
    /// The position of `written` that the reader sleeps for; 0 if it does not sleep.
    pub(super) reader_sleeps: CacheLine,
    /// The position of `read` that the writer sleeps for; 0 if it does not sleep.
    pub(super) writer_sleeps: CacheLine,
}

/// A number alone on its cache line.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct CacheLine(pub(super) AtomicU64);

/// The direction of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the end that created the region.
    FromCreator = 0,
    /// To the end that created the region.
    ToCreator = 1,
}

/// A region as mapped into this process.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
}

// SAFETY: the mapping belongs to no thread; all access to it goes through atomics and through the rings, whose two
// ends never touch the same bytes at the same time.
unsafe impl Send for Region {}
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region, and the file by which another process opens it.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("windlass", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, FILE_BYTES as u64)?;
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps a region that another process created.
    pub(super) fn open(file: &OwnedFd) -> io::Result<Self> {
        if !fcntl_get_seals(file)?.contains(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the region may change its size"));
        }
        if fstat(file)?.st_size != FILE_BYTES as i64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the region has another size"));
        }
        Self::map(file)
    }

    fn map(file: impl AsFd) -> io::Result<Self> {
        // SAFETY: the kernel chooses where, so nothing else is there.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), MAPPED_BYTES, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let region = Self { base: NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped nowhere"))? };
        let first = CURSORS_BYTES;
        let second = first + RING_BYTES;
        let pieces = [
            (0, 0, CURSORS_BYTES),
            (first, first, RING_BYTES),
            (first + RING_BYTES, first, RING_BYTES),
            (first + 2 * RING_BYTES, second, RING_BYTES),
            (first + 3 * RING_BYTES, second, RING_BYTES),
        ];
        for (place, offset, bytes) in pieces {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: the place is within what was reserved above and is not used yet.
            unsafe {
                let place = region.base.as_ptr().add(place).cast();
                mmap(place, bytes, protection, MapFlags::SHARED | MapFlags::FIXED, file.as_fd(), offset as u64)?;
            }
        }
        Ok(region)
    }

    pub(super) fn cursors(&self, direction: Direction) -> &RingCursors {
        const { assert!(2 * size_of::<RingCursors>() <= CURSORS_BYTES) };
        // SAFETY: in bounds and aligned by the mapping; a file begins as zeros, which are valid cursors; all are atomic.
        unsafe { &*self.base.as_ptr().cast::<RingCursors>().add(direction as usize) }
    }

    /// The `len` bytes from a position, which the caller knows to have been written and not yet released. Another
    /// process could change them meanwhile only by breaking the protocol, and would corrupt only its own message.
    pub(super) fn bytes(&self, direction: Direction, position: u64, len: usize) -> &[u8] {
        assert!(len <= RING_BYTES, "a run of bytes fits into the ring");
        // SAFETY: in bounds because the ring is mapped twice and `len` is at most one ring.
        unsafe { std::slice::from_raw_parts(self.at(direction, position), len) }
    }

    /// Copies bytes to a position, which the caller knows to be free.
    pub(super) fn copy_in(&self, direction: Direction, position: u64, bytes: &[u8]) {
        assert!(bytes.len() <= RING_BYTES, "a run of bytes fits into the ring");
        // SAFETY: in bounds as above; only this end writes there while it is free.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(direction, position), bytes.len()) };
    }

    fn at(&self, direction: Direction, position: u64) -> *mut u8 {
        let offset = (position % RING_BYTES as u64) as usize;
        // SAFETY: `offset` is less than a ring, and the rings lie behind the cursors.
        unsafe { self.base.as_ptr().add(CURSORS_BYTES + direction as usize * 2 * RING_BYTES + offset) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), MAPPED_BYTES) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be taken back");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_wrap_around_lie_in_one_piece_in_both_processes_views() {
        let (ours, file) = Region::create().unwrap();
        let theirs = Region::open(&file).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        for direction in [Direction::FromCreator, Direction::ToCreator] {
            let position = 3 * RING_BYTES as u64 - 77;
            ours.copy_in(direction, position, &bytes);
            assert_eq!(theirs.bytes(direction, position, 200), bytes);
        }
    }

    #[test]
    fn the_two_directions_do_not_overlap() {
        let (region, _file) = Region::create().unwrap();
        region.copy_in(Direction::FromCreator, 0, &vec![1; RING_BYTES]);
        region.copy_in(Direction::ToCreator, 0, &vec![2; RING_BYTES]);
        assert!(region.bytes(Direction::FromCreator, 0, RING_BYTES).iter().all(|byte| *byte == 1));
        assert!(region.cursors(Direction::FromCreator).written.0.load(std::sync::atomic::Ordering::Relaxed) == 0);
    }

    #[test]
    fn a_file_that_can_shrink_or_has_another_size_is_refused() {
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, FILE_BYTES as u64).unwrap();
        assert!(Region::open(&unsealed).unwrap_err().to_string().contains("may change its size"));
        let short = memfd_create("short", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&short, 4096).unwrap();
        fcntl_add_seals(&short, SEALS).unwrap();
        assert!(Region::open(&short).unwrap_err().to_string().contains("another size"));
    }
}
