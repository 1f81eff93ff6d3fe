//! Durations counted in buckets, so that percentiles over a whole run take a fixed amount of memory and several
//! workers' histograms can be added up.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Each bucket is this much wider than the one before: percentiles are exact to 1%.
const GROWTH: f64 = 1.01;

/// A histogram of durations.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Durations {
    buckets: BTreeMap<u32, u64>,
    count: u64,
    total_ms: f64,
}

impl Durations {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let bucket = (duration.as_nanos().max(1) as f64).ln() / GROWTH.ln();
        *self.buckets.entry(bucket as u32).or_default() += 1;
        self.count += 1;
        self.total_ms += duration.as_secs_f64() * 1e3;
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Durations) {
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(*bucket).or_default() += count;
        }
        self.count += other.count;
        self.total_ms += other.total_ms;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean in milliseconds; zero if nothing was counted.
    pub fn mean_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total_ms / self.count as f64 }
    }

    /// The duration below which `percent` percent of all durations lie, in milliseconds; zero if nothing was counted.
    pub fn percentile_ms(&self, percent: f64) -> f64 {
        let rank = (self.count as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return GROWTH.powf(f64::from(*bucket) + 0.5) / 1e6;
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_one_percent() {
        let mut durations = Durations::default();
        for micros in 1..=1000 {
            durations.record(Duration::from_micros(micros));
        }
        assert!((durations.percentile_ms(50.0) - 0.5).abs() < 0.005);
        assert!((durations.percentile_ms(95.0) - 0.95).abs() < 0.0095);
        assert!((durations.mean_ms() - 0.5005).abs() < 1e-9);
    }

    #[test]
    fn merging_equals_recording_together() {
        let (mut left, mut right, mut both) = (Durations::default(), Durations::default(), Durations::default());
        for micros in 1..=100 {
            let duration = Duration::from_micros(micros * micros);
            if micros % 3 == 0 {
                left.record(duration)
            } else {
                right.record(duration)
            }
            both.record(duration);
        }
        left.merge(&right);
        assert_eq!(left.buckets, both.buckets);
        assert_eq!(left.count(), 100);
    }

    #[test]
    fn an_empty_histogram_says_zero() {
        assert_eq!(Durations::default().percentile_ms(50.0), 0.0);
        assert_eq!(Durations::default().mean_ms(), 0.0);
    }
}
