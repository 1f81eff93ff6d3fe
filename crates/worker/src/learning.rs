//! Whether the run learns, judging by the losses of one worker. This module detects problems and words the warnings;
//! the loop reports them.

use windlass_core::learning::Learning;
use windlass_core::learning::advice::{Situation, advise, describe};

use crate::event::Warning;

/// Watches a worker's losses.
#[derive(Debug)]
pub(crate) struct LearningWatch {
    worker: u32,
    situation: Situation,
    learning: Learning,
    chance: Option<f64>,
}

/// The figures of a step that the watch needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed {
    /// The global step after this step.
    pub(crate) step: u64,
    /// The loss of this step, per sample.
    pub(crate) loss: f32,
    /// How many updates old its gradient was.
    pub(crate) staleness: u64,
    /// The current learning rate.
    pub(crate) learning_rate: f32,
}

impl LearningWatch {
    /// Watches a worker whose model has this loss by guessing, if it is known.
    pub(crate) fn new(worker: u32, situation: Situation, chance: Option<f64>) -> Self {
        Self { worker, situation, learning: Learning::new(chance, 0), chance }
    }

    /// Restarts after this step, where training begins or resumes. Earlier findings concerned other parameters.
    pub(crate) fn begin_after(&mut self, step: u64) {
        self.learning = Learning::new(self.chance, step);
    }

    /// Records a step. Returns a warning the first time that a problem is noticed.
    pub(crate) fn observe(&mut self, observed: Observed) -> Option<Warning> {
        let finding = self.learning.observe(observed.step, f64::from(observed.loss), observed.staleness);
        self.situation.learning_rate = observed.learning_rate;
        self.situation.mean_staleness = self.learning.mean_staleness();
        finding.map(|finding| self.warning(finding))
    }

    /// Returns what is wrong as of the last step.
    pub(crate) fn last_warning(&self) -> Option<Warning> {
        self.learning.finding().map(|finding| self.warning(finding))
    }

    fn warning(&self, finding: windlass_core::learning::Finding) -> Warning {
        Warning {
            worker: self.worker,
            finding,
            mean_staleness: self.situation.mean_staleness,
            message: describe(&finding, &self.situation),
            hint: advise(&finding, &self.situation),
        }
    }
}
