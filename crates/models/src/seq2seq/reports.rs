//! Reacts to a worker's training reports: lowers the learning rate when the loss stops falling, and warns of a model
//! that starts to memorise its training data.

use serde::{Deserialize, Serialize};
use windlass_core::plateau::Plateau;
use windlass_worker::report::{Figures, ReportPolicy, Verdict};

use super::overfitting::Overfitting;

/// The report policy, based on perplexities.
pub(super) struct Judge {
    /// The factor for the learning rate when a worker's loss is above that of its last three reports.
    decay: f32,
    /// The name of the exponential of a loss.
    score: &'static str,
    memory: Memory,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    plateau: Plateau,
    overfitting: Overfitting,
}

impl Judge {
    pub(super) fn new(decay: f32, score: &'static str) -> Self {
        Self { decay, score, memory: Memory::default() }
    }
}

impl ReportPolicy for Judge {
    fn judge(&mut self, figures: Figures) -> Verdict {
        let Figures { step, loss, held_out, learning_rate } = figures;
        let Memory { plateau, overfitting } = &mut self.memory;
        Verdict {
            warning: held_out.and_then(|held_out| overfitting.observe(step, loss, held_out, self.score)),
            learning_rate: plateau.observe(loss, learning_rate, self.decay),
        }
    }

    fn memory(&self) -> serde_json::Value {
        serde_json::to_value(&self.memory).expect("numbers and lists of numbers")
    }

    fn recall(&mut self, memory: Option<&serde_json::Value>) -> Result<(), serde_json::Error> {
        self.memory = memory.map_or(Ok(Memory::default()), Memory::deserialize)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::run::LearningRate;

    use super::*;

    /// The reports at which the rate falls, if another process resumes from the saved memory after each of `ends`.
    fn falls(ends: &[u64]) -> Vec<(u64, f32)> {
        let (mut judge, mut rate, mut falls) = (Judge::new(0.5, "perplexity"), LearningRate::initial(1.0), Vec::new());
        for step in 1..=40 {
            let loss = (step as f64 * 0.7).sin() + step as f64 * 0.01;
            let verdict = judge.judge(Figures { step, loss, held_out: None, learning_rate: rate });
            if let Some(lower) = verdict.learning_rate {
                rate.adopt(lower);
                falls.push((step, rate.rate));
            }
            if ends.contains(&step) {
                let memory = judge.memory();
                judge = Judge::new(0.5, "perplexity");
                judge.recall(Some(&memory)).unwrap();
            }
        }
        falls
    }

    #[test]
    fn whoever_continues_from_what_was_remembered_judges_as_if_there_had_been_no_break() {
        let undisturbed = falls(&[]);
        assert!(undisturbed.len() >= 3, "{undisturbed:?}");
        for end in 1..=40 {
            assert_eq!(falls(&[end]), undisturbed, "after report {end}");
        }
    }

    #[test]
    fn memory_that_cannot_be_read_is_refused_and_none_is_a_new_beginning() {
        let mut judge = Judge::new(0.5, "perplexity");
        judge.judge(Figures { step: 1, loss: 1.0, held_out: Some(1.0), learning_rate: LearningRate::initial(1.0) });
        assert!(judge.recall(Some(&serde_json::json!({ "plateau": "high" }))).is_err());
        judge.recall(None).unwrap();
        assert_eq!(judge.memory, Memory::default());
    }
}
