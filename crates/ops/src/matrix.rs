//! Products of small matrices that lie in slices, on the calling thread.

/// A matrix in a slice: its shape, and how far apart neighbours in a column and in a row are.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row by row.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "values of a matrix of {rows}×{columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    pub(crate) fn transposed(self) -> Self {
        Self {
            values: self.values,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

/// What is done with what was in the place of the product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Old {
    Forget,
    Add,
}

/// The product of two matrices, row by row.
#[allow(unsafe_code)]
pub(crate) fn multiply(product: &mut [f32], old: Old, left: Matrix<'_>, right: Matrix<'_>) {
    let (rows, columns, depth) = (left.rows, right.columns, left.columns);
    assert_eq!(depth, right.rows, "columns of the left and rows of the right matrix");
    assert_eq!(product.len(), rows * columns, "values of a product of {rows}×{columns}");
    // SAFETY: gemm takes raw pointers. Every element it reads or writes is within the slices: a matrix is made only
    // by `new`, which checks that its slice has as many values as its shape says, and transposing it swaps both
    // shape and strides; the shapes fit each other, as asserted here. The product is borrowed alone.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            depth,
            product.as_mut_ptr(),
            1,
            columns as isize,
            old == Old::Add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_plain_and_transposed_matrices_are_right() {
        let (left, right) = ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 0.0, 2.0, 1.0, 0.0, 3.0]);
        let mut product = [100.0; 4];
        multiply(&mut product, Old::Forget, Matrix::new(&left, 2, 3), Matrix::new(&right, 3, 2));
        assert_eq!(product, [5.0, 11.0, 14.0, 23.0]);
        multiply(&mut product, Old::Add, Matrix::new(&left, 2, 3), Matrix::new(&right, 2, 3).transposed());
        assert_eq!(product, [5.0 + 7.0, 11.0 + 10.0, 14.0 + 16.0, 23.0 + 22.0]);
        let mut product = [0.0; 9];
        multiply(&mut product, Old::Forget, Matrix::new(&left, 2, 3).transposed(), Matrix::new(&right, 2, 3));
        assert_eq!(product, [5.0, 0.0, 14.0, 7.0, 0.0, 19.0, 9.0, 0.0, 24.0]);
    }

    #[test]
    #[should_panic(expected = "columns of the left and rows of the right matrix")]
    fn shapes_that_do_not_fit_are_refused() {
        multiply(&mut [0.0; 4], Old::Forget, Matrix::new(&[0.0; 6], 2, 3), Matrix::new(&[0.0; 4], 2, 2));
    }
}
