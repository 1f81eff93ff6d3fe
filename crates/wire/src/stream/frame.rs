//! The bytes of a tensor stream: a preface, then requests and answers, each a fixed header and a payload.
//!
//! Both ends know the shard plan, so a payload's length is never taken on trust: the lengths in a header are checked
//! against the plan before anything is read or allocated. All numbers are little-endian.
//!
//! ```text
//! client: PREFACE  { request header, [note], [dense f32…], [row sections…], [wanted sections…] } …
//! server:          { answer header, [text] | [dense f32…][wanted rows f32…] } …
//! ```
//! A note is text, padded with spaces to whole words, so that what follows stays aligned. A row section is
//! `parameter u32, count u32, rows u32[count], values f32[count × width]`; a wanted section is the same without the
//! values. Answers of kind [`AnswerKind::Waiting`] may precede the one that ends a request.

use windlass_core::admission;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::{Incarnation, PushId};
use windlass_core::run::LearningRate;

/// The first bytes of a tensor stream, which distinguish it from HTTP.
pub const MAGIC: [u8; 4] = *b"WNDL";
/// The length of [`preface`].
pub const PREFACE_BYTES: usize = 8;
/// The length of both headers.
pub const HEADER_BYTES: usize = 64;
/// The maximum length of an answer's text.
pub const TEXT_LIMIT: usize = 4096;
/// The maximum length of a note in words.
pub const NOTE_LIMIT: u32 = 1024;
/// The maximum length of a note in bytes.
pub const NOTE_BYTES: usize = NOTE_LIMIT as usize * size_of::<u32>();
/// The maximum number of row sections in a request.
pub const SECTION_LIMIT: u32 = 4096;

/// The first bytes that a client sends.
pub fn preface() -> [u8; PREFACE_BYTES] {
    let mut bytes = [0; PREFACE_BYTES];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..].copy_from_slice(&crate::PROTOCOL.to_le_bytes());
    bytes
}

/// Reads a preface. Returns the peer's protocol version.
pub fn read_preface(bytes: &[u8; PREFACE_BYTES]) -> Result<u32, FrameError> {
    if bytes[..4] != MAGIC {
        return Err(FrameError::NotAStream);
    }
    let version = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if version != crate::PROTOCOL {
        return Err(FrameError::Version { theirs: version, ours: crate::PROTOCOL });
    }
    Ok(version)
}

/// Why a stream was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first bytes are not ours.
    #[error("not a tensor stream")]
    NotAStream,
    /// The peer runs another version of this program.
    #[error("the peer speaks protocol {theirs}, this task speaks {ours}: run the same version everywhere")]
    Version {
        /// The peer's protocol version.
        theirs: u32,
        /// Our protocol version.
        ours: u32,
    },
    /// A header's kind byte is unknown.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// A payload's length differs from the shard's.
    #[error("a frame of {got} values where the shard has {expected}")]
    Length {
        /// The length by the plan.
        expected: u64,
        /// The length in the header.
        got: u64,
    },
    /// A row section that does not fit the plan.
    #[error("a malformed row section: {0}")]
    Section(String),
    /// A worker that is not in the cluster.
    #[error("{0} is not in the cluster")]
    Worker(WorkerId),
    /// Text over the limit.
    #[error("a text of {0} bytes, more than {TEXT_LIMIT}")]
    Text(u32),
    /// A learning rate that is not a usable number.
    #[error("a learning rate that is negative or not a number")]
    LearningRate,
    /// A note that exceeds the limit, is not text, or does not belong here.
    #[error("a malformed note of {0} words")]
    Note(u32),
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RequestKind {
    /// Set the values (the chief, before training).
    Initialise = 1,
    /// Read the values.
    Pull = 2,
    /// Apply a gradient and read the values.
    Push = 3,
}

/// The header of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// The kind.
    pub kind: RequestKind,
    /// The requesting worker.
    pub worker: WorkerId,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The number of this push, from one.
    pub sequence: u64,
    /// In a push, the version of the parameters that the gradient was computed from, as given by this server; in a
    /// pull, the lowest acceptable version.
    pub base: u64,
    /// The newest learning rate that the worker knows.
    pub learning_rate: LearningRate,
    /// Words in the note that follows. Only a push to the first server has one.
    pub note: u32,
    /// Number of values that follow.
    pub dense: u64,
    /// Number of row sections that follow.
    pub rows: u32,
    /// Number of wanted sections that follow.
    pub wanted: u32,
}

impl From<&Request> for admission::Request {
    fn from(request: &Request) -> Self {
        let Request { worker, incarnation, sequence, base, learning_rate, .. } = *request;
        let kind = match request.kind {
            RequestKind::Initialise => admission::RequestKind::Initialise,
            RequestKind::Pull => admission::RequestKind::Pull,
            RequestKind::Push => admission::RequestKind::Push,
        };
        Self { kind, push: PushId { worker, incarnation, sequence }, base, learning_rate }
    }
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AnswerKind {
    /// The values follow; the push, if any, has been applied, now or before.
    Values = 1,
    /// The values follow; the push was dropped as stale.
    Stale = 2,
    /// The values follow; the push came after the last step and was dropped.
    Over = 3,
    /// Not yet: the text says who is awaited. Another answer follows.
    Waiting = 4,
    /// Refused: this process was declared dead. It may rejoin.
    Fenced = 5,
    /// Refused: the text says why.
    Refused = 6,
}

impl AnswerKind {
    /// True if values follow the header.
    pub fn has_values(self) -> bool {
        matches!(self, AnswerKind::Values | AnswerKind::Stale | AnswerKind::Over)
    }
}

/// The header of an answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answer {
    /// The kind.
    pub kind: AnswerKind,
    /// True once the run's last step has been applied.
    pub over: bool,
    /// True if versions are synchronous rounds, in which all servers should proceed together.
    pub rounds: bool,
    /// The version of the values that follow, to be returned as the base of the next push.
    pub version: u64,
    /// The newest learning rate that the server knows.
    pub learning_rate: LearningRate,
    /// Number of values that follow.
    pub dense: u64,
    /// Number of values of wanted rows that follow.
    pub rows: u64,
    /// Length of the text that follows, in bytes.
    pub text: u32,
    /// How long this answer was held back because of other workers, in microseconds.
    pub held_back: u32,
}

impl Request {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Writer::new(self.kind as u8, 0);
        out.u32(self.worker.0).u64(self.incarnation.0).u64(self.sequence).u64(self.base);
        out.u64(self.learning_rate.version).f32(self.learning_rate.rate);
        out.u32(self.rows).u64(self.dense).u32(self.wanted).u32(self.note);
        out.bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let mut from = Reader::new(bytes);
        let kind = match from.kind {
            1 => RequestKind::Initialise,
            2 => RequestKind::Pull,
            3 => RequestKind::Push,
            other => return Err(FrameError::Kind(other)),
        };
        let worker = WorkerId(from.u32());
        let incarnation = Incarnation(from.u64());
        let (sequence, base) = (from.u64(), from.u64());
        let learning_rate = LearningRate { version: from.u64(), rate: from.f32() };
        if !learning_rate.is_sound() {
            return Err(FrameError::LearningRate);
        }
        let rows = from.u32();
        let dense = from.u64();
        let (wanted, note) = (from.u32(), from.u32());
        if note > NOTE_LIMIT || note > 0 && kind != RequestKind::Push {
            return Err(FrameError::Note(note));
        }
        if rows > SECTION_LIMIT || wanted > SECTION_LIMIT {
            return Err(FrameError::Section(format!("{} sections", rows.max(wanted))));
        }
        Ok(Self { kind, worker, incarnation, sequence, base, learning_rate, note, dense, rows, wanted })
    }
}

impl Answer {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = Writer::new(self.kind as u8, u8::from(self.over) | u8::from(self.rounds) << 1);
        out.u32(self.text).u64(self.version).u64(self.learning_rate.version);
        out.f32(self.learning_rate.rate).u32(self.held_back).u64(self.dense).u64(self.rows);
        out.bytes
    }

    /// Reads a header.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let mut from = Reader::new(bytes);
        let kind = match from.kind {
            1 => AnswerKind::Values,
            2 => AnswerKind::Stale,
            3 => AnswerKind::Over,
            4 => AnswerKind::Waiting,
            5 => AnswerKind::Fenced,
            6 => AnswerKind::Refused,
            other => return Err(FrameError::Kind(other)),
        };
        let text = from.u32();
        if text as usize > TEXT_LIMIT {
            return Err(FrameError::Text(text));
        }
        let version = from.u64();
        let learning_rate = LearningRate { version: from.u64(), rate: from.f32() };
        if !learning_rate.is_sound() {
            return Err(FrameError::LearningRate);
        }
        let held_back = from.u32();
        let (dense, rows) = (from.u64(), from.u64());
        let (over, rounds) = (from.flags & 1 != 0, from.flags & 2 != 0);
        Ok(Self { kind, over, rounds, version, learning_rate, dense, rows, text, held_back })
    }
}

struct Writer {
    bytes: [u8; HEADER_BYTES],
    at: usize,
}

impl Writer {
    fn new(kind: u8, flags: u8) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = kind;
        bytes[1] = flags;
        Self { bytes, at: 4 }
    }

    fn put<const N: usize>(&mut self, value: [u8; N]) -> &mut Self {
        self.bytes[self.at..self.at + N].copy_from_slice(&value);
        self.at += N;
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.put(value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.put(value.to_le_bytes())
    }

    fn f32(&mut self, value: f32) -> &mut Self {
        self.put(value.to_le_bytes())
    }
}

struct Reader<'a> {
    bytes: &'a [u8; HEADER_BYTES],
    at: usize,
    kind: u8,
    flags: u8,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8; HEADER_BYTES]) -> Self {
        Self { bytes, at: 4, kind: bytes[0], flags: bytes[1] }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        value.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        value
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn f32(&mut self) -> f32 {
        f32::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn requests_survive_the_wire(worker: u32, incarnation: u64, sequence: u64, base: u64, version: u64,
                                     rate in 0f32..1e6, note in 0..NOTE_LIMIT, dense: u64, rows in 0..SECTION_LIMIT,
                                     wanted in 0..SECTION_LIMIT) {
            let request = Request {
                kind: RequestKind::Push, worker: WorkerId(worker), incarnation: Incarnation(incarnation),
                sequence, base, learning_rate: LearningRate { version, rate }, note, dense, rows, wanted,
            };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
        }

        #[test]
        fn answers_survive_the_wire(over: bool, rounds: bool, version: u64, rate in 0f32..1e6, dense: u64, rows: u64,
                                    text in 0..TEXT_LIMIT as u32, held_back: u32) {
            let answer = Answer {
                kind: AnswerKind::Stale, over, rounds, version, learning_rate: LearningRate { version, rate }, dense, rows, text,
                held_back,
            };
            prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn no_header_makes_a_reader_panic(bytes in prop::array::uniform32(any::<u8>())) {
            let mut header = [0; HEADER_BYTES];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&bytes);
            let _ = Request::decode(&header);
            let _ = Answer::decode(&header);
        }
    }

    #[test]
    fn a_learning_rate_that_is_no_rate_is_refused_both_ways() {
        for rate in [f32::NAN, f32::INFINITY, -1.0] {
            let learning_rate = LearningRate { version: 1, rate };
            let request = Request {
                kind: RequestKind::Push,
                worker: WorkerId(0),
                incarnation: Incarnation(1),
                sequence: 1,
                base: 0,
                learning_rate,
                note: 0,
                dense: 0,
                rows: 0,
                wanted: 0,
            };
            assert_eq!(Request::decode(&request.encode()), Err(FrameError::LearningRate));
            let answer = Answer {
                kind: AnswerKind::Values,
                over: false,
                rounds: false,
                version: 1,
                learning_rate,
                dense: 0,
                rows: 0,
                text: 0,
                held_back: 0,
            };
            assert_eq!(Answer::decode(&answer.encode()), Err(FrameError::LearningRate));
        }
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let mut bytes = preface();
        bytes[4] = 99;
        let error = read_preface(&bytes).unwrap_err().to_string();
        assert_eq!(error, "the peer speaks protocol 99, this task speaks 3: run the same version everywhere");
    }
}
