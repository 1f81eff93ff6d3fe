//! Reports on training between epochs: how the last steps went, how held-out data fares, and what follows for the
//! learning rate. It decides and measures; what is held out is scored by the loop.

mod overfitting;

use std::time::Instant;

use windlass_core::plateau::Plateau;
use windlass_core::run::LearningRate;

use crate::event::{HeldOut, Report};
use overfitting::Overfitting;

/// How a model's training is reported on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reports {
    /// A worker's steps from report to report.
    pub every: u64,
    /// What the learning rate, which all workers share, is multiplied with when a worker's loss is above that of its
    /// last three reports. A schedule goes before it.
    pub decay: f32,
}

/// A worker's place and numbers at the time of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) worker: u32,
    pub(crate) local_step: u64,
    pub(crate) global_step: u64,
    pub(crate) batch_size: usize,
}

/// What a worker remembers from report to report.
#[derive(Debug)]
pub(crate) struct Reporter {
    config: Reports,
    plateau: Plateau,
    overfitting: Overfitting,
    began: Instant,
    steps: u64,
    losses: f64,
    /// The worker's step of the last report.
    reported: u64,
}

impl Reporter {
    pub(crate) fn new(config: Reports) -> Self {
        Self {
            config,
            plateau: Plateau::new(config.decay),
            overfitting: Overfitting::default(),
            began: Instant::now(),
            steps: 0,
            losses: 0.0,
            reported: 0,
        }
    }

    /// Starts to count and to measure.
    pub(crate) fn begin(&mut self) {
        (self.began, self.steps, self.losses) = (Instant::now(), 0, 0.0);
    }

    /// Notes the worker's step of this number. True if a report is due: after the same steps, wherever it began.
    pub(crate) fn count(&mut self, local_step: u64, loss: f32) -> bool {
        self.steps += 1;
        self.losses += f64::from(loss);
        local_step.is_multiple_of(self.config.every) && local_step != self.reported
    }

    /// The report on the steps since the last one, and the learning rate to announce if it is to fall. Time spent on
    /// scoring held-out data is not counted: `measured` is when the last step ended.
    pub(crate) fn close(
        &mut self,
        moment: Moment,
        measured: Instant,
        held_out: Vec<HeldOut>,
        current: LearningRate,
    ) -> (Report, Option<LearningRate>) {
        let (steps, seconds) = (self.steps as f64, (measured - self.began).as_secs_f64());
        let loss = self.losses / steps;
        let known: Vec<f64> = held_out.iter().filter_map(|part| part.loss).collect();
        let held_out_loss = known.iter().sum::<f64>() / known.len() as f64;
        let warning = self.overfitting.observe(moment.local_step, loss, held_out_loss);
        let report = Report {
            worker: moment.worker,
            local_step: moment.local_step,
            global_step: moment.global_step,
            learning_rate: current.rate,
            step_ms: seconds * 1e3 / steps,
            samples_per_second: steps * moment.batch_size as f64 / seconds.max(f64::MIN_POSITIVE),
            loss,
            held_out,
            warning,
        };
        self.reported = moment.local_step;
        self.begin();
        (report, self.plateau.observe(loss, current))
    }
}
