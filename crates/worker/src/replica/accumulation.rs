//! A step computed in parts: one after the other, because the whole batch would not fit in memory, or side by side on
//! several devices. The gradients of the parts are summed. Of a parameter accessed by row, each part has only the rows
//! that it requests.

use rayon::prelude::*;
use windlass_core::parameter::ParameterTable;
use windlass_wire::client::RowRequest;

use crate::buffer::TensorBuffer;

/// Values that one thread adds or multiplies at a time: fewer are not worth handing over.
const CHUNK: usize = 1 << 16;

/// Returns all rows that any of the parts requests, parameter by parameter.
pub(super) fn union(parts: &[&[RowRequest]]) -> Vec<RowRequest> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut union = first.to_vec();
    for part in others {
        union.iter_mut().zip(*part).for_each(|(all, own)| all.rows.extend(&own.rows));
    }
    for request in union.iter_mut().filter(|_| !others.is_empty()) {
        request.rows.sort_unstable();
        request.rows.dedup();
    }
    union
}

/// Picks the rows that a part requests from the values of `present` rows, which are in ascending order.
pub(super) fn gather(values: &[f32], present: &[u32], wanted: &[u32], width: usize) -> Vec<f32> {
    let at = positions(present, wanted);
    at.flat_map(|at| &values[at * width..][..width]).copied().collect()
}

/// Places the gradient of a part's rows among the rows of all parts. Empty if the parameter is not trained.
pub(super) fn spread(part: &[f32], all: &[u32], own: &[u32], width: usize) -> TensorBuffer {
    if part.is_empty() {
        return TensorBuffer::default();
    }
    let mut spread = vec![0.0; all.len() * width];
    for (at, row) in positions(all, own).zip(part.chunks_exact(width)) {
        spread[at * width..][..width].copy_from_slice(row);
    }
    spread.into()
}

/// Sums of the parts' gradients.
pub(super) struct Sums<'a> {
    table: &'a ParameterTable,
    /// The rows of all parts.
    rows: &'a [RowRequest],
    sums: Weighted,
}

impl<'a> Sums<'a> {
    pub(super) fn new(table: &'a ParameterTable, rows: &'a [RowRequest]) -> Self {
        Self { table, rows, sums: Weighted::default() }
    }

    /// Adds the gradients of a part with these rows, times a factor.
    pub(super) fn add_times(&mut self, factor: f32, mut gradients: Vec<TensorBuffer>, rows: &[RowRequest]) {
        for (all, own) in self.rows.iter().zip(rows) {
            let (index, width) = (all.parameter.0 as usize, self.table[all.parameter].width());
            let part = std::mem::take(&mut gradients[index]);
            gradients[index] = spread(&part, &all.rows, &own.rows, width);
        }
        self.sums.add_times(factor, gradients);
    }

    /// Returns the sums times a factor.
    pub(super) fn scaled(self, factor: f32) -> Vec<TensorBuffer> {
        let mut sums = self.sums.into_values();
        scale(factor, &mut sums);
        sums
    }
}

/// Sums of values, each times a factor.
#[derive(Default)]
pub(super) struct Weighted {
    sums: Vec<TensorBuffer>,
    /// A factor that the sums still have to be multiplied by: deferring it saves a pass over the first values.
    factor: Option<f32>,
}

impl Weighted {
    pub(super) fn add_times(&mut self, factor: f32, values: Vec<TensorBuffer>) {
        if self.sums.is_empty() {
            (self.sums, self.factor) = (values, Some(factor));
            return;
        }
        match self.factor.take().filter(|first| *first != 1.0) {
            Some(first) => self.combine(&values, |sum, value| first * sum + factor * value),
            None => self.combine(&values, |sum, value| sum + factor * value),
        }
    }

    fn combine(&mut self, values: &[TensorBuffer], combined: impl Fn(f32, f32) -> f32 + Sync) {
        for (sum, values) in self.sums.iter_mut().zip(values) {
            let (sum, values): (&mut [f32], &[f32]) = (sum, values);
            sum.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK)).for_each(|(sum, values)| {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = combined(*sum, *value));
            });
        }
    }

    pub(super) fn into_values(mut self) -> Vec<TensorBuffer> {
        if let Some(factor) = self.factor {
            scale(factor, &mut self.sums);
        }
        self.sums
    }
}

fn scale(factor: f32, values: &mut [TensorBuffer]) {
    if factor == 1.0 {
        return;
    }
    for values in values {
        values.par_chunks_mut(CHUNK).for_each(|values| values.iter_mut().for_each(|value| *value *= factor));
    }
}

/// Returns the position of each of these rows among those present.
fn positions<'a>(present: &'a [u32], wanted: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
    wanted.iter().map(|row| present.binary_search(row).expect("a part's rows are among all rows"))
}

#[cfg(test)]
mod tests {
    use windlass_core::parameter::{Access, ParameterId, ParameterKind, ParameterSpec};

    use super::*;

    fn request(rows: &[u32]) -> Vec<RowRequest> {
        vec![RowRequest { parameter: ParameterId(1), rows: rows.to_vec() }]
    }

    #[test]
    fn rows_of_all_parts_are_asked_for_once_and_in_order() {
        let parts = [request(&[2, 7]), request(&[1, 7, 9])];
        assert_eq!(union(&[&parts[0], &parts[1]]), request(&[1, 2, 7, 9]));
        assert_eq!(union(&[&parts[0]]), parts[0]);
    }

    #[test]
    fn a_part_gets_the_rows_it_asks_for() {
        let values = [10.0, 11.0, 20.0, 21.0, 70.0, 71.0];
        assert_eq!(gather(&values, &[1, 2, 7], &[1, 7], 2), [10.0, 11.0, 70.0, 71.0]);
    }

    #[test]
    fn weighted_sums_have_the_bits_of_one_product_added_after_another() {
        let values: Vec<Vec<f32>> =
            (1..=3).map(|part| (0..100).map(|at| ((at * part) as f32).sin() / 3.0).collect()).collect();
        for factors in [[0.1, 0.3, 0.6], [1.0, 0.3, 1.0], [0.7, 1.0, 0.2]] {
            for count in 1..=3 {
                let mut sums = Weighted::default();
                let mut expected = vec![0.0_f32; 100];
                for (part, factor) in values.iter().zip(factors).take(count) {
                    sums.add_times(factor, vec![part.clone().into()]);
                    expected.iter_mut().zip(part).for_each(|(sum, value)| *sum += factor * value);
                }
                assert_eq!(*sums.into_values()[0], expected[..], "{count} times {factors:?}");
            }
        }
    }

    #[test]
    fn gradients_of_parts_are_added_row_by_row() {
        let spec = |name: &str, shape: &[usize], access| ParameterSpec {
            name: name.into(),
            shape: shape.to_vec(),
            access,
            kind: ParameterKind::Trained,
        };
        let specs = vec![spec("bias", &[2], Access::Dense), spec("table", &[10, 2], Access::Rows)];
        let table = ParameterTable::new(specs).unwrap();
        let all = request(&[1, 2, 7]);
        let mut sums = Sums::new(&table, &all);
        let buffers = |bias: [f32; 2], rows: &[f32]| vec![bias.to_vec().into(), rows.to_vec().into()];
        sums.add_times(1.0, buffers([1.0, 2.0], &[1.0, 1.0, 7.0, 7.0]), &request(&[1, 7]));
        sums.add_times(1.0, buffers([3.0, 4.0], &[2.0, 2.0, 5.0, 5.0]), &request(&[2, 7]));
        assert_eq!(sums.scaled(0.5), buffers([2.0, 3.0], &[0.5, 0.5, 1.0, 1.0, 6.0, 6.0]));
    }
}
