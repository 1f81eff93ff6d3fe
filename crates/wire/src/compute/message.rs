//! The bytes of a message: a header of fixed length, a head that only its reader interprets, and tensors.
//!
//! A header alone never causes an allocation: the reader knows the maximum size of a message, and makes room as bytes
//! arrive. Numbers are little-endian.

use std::io::IoSliceMut;

use crate::stream::Socket;
use crate::stream::exchange::read_some;

/// The first bytes of every message.
const MAGIC: [u8; 4] = *b"WCMP";
/// The length of the header: magic, length of the head, number of tensors, length of their descriptions.
const HEADER_BYTES: usize = 16;
/// The maximum number of dimensions of a tensor.
const MOST_DIMENSIONS: usize = 16;
/// The most room that is made ahead of the bytes that fill it.
const CHUNK: usize = 1 << 20;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ElementKind {
    /// Floats.
    F32 = 1,
    /// Integers.
    I64 = 2,
    /// Bytes.
    U8 = 3,
}

/// The elements of a received tensor, each aligned as its type requires.
#[derive(Debug, Clone, PartialEq)]
pub enum Contents {
    /// Floats.
    F32(Vec<f32>),
    /// Integers.
    I64(Vec<i64>),
    /// Bytes.
    U8(Vec<u8>),
}

/// A received tensor. Its shape and length agree.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements.
    pub contents: Contents,
}

/// A tensor to send, wherever it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Section<'a> {
    kind: ElementKind,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> Section<'a> {
    /// Floats of this shape.
    pub fn floats(shape: &'a [usize], values: &'a [f32]) -> Self {
        Self { kind: ElementKind::F32, shape, bytes: bytemuck::cast_slice(values) }
    }

    /// Integers of this shape.
    pub fn integers(shape: &'a [usize], values: &'a [i64]) -> Self {
        Self { kind: ElementKind::I64, shape, bytes: bytemuck::cast_slice(values) }
    }

    /// Elements of this kind and shape, as they lie in memory.
    ///
    /// # Panics
    /// Panics if their number does not match the shape.
    pub fn of_bytes(kind: ElementKind, shape: &'a [usize], bytes: &'a [u8]) -> Self {
        assert_eq!(shape.iter().product::<usize>() * kind.size(), bytes.len(), "a tensor of shape {shape:?}");
        Self { kind, shape, bytes }
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of this shape.
    pub fn bytes(shape: &'a [usize], values: &'a [u8]) -> Self {
        Self { kind: ElementKind::U8, shape, bytes: values }
    }
}

/// A received message.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Message {
    /// The head, which describes what the tensors are for.
    pub head: Vec<u8>,
    /// Its tensors.
    pub sections: Vec<Tensor>,
}

impl Message {
    /// The size of the head and tensors in bytes.
    pub fn size(&self) -> u64 {
        let tensor = |tensor: &Tensor| match &tensor.contents {
            Contents::F32(values) => size_of_val(&values[..]),
            Contents::I64(values) => size_of_val(&values[..]),
            Contents::U8(values) => size_of_val(&values[..]),
        };
        (self.head.len() + self.sections.iter().map(tensor).sum::<usize>()) as u64
    }
}

/// The limits on a message, known to the reader before it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the head.
    pub head: usize,
    /// Maximum number of tensors.
    pub sections: usize,
    /// Maximum bytes of all tensors together.
    pub bytes: u64,
}

impl Limits {
    /// Checks a message against the limits: beyond them, its reader would close the connection without an answer.
    pub fn check(&self, head: &[u8], sections: &[Section<'_>]) -> Result<(), MessageError> {
        check_bytes("head", head.len() as u64, self.head as u64)?;
        check("tensor count", "", sections.len() as u64, self.sections as u64)?;
        check_bytes("tensor data", sections.iter().map(|section| section.bytes.len() as u64).sum(), self.bytes)
    }
}

/// Why received data is not a valid message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The data does not start with the magic bytes.
    #[error("received data is not a message")]
    Magic,
    /// Some part exceeds its limit.
    #[error("message {what} of {size}{unit} exceeds the limit of {most}")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size.
        size: u64,
        /// The unit of the size: bytes, or nothing for a count.
        unit: &'static str,
        /// The limit.
        most: u64,
    },
    /// An answer to a request that has not been completely sent.
    #[error("received an answer before the request was sent")]
    Early,
    /// The descriptions of its tensors are malformed.
    #[error("malformed tensor descriptions")]
    Descriptions,
}

/// The bytes before the tensors of a message.
pub(super) fn preamble(head: &[u8], sections: &[Section<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.extend_from_slice(head);
    for section in sections {
        debug_assert!(section.shape.len() <= MOST_DIMENSIONS);
        bytes.extend([section.kind as u8, section.shape.len() as u8]);
        section.shape.iter().for_each(|size| bytes.extend((*size as u64).to_le_bytes()));
    }
    let descriptions = bytes.len() - HEADER_BYTES - head.len();
    bytes[..4].copy_from_slice(&MAGIC);
    for (place, number) in bytes[4..HEADER_BYTES].chunks_exact_mut(4).zip([head.len(), sections.len(), descriptions]) {
        place.copy_from_slice(&(number as u32).to_le_bytes());
    }
    bytes
}

/// All pieces of a message, in order.
pub(super) fn pieces<'a>(preamble: &'a [u8], sections: &'a [Section<'_>]) -> Vec<&'a [u8]> {
    std::iter::once(preamble).chain(sections.iter().map(|section| section.bytes)).collect()
}

/// A message being received.
#[derive(Debug)]
pub(super) struct Incoming {
    stage: Stage,
    /// The header, or the head and descriptions, as far as they have arrived.
    words: Vec<u8>,
    /// Bytes read so far of the words or of the current tensor.
    read: usize,
}

#[derive(Debug)]
enum Stage {
    Header,
    /// Head and descriptions, with their lengths.
    Words {
        head: usize,
        sections: usize,
        descriptions: usize,
    },
    Tensors {
        message: Message,
        /// The tensors still to come, the next one last.
        described: Vec<Described>,
    },
}

#[derive(Debug)]
struct Described {
    kind: ElementKind,
    shape: Vec<usize>,
    elements: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Header, words: Vec::new(), read: 0 }
    }

    /// Reads until a message is complete, or returns `None` once the socket is empty. Sets `moved` if anything arrived.
    pub(super) fn advance(
        &mut self,
        socket: &mut Socket,
        limits: &Limits,
        moved: &mut bool,
    ) -> Result<Option<Message>, super::ComputeError> {
        loop {
            let total = match &mut self.stage {
                Stage::Header => HEADER_BYTES,
                Stage::Words { head, descriptions, .. } => *head + *descriptions,
                Stage::Tensors { message, described } => match described.last() {
                    None => {
                        let whole = std::mem::take(message);
                        *self = Self::new();
                        return Ok(Some(whole));
                    }
                    Some(next) => next.elements * next.kind.size(),
                },
            };
            while self.read < total {
                let read = self.read;
                let room = self.room(total);
                match read_some(socket, &mut [IoSliceMut::new(&mut room[read..])])? {
                    None => return Ok(None),
                    Some(more) => (self.read, *moved) = (read + more, true),
                }
            }
            self.next(limits)?;
        }
    }

    /// Where the current part arrives: room for all that has arrived and some more.
    fn room(&mut self, total: usize) -> &mut [u8] {
        let read = self.read;
        match &mut self.stage {
            Stage::Header | Stage::Words { .. } => {
                grow(&mut self.words, read, total);
                &mut self.words
            }
            Stage::Tensors { message, .. } => {
                let tensor = message.sections.last_mut().expect("begun when it was next");
                tensor.contents.grow(read, total)
            }
        }
    }

    /// Moves on from the current part, which is complete.
    fn next(&mut self, limits: &Limits) -> Result<(), MessageError> {
        let words = std::mem::take(&mut self.words);
        self.read = 0;
        match &mut self.stage {
            Stage::Header => {
                let (head, sections, descriptions) = header(&words, limits)?;
                self.stage = Stage::Words { head, sections, descriptions };
            }
            Stage::Words { head, sections, .. } => {
                let described = described(&words[*head..], *sections, limits)?;
                let message = Message { head: words[..*head].to_vec(), sections: Vec::new() };
                self.stage = Stage::Tensors { message, described };
                self.begin_tensor();
            }
            Stage::Tensors { described, .. } => {
                described.pop();
                self.begin_tensor();
            }
        }
        Ok(())
    }

    fn begin_tensor(&mut self) {
        let Stage::Tensors { message, described } = &mut self.stage else { return };
        if let Some(next) = described.last_mut() {
            let contents = match next.kind {
                ElementKind::F32 => Contents::F32(Vec::new()),
                ElementKind::I64 => Contents::I64(Vec::new()),
                ElementKind::U8 => Contents::U8(Vec::new()),
            };
            message.sections.push(Tensor { shape: std::mem::take(&mut next.shape), contents });
        }
    }
}

impl ElementKind {
    fn size(self) -> usize {
        match self {
            ElementKind::F32 => size_of::<f32>(),
            ElementKind::I64 => size_of::<i64>(),
            ElementKind::U8 => size_of::<u8>(),
        }
    }

    fn read(byte: u8) -> Option<Self> {
        [Self::F32, Self::I64, Self::U8].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl Contents {
    fn grow(&mut self, read: usize, total: usize) -> &mut [u8] {
        match self {
            Contents::F32(values) => {
                grow(values, read, total);
                bytemuck::cast_slice_mut(values)
            }
            Contents::I64(values) => {
                grow(values, read, total);
                bytemuck::cast_slice_mut(values)
            }
            Contents::U8(values) => {
                grow(values, read, total);
                values
            }
        }
    }
}

/// Makes more room, within `total`, once the existing room is full.
fn grow<T: bytemuck::Pod>(values: &mut Vec<T>, read: usize, total: usize) {
    if read == values.len() * size_of::<T>() {
        let bytes = (2 * read).max(CHUNK).min(total);
        let more = bytes.div_ceil(size_of::<T>()) - values.len();
        values.reserve_exact(more);
        values.resize(values.len() + more, T::zeroed());
    }
}

fn header(bytes: &[u8], limits: &Limits) -> Result<(usize, usize, usize), MessageError> {
    if bytes[..MAGIC.len()] != MAGIC {
        return Err(MessageError::Magic);
    }
    let number = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).map_or(usize::MAX, |it| it as usize);
    let (head, sections, descriptions) = (number(4), number(8), number(12));
    check_bytes("head", head as u64, limits.head as u64)?;
    check("tensor count", "", sections as u64, limits.sections as u64)?;
    check_bytes("description", descriptions as u64, (sections * (2 + 8 * MOST_DIMENSIONS)) as u64)?;
    Ok((head, sections, descriptions))
}

/// Parses the descriptions of the tensors to come, the next one last.
fn described(mut bytes: &[u8], sections: usize, limits: &Limits) -> Result<Vec<Described>, MessageError> {
    let mut all = Vec::new();
    let mut total = 0_u64;
    for _ in 0..sections {
        let [kind, dimensions, rest @ ..] = bytes else { return Err(MessageError::Descriptions) };
        let kind = ElementKind::read(*kind).ok_or(MessageError::Descriptions)?;
        let length = 8 * usize::from(*dimensions);
        if usize::from(*dimensions) > MOST_DIMENSIONS || rest.len() < length {
            return Err(MessageError::Descriptions);
        }
        let (sizes, others) = rest.split_at(length);
        bytes = others;
        let sizes = sizes.chunks_exact(8).map(|size| size.try_into().map_or(u64::MAX, u64::from_le_bytes));
        let shape: Option<Vec<usize>> = sizes.map(|size| usize::try_from(size).ok()).collect();
        let shape = shape.ok_or(MessageError::Descriptions)?;
        let elements = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        let length = elements.and_then(|elements| elements.checked_mul(kind.size()));
        total = total.saturating_add(length.map_or(u64::MAX, |length| length as u64));
        check_bytes("tensor data", total, limits.bytes)?;
        all.push(Described { kind, shape, elements: elements.unwrap_or(0) });
    }
    if !bytes.is_empty() {
        return Err(MessageError::Descriptions);
    }
    all.reverse();
    Ok(all)
}

fn check_bytes(what: &'static str, size: u64, most: u64) -> Result<(), MessageError> {
    check(what, " bytes", size, most)
}

fn check(what: &'static str, unit: &'static str, size: u64, most: u64) -> Result<(), MessageError> {
    if size > most { Err(MessageError::TooLarge { what, size, unit, most }) } else { Ok(()) }
}
