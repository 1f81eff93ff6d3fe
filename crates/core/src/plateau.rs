//! A learning rate that falls when the loss stops falling.
//!
//! Every worker watches its own losses, and the rate is shared: the workers together must lower it once per plateau,
//! not once each. A worker lowers the rate only if it has not changed since the worker's last report. If another worker
//! has lowered it meanwhile, that was for the same plateau; if another lowers it at the same moment, both announce the
//! same rate under the same version, which counts once.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::run::LearningRate;

/// The number of earlier losses that a loss is compared with.
const REMEMBERED: usize = 3;

/// One worker's memory of its losses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    losses: VecDeque<f64>,
    /// The version of the rate at the last report.
    version: u64,
}

impl Plateau {
    /// Judges the mean loss of a report. If it is above the largest of the three before it, returns the rate to
    /// announce to all workers: `current` times `decay`.
    pub fn observe(&mut self, loss: f64, current: LearningRate, decay: f32) -> Option<LearningRate> {
        let stood = current.version == self.version;
        let is_plateau = self.losses.len() == REMEMBERED && self.losses.iter().all(|earlier| loss > *earlier);
        if self.losses.len() == REMEMBERED {
            self.losses.pop_front();
        }
        self.losses.push_back(loss);
        let lowered = LearningRate { version: current.version.saturating_add(1), rate: current.rate * decay };
        let announced = (is_plateau && stood).then_some(lowered);
        self.version = announced.unwrap_or(current).version;
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workers that share a rate, and report in turn.
    fn rates(workers: usize, reports: &[(usize, f64)]) -> Vec<f32> {
        let mut plateaus = vec![Plateau::default(); workers];
        let mut rate = LearningRate::initial(1.0);
        let report = |(worker, loss): &(usize, f64)| {
            if let Some(lowered) = plateaus[*worker].observe(*loss, rate, 0.5) {
                rate.adopt(lowered);
            }
            rate.rate
        };
        reports.iter().map(report).collect()
    }

    #[test]
    fn the_rate_falls_when_the_loss_is_above_the_last_three() {
        let losses = [5.0, 4.0, 3.0, 4.5, 5.5, 5.5, 5.6].map(|loss| (0, loss));
        assert_eq!(rates(1, &losses), [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]);
    }

    #[test]
    fn two_reports_are_not_enough_to_know_a_plateau() {
        assert_eq!(rates(1, &[(0, 1.0), (0, 2.0), (0, 3.0)]), [1.0; 3]);
    }

    #[test]
    fn workers_that_meet_the_same_plateau_lower_the_rate_once() {
        let falling = [(0, 3.0), (1, 3.0), (0, 2.0), (1, 2.0), (0, 1.0), (1, 1.0)];
        let plateau = [(0, 4.0), (1, 4.0)];
        assert_eq!(rates(2, &[&falling[..], &plateau].concat())[6..], [0.5, 0.5]);
        // The loss is still worse a report later: that is another plateau.
        let again = [(0, 5.0), (1, 5.0)];
        assert_eq!(rates(2, &[&falling[..], &plateau, &again].concat())[8..], [0.25, 0.25]);
    }

    #[test]
    fn two_that_decide_before_they_hear_of_each_other_count_once() {
        let mut workers = vec![Plateau::default(); 2];
        let mut rate = LearningRate::initial(1.0);
        let mut announced = Vec::new();
        for loss in [3.0, 2.0, 1.0, 4.0] {
            announced = workers.iter_mut().filter_map(|worker| worker.observe(loss, rate, 0.5)).collect();
        }
        assert_eq!(announced.len(), 2);
        announced.into_iter().for_each(|lowered| rate.adopt(lowered));
        assert_eq!(rate, LearningRate { version: 1, rate: 0.5 });
    }
}
