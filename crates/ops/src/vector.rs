//! Loops tuned to the processor: its vector instructions, and the threads of the caller's rayon pool.

use rayon::prelude::*;
pub(crate) use windlass_core::vector::vectorised;

/// Below this many floats, handing a loop to other threads costs more than it saves.
const FEW: usize = 1 << 15;

/// How many of `count` items a thread should take if each costs about as much as `cost` floats.
pub(crate) fn share(count: usize, cost: usize) -> usize {
    let most = (count * cost / FEW).max(1);
    count.div_ceil(rayon::current_num_threads().min(most)).max(1)
}

/// Runs `work` on pieces of `values`.
pub(crate) fn each_piece(values: &mut [f32], work: impl Fn(&mut [f32]) + Send + Sync) {
    let piece = share(values.len(), 1);
    if piece >= values.len() { work(values) } else { values.par_chunks_mut(piece).for_each(work) }
}

/// Runs `work` on pieces of `values` and the same pieces of `with`.
pub(crate) fn each_pair(values: &mut [f32], with: &[f32], work: impl Fn(&mut [f32], &[f32]) + Sync) {
    let piece = share(values.len(), 1);
    if piece >= values.len() {
        work(values, with);
    } else {
        values.par_chunks_mut(piece).zip(with.par_chunks(piece)).for_each(|(values, with)| work(values, with));
    }
}

/// The number of partial results that fill the vector registers of a loop.
const LANES: usize = 32;

/// The largest of `values`, or minus infinity.
#[inline(always)]
pub(crate) fn largest(values: &[f32]) -> f32 {
    let larger = |left: f32, right: f32| if right > left { right } else { left };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

/// Replaces every value and returns the sum of the new ones.
#[inline(always)]
pub(crate) fn replace_and_sum(values: &mut [f32], new: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = values.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = new(chunk[lane]);
            lanes[lane] += chunk[lane];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for value in rest {
        *value = new(*value);
        sum += *value;
    }
    sum
}

/// The sum over all indices of `term`.
#[inline(always)]
pub(crate) fn sum(count: usize, term: impl Fn(usize) -> f32) -> f32 {
    const NARROW: usize = 8;
    let mut lanes = [0.0; NARROW];
    let whole = count / NARROW * NARROW;
    for start in (0..whole).step_by(NARROW) {
        for (offset, lane) in lanes.iter_mut().enumerate() {
            *lane += term(start + offset);
        }
    }
    lanes.iter().sum::<f32>() + (whole..count).map(term).sum::<f32>()
}

/// The sum of every column of a row-major matrix, row after row.
pub(crate) fn column_sums(values: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    vectorised(
        #[inline(always)]
        || {
            for row in values.chunks_exact(width) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        },
    );
    sums
}
