//! Values counted in TensorBoard's default buckets.
//!
//! As in TensorFlow, the limits grow by a tenth from 1e-12 to 1e20 on both sides of zero. This is the `HistogramProto`
//! form, which TensorBoard converts to its own when it reads, for the Histograms and Distributions tabs.

use std::sync::LazyLock;

use crate::proto::HistogramProto;

/// The upper limits of all buckets, in ascending order.
static LIMITS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let growing = std::iter::successors(Some(1e-12), |limit| Some(limit * 1.1)).take_while(|limit| *limit < 1e20);
    let positive: Vec<f64> = growing.chain([f64::MAX]).collect();
    let negative = positive.iter().rev().map(|limit| -limit);
    negative.chain([0.0]).chain(positive.iter().copied()).collect()
});

/// For every 16-bit prefix of a float, the bucket of the lowest value with that prefix.
///
/// Floats with the same prefix are at most 1/128 apart (or all closer to zero than any limit), limits a tenth: the
/// bucket of each is this one or the next. A lookup is six times as fast as a search, which matters for millions of
/// parameters.
static FIRST_BUCKETS: LazyLock<Vec<u16>> = LazyLock::new(|| {
    let lowest = |top: u16| u32::from(top) << 16 | if top >> 15 == 1 { 0xffff } else { 0 };
    (0..=u16::MAX).map(|top| search(f32::from_bits(lowest(top)).into()) as u16).collect()
});

/// The histogram of the finite values; `None` if there are none.
///
/// NaN belongs to no bucket, and an infinite value would make all others invisible.
pub(crate) fn of(values: &[f32]) -> Option<HistogramProto> {
    let (limits, first_buckets) = (LIMITS.as_slice(), FIRST_BUCKETS.as_slice());
    let mut counts = vec![0_u64; limits.len()];
    let mut histogram = HistogramProto { min: f64::INFINITY, max: f64::NEG_INFINITY, ..HistogramProto::default() };
    for &float in values.iter().filter(|value| value.is_finite()) {
        let value = f64::from(float);
        histogram.min = histogram.min.min(value);
        histogram.max = histogram.max.max(value);
        histogram.num += 1.0;
        histogram.sum += value;
        histogram.sum_squares += value * value;
        let first = usize::from(first_buckets[(float.to_bits() >> 16) as usize]);
        counts[first + usize::from(limits[first] <= value)] += 1;
    }
    (histogram.num > 0.0).then(|| with_buckets(histogram, &counts))
}

/// Adds the buckets from the lowest value to the highest. A run of empty buckets is merged into one.
///
/// There are no empty buckets at the ends: TensorBoard's data server takes `min` and `max` for the outer edges of the
/// first and the last bucket, whatever they hold, so an empty one would run backwards.
fn with_buckets(mut histogram: HistogramProto, counts: &[u64]) -> HistogramProto {
    let first = search(histogram.min);
    let last = search(histogram.max);
    let buckets: Vec<_> = LIMITS.iter().zip(counts).take(last + 1).skip(first).collect();
    for run in buckets.chunk_by(|(_, left), (_, right)| **left == 0 && **right == 0) {
        let (limit, count) = run[run.len() - 1];
        histogram.bucket_limit.push(*limit);
        histogram.bucket.push(*count as f64);
    }
    histogram
}

/// The bucket of a finite value.
fn search(value: f64) -> usize {
    LIMITS.partition_point(|limit| *limit <= value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The (limit, count) of every bucket.
    fn buckets(values: &[f32]) -> Vec<(f64, f64)> {
        let histogram = of(values).unwrap();
        histogram.bucket_limit.into_iter().zip(histogram.bucket).collect()
    }

    #[test]
    fn the_limits_ascend_from_the_lowest_to_the_highest_number() {
        assert!(LIMITS.is_sorted_by(|left, right| left < right));
        assert_eq!((LIMITS[0], LIMITS[LIMITS.len() - 1]), (f64::MIN, f64::MAX));
        assert_eq!(LIMITS.len(), 1551);
    }

    #[test]
    fn a_value_on_a_limit_is_counted_above_it() {
        assert_eq!(buckets(&[0.0, -0.0]), [(1e-12, 2.0)]);
    }

    #[test]
    fn a_run_of_empty_buckets_is_one_bucket_and_none_at_the_ends() {
        let buckets = buckets(&[-1.0, 2.0, 2.0]);
        let counts: Vec<f64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1.0, 0.0, 2.0]);
        let limits: Vec<f64> = buckets.iter().map(|(limit, _)| *limit).collect();
        assert!(-1.0 < limits[0] && limits[0] < limits[1] && limits[1] <= 2.0 && 2.0 < limits[2], "{limits:?}");
    }

    #[test]
    fn the_moments_are_those_of_the_values() {
        let histogram = of(&[1.0, 2.0, -4.0]).unwrap();
        assert_eq!((histogram.min, histogram.max, histogram.num), (-4.0, 2.0, 3.0));
        assert_eq!((histogram.sum, histogram.sum_squares), (-1.0, 21.0));
    }

    #[test]
    fn the_largest_floats_have_a_bucket() {
        assert_eq!(buckets(&[f32::MIN]), [(LIMITS[1], 1.0)]);
        assert_eq!(buckets(&[f32::MAX]), [(f64::MAX, 1.0)]);
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        assert_eq!(of(&[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]), of(&[1.0]));
        assert_eq!(of(&[f32::NAN]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn floats_next_to_a_limit_are_in_the_right_bucket() {
        for limit in LIMITS.iter().map(|limit| *limit as f32).filter(|limit| limit.is_finite()) {
            for value in [limit.next_down(), limit, limit.next_up()] {
                let expected = LIMITS.iter().find(|limit| **limit > f64::from(value)).unwrap();
                assert_eq!(buckets(&[value]), [(*expected, 1.0)], "{value}");
            }
        }
    }

    proptest! {
        #[test]
        fn every_finite_value_is_in_the_bucket_around_it(values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..50)) {
            let finite: Vec<f64> = values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value)).collect();
            prop_assume!(!finite.is_empty());
            let mut lower = f64::NEG_INFINITY;
            for (limit, count) in buckets(&values) {
                let inside = finite.iter().filter(|value| lower <= **value && **value < limit).count();
                prop_assert_eq!(count, inside as f64);
                lower = limit;
            }
        }
    }
}
