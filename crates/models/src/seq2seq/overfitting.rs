//! Detects overfitting: the loss on held-out data rises while the training loss keeps falling.

use serde::{Deserialize, Serialize};

/// Held-out losses vary from batch to batch, so this many consecutive ones must be worse.
const IN_A_ROW: u32 = 3;
/// How much worse, as a factor of the perplexity.
const WORSE: f64 = 1.1;
/// A warning is repeated when the perplexity has grown by this factor since the last one.
const AGAIN: f64 = 2.0;

/// The best held-out loss so far, and what has happened since.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Overfitting {
    best: Option<Best>,
    worse: u32,
    warned: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Best {
    step: u64,
    training: f64,
    held_out: f64,
}

impl Overfitting {
    /// Records the mean losses of a report. Returns the text of a warning if one is due. `score` is the name of the
    /// exponential of a loss.
    pub(super) fn observe(&mut self, step: u64, training: f64, held_out: f64, score: &str) -> Option<String> {
        if !held_out.is_finite() {
            return None;
        }
        let best = match self.best {
            Some(best) if held_out > best.held_out => best,
            _ => {
                *self = Self { best: Some(Best { step, training, held_out }), worse: 0, warned: None };
                return None;
            }
        };
        let is_worse = held_out > best.held_out + WORSE.ln() && training < best.training;
        self.worse = if is_worse { self.worse + 1 } else { 0 };
        let is_news = self.warned.is_none_or(|warned| held_out > warned + AGAIN.ln());
        if self.worse < IN_A_ROW || !is_news {
            return None;
        }
        self.warned = Some(held_out);
        Some(format!(
            "since step {} the held-out {score} has risen from {:.2} to {:.2} while that of training fell \
             from {:.2} to {:.2}: the model learns its training data by heart\n\
             hint: train on more data, make the model smaller, or stop at about step {}",
            best.step,
            best.held_out.exp(),
            held_out.exp(),
            best.training.exp(),
            training.exp(),
            best.step
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(losses: &[(f64, f64)]) -> Vec<u64> {
        let mut overfitting = Overfitting::default();
        let reports = (1..).zip(losses);
        reports
            .filter_map(|(step, (train, held))| overfitting.observe(step, *train, *held, "perplexity").map(|_| step))
            .collect()
    }

    #[test]
    fn a_model_that_gets_better_at_both_is_not_warned_of() {
        assert!(warnings(&[(5.0, 5.0), (4.0, 4.5), (3.0, 4.4), (2.0, 4.3), (1.0, 4.2)]).is_empty());
    }

    #[test]
    fn three_reports_in_a_row_that_are_worse_warn_once_and_again_when_it_has_doubled() {
        let losses = [(5.0, 5.0), (4.0, 6.0), (3.0, 6.1), (2.0, 6.2), (1.5, 6.3), (1.0, 7.0), (0.9, 7.1)];
        assert_eq!(warnings(&losses), [4, 6]);
    }

    #[test]
    fn one_bad_batch_or_a_training_loss_that_rises_too_is_no_overfitting() {
        assert!(warnings(&[(5.0, 5.0), (4.0, 6.0), (3.0, 5.01), (2.0, 6.0), (2.0, 6.0)]).is_empty());
        assert!(warnings(&[(5.0, 5.0), (6.0, 6.0), (6.0, 6.1), (7.0, 6.2), (7.0, 6.3)]).is_empty());
    }

    #[test]
    fn the_warning_says_since_when_and_what_to_do() {
        let mut overfitting = Overfitting::default();
        overfitting.observe(200, 3.0, 3.0, "sampled perplexity");
        let warning =
            (2..5).find_map(|report| overfitting.observe(200 * report, 1.0, 5.0, "sampled perplexity")).unwrap();
        assert_eq!(
            warning,
            "since step 200 the held-out sampled perplexity has risen from 20.09 to 148.41 while that of training fell \
             from 20.09 to 2.72: the model learns its training data by heart\n\
             hint: train on more data, make the model smaller, or stop at about step 200"
        );
    }
}
