//! Whether the run learns, as one worker sees it by its own losses. It notices and words; the loop tells.

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

/// A step, as far as it concerns the watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed {
    /// The global step after it.
    pub(crate) step: u64,
    /// Its loss, per sample.
    pub(crate) loss: f32,
    /// How many updates old its gradient was.
    pub(crate) staleness: u64,
    /// The learning rate of now.
    pub(crate) learning_rate: f32,
}

impl LearningWatch {
    /// Of a worker whose model gives a guess this loss, if it knows it.
    pub(crate) fn new(worker: u32, situation: Situation, chance: Option<f64>) -> Self {
        Self { worker, situation, learning: Learning::new(chance, 0), chance }
    }

    /// Training begins, or goes on, after this step. What was noticed before was noticed of other parameters.
    pub(crate) fn begin_after(&mut self, step: u64) {
        self.learning = Learning::new(self.chance, step);
    }

    /// Notes a step; what is wrong, the first time that it is noticed.
    pub(crate) fn observe(&mut self, observed: Observed) -> Option<Warning> {
        let finding = self.learning.observe(observed.step, f64::from(observed.loss), observed.staleness);
        self.situation.learning_rate = observed.learning_rate;
        self.situation.mean_staleness = self.learning.mean_staleness();
        finding.map(|finding| self.warning(finding))
    }

    /// What is wrong as of the last step.
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
