//! A table of rows that can be read as of a cut while pushes keep changing it.
//!
//! A push touches a few rows of a table that may be very large. So the old values are copied row by row before a push
//! changes them, and the table is read stretch by stretch: neither pushes nor reads wait until the whole table is
//! copied.

use std::ops::Range;
use std::time::{Duration, Instant};

use windlass_core::admission::CutSide;
use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::optimizer::{Optimizer, Update};
use windlass_core::rows::{RowError, RowTable};

/// The mark of a row that has not been put aside.
const NOT_ASIDE: u32 = u32::MAX;

/// A table, with copies as of a cut of those rows that have changed since.
#[derive(Debug)]
pub(in crate::shard) struct RowsCopyOnCut {
    now: RowTable,
    aside: RowTable,
    /// The place of every row in `aside`; empty if no row is there.
    places: Vec<u32>,
    /// Rows before this one have been taken.
    taken: usize,
    /// The last cut for which rows have been put aside or taken.
    cut: u64,
}

impl RowsCopyOnCut {
    pub(in crate::shard) fn new(now: RowTable) -> Self {
        Self { aside: RowTable::empty_like(&now, 0), now, places: Vec::new(), taken: 0, cut: 0 }
    }

    pub(in crate::shard) fn get(&self) -> &RowTable {
        &self.now
    }

    /// The table, to be changed where no cut can be under way: before training.
    pub(in crate::shard) fn get_mut(&mut self) -> &mut RowTable {
        &mut self.now
    }

    /// Applies gradients to rows, and to their copies for a cut if the push belongs before it. Returns how long the cut
    /// has held up the push.
    pub(in crate::shard) fn apply(
        &mut self,
        side: CutSide,
        optimizer: &Optimizer,
        update: &Update,
        rows: &[u32],
        gradients: &[f32],
    ) -> Result<Duration, RowError> {
        self.now.check(rows, gradients.len())?;
        let Update { learning_rate, scale, .. } = *update;
        let mut held_up = Duration::ZERO;
        if side.cut > 0 && !side.before {
            let since = Instant::now();
            self.turn_to(side.cut);
            self.put_aside(rows);
            held_up = since.elapsed();
        } else if side.cut == self.cut && !self.places.is_empty() {
            let (rows, gradients) = self.gradients_of_rows_aside(rows, gradients);
            self.aside.apply(optimizer, learning_rate, scale, &rows, &gradients)?;
        }
        self.now.apply(optimizer, learning_rate, scale, rows, gradients)?;
        Ok(held_up)
    }

    /// Appends the next stretch of rows, as of a cut, to `to`; all changes before the cut must have been made. Returns
    /// true while there are more, and `None` if a later cut has replaced this one.
    pub(in crate::shard) fn take(&mut self, cut: u64, to: &mut RowTable) -> Option<bool> {
        if self.cut > cut {
            return None;
        }
        self.turn_to(cut);
        let rows = self.next_stretch();
        to.extend_from(&self.now, rows.clone());
        if !self.places.is_empty() {
            for row in rows.clone().filter(|row| self.places[*row] != NOT_ASIDE) {
                to.copy_row(row as u32, &self.aside, self.places[row]);
            }
        }
        self.taken = rows.end;
        let more = self.taken < self.now.rows();
        if !more {
            self.forget();
        }
        Some(more)
    }

    /// Drops copies that are no longer needed.
    pub(in crate::shard) fn forget(&mut self) {
        self.aside = RowTable::empty_like(&self.now, 0);
        self.places = Vec::new();
    }

    fn turn_to(&mut self, cut: u64) {
        if cut > self.cut {
            self.forget();
            self.taken = 0;
            self.cut = cut;
        }
    }

    /// As many rows as a block has values, but at least one.
    fn next_stretch(&self) -> Range<usize> {
        let rows = (BLOCK_ELEMENTS / self.now.width()).max(1);
        self.taken..(self.taken + rows).min(self.now.rows())
    }

    fn put_aside(&mut self, rows: &[u32]) {
        if self.taken == self.now.rows() {
            return;
        }
        if self.places.is_empty() {
            self.places = vec![NOT_ASIDE; self.now.rows()];
        }
        for row in rows.iter().map(|row| *row as usize).filter(|row| *row >= self.taken) {
            if self.places[row] == NOT_ASIDE {
                self.places[row] = self.aside.rows() as u32;
                self.aside.extend_from(&self.now, row..row + 1);
            }
        }
    }

    /// Returns those of the rows that are put aside, as their places there, and their gradients.
    fn gradients_of_rows_aside(&self, rows: &[u32], gradients: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let aside = |(row, gradient): (&u32, &[f32])| {
            let place = self.places[*row as usize];
            (place != NOT_ASIDE).then(|| (place, gradient.to_vec()))
        };
        let (places, gradients): (Vec<u32>, Vec<Vec<f32>>) =
            rows.iter().zip(gradients.chunks_exact(self.now.width())).filter_map(aside).unzip();
        (places, gradients.concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: CutSide = CutSide { cut: 1, before: true };
    const AFTER: CutSide = CutSide { cut: 1, before: false };

    /// Enough rows, of one value each, for several stretches.
    const ROWS: usize = BLOCK_ELEMENTS + 10;

    fn table() -> RowsCopyOnCut {
        RowsCopyOnCut::new(RowTable::new(ROWS, 1, &Optimizer::Sgd))
    }

    /// Adds an amount to rows. At this learning rate, a gradient is subtracted from the value unchanged.
    fn add(kept: &mut RowsCopyOnCut, side: CutSide, rows: &[u32], amount: f32) {
        let update = Update { learning_rate: 1.0, step: 1, scale: 1.0 };
        kept.apply(side, &Optimizer::Sgd, &update, rows, &vec![-amount; rows.len()]).unwrap();
    }

    fn take_all(kept: &mut RowsCopyOnCut, cut: u64) -> RowTable {
        let mut taken = RowTable::empty_like(kept.get(), 0);
        while kept.take(cut, &mut taken).unwrap() {}
        taken
    }

    fn value(table: &RowTable, row: u32) -> f32 {
        let mut out = [0.0];
        table.read(&[row], &mut out).unwrap();
        out[0]
    }

    #[test]
    fn a_cut_has_every_change_before_it_and_none_after_in_whatever_order_they_come() {
        for order in [[(BEFORE, 10.0), (AFTER, 100.0)], [(AFTER, 100.0), (BEFORE, 10.0)]] {
            let mut kept = table();
            for (side, amount) in order {
                add(&mut kept, side, &[3, ROWS as u32 - 1, 3], amount);
            }
            let taken = take_all(&mut kept, 1);
            assert_eq!([value(&taken, 3), value(kept.get(), 3)], [20.0, 220.0], "a row named twice moves twice");
            assert_eq!([value(&taken, ROWS as u32 - 1), value(&taken, 4)], [10.0, 0.0]);
            assert_eq!((taken.rows(), taken.steps()[3], kept.get().steps()[3]), (ROWS, 1, 2));
        }
    }

    #[test]
    fn rows_may_change_between_two_stretches() {
        let mut kept = table();
        let mut taken = RowTable::empty_like(kept.get(), 0);
        assert_eq!(kept.take(1, &mut taken), Some(true));
        add(&mut kept, AFTER, &[0, ROWS as u32 - 1], 1.0);
        assert_eq!(kept.aside.rows(), 1, "the first row has been taken already");
        assert_eq!(kept.take(1, &mut taken), Some(false));
        assert_eq!(taken, RowTable::new(ROWS, 1, &Optimizer::Sgd));
        add(&mut kept, AFTER, &[5], 1.0);
        assert_eq!((kept.aside.rows(), kept.places.len()), (0, 0), "all has been taken");
        assert_eq!([value(kept.get(), 0), value(kept.get(), 5)], [1.0, 1.0]);
    }

    #[test]
    fn rows_put_aside_for_a_cut_that_was_given_up_are_not_taken_for_the_next() {
        let mut kept = table();
        add(&mut kept, AFTER, &[7], 1.0);
        add(&mut kept, CutSide { cut: 2, before: true }, &[7], 1.0);
        assert_eq!(value(&take_all(&mut kept, 2), 7), 2.0);
        assert_eq!(value(&take_all(&mut kept, 3), 7), 2.0);
    }

    #[test]
    fn whoever_still_reads_a_cut_that_was_given_up_takes_nothing_from_the_next() {
        let mut kept = table();
        add(&mut kept, CutSide { cut: 2, before: false }, &[0, 7], 1.0);
        let mut stale = RowTable::empty_like(kept.get(), 0);
        assert_eq!(kept.take(1, &mut stale), None);
        let taken = take_all(&mut kept, 2);
        assert_eq!([value(&taken, 0), value(&taken, 7)], [0.0, 0.0]);
    }

    #[test]
    fn rows_that_are_not_there_change_nothing() {
        for side in [BEFORE, AFTER] {
            let mut kept = table();
            add(&mut kept, AFTER, &[1], 1.0);
            let update = Update { learning_rate: 1.0, step: 1, scale: 1.0 };
            let refused = kept.apply(side, &Optimizer::Sgd, &update, &[1, ROWS as u32], &[1.0, 1.0]);
            assert_eq!(refused, Err(RowError::OutOfRange { row: ROWS as u32, rows: ROWS }));
            assert_eq!((value(kept.get(), 1), value(&take_all(&mut kept, 1), 1)), (1.0, 0.0));
        }
    }
}
