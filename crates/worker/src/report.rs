//! Reports on training between epochs: how the last steps went, how the network does on held-out data, and what follows
//! for the learning rate. This module counts and measures; the loop scores the held-out data, and the model's policy
//! judges.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use tracing::warn;
use windlass_core::run::LearningRate;
use windlass_wire::stream::frame::NOTE_BYTES;

use crate::event::{HeldOut, Report};
use crate::metrics::MetricKind;

/// How a model's training is reported.
pub struct Reports {
    /// The number of a worker's steps between reports.
    pub every: u64,
    /// The name of the score that a mean loss is shown as…
    pub score: &'static str,
    /// …and its kind.
    pub kind: MetricKind,
    /// Decides what follows from a report.
    pub policy: Box<dyn ReportPolicy>,
}

/// Judges training by a worker's reports.
pub trait ReportPolicy: Send {
    /// Decides what follows from this report.
    fn judge(&mut self, figures: Figures) -> Verdict;

    /// The policy's state as JSON. It travels with every push, so that a run continued from a checkpoint judges as if
    /// there had been no break. At most about 4,000 bytes: more ends the run.
    fn memory(&self) -> serde_json::Value;

    /// Restores the state; `None` starts afresh.
    fn recall(&mut self, memory: Option<&serde_json::Value>) -> Result<(), serde_json::Error>;
}

/// The numbers that a report is judged by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// The worker's steps so far.
    pub step: u64,
    /// The mean loss since the last report.
    pub loss: f64,
    /// The mean loss over the parts of the held-out data, if there are any.
    pub held_out: Option<f64>,
    /// The learning rate that all workers share.
    pub learning_rate: LearningRate,
}

/// What follows from a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// What is going wrong and what to do about it, in words.
    pub warning: Option<String>,
    /// The new learning rate, if it is to change. A schedule takes precedence over it.
    pub learning_rate: Option<LearningRate>,
}

/// A worker's position and counts at the time of a report.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) worker: u32,
    pub(crate) local_step: u64,
    pub(crate) global_step: u64,
    pub(crate) batch_size: usize,
}

/// A worker's reports.
pub(crate) struct Reporter {
    config: Reports,
    memory: Memory,
    /// When the timing of steps began, and how many this process has made since: both count from the last report.
    timed: (Instant, u64),
}

/// What a worker remembers between reports, and gets back when it continues from a checkpoint or in another process.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    /// The worker's step at the last report.
    reported: u64,
    /// Steps since the last report, and the sum of their losses.
    steps: u64,
    losses: f64,
    /// The policy's state.
    #[serde(default)]
    policy: Option<serde_json::Value>,
}

impl Reporter {
    pub(crate) fn new(config: Reports) -> Self {
        Self { config, memory: Memory::default(), timed: (Instant::now(), 0) }
    }

    /// The note to pass to [`Reporter::recall`], as of the last step that was counted.
    pub(crate) fn note(&self) -> anyhow::Result<String> {
        let note = serde_json::to_string(&self.memory).expect("numbers and what was JSON before");
        anyhow::ensure!(
            note.len() <= NOTE_BYTES,
            "the memory of the model's report policy is too large: {} bytes including the sums of losses; the limit is \
             {NOTE_BYTES}",
            note.len()
        );
        Ok(note)
    }

    /// Restores the state from a note; an empty note starts afresh.
    pub(crate) fn recall(&mut self, note: &str) {
        let memory = if note.is_empty() { Ok(Memory::default()) } else { serde_json::from_str(note) };
        let recalled = memory.and_then(|memory: Memory| {
            self.config.policy.recall(memory.policy.as_ref())?;
            Ok(memory)
        });
        self.memory = recalled.unwrap_or_else(|error| {
            warn!("cannot read the earlier losses, restarting plateau detection: {error}");
            // Starting afresh never fails.
            let _ = self.config.policy.recall(None);
            Memory::default()
        });
    }

    /// Starts timing.
    pub(crate) fn begin(&mut self) {
        self.timed = (Instant::now(), 0);
    }

    /// Counts a step.
    pub(crate) fn count(&mut self, loss: f32) {
        self.memory.steps += 1;
        self.memory.losses += f64::from(loss);
        self.timed.1 += 1;
    }

    /// Whether a report is due after this step of the worker. It depends on the step alone, not on where the worker
    /// began.
    pub(crate) fn is_due(&self, local_step: u64) -> bool {
        self.memory.steps > 0 && local_step != self.memory.reported && local_step.is_multiple_of(self.config.every)
    }

    /// Makes the report on the steps since the last one. Returns it with the learning rate to announce if it is to
    /// fall. Time spent scoring held-out data is not counted: `measured` is when the last step ended.
    pub(crate) fn close(
        &mut self,
        moment: Moment,
        measured: Instant,
        held_out: Vec<HeldOut>,
        current: LearningRate,
    ) -> (Report, Option<LearningRate>) {
        let (since, timed) = self.timed;
        let timed = (timed > 0).then(|| (timed as f64, measured.saturating_duration_since(since).as_secs_f64()));
        let loss = self.memory.losses / self.memory.steps as f64;
        let known: Vec<f64> = held_out.iter().filter_map(|part| part.loss).collect();
        let figures = Figures {
            step: moment.local_step,
            loss,
            held_out: (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64),
            learning_rate: current,
        };
        let verdict = self.config.policy.judge(figures);
        let report = Report {
            worker: moment.worker,
            local_step: moment.local_step,
            global_step: moment.global_step,
            learning_rate: current.rate,
            step_ms: timed.map(|(steps, seconds)| seconds * 1e3 / steps),
            samples_per_second: timed.map(|(steps, seconds)| steps * moment.batch_size as f64 / seconds.max(1e-9)),
            loss,
            score: self.config.score.to_owned(),
            kind: self.config.kind,
            held_out,
            warning: verdict.warning,
        };
        let policy = Some(self.config.policy.memory());
        self.memory = Memory { reported: moment.local_step, steps: 0, losses: 0.0, policy };
        self.begin();
        (report, verdict.learning_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: u64 = 3;

    /// Halves the rate whenever the loss is above that of the previous report.
    #[derive(Default)]
    struct Halving(Option<f64>);

    impl ReportPolicy for Halving {
        fn judge(&mut self, Figures { loss, learning_rate, .. }: Figures) -> Verdict {
            let is_above = self.0.replace(loss).is_some_and(|before| loss > before);
            let LearningRate { version, rate } = learning_rate;
            let halved = is_above.then_some(LearningRate { version: version + 1, rate: rate / 2.0 });
            Verdict { warning: None, learning_rate: halved }
        }

        fn memory(&self) -> serde_json::Value {
            self.0.into()
        }

        fn recall(&mut self, memory: Option<&serde_json::Value>) -> Result<(), serde_json::Error> {
            self.0 = memory.map_or(Ok(None), |memory| serde_json::from_value(memory.clone()))?;
            Ok(())
        }
    }

    fn reporter() -> Reporter {
        let policy = Box::new(Halving::default());
        Reporter::new(Reports { every: EVERY, score: "loss", kind: MetricKind::Loss, policy })
    }

    /// Lets a worker report on steps with losses that rise occasionally, and returns at which steps the rate fell. Its
    /// process ends after the push of each step in `ends`, and another continues from the note of that push.
    fn lowered(ends: &[u64]) -> Vec<(u64, f32)> {
        let (mut reporter, mut rate, mut falls) = (reporter(), LearningRate::initial(1.0), Vec::new());
        for step in 1..=60 {
            reporter.count((step as f32 * 0.7).sin() + step as f32 * 0.01);
            let pushed = reporter.note().unwrap();
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
    fn a_policy_that_remembers_too_much_is_an_error() {
        let mut reporter = reporter();
        reporter.memory.policy = Some(vec![1; 2000].into());
        assert!(reporter.note().is_ok());
        reporter.memory.policy = Some(vec![1; 3000].into());
        let error = reporter.note().unwrap_err().to_string();
        assert!(error.starts_with("the memory of the model's report policy is too large: 6"), "{error}");
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
