//! A curve of bounded length: when it is full, neighbouring points are merged.

use serde::{Deserialize, Serialize};

use crate::figures;

/// The maximum number of points in a curve.
const MOST_POINTS: usize = 400;

/// Values by step. When the curve is full, each pair of neighbours is replaced by its mean, and from then on a point
/// stands for twice as many measurements. The curve thus always covers the whole run evenly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Curve {
    /// What is measured, with its unit if it has one.
    pub name: String,
    /// Whether values are fractions of a whole, from 0 to 1, which are shown as percentages.
    pub is_fraction: bool,
    /// Step and value, ordered by step. A value is missing where a measurement was not finite.
    points: Vec<(u64, Option<f64>)>,
    /// How many measurements one point stands for; 0 means 1.
    merged: u32,
    /// The measurements collected for the next point.
    open: Open,
    /// Step and value of the latest measurement, which may be part of a point or of the one to come.
    latest: Option<(u64, Option<f64>)>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Open {
    count: u32,
    sum: f64,
    broken: bool,
}

impl Curve {
    /// A curve without points.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Formats a value of this curve for people.
    pub fn shown(&self, value: f64) -> String {
        if self.is_fraction { figures::fraction(value) } else { figures::value(value) }
    }

    /// Adds a measurement. If its step is not after the last one, the run has rolled back, and all points from that
    /// step on are dropped.
    pub fn push(&mut self, step: u64, value: f64) {
        if self.last().is_some_and(|(last, _)| last > step) {
            // Some of it may have been measured before that step, but it is not known which.
            self.open = Open::default();
        }
        self.points.truncate(self.points.partition_point(|(earlier, _)| *earlier < step));
        self.latest = Some((step, value.is_finite().then_some(value)));
        self.open.count = self.open.count.saturating_add(1);
        self.open.sum += if value.is_finite() { value } else { 0.0 };
        self.open.broken |= !value.is_finite();
        if self.open.count < self.merged.max(1) {
            return;
        }
        let Open { count, sum, broken } = std::mem::take(&mut self.open);
        self.points.push((step, (!broken).then(|| sum / f64::from(count))));
        if self.points.len() >= MOST_POINTS {
            self.merge_pairs();
        }
    }

    /// Step and value of every point; the value is `None` where a measurement was not finite.
    pub fn points(&self) -> &[(u64, Option<f64>)] {
        &self.points
    }

    /// Step and value of the latest measurement, as it was measured.
    pub fn last(&self) -> Option<(u64, f64)> {
        // An earlier version has left only the points.
        let last = self.latest.or_else(|| self.points.last().copied());
        last.map(|(step, value)| (step, value.unwrap_or(f64::NAN)))
    }

    fn merge_pairs(&mut self) {
        self.merged = self.merged.max(1).saturating_mul(2);
        let mean = |pair: &[(u64, Option<f64>)]| match pair {
            [(_, one), (step, other)] => (*step, one.zip(*other).map(|(one, other)| (one + other) / 2.0)),
            _ => pair[0],
        };
        self.points = self.points.chunks(2).map(mean).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_bounded_covers_the_whole_run_and_keeps_its_mean() {
        let mut curve = Curve::new("loss");
        (1..=100_000).for_each(|step| curve.push(step, step as f64));
        assert!((MOST_POINTS / 4..MOST_POINTS).contains(&curve.points().len()), "{}", curve.points().len());
        assert!(curve.points()[0].0 < 1000 && curve.points().last().unwrap().0 > 99_000);
        let every = curve.points()[1].0 - curve.points()[0].0;
        for (step, value) in curve.points() {
            assert_eq!(value.unwrap(), *step as f64 - (every - 1) as f64 / 2.0);
        }
    }

    #[test]
    fn the_last_value_is_the_latest_measurement_however_long_the_curve() {
        let mut curve = Curve::new("loss");
        for step in 1..=5_003 {
            curve.push(step, step as f64);
            assert_eq!(curve.last(), Some((step, step as f64)));
        }
        assert!(curve.points().last().unwrap().0 < 5_003, "it is in no point yet");
        let json = serde_json::to_string(&curve).unwrap();
        assert_eq!(serde_json::from_str::<Curve>(&json).unwrap(), curve);
    }

    #[test]
    fn the_last_value_of_a_curve_of_an_earlier_version_is_its_last_point() {
        let curve: Curve = serde_json::from_str(r#"{"name": "loss", "points": [[10, 0.5], [20, 0.25]]}"#).unwrap();
        assert_eq!(curve.last(), Some((20, 0.25)));
    }

    #[test]
    fn rolling_back_forgets_what_came_after() {
        let mut curve = Curve::new("loss");
        [10, 20, 30].into_iter().for_each(|step| curve.push(step, 1.0));
        curve.push(20, 2.0);
        assert_eq!(curve.points(), [(10, Some(1.0)), (20, Some(2.0))]);
    }

    #[test]
    fn rolling_back_forgets_what_is_in_no_point_yet() {
        let mut curve = Curve::new("loss");
        (1..=4 * MOST_POINTS as u64).for_each(|step| curve.push(step, 1.0));
        let end = curve.points().last().unwrap().0;
        let every = end - curve.points()[curve.points().len() - 2].0;
        assert!(every > 2, "a point stands for several measurements");
        curve.push(end + 2, 1000.0);
        (end + 1..=end + every).for_each(|step| curve.push(step, 1.0));
        assert_eq!(curve.points().last(), Some(&(end + every, Some(1.0))));
    }

    #[test]
    fn rolling_back_to_the_beginning_leaves_the_new_measurement_alone() {
        let mut curve = Curve::new("loss");
        (1..=4 * MOST_POINTS as u64).for_each(|step| curve.push(step, 1.0));
        curve.push(1, 2.0);
        assert_eq!((curve.points(), curve.last()), ([].as_slice(), Some((1, 2.0))));
        assert_eq!(crate::chart::Chart::new(&curve).caption, "2.000 at step 1; between 2.000 and 2.000");
    }

    #[test]
    fn a_value_that_is_not_finite_is_a_gap_and_survives_json() {
        let mut curve = Curve::new("loss");
        curve.push(1, 0.5);
        curve.push(2, f64::NAN);
        let json = serde_json::to_string(&curve).unwrap();
        assert_eq!(serde_json::from_str::<Curve>(&json).unwrap(), curve);
        assert_eq!(curve.points(), [(1, Some(0.5)), (2, None)]);
    }
}
