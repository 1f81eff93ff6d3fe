//! What comes with a request beside its dense values: the note, and sections of rows. Nothing is allocated before its
//! size has been checked.

use windlass_core::block::block_ranges;
use windlass_wire::frame::{FrameError, Request};
use windlass_wire::link::{Peer, ServeError};

use super::round::RowPush;
use super::{ParameterShard, Rows};

/// The most values of rows in a section, for small tables; for others, how many times what they hold.
const SECTION_VALUES: usize = 16 << 20;
const SECTION_TABLES: usize = 16;

/// A wanted section: which table, which of its rows.
pub(super) type Wanted = (usize, Vec<u32>);

/// The note of a push; empty if there is none.
pub(super) fn note(request: &Request, peer: &mut dyn Peer) -> Result<String, ServeError> {
    if request.note == 0 {
        return Ok(String::new());
    }
    let mut bytes = vec![0; request.note as usize * size_of::<u32>()];
    peer.receive_bytes(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| FrameError::Note(request.note))?;
    Ok(text.trim_end().to_owned())
}

impl ParameterShard {
    /// Reads a payload that is not wanted; returns the rows that still are.
    pub(super) fn discard(&self, request: &Request, peer: &mut dyn Peer) -> Result<Vec<Wanted>, ServeError> {
        for range in block_ranges(self.elements) {
            peer.receive(range.len())?;
        }
        for _ in 0..request.rows {
            self.receive_rows(peer)?;
        }
        self.receive_all_wanted(request, peer)
    }

    pub(super) fn receive_all_wanted(&self, request: &Request, peer: &mut dyn Peer) -> Result<Vec<Wanted>, ServeError> {
        (0..request.wanted).map(|_| self.receive_row_numbers(peer)).collect()
    }

    pub(super) fn receive_rows(&self, peer: &mut dyn Peer) -> Result<RowPush, ServeError> {
        let (table, rows) = self.receive_row_numbers(peer)?;
        let mut gradients = vec![0.0_f32; rows.len() * self.rows[table].width];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut gradients))?;
        Ok(RowPush { table, rows, gradients })
    }

    /// The head of a section.
    fn receive_row_numbers(&self, peer: &mut dyn Peer) -> Result<Wanted, ServeError> {
        let mut head = [0_u32; 2];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut head))?;
        let [parameter, count] = head;
        let index = self
            .rows
            .iter()
            .position(|rows| rows.stripe.parameter.0 == parameter)
            .ok_or_else(|| FrameError::Section(format!("parameter {parameter} has no rows on this server")))?;
        let Rows { stripe, width, .. } = &self.rows[index];
        // A push names a row once for every time it was looked up, so more than the table has is not yet wrong.
        let limit = stripe.count.saturating_mul(SECTION_TABLES).max(SECTION_VALUES / width);
        if count as usize > limit {
            return Err(FrameError::Section(format!("{count} rows of a table of {}", stripe.count)).into());
        }
        let mut rows = vec![0; count as usize];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut rows))?;
        if let Some(row) = rows.iter().find(|row| **row as usize >= stripe.count) {
            return Err(FrameError::Section(format!("row {row} of a table of {}", stripe.count)).into());
        }
        Ok((index, rows))
    }
}
