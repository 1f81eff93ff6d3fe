//! The faults that a request may meet on its way to a server, and where in its bytes. Everything is drawn from a seed
//! and from the request itself: neither time nor the order of threads plays a part.

use std::collections::BTreeMap;
use std::io::{self, Read};

use windlass_core::block::block_ranges;
use windlass_core::parameter::{ParameterId, ParameterTable};
use windlass_wire::stream::frame::{HEADER_BYTES, Request};

use crate::numbers::Random;

/// The maximum number of faults that one request meets in consecutive attempts.
const FAULTS_IN_A_ROW: u64 = 3;

/// A fault of one attempt at a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing of the request arrives.
    Lost,
    /// The request breaks off within its header.
    CutInHeader,
    /// Only the header of the request arrives.
    CutAfterHeader,
    /// The request breaks off within a block or a row section.
    CutInPiece,
    /// The request breaks off between two blocks or sections.
    CutAtEdge,
    /// All but the last byte of the request arrives.
    CutBeforeLastByte,
    /// The request arrives, and the worker loses the connection while the server works on it.
    Unheard,
    /// The request is served, and nothing of the answer arrives.
    AnswerLost,
    /// The request is served, and the answer breaks off within its header.
    AnswerCutInHeader,
    /// The request is served, and the answer breaks off within its values.
    AnswerCutInValues,
    /// The server learns in the middle of its answer that the worker is gone.
    AnswerRefused,
    /// The request, or all but its beginning, arrives together with the attempt that replaces it.
    LateBesideRetry,
    /// The request, or all but its beginning, arrives after another attempt has been answered.
    LateAfterRetry,
    /// The request, or all but its beginning, arrives after the worker's next push has been answered.
    LateAfterNext,
    /// The request, or all but its beginning, arrives after its process is dead and a successor has pushed. Never
    /// drawn: a test asks for it.
    Orphaned,
}

impl Fault {
    /// The faults that are drawn.
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

    /// Draws the fault of an attempt at a request. Half of the attempts meet one, but none after the first
    /// `FAULTS_IN_A_ROW`.
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
                // As many bytes as before one of the cuts.
                Self::DRAWN[random.below(6) as usize].bytes_at_once(frame, random)
            }
            _ => total,
        }
    }

    /// Returns how many bytes arrive of an answer with this many bytes of values.
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

/// What happened on a network. It shows that the network was as bad as intended.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub faults: BTreeMap<Fault, u64>,
    pub pushes: u64,
    /// Pushes that were sent more than once.
    pub retried: u64,
    /// Pushes that were sent more than twice.
    pub retried_twice: u64,
    /// Pushes that do not count, as the worker was told.
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

    /// Asserts that every kind of fault has happened, and that enough pushes were sent again.
    pub fn assert_bad_enough(&self) {
        for fault in Fault::DRAWN {
            assert!(self.faults.contains_key(&fault), "{fault:?} never happened: {self:?}");
        }
        assert!(self.retried * 3 > self.pushes, "less than a third was sent again: {self:?}");
        assert!(self.retried_twice * 10 > self.pushes, "less than a tenth was sent twice again: {self:?}");
    }
}
