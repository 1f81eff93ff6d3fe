//! Reports on training between epochs: how the last steps went, how held-out data fares, and what follows for the
//! learning rate. It decides and measures; what is held out is scored by the loop.

mod overfitting;

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracing::warn;
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
    /// Whether losses are among a sample of the classes, and perplexities are to be called so.
    pub sampled: bool,
}

/// A worker's place and numbers at the time of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) worker: u32,
    pub(crate) local_step: u64,
    pub(crate) global_step: u64,
    pub(crate) batch_size: usize,
}

/// A worker's reports.
#[derive(Debug)]
pub(crate) struct Reporter {
    config: Reports,
    memory: Memory,
    /// Since when steps are timed, and how many: those of this process since the last report.
    timed: (Instant, u64),
}

/// What a worker remembers from report to report, and gets back when it has to go on from a checkpoint or in another
/// process.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    /// The worker's step of the last report.
    reported: u64,
    /// Steps since the last report, and the sum of their losses.
    steps: u64,
    losses: f64,
    plateau: Plateau,
    overfitting: Overfitting,
}

impl Reporter {
    pub(crate) fn new(config: Reports) -> Self {
        Self { config, memory: Memory::default(), timed: (Instant::now(), 0) }
    }

    /// What is to be brought back to [`Reporter::recall`], as of the last step that was counted.
    pub(crate) fn note(&self) -> String {
        serde_json::to_string(&self.memory).expect("numbers and lists of numbers")
    }

    /// Goes on from a note, or without one as if nothing had been.
    pub(crate) fn recall(&mut self, note: &str) {
        self.memory = match serde_json::from_str(note) {
            Ok(memory) => memory,
            Err(_) if note.is_empty() => Memory::default(),
            Err(error) => {
                warn!("cannot read the earlier losses, restarting plateau detection: {error}");
                Memory::default()
            }
        };
    }

    /// Starts to measure.
    pub(crate) fn begin(&mut self) {
        self.timed = (Instant::now(), 0);
    }

    /// Notes a step.
    pub(crate) fn count(&mut self, loss: f32) {
        self.memory.steps += 1;
        self.memory.losses += f64::from(loss);
        self.timed.1 += 1;
    }

    /// True if a report is due after the worker's step of this number: after the same steps, wherever it began.
    pub(crate) fn is_due(&self, local_step: u64) -> bool {
        self.memory.steps > 0 && local_step != self.memory.reported && local_step.is_multiple_of(self.config.every)
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
        let (since, timed) = self.timed;
        let timed = (timed > 0).then(|| (timed as f64, measured.saturating_duration_since(since).as_secs_f64()));
        let Memory { reported, steps, losses, plateau, overfitting } = &mut self.memory;
        let loss = *losses / *steps as f64;
        let known: Vec<f64> = held_out.iter().filter_map(|part| part.loss).collect();
        let held_out_loss = known.iter().sum::<f64>() / known.len() as f64;
        let warning = overfitting.observe(moment.local_step, loss, held_out_loss, self.config.sampled);
        let report = Report {
            worker: moment.worker,
            local_step: moment.local_step,
            global_step: moment.global_step,
            learning_rate: current.rate,
            step_ms: timed.map(|(steps, seconds)| seconds * 1e3 / steps),
            samples_per_second: timed.map(|(steps, seconds)| steps * moment.batch_size as f64 / seconds.max(1e-9)),
            loss,
            sampled: self.config.sampled,
            held_out,
            warning,
        };
        (*reported, *steps, *losses) = (moment.local_step, 0, 0.0);
        let lowered = plateau.observe(loss, current, self.config.decay);
        self.begin();
        (report, lowered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u64 = 3;

    fn reporter() -> Reporter {
        Reporter::new(Reports { every: EVERY, decay: 0.5, sampled: false })
    }

    /// Lets a worker report on steps with losses that rise now and then, and says at which steps the rate fell. Its
    /// process ends after the push of each step in `ends`, and another goes on from the note of that push.
    fn lowered(ends: &[u64]) -> Vec<(u64, f32)> {
        let (mut reporter, mut rate, mut falls) = (reporter(), LearningRate::initial(1.0), Vec::new());
        for step in 1..=60 {
            reporter.count((step as f32 * 0.7).sin() + step as f32 * 0.01);
            let pushed = reporter.note();
            if ends.contains(&step) {
                reporter = self::reporter();
                reporter.recall(&pushed);
            }
            if !reporter.is_due(step) {
                continue;
            }
            let moment = Moment { worker: 0, local_step: step, global_step: step, batch_size: 1 };
            if let (_, Some(lower)) = reporter.close(moment, Instant::now(), Vec::new(), rate) {
                rate.adopt(lower);
                falls.push((step, rate.rate));
            }
        }
        falls
    }

    #[test]
    fn whoever_goes_on_from_a_note_lowers_the_rate_when_it_would_have_fallen_anyway() {
        let undisturbed = lowered(&[]);
        assert!(undisturbed.len() >= 3, "{undisturbed:?}");
        for end in 1..=60 {
            assert_eq!(lowered(&[end]), undisturbed, "after step {end}");
        }
        assert_eq!(lowered(&Vec::from_iter(1..=60)), undisturbed);
    }

    #[test]
    fn a_note_that_cannot_be_read_is_as_none() {
        let mut reporter = reporter();
        reporter.count(1.0);
        reporter.recall("{\"steps\":\"many\"}");
        assert_eq!(reporter.memory, Memory::default());
        assert!(!reporter.is_due(0));
    }
}
