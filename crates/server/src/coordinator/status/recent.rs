//! Recent changes of a count: enough history to compute a speed, whether a step takes a millisecond or a minute.

use std::collections::VecDeque;
use std::time::Duration;

/// Speeds are means over this much time, or over the latest changes if those span more.
const RECENT: Duration = Duration::from_secs(5);
/// At least this many changes are kept, however old they are.
const CHANGES: usize = 4;

/// The latest values of a count, each with associated data.
#[derive(Debug)]
pub(super) struct Recent<T> {
    points: VecDeque<(Duration, u64, T)>,
}

/// From the first to the last of the latest values.
#[derive(Debug)]
pub(super) struct Span<T> {
    pub(super) seconds: f64,
    pub(super) first: (u64, T),
    pub(super) last: (u64, T),
}

impl<T> Span<T> {
    /// Returns how much the count has grown.
    pub(super) fn counted(&self) -> u64 {
        self.last.0 - self.first.0
    }
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { points: VecDeque::new() }
    }
}

impl<T: Copy> Recent<T> {
    /// Adds the current count. If the count has fallen, it belongs to something else, and the earlier values are
    /// forgotten.
    pub(super) fn push(&mut self, at: Duration, count: u64, value: T) {
        match self.points.back() {
            Some((_, last, _)) if *last == count => return,
            Some((_, last, _)) if *last > count => self.points.clear(),
            _ => {}
        }
        self.points.push_back((at, count, value));
        while self.points.len() > CHANGES && self.points[1].0 + RECENT <= at {
            self.points.pop_front();
        }
    }

    /// Forgets everything but the current value.
    pub(super) fn restart(&mut self, at: Duration, count: u64, value: T) {
        self.points.clear();
        self.push(at, count, value);
    }

    /// When the count last changed.
    pub(super) fn changed(&self) -> Option<Duration> {
        self.points.back().map(|(at, ..)| *at)
    }

    /// The longest that the count stayed the same between two of the latest changes.
    pub(super) fn longest_pause(&self) -> Duration {
        let pairs = self.points.iter().zip(self.points.iter().skip(1));
        pairs.map(|((earlier, ..), (later, ..))| *later - *earlier).max().unwrap_or_default()
    }

    /// Returns the first and the last of the latest values, and the seconds between them; `None` if there are not two
    /// values. If nothing has changed for longer than that, the time since the last change counts too.
    pub(super) fn span(&self, now: Duration) -> Option<Span<T>> {
        let ((began, first, before), (ended, last, after)) = (self.points.front()?, self.points.back()?);
        let stands_still = now.saturating_sub(*ended) > RECENT.max(2 * (*ended - *began));
        let until = if stands_still { now } else { *ended };
        (until > *began && last > first).then(|| Span {
            seconds: (until - *began).as_secs_f64(),
            first: (*first, *before),
            last: (*last, *after),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn speed(recent: &Recent<()>, now: f64) -> f64 {
        recent.span(seconds(now)).map_or(0.0, |span| span.counted() as f64 / span.seconds)
    }

    #[test]
    fn the_speed_of_fast_steps_is_that_of_the_last_seconds() {
        let mut recent = Recent::default();
        (0..100_u32).for_each(|look| recent.push(seconds(0.5 * f64::from(look)), u64::from(look * look), ()));
        assert_eq!(recent.points.len(), 11);
        assert_eq!(speed(&recent, 49.5), (99.0 * 99.0 - 89.0 * 89.0) / 5.0);
    }

    #[test]
    fn the_speed_of_slow_steps_does_not_fall_to_zero_between_them() {
        let mut recent = Recent::default();
        for look in 0..200 {
            let now = 0.5 * f64::from(look);
            recent.push(seconds(now), (now / 15.0) as u64, ());
            if now >= 15.0 {
                assert!((speed(&recent, now) - 1.0 / 15.0).abs() < 0.01, "{} at {now}", speed(&recent, now));
            }
        }
        assert_eq!(recent.longest_pause(), seconds(15.0));
    }

    #[test]
    fn the_speed_falls_when_nothing_changes_any_more_and_starts_anew_after_a_rollback() {
        let mut recent = Recent::default();
        [(0.0, 0), (1.0, 100), (2.0, 200)].into_iter().for_each(|(at, count)| recent.push(seconds(at), count, ()));
        assert_eq!((speed(&recent, 2.5), speed(&recent, 20.0)), (100.0, 10.0));
        recent.push(seconds(21.0), 50, ());
        assert_eq!(speed(&recent, 21.0), 0.0);
    }
}
