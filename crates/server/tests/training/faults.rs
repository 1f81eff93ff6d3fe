//! What may happen to a request on its way to a server, and where in its bytes. All of it is drawn from a seed and
//! from what the request is, and from nothing else: neither time nor the order of threads plays a part.

use std::collections::BTreeMap;
use std::io::{self, Read};

use windlass_core::block::block_ranges;
use windlass_core::parameter::{ParameterId, ParameterTable};
use windlass_wire::stream::frame::{HEADER_BYTES, Request};

use crate::numbers::Random;

/// How often one request meets a fault at the most, one attempt after the other.
const FAULTS_IN_A_ROW: u64 = 3;

/// What goes wrong with one attempt at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing of the request arrives.
    Lost,
    /// It breaks off in its header.
    CutInHeader,
    /// Only its header arrives.
    CutAfterHeader,
    /// It breaks off in the middle of a block or a row section.
    CutInPiece,
    /// It breaks off between two blocks or sections.
    CutAtEdge,
    /// All of it arrives but one byte.
    CutBeforeLastByte,
    /// It arrives, and the worker loses the connection while the server works on it.
    Unheard,
    /// It is served, and nothing of the answer arrives.
    AnswerLost,
    /// It is served, and the answer breaks off in its header.
    AnswerCutInHeader,
    /// It is served, and the answer breaks off in its values.
    AnswerCutInValues,
    /// The server learns in the middle of its answer that the worker is gone.
    AnswerRefused,
    /// It, or all of it but a beginning, arrives together with the attempt that replaces it.
    LateBesideRetry,
    /// It, or all of it but a beginning, arrives when the worker has been answered by another attempt.
    LateAfterRetry,
    /// It, or all of it but a beginning, arrives when the worker's next push has been answered.
    LateAfterNext,
    /// It, or all of it but a beginning, arrives when its process is dead and a successor has pushed. Never drawn:
    /// a test asks for it.
    Orphaned,
}

impl Fault {
    /// Those that are drawn.
    pub const DRAWN: [Fault; 14] = [
        Fault::Lost,
        Fault::CutInHeader,
        Fault::CutAfterHeader,
        Fault::CutInPiece,
        Fault::CutAtEdge,
        Fault::CutBeforeLastByte,
        Fault::Unheard,
        Fault::AnswerLost,
        Fault::AnswerCutInHeader,
        Fault::AnswerCutInValues,
        Fault::AnswerRefused,
        Fault::LateBesideRetry,
        Fault::LateAfterRetry,
        Fault::LateAfterNext,
    ];

    /// The fault of an attempt at a request, if it meets one: every second does, but for one of the last attempts.
    pub fn draw(random: &mut Random, attempt: u64) -> Option<Self> {
        let meets_one = attempt < FAULTS_IN_A_ROW && random.below(2) == 0;
        let drawn = Self::DRAWN[random.below(Self::DRAWN.len() as u64) as usize];
        meets_one.then_some(drawn)
    }

    /// How many bytes of a request arrive before it breaks off or, if it is late, before the rest.
    pub fn bytes_at_once(self, frame: &Frame, random: &mut Random) -> usize {
        let total = frame.bytes.len();
        let between = |random: &mut Random, from: usize, to: usize| from + random.below((to - from) as u64) as usize;
        match self {
            Fault::Lost => 0,
            Fault::CutInHeader => between(random, 1, HEADER_BYTES),
            Fault::CutAfterHeader => HEADER_BYTES.min(total - 1),
            Fault::CutInPiece => {
                let piece = random.below(frame.ends.len() as u64) as usize;
                let start = piece.checked_sub(1).map_or(0, |before| frame.ends[before]);
                between(random, start + 1, frame.ends[piece].max(start + 2)).min(total - 1)
            }
            Fault::CutAtEdge => {
                let edges = &frame.ends[..frame.ends.len() - 1];
                edges.get(random.below(edges.len().max(1) as u64) as usize).copied().unwrap_or(total - 1)
            }
            Fault::CutBeforeLastByte => total - 1,
            Fault::LateBesideRetry | Fault::LateAfterRetry | Fault::LateAfterNext | Fault::Orphaned => {
                // As much as before a cut of one kind or another.
                Self::DRAWN[random.below(6) as usize].bytes_at_once(frame, random)
            }
            _ => total,
        }
    }

    /// How many bytes of an answer arrive, of a header and that many of values.
    pub fn bytes_of_answer(self, values: usize, random: &mut Random) -> usize {
        let in_header = 1 + random.below(HEADER_BYTES as u64 - 1) as usize;
        match self {
            Fault::AnswerCutInHeader => in_header,
            Fault::AnswerCutInValues | Fault::AnswerRefused if values > 0 => {
                HEADER_BYTES + random.below(values as u64) as usize
            }
            Fault::AnswerCutInValues | Fault::AnswerRefused => in_header,
            _ => 0,
        }
    }
}

/// A request as it was sent.
pub struct Frame {
    pub request: Request,
    pub bytes: Vec<u8>,
    /// Where its header ends, and each of its blocks and sections.
    ends: Vec<usize>,
}

impl Frame {
    /// Reads a request; `None` if the stream ends before one begins.
    pub fn read(stream: &mut impl Read, table: &ParameterTable) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_BYTES];
        match stream.read_exact(&mut header) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            other => other?,
        }
        let request = Request::decode(&header).expect("our own client's");
        let mut frame = Self { request, bytes: header.to_vec(), ends: vec![HEADER_BYTES] };
        for block in block_ranges(request.dense as usize) {
            frame.read_more(stream, block.len() * size_of::<f32>())?;
            frame.ends.push(frame.bytes.len());
        }
        for section in 0..request.rows + request.wanted {
            let [parameter, count] = frame.read_words(stream)?;
            let width = if section < request.rows { table[ParameterId(parameter)].width() } else { 0 };
            frame.read_more(stream, count as usize * (size_of::<u32>() + width * size_of::<f32>()))?;
            frame.ends.push(frame.bytes.len());
        }
        Ok(Some(frame))
    }

    /// How many of its blocks and sections are within that many bytes.
    pub fn pieces_within(&self, bytes: usize) -> usize {
        self.ends.iter().filter(|end| **end <= bytes).count().saturating_sub(1)
    }

    fn read_more(&mut self, stream: &mut impl Read, bytes: usize) -> io::Result<()> {
        let start = self.bytes.len();
        self.bytes.resize(start + bytes, 0);
        stream.read_exact(&mut self.bytes[start..])
    }

    fn read_words(&mut self, stream: &mut impl Read) -> io::Result<[u32; 2]> {
        self.read_more(stream, 2 * size_of::<u32>())?;
        let words = self.bytes.last_chunk::<8>().expect("just read");
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        Ok([word(0), word(4)])
    }
}

/// What has happened on a network, to be sure that it was as bad as it was meant to be.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub faults: BTreeMap<Fault, u64>,
    pub pushes: u64,
    /// Pushes that were sent more than once.
    pub retried: u64,
    /// Pushes that were sent more than twice.
    pub retried_twice: u64,
    /// Pushes that the worker was told do not count.
    pub dropped: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        for (fault, times) in &other.faults {
            *self.faults.entry(*fault).or_default() += times;
        }
        self.pushes += other.pushes;
        self.retried += other.retried;
        self.retried_twice += other.retried_twice;
        self.dropped += other.dropped;
    }

    /// Every kind of fault has happened, and a good share of the pushes was sent again.
    pub fn assert_bad_enough(&self) {
        for fault in Fault::DRAWN {
            assert!(self.faults.contains_key(&fault), "{fault:?} never happened: {self:?}");
        }
        assert!(self.retried * 3 > self.pushes, "less than a third was sent again: {self:?}");
        assert!(self.retried_twice * 10 > self.pushes, "less than a tenth was sent twice again: {self:?}");
    }
}
