//! The loss of a layout as a line: the points of each history are merged until the line is smooth, and several runs
//! become their median and range.

use crate::columns::Figure;
use crate::history::{History, Point};

/// The approximate number of points of a line.
const POINTS: usize = 120;

/// What the loss is drawn against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Time,
    Samples,
}

/// The unit of an axis.
pub(super) struct Unit {
    pub(super) label: String,
    /// The number of seconds or samples in a unit.
    pub(super) size: f64,
}

impl Axis {
    fn of(self, point: &Point) -> f64 {
        match self {
            Axis::Time => point.seconds,
            Axis::Samples => point.samples as f64,
        }
    }

    /// Chooses a unit in which the last value of the axis is easy to read.
    pub(super) fn unit(self, last: f64) -> Unit {
        let (name, size) = match self {
            Axis::Time if last < 600.0 => ("time since the start, in seconds", 1.0),
            Axis::Time if last < 3.0 * 3600.0 => ("time since the start, in minutes", 60.0),
            Axis::Time => ("time since the start, in hours", 3600.0),
            Axis::Samples if last < 1e4 => ("samples seen by all workers", 1.0),
            Axis::Samples if last < 3e6 => ("samples seen by all workers, in thousands", 1e3),
            Axis::Samples => ("samples seen by all workers, in millions", 1e6),
        };
        Unit { label: name.to_owned(), size }
    }
}

/// A line and, over several runs, the band around it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Curve(Vec<(f64, Figure)>);

impl Curve {
    /// The curve of several runs of one layout; `None` if none of them has enough history.
    pub(super) fn of<'a>(histories: impl Iterator<Item = &'a History>, axis: Axis) -> Option<Self> {
        let lines: Vec<Vec<(f64, f64)>> =
            histories.map(|history| smooth(history, axis)).filter(|line| line.len() > 1).collect();
        match &*lines {
            [] => None,
            [line] => Some(Self(line.iter().filter_map(|(x, loss)| Some((*x, Figure::of([*loss])?))).collect())),
            lines => {
                let start = lines.iter().map(|line| line[0].0).fold(0.0, f64::max);
                let end = Figure::of(lines.iter().map(|line| line[line.len() - 1].0))?.median;
                let at = |index: usize| start + (end - start) * (index as f64 / (POINTS - 1) as f64).powi(2);
                let figure = |x: f64| Figure::of(lines.iter().filter_map(|line| interpolate(line, x)));
                Some(Self((0..POINTS).map(at).filter_map(|x| Some((x, figure(x)?))).collect()))
            }
        }
    }

    pub(super) fn points(&self) -> Vec<(f64, f64)> {
        self.0.iter().map(|(x, figure)| (*x, figure.median)).collect()
    }

    /// The outline of the area between the smallest and the largest values; `None` for a single run.
    pub(super) fn band(&self) -> Option<Vec<(f64, f64)>> {
        let is_wide = self.0.iter().any(|(_, figure)| figure.count > 1);
        let above = self.0.iter().map(|(x, figure)| (*x, figure.max));
        let below = self.0.iter().rev().map(|(x, figure)| (*x, figure.min));
        is_wide.then(|| above.chain(below).collect())
    }

    /// The smallest and the largest value.
    pub(super) fn range(&self) -> (f64, f64) {
        let lows = self.0.iter().map(|(_, figure)| figure.min);
        let highs = self.0.iter().map(|(_, figure)| figure.max);
        (lows.fold(f64::INFINITY, f64::min), highs.fold(f64::NEG_INFINITY, f64::max))
    }

    pub(super) fn end(&self) -> f64 {
        self.0.last().map_or(0.0, |(x, _)| *x)
    }

    /// The same in other units.
    pub(super) fn scaled(&self, unit: f64) -> Self {
        Self(self.0.iter().map(|(x, figure)| (x / unit, *figure)).collect())
    }
}

/// Merges the points of a history until noise averages out: each section of the axis becomes the mean over its steps,
/// placed in its middle. The first point is kept, and the last one lies at the end.
fn smooth(history: &History, axis: Axis) -> Vec<(f64, f64)> {
    let Some((first, rest)) = history.points.split_first() else { return Vec::new() };
    let (start, end) = (axis.of(first), history.points.last().map_or(0.0, |last| axis.of(last)));
    let part = |point: &Point| {
        let along = (axis.of(point) - start) / (end - start).max(f64::MIN_POSITIVE);
        // Points are denser at the start, where the loss falls fastest.
        (along.sqrt() * POINTS as f64).ceil() as usize
    };
    let mut line = vec![(start, first.loss)];
    let mut before = first;
    for together in rest.chunk_by(|one, other| part(one) == part(other)) {
        let (mut losses, mut steps, from) = (0.0, 0.0, before);
        for point in together {
            let own_steps = point.step.saturating_sub(before.step).max(1) as f64;
            (losses, steps, before) = (losses + point.loss * own_steps, steps + own_steps, point);
        }
        line.push(((axis.of(from) + axis.of(before)) / 2.0, losses / steps));
    }
    if let [_, .., last] = &mut *line {
        last.0 = end;
    }
    line
}

/// The value of a line at `x`; `None` if the line does not reach that far.
fn interpolate(line: &[(f64, f64)], x: f64) -> Option<f64> {
    let after = line.iter().position(|(at, _)| *at >= x)?;
    let (to, value) = line[after];
    let Some((from, earlier)) = after.checked_sub(1).map(|before| line[before]) else {
        return (to == x).then_some(value);
    };
    Some(earlier + (value - earlier) * (x - from) / (to - from).max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A noisy loss that halves with every tenth of the run.
    fn history(points: u32, noise: f64) -> History {
        let point = |index: u32| {
            let along = f64::from(index) / f64::from(points - 1);
            let off = if index.is_multiple_of(2) { noise } else { -noise };
            Point {
                seconds: 1.0 + 9.0 * along,
                step: 1 + u64::from(index),
                samples: 10 * (1 + u64::from(index)),
                loss: 8.0 * (0.5_f64).powf(10.0 * along) + if index == 0 { 0.0 } else { off },
                resumptions: 0,
            }
        };
        History { points: (0..points).map(point).collect(), ..History::default() }
    }

    #[test]
    fn noise_averages_out_and_the_curve_stays_where_it_was() {
        let curve = Curve::of([&history(5000, 0.5)].into_iter(), Axis::Time).unwrap();
        let points = curve.points();
        assert!(points.len() <= POINTS + 1 && points[0] == (1.0, 8.0) && curve.end() == 10.0, "{points:?}");
        // Earlier sections contain only a few steps.
        for (seconds, loss) in points[..points.len() - 1].iter().filter(|(seconds, _)| *seconds > 1.2) {
            let expected = 8.0 * (0.5_f64).powf(10.0 * (seconds - 1.0) / 9.0);
            assert!((loss - expected).abs() < 0.15, "{loss} and not {expected} after {seconds} s");
        }
    }

    #[test]
    fn several_runs_make_a_band_around_their_median() {
        let runs = [history(500, 0.0), history(400, 0.0), history(300, 0.0)];
        let curve = Curve::of(runs.iter(), Axis::Samples).unwrap();
        assert_eq!(curve.end(), 4000.0);
        let band = curve.band().unwrap();
        assert_eq!(band.len(), 2 * curve.points().len());
        let is_within =
            |(x, figure): &(f64, Figure)| *x >= 10.0 && figure.min <= figure.median && figure.median <= figure.max;
        assert!(curve.0.iter().all(is_within), "{curve:?}");
        assert!(Curve::of([&history(500, 0.0)].into_iter(), Axis::Time).unwrap().band().is_none());
    }

    #[test]
    fn a_history_of_one_point_is_no_curve() {
        let history = History { points: history(2, 0.0).points[..1].to_vec(), ..History::default() };
        assert_eq!(Curve::of([&history].into_iter(), Axis::Time), None);
    }
}
