//! Values accessed by row number, such as one server's stripe of an embedding. Row numbers are the stripe's own
//! ("local"); those from the network are checked here before anything changes. It does not know the parameter, the
//! stripe or the worker.

use std::mem;
use std::ops::Range;

use thiserror::Error;

use crate::block::Block;
use crate::optimizer::{Optimizer, Update};

/// The rows of one stripe, each with its own optimizer state and step count: a row that no batch touches keeps both,
/// and an optimizer that corrects for the first steps (Adam) uses the row's own count.
#[derive(Debug, Clone, PartialEq)]
pub struct RowTable {
    layout: Layout,
    block: Block,
    steps: Vec<u64>,
}

impl RowTable {
    /// Rows of zeros, with the optimizer state of before the first update.
    pub fn new(rows: usize, width: usize, optimizer: &Optimizer) -> Self {
        let layout = Layout::new(rows, width);
        let block = Block::new(rows * width, optimizer);
        Self { layout, block, steps: vec![0; rows] }
    }

    /// Rows of zeros that no optimizer updates, without optimizer state.
    pub fn constant(rows: usize, width: usize) -> Self {
        Self::new(rows, width, &Optimizer::Sgd)
    }

    /// Restores rows, such as those of a checkpoint.
    ///
    /// # Panics
    /// Panics if the lengths differ: for every step count there must be `width` values, and as many numbers in each
    /// slot.
    pub fn restore(width: usize, block: Block, steps: Vec<u64>) -> Self {
        let layout = Layout::new(steps.len(), width);
        for numbers in std::iter::once(&block.values).chain(&block.slots) {
            assert_eq!(numbers.len(), steps.len() * width, "a row has as many numbers as it is wide");
        }
        Self { layout, block, steps }
    }

    /// An empty table with the width and slots of `other`, with room for `capacity` rows.
    pub fn empty_like(other: &Self, capacity: usize) -> Self {
        let room = || Vec::with_capacity(capacity * other.width());
        let block = Block { values: room(), slots: other.block.slots.iter().map(|_| room()).collect() };
        Self { layout: Layout::new(0, other.width()), block, steps: Vec::with_capacity(capacity) }
    }

    /// Appends copies of some of `other`'s rows.
    pub fn extend_from(&mut self, other: &Self, rows: Range<usize>) {
        let elements = rows.start * self.width()..rows.end * self.width();
        self.block.extend_from(&other.block, elements);
        self.steps.extend_from_slice(&other.steps[rows]);
        self.layout = Layout::new(self.steps.len(), self.width());
    }

    /// Copies one of `other`'s rows over a row.
    pub fn copy_row(&mut self, row: u32, other: &Self, from: u32) {
        self.block.copy_range(self.layout.elements(row), &other.block, self.layout.elements(from));
        self.steps[row as usize] = other.steps[from as usize];
    }

    /// The values and optimizer state of all rows, one row after another.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// The same block, by value.
    pub fn into_block(self) -> Block {
        self.block
    }

    /// The number of updates of each row.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// How many values a row has.
    pub fn width(&self) -> usize {
        self.layout.width
    }

    /// Checks that these rows exist, and that there are as many values as they need.
    pub fn check(&self, rows: &[u32], values: usize) -> Result<(), RowError> {
        self.layout.check(rows, values)
    }

    /// Copies those rows to `out`, in the order asked for.
    pub fn read(&self, rows: &[u32], out: &mut [f32]) -> Result<(), RowError> {
        self.layout.check(rows, out.len())?;
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.width())) {
            out.copy_from_slice(&self.block.values[self.layout.elements(row)]);
        }
        Ok(())
    }

    /// Sets those rows, as when parameters are initialised; their optimizer state is unchanged.
    pub fn write(&mut self, rows: &[u32], values: &[f32]) -> Result<(), RowError> {
        self.layout.check(rows, values.len())?;
        for (&row, values) in rows.iter().zip(values.chunks_exact(self.width())) {
            self.block.values[self.layout.elements(row)].copy_from_slice(values);
        }
        Ok(())
    }

    /// Updates those rows by their gradients, with the optimizer that the table was made for. Gradients of a row named
    /// more than once are summed first. Rows in ascending order without repetition, as a [`RowSum`] yields them, are
    /// applied without a copy.
    pub fn apply(
        &mut self,
        optimizer: &Optimizer,
        learning_rate: f32,
        scale: f32,
        rows: &[u32],
        gradients: &[f32],
    ) -> Result<(), RowError> {
        self.layout.check(rows, gradients.len())?;
        if !rows.is_sorted_by(|row, next| row < next) {
            let mut sum = RowSum::new(self.rows(), self.width());
            sum.add(rows, gradients)?;
            let (rows, gradients) = sum.take();
            return self.apply(optimizer, learning_rate, scale, &rows, &gradients);
        }
        for (&row, gradient) in rows.iter().zip(gradients.chunks_exact(self.width())) {
            let step = &mut self.steps[row as usize];
            *step += 1;
            let update = Update { learning_rate, step: *step, scale };
            self.block.apply_range(self.layout.elements(row), optimizer, &update, gradient);
        }
        Ok(())
    }
}

/// Sums gradients by row over several pushes, for the mean of a synchronous round. Each row is
/// summed in the order of the pushes, so that the same pushes in the same order give the same bits.
#[derive(Debug, Clone)]
pub struct RowSum {
    layout: Layout,
    /// For every row of the table, one more than its position among the sums; 0 if it has none. That is one number per
    /// row, where the table itself has a whole row, and is faster than hashing.
    places: Vec<u32>,
    /// The rows that have a sum, in the order in which they were first named.
    rows: Vec<u32>,
    sums: Vec<f32>,
}

impl RowSum {
    /// An empty sum for a [`RowTable`] of that size.
    pub fn new(rows: usize, width: usize) -> Self {
        let layout = Layout::new(rows, width);
        Self { layout, places: vec![0; rows], rows: Vec::new(), sums: Vec::new() }
    }

    /// Adds the gradients of one push, which may name a row more than once.
    pub fn add(&mut self, rows: &[u32], gradients: &[f32]) -> Result<(), RowError> {
        self.layout.check(rows, gradients.len())?;
        for (&row, gradient) in rows.iter().zip(gradients.chunks_exact(self.layout.width)) {
            let place = &mut self.places[row as usize];
            if *place == 0 {
                self.rows.push(row);
                self.sums.extend_from_slice(gradient);
                *place = self.rows.len() as u32;
            } else {
                let sum = &mut self.sums[self.layout.elements(*place - 1)];
                sum.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient);
            }
        }
        Ok(())
    }

    /// Whether no row has been named.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the rows named so far, in ascending order without repetition, and their sums one after another. The next
    /// round starts empty.
    pub fn take(&mut self) -> (Vec<u32>, Vec<f32>) {
        let (mut rows, sums) = (mem::take(&mut self.rows), mem::take(&mut self.sums));
        if rows.is_sorted() {
            rows.iter().for_each(|&row| self.places[row as usize] = 0);
            return (rows, sums);
        }
        rows.sort_unstable();
        let mut sorted = Vec::with_capacity(sums.len());
        for &row in &rows {
            let place = mem::take(&mut self.places[row as usize]) - 1;
            sorted.extend_from_slice(&sums[self.layout.elements(place)]);
        }
        (rows, sorted)
    }
}

/// Why rows cannot be read, written or applied. Nothing has been changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RowError {
    /// A row number is past the last row.
    #[error("row {row} is outside a table of {rows} rows")]
    OutOfRange {
        /// The row asked for.
        row: u32,
        /// How many rows there are.
        rows: usize,
    },
    /// The number of values does not match the rows.
    #[error("{rows} rows of {width} values came with {got} values")]
    LengthMismatch {
        /// How many rows were named.
        rows: usize,
        /// How many values a row has.
        width: usize,
        /// How many values were given.
        got: usize,
    },
}

/// The layout of rows in a flat slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    rows: usize,
    width: usize,
}

impl Layout {
    fn new(rows: usize, width: usize) -> Self {
        assert!(width > 0, "a row has a value");
        assert!(u32::try_from(rows).is_ok(), "a row number fits in 32 bits");
        Self { rows, width }
    }

    fn elements(self, row: u32) -> Range<usize> {
        let start = row as usize * self.width;
        start..start + self.width
    }

    fn check(self, rows: &[u32], values: usize) -> Result<(), RowError> {
        if rows.len().checked_mul(self.width) != Some(values) {
            let (rows, width) = (rows.len(), self.width);
            return Err(RowError::LengthMismatch { rows, width, got: values });
        }
        match rows.iter().find(|&&row| row as usize >= self.rows) {
            Some(&row) => Err(RowError::OutOfRange { row, rows: self.rows }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
