//! Reads the parts of a request other than its dense values: the note and the row sections. Sizes are checked before
//! anything is allocated.

use windlass_core::block::block_ranges;
use windlass_wire::link::{Peer, ServeError};
use windlass_wire::stream::frame::{FrameError, Request, RequestKind};

use super::round::RowGradients;
use super::{ParameterShard, ServedTable};

/// The limit on the row values of a request: a fixed number, plus this many times what the tables hold.
const SMALL_TABLE_VALUES: usize = 16 << 20;
const TABLES: usize = 16;

/// How many more row values a request may have, over all its sections.
pub(super) struct Allowance(usize);

/// The rows that the answer should contain: table and row numbers.
pub(super) type WantedRows = (usize, Vec<u32>);

/// Reads the note of a push, which may be empty.
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
    /// Drops the payload of a request. Returns the rows that it wants in the answer.
    pub(super) fn discard(&self, request: &Request, peer: &mut dyn Peer) -> Result<Vec<WantedRows>, ServeError> {
        for range in block_ranges(self.elements) {
            peer.receive(range.len())?;
        }
        let mut allowance = self.allowance();
        for _ in 0..request.rows {
            self.receive_rows(request, &mut allowance, peer)?;
        }
        self.receive_all_wanted(request, peer)
    }

    pub(super) fn receive_all_wanted(
        &self,
        request: &Request,
        peer: &mut dyn Peer,
    ) -> Result<Vec<WantedRows>, ServeError> {
        let mut allowance = self.allowance();
        (0..request.wanted).map(|_| self.receive_row_numbers(&mut allowance, peer)).collect()
    }

    /// Returns the limit for all sections of a request together. A push names a row once for every lookup, so more
    /// values than the tables hold are not necessarily an error.
    pub(super) fn allowance(&self) -> Allowance {
        let values = |rows: &ServedTable| rows.stripe.count.saturating_mul(rows.width).saturating_mul(TABLES);
        Allowance(self.rows.iter().map(values).fold(SMALL_TABLE_VALUES, usize::saturating_add))
    }

    pub(super) fn receive_rows(
        &self,
        request: &Request,
        allowance: &mut Allowance,
        peer: &mut dyn Peer,
    ) -> Result<RowGradients, ServeError> {
        let (table, rows) = self.receive_row_numbers(allowance, peer)?;
        let ServedTable { stripe, is_constant, .. } = &self.rows[table];
        if *is_constant && request.kind == RequestKind::Push {
            let parameter = stripe.parameter.0;
            return Err(FrameError::Section(format!("parameter {parameter} is frozen and takes no gradient")).into());
        }
        let mut gradients = vec![0.0_f32; rows.len() * self.rows[table].width];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut gradients))?;
        Ok(RowGradients { table, rows, gradients })
    }

    /// The head of a section.
    fn receive_row_numbers(&self, allowance: &mut Allowance, peer: &mut dyn Peer) -> Result<WantedRows, ServeError> {
        let mut head = [0_u32; 2];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut head))?;
        let [parameter, count] = head;
        let index = self
            .rows
            .iter()
            .position(|rows| rows.stripe.parameter.0 == parameter)
            .ok_or_else(|| FrameError::Section(format!("parameter {parameter} has no rows on this server")))?;
        let ServedTable { stripe, width, .. } = &self.rows[index];
        let left = allowance.0.checked_sub((count as usize).saturating_mul(*width));
        let too_many = || FrameError::Section(format!("{count} rows of a table of {}", stripe.count));
        allowance.0 = left.ok_or_else(too_many)?;
        let mut rows = vec![0; count as usize];
        peer.receive_bytes(bytemuck::cast_slice_mut(&mut rows))?;
        if let Some(row) = rows.iter().find(|row| **row as usize >= stripe.count) {
            return Err(FrameError::Section(format!("row {row} of a table of {}", stripe.count)).into());
        }
        Ok((index, rows))
    }
}
