//! Means and rates of all steps between two points of a curve, so that every step counts, however far apart the points
//! are.

use std::time::{Duration, Instant};

use crate::tally::Tally;

/// A worker's tally at the last point.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TallySnapshot {
    at: Instant,
    own_steps: u64,
    global_step: u64,
    losses: f64,
    staleness: u64,
    compute: Duration,
    wait: Duration,
    data: Duration,
}

/// The steps of a worker since the last point. Times are means over its steps; rates are per second of wall time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Span {
    pub(crate) loss: f64,
    pub(crate) staleness: f64,
    pub(crate) compute_ms: f64,
    pub(crate) wait_ms: f64,
    pub(crate) data_ms: f64,
    pub(crate) own_steps_per_second: f64,
    pub(crate) updates_per_second: f64,
}

impl Span {
    /// The mean step time. Work between steps, such as scoring, does not count.
    pub(crate) fn step_ms(&self) -> f64 {
        self.compute_ms + self.wait_ms + self.data_ms
    }
}

impl TallySnapshot {
    pub(crate) fn new(tally: &Tally, at: Instant) -> Self {
        Self {
            at,
            own_steps: tally.own_steps,
            global_step: tally.global_step,
            losses: tally.losses,
            staleness: tally.staleness,
            compute: tally.compute,
            wait: tally.wait,
            data: tally.data,
        }
    }

    /// Returns what has been done since the snapshot, or `None` if there was no step.
    pub(crate) fn since(&self, tally: &Tally, now: Instant) -> Option<Span> {
        let steps = tally.own_steps.saturating_sub(self.own_steps);
        if steps == 0 {
            return None;
        }
        let each = |sum: f64| sum / steps as f64;
        let mean_ms = |total: Duration, before: Duration| each(total.saturating_sub(before).as_secs_f64() * 1e3);
        let seconds = now.saturating_duration_since(self.at).as_secs_f64().max(1e-9);
        Some(Span {
            loss: each(tally.losses - self.losses),
            staleness: each(tally.staleness.saturating_sub(self.staleness) as f64),
            compute_ms: mean_ms(tally.compute, self.compute),
            wait_ms: mean_ms(tally.wait, self.wait),
            data_ms: mean_ms(tally.data, self.data),
            own_steps_per_second: steps as f64 / seconds,
            updates_per_second: tally.global_step.saturating_sub(self.global_step) as f64 / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_means_and_rates_of_its_own_steps_alone() {
        let began = Instant::now();
        let mut tally = Tally { own_steps: 10, global_step: 100, losses: 50.0, staleness: 7, ..Tally::default() };
        tally.compute = Duration::from_secs(3);
        let snapshot = TallySnapshot::new(&tally, began);
        assert_eq!(snapshot.since(&tally, began + Duration::from_secs(1)), None);
        tally.own_steps += 4;
        tally.global_step += 12;
        tally.losses += 2.0;
        tally.staleness += 8;
        tally.compute += Duration::from_millis(8);
        tally.wait += Duration::from_millis(4);
        tally.data += Duration::from_millis(2);
        let span = snapshot.since(&tally, began + Duration::from_secs(2)).unwrap();
        assert_eq!((span.loss, span.staleness), (0.5, 2.0));
        assert_eq!((span.compute_ms, span.wait_ms, span.data_ms, span.step_ms()), (2.0, 1.0, 0.5, 3.5));
        assert_eq!((span.own_steps_per_second, span.updates_per_second), (2.0, 6.0));
    }
}
