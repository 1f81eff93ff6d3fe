//! When a point of a curve is due: often at first, so that even a short run has a curve, then less and less often, so
//! that a long run does not write without bound. A pure function of the time since training began.

use std::time::Duration;

/// The pace of points: 600 after a minute, 4,400 after an hour, 7,600 after a day.
pub(crate) const OF_POINTS: Pace = Pace::new(Duration::from_millis(100), 1000);

/// The pace of pictures, which take more space: up to 42 after a minute, 120 after an hour, 190 after a day.
pub(crate) const OF_IMAGES: Pace = Pace::new(Duration::from_secs(1), 20);

/// How often something is written.
#[derive(Debug, Clone)]
pub(crate) struct Pace {
    /// The interval at first.
    shortest: Duration,
    /// Later, the interval is the elapsed time divided by this.
    part: u32,
    last: Option<Duration>,
}

impl Pace {
    const fn new(shortest: Duration, part: u32) -> Self {
        Self { shortest, part, last: None }
    }

    /// Whether a write is due this long after the beginning. The first always is.
    pub(crate) fn is_due(&self, time: Duration) -> bool {
        self.last.is_none_or(|last| time.saturating_sub(last) >= self.shortest.max(time / self.part))
    }

    /// Records a write at this time.
    pub(crate) fn wrote(&mut self, time: Duration) {
        self.last = Some(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when points are written in a run with this many steps of this length.
    fn times(mut pace: Pace, steps: u32, step: Duration) -> Vec<Duration> {
        let times = (1..=steps).map(|number| step * number);
        times.filter(|time| pace.is_due(*time).then(|| pace.wrote(*time)).is_some()).collect()
    }

    #[test]
    fn a_run_of_a_second_has_ten_points_from_the_first_step_on() {
        let written = times(OF_POINTS, 1000, Duration::from_millis(1));
        assert_eq!(written.len(), 10);
        assert_eq!(written[..2], [1, 101].map(Duration::from_millis));
    }

    #[test]
    fn every_step_is_a_point_if_steps_are_long() {
        assert_eq!(times(OF_POINTS, 500, Duration::from_secs(10)).len(), 500);
    }

    #[test]
    fn the_longer_a_run_the_fewer_points_in_a_given_time() {
        let after = |seconds: u32| times(OF_POINTS, seconds * 50, Duration::from_millis(20)).len();
        assert_eq!([after(60), after(3600), after(86_400)].map(|points| points / 100), [6, 44, 76]);
    }

    #[test]
    fn no_two_points_are_further_apart_than_a_thousandth_of_the_time_and_a_step() {
        let written = times(OF_POINTS, 200_000, Duration::from_millis(70));
        for pair in written.windows(2) {
            let longest = (pair[1] / 1000).max(Duration::from_millis(100)) + Duration::from_millis(70);
            assert!(pair[1] - pair[0] <= longest, "{pair:?}");
        }
    }
}
