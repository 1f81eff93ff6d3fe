//! Matrix products on slices, computed by the same library as in Burn's CPU backend.
//!
//! Large products are split by rows over the threads of the caller's rayon pool: with one product per thread, each
//! thread keeps its full speed, whatever the shape. The bits of the result do not depend on the number of threads: the
//! library adds up each element in an order that depends on the shape but not on the neighbouring rows, and parts are
//! never so small that it would switch to another order (see [`least_rows`]).

use std::mem::MaybeUninit;
use std::ops::Range;

use gemm::Parallelism;
use rayon::prelude::*;

/// Below this many multiplications, one thread is faster.
const FEW: usize = 1 << 21;
/// Rows are assigned to threads in multiples of this, the height of the inner loop's tile.
const TILE: usize = 8;

/// A matrix to read: a window of a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// All of `values`, row by row.
    pub(crate) fn new(values: &'a [f32], columns: usize) -> Self {
        Self { values, rows: values.len() / columns, columns, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }

    pub(crate) fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.end <= self.rows);
        Self { values: &self.values[(rows.start * self.row_stride).min(self.values.len())..], rows: rows.len(), ..self }
    }

    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        self.transposed().rows(columns).transposed()
    }

    fn fits(&self) -> bool {
        self.rows == 0
            || self.columns == 0
            || (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride < self.values.len()
    }
}

/// A matrix to write: some columns of a row-major slice.
pub(crate) struct MatrixMut<'a> {
    values: &'a mut [f32],
    rows: usize,
    columns: usize,
    stride: usize,
}

impl<'a> MatrixMut<'a> {
    /// All of `values`, row by row.
    pub(crate) fn new(values: &'a mut [f32], columns: usize) -> Self {
        Self { rows: values.len() / columns, values, columns, stride: columns }
    }

    pub(crate) fn columns(self, columns: Range<usize>) -> Self {
        assert!(columns.end <= self.columns);
        let start = columns.start.min(self.values.len());
        Self { values: &mut self.values[start..], columns: columns.len(), ..self }
    }
}

/// What happens to the old values of the target.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Old {
    Add,
    Replace,
}

/// target (+)= left × right, on this thread.
pub(crate) fn multiply(target: MatrixMut, left: Matrix, right: Matrix, old: Old) {
    let MatrixMut { values, rows, columns, stride } = target;
    assert!(rows == left.rows && columns == right.columns);
    assert!(rows == 0 || columns == 0 || (rows - 1) * stride + columns <= values.len());
    // SAFETY: the assertions above and in `write` put every element that is touched inside its slice.
    #[allow(unsafe_code)]
    unsafe {
        write(values.as_mut_ptr(), stride, left, right, old, Parallelism::None);
    }
}

/// target (+)= left × right, on all threads if it is large.
pub(crate) fn multiply_large(target: MatrixMut, left: Matrix, right: Matrix, old: Old) {
    let MatrixMut { values, rows, columns, stride } = target;
    let share = share(rows, columns, left.columns);
    if share >= rows {
        return multiply(MatrixMut { values, rows, columns, stride }, left, right, old);
    }
    values.par_chunks_mut(share * stride).enumerate().for_each(|(index, values)| {
        let start = index * share;
        let end = rows.min(start + share);
        if start < end {
            multiply(MatrixMut { values, rows: end - start, columns, stride }, left.rows(start..end), right, old);
        }
    });
}

/// left × right in a new buffer, on all threads if it is large.
pub(crate) fn product(left: Matrix, right: Matrix) -> Vec<f32> {
    let (rows, columns) = (left.rows, right.columns);
    let mut values = Vec::<f32>::with_capacity(rows * columns);
    let share = share(rows, columns, left.columns);
    let fill = |start: usize, part: &mut [MaybeUninit<f32>], parallelism| {
        let left = left.rows(start..start + part.len() / columns);
        // SAFETY: `part` has as many rows as `left` and is written before it is read.
        #[allow(unsafe_code)]
        unsafe {
            write(part.as_mut_ptr().cast(), columns, left, right, Old::Replace, parallelism);
        }
    };
    let room = &mut values.spare_capacity_mut()[..rows * columns];
    if columns == 0 {
    } else if share < rows {
        let parts = room.par_chunks_mut(share * columns).enumerate();
        parts.for_each(|(index, part)| fill(index * share, part, Parallelism::None));
    } else {
        // There are only a few, very long rows: the library divides the columns.
        let large = rows * columns * left.columns > FEW * rayon::current_num_threads();
        fill(0, room, if large { Parallelism::Rayon(0) } else { Parallelism::None });
    }
    // SAFETY: every element was written above.
    #[allow(unsafe_code)]
    unsafe {
        values.set_len(rows * columns);
    }
    values
}

/// Returns the values of a row-major matrix column by column.
pub(crate) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    const BLOCK: usize = 16;
    let rows = values.len() / columns;
    let mut target = vec![0.0; values.len()];
    for first_row in (0..rows).step_by(BLOCK) {
        for first_column in (0..columns).step_by(BLOCK) {
            for column in first_column..columns.min(first_column + BLOCK) {
                for row in first_row..rows.min(first_row + BLOCK) {
                    target[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    target
}

/// Rows for each thread, or all rows where threads do not pay off.
fn share(rows: usize, columns: usize, depth: usize) -> usize {
    let most = rows * columns * depth / FEW;
    let threads = rayon::current_num_threads().min(most);
    even_share(rows, threads, TILE, least_rows(columns, depth))
}

/// Rows for each of this many threads: a multiple of `tile`, and at least `least` even in the last part.
pub(crate) fn even_share(rows: usize, threads: usize, tile: usize, least: usize) -> usize {
    let least = least.max(tile);
    let mut share = rows.div_ceil(threads.min(rows / least).max(1)).next_multiple_of(tile);
    while share < rows && (1..least).contains(&(rows % share)) {
        share += tile;
    }
    share.min(rows).max(1)
}

/// The least number of rows that a part of a product must have for its elements to be added up as in the whole. For few
/// elements, for a single row, and where both sides are short but the sums are long, gemm adds in another order.
pub(crate) fn least_rows(columns: usize, depth: usize) -> usize {
    const FEW_ELEMENTS: usize = 256;
    const SHORT: usize = 64;
    const LONG: usize = 512;
    let short = if columns <= SHORT && depth > LONG { SHORT + 1 } else { 2 };
    short.max(FEW_ELEMENTS / columns.max(1) + 1)
}

/// # Safety
/// `target` must have room for as many rows as `left` and columns as `right`, at that stride.
#[allow(unsafe_code)]
unsafe fn write(target: *mut f32, stride: usize, left: Matrix, right: Matrix, old: Old, parallelism: Parallelism) {
    assert!(left.columns == right.rows && left.fits() && right.fits());
    // SAFETY: both sides are inside their slices, and the caller vouches for the target.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            target,
            1,
            stride as isize,
            old == Old::Add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            if old == Old::Add { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|index| ((index * 37) % 23) as f32 - 11.0).collect()
    }

    fn slowly(left: &[f32], right: &[f32], depth: usize, columns: usize) -> Vec<f32> {
        let rows = left.len() / depth;
        let element = |row: usize, column: usize| -> f32 {
            (0..depth).map(|at| left[row * depth + at] * right[at * columns + column]).sum()
        };
        (0..rows * columns).map(|index| element(index / columns, index % columns)).collect()
    }

    #[test]
    fn products_of_any_size_equal_the_definition() {
        for (rows, depth, columns) in [(1, 1, 1), (3, 5, 7), (2, 64, 9000), (200, 130, 300), (0, 4, 4)] {
            let (left, right) = (values(rows * depth), values(depth * columns));
            let expected = slowly(&left, &right, depth, columns);
            assert_eq!(product(Matrix::new(&left, depth), Matrix::new(&right, columns)), expected);
            let turned = transposed(&left, depth);
            if rows > 0 {
                assert_eq!(product(Matrix::new(&turned, rows).transposed(), Matrix::new(&right, columns)), expected);
            }
        }
    }

    #[test]
    fn a_product_lands_in_its_columns_and_adds_to_them() {
        let (rows, depth, columns) = (160, 190, 150);
        let (left, right) = (values(rows * depth), values(depth * columns));
        let mut wide = vec![1.0; rows * 2 * columns];
        let (left, right) = (Matrix::new(&left, depth), Matrix::new(&right, columns));
        multiply_large(MatrixMut::new(&mut wide, 2 * columns).columns(columns..2 * columns), left, right, Old::Replace);
        multiply_large(MatrixMut::new(&mut wide, 2 * columns).columns(columns..2 * columns), left, right, Old::Add);
        let plain = product(left, right);
        for (row, plain) in wide.chunks(2 * columns).zip(plain.chunks(columns)) {
            assert!(row[..columns].iter().all(|value| *value == 1.0));
            assert!(row[columns..].iter().zip(plain).all(|(value, plain)| *value == 2.0 * plain));
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn sides_that_do_not_fit_are_refused() {
        let values = values(12);
        product(Matrix::new(&values, 3), Matrix::new(&values, 3));
    }
}
