//! The worker's end of a request to a server in the same process: the caller's own buffers, without a socket.

use std::io::{self, Chain, Read};

use super::Interrupt;
use crate::link::Peer;
use crate::stream::frame::{Answer, AnswerKind};

pub(super) struct LocalPeer<'a, 'b> {
    gradients: &'a [&'a [f32]],
    piece: usize,
    offset: usize,
    gathered: Vec<f32>,
    /// The note, then the rows.
    bytes: Chain<&'a [u8], &'a [u8]>,
    places: &'a mut [&'b mut [f32]],
    row_values: &'a mut [f32],
    filled: usize,
    place: usize,
    answer: Option<Answer>,
    text: String,
    interrupt: &'a Interrupt,
}

impl<'a, 'b> LocalPeer<'a, 'b> {
    pub(super) fn new(
        gradients: &'a [&'a [f32]],
        (note, rows): (&'a [u8], &'a [u8]),
        places: &'a mut [&'b mut [f32]],
        row_values: &'a mut [f32],
        interrupt: &'a Interrupt,
    ) -> Self {
        Self {
            gradients,
            piece: 0,
            offset: 0,
            gathered: Vec::new(),
            bytes: note.chain(rows),
            places,
            row_values,
            filled: 0,
            place: 0,
            answer: None,
            text: String::new(),
            interrupt,
        }
    }

    pub(super) fn into_answer(self) -> (Option<Answer>, String) {
        (self.answer, self.text)
    }
}

impl Peer for LocalPeer<'_, '_> {
    /// Values within one piece are lent in place; only a block that spans pieces is copied.
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        if let Some(piece) = self.gradients.get(self.piece)
            && piece.len() - self.offset >= len
        {
            let lent = &piece[self.offset..self.offset + len];
            self.offset += len;
            if self.offset == piece.len() {
                self.piece += 1;
                self.offset = 0;
            }
            return Ok(lent);
        }
        self.gathered.clear();
        while self.gathered.len() < len {
            let piece = self.gradients.get(self.piece).ok_or(io::ErrorKind::UnexpectedEof)?;
            let take = (len - self.gathered.len()).min(piece.len() - self.offset);
            self.gathered.extend_from_slice(&piece[self.offset..self.offset + take]);
            self.offset += take;
            if self.offset == piece.len() {
                self.piece += 1;
                self.offset = 0;
            }
        }
        Ok(&self.gathered)
    }

    fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.bytes.read_exact(bytes)
    }

    /// A process that was told to stop has handed over its gradient and need not wait for the answer.
    fn waits(&self) -> io::Result<()> {
        if self.interrupt.is_set() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Breaks off a wait, so that the client can attend to its other servers before it asks again.
    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()> {
        text.clone_into(&mut self.text);
        if answer.kind == AnswerKind::Waiting {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.answer = Some(*answer);
        Ok(())
    }

    fn stage(&mut self, mut values: &[f32]) {
        while let Some(place) = self.places.get_mut(self.place)
            && !values.is_empty()
        {
            let take = values.len().min(place.len() - self.filled);
            place[self.filled..self.filled + take].copy_from_slice(&values[..take]);
            values = &values[take..];
            self.filled += take;
            if self.filled == place.len() {
                self.place += 1;
                self.filled = 0;
            }
        }
        // The values that follow once the dense places are full are rows, counted from there.
        if self.place == self.places.len() {
            self.row_values[self.filled..self.filled + values.len()].copy_from_slice(values);
            self.filled += values.len();
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
