//! The gradients of an open synchronous round.
//!
//! Two gradients have the same sum in either order, so they are added as they come. More are added in the order
//! they come too, unless the run is deterministic: then they are kept, and added in the order of workers.

use std::time::{Duration, Instant};

use windlass_core::cluster::WorkerId;
use windlass_core::rows::RowSum;

/// The gradient of some rows of one table.
#[derive(Debug)]
pub(in crate::shard) struct RowGradients {
    pub(in crate::shard) table: usize,
    pub(in crate::shard) rows: Vec<u32>,
    pub(in crate::shard) gradients: Vec<f32>,
}

/// One worker's gradient, or a sum of several.
#[derive(Debug, Default)]
pub(in crate::shard) struct Gradient {
    pub(in crate::shard) dense: Vec<f32>,
    pub(in crate::shard) rows: Vec<RowGradients>,
}

#[derive(Debug)]
pub(in crate::shard) struct RoundGradients {
    keep_order: bool,
    kept: Vec<(WorkerId, Gradient)>,
    sum: Option<Gradient>,
    count: usize,
    /// Spare buffers for gradients, at most as many as the largest round had gradients.
    free: Vec<Vec<f32>>,
    most: usize,
    /// When the last gradient of this round arrived.
    arrived: Option<Instant>,
}

impl RoundGradients {
    /// Creates an empty round. The number of workers is not known, because some may join later.
    pub(in crate::shard) fn new(deterministic: bool) -> Self {
        Self {
            keep_order: deterministic,
            kept: Vec::new(),
            sum: None,
            count: 0,
            free: Vec::new(),
            most: 1,
            arrived: None,
        }
    }

    /// Notes that a gradient arrives. Returns how long the round has waited for it since the previous one, if any.
    pub(in crate::shard) fn waited_for_next(&mut self, now: Instant) -> Option<Duration> {
        self.arrived.replace(now).map(|before| now - before)
    }

    /// A buffer for a gradient to arrive in.
    pub(in crate::shard) fn buffer(&mut self, elements: usize) -> Vec<f32> {
        self.free.pop().unwrap_or_else(|| vec![0.0; elements])
    }

    /// Takes back a buffer.
    pub(in crate::shard) fn recycle(&mut self, buffer: Vec<f32>) {
        if self.free.len() < self.most {
            self.free.push(buffer);
        }
    }

    pub(in crate::shard) fn add(&mut self, worker: WorkerId, gradient: Gradient) {
        self.count += 1;
        self.most = self.most.max(self.count);
        if self.keep_order {
            self.kept.push((worker, gradient));
        } else {
            self.fold(gradient);
        }
    }

    /// Returns the sum of the round's gradients and their number, and empties the round.
    pub(in crate::shard) fn take(&mut self) -> (Gradient, usize) {
        self.arrived = None;
        let mut kept = std::mem::take(&mut self.kept);
        kept.sort_by_key(|(worker, _)| *worker);
        for (_, gradient) in kept {
            self.fold(gradient);
        }
        (self.sum.take().unwrap_or_default(), std::mem::take(&mut self.count))
    }

    fn fold(&mut self, gradient: Gradient) {
        let Some(sum) = &mut self.sum else {
            self.sum = Some(gradient);
            return;
        };
        for (sum, value) in sum.dense.iter_mut().zip(&gradient.dense) {
            *sum += value;
        }
        sum.rows.extend(gradient.rows);
        self.recycle(gradient.dense);
    }
}

/// Sums one table's row gradients over a round, in ascending order of rows.
pub(in crate::shard) fn sum_rows(
    pushes: &[RowGradients],
    table: usize,
    rows: usize,
    width: usize,
) -> (Vec<u32>, Vec<f32>) {
    let mut sum = RowSum::new(rows, width);
    for push in pushes.iter().filter(|push| push.table == table) {
        sum.add(&push.rows, &push.gradients).expect("rows were checked as they arrived");
    }
    sum.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(values: &[f32]) -> Gradient {
        Gradient { dense: values.to_vec(), rows: Vec::new() }
    }

    #[test]
    fn a_deterministic_sum_does_not_depend_on_the_order_of_arrival() {
        // In single precision 1e8 + 1 - 1e8 depends on the order.
        let gradients = [1e8, 1.0, -1e8, 0.3];
        let sum = |order: [u32; 4]| {
            let mut round = RoundGradients::new(true);
            for worker in order {
                round.add(WorkerId(worker), gradient(&[gradients[worker as usize]]));
            }
            round.take().0.dense[0].to_bits()
        };
        let expected = sum([0, 1, 2, 3]);
        for order in [[3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            assert_eq!(sum(order), expected);
        }
    }

    #[test]
    fn a_round_counts_what_it_sums_and_starts_anew() {
        let mut round = RoundGradients::new(false);
        round.add(WorkerId(1), gradient(&[1.0, 2.0]));
        round.add(WorkerId(0), gradient(&[3.0, 5.0]));
        let (sum, count) = round.take();
        assert_eq!((sum.dense, count), (vec![4.0, 7.0], 2));
        assert_eq!(round.take().1, 0);
    }

    #[test]
    fn buffers_are_kept_for_as_many_gradients_as_a_round_has_had() {
        let mut round = RoundGradients::new(false);
        for _ in 0..2 {
            let arriving: Vec<Vec<f32>> = (0..5).map(|_| round.buffer(1)).collect();
            for (worker, mut dense) in (0..).zip(arriving) {
                dense[0] = 1.0;
                round.add(WorkerId(worker), Gradient { dense, rows: Vec::new() });
            }
            let (sum, count) = round.take();
            assert_eq!((sum.dense[0], count), (5.0, 5));
            round.recycle(sum.dense);
        }
        assert_eq!(round.free.len(), 5, "none was allocated for the second round");
    }

    #[test]
    fn rows_of_several_workers_are_summed_by_number() {
        let push = |rows: &[u32], gradients: &[f32]| RowGradients {
            table: 0,
            rows: rows.to_vec(),
            gradients: gradients.to_vec(),
        };
        let pushes = [
            push(&[4, 1], &[1.0, 10.0]),
            push(&[1], &[5.0]),
            RowGradients { table: 1, rows: vec![0], gradients: vec![9.0] },
        ];
        assert_eq!(sum_rows(&pushes, 0, 5, 1), (vec![1, 4], vec![15.0, 1.0]));
    }
}
