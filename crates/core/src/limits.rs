//! What ends a run: a number of updates, or a number of passes over the data.

/// The limits of a run, which ends at whichever is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Updates over all workers.
    pub steps: Option<u64>,
    /// Passes of each worker over its data.
    pub epochs: Option<u64>,
}

impl Limits {
    /// If a run has already reached a limit, returns the message for the user who starts it again. `step` is its global
    /// step, `epochs` is the number of passes of the worker that has made the fewest, and `place` is where its
    /// checkpoint is.
    pub fn finished(&self, step: u64, epochs: u64, place: &str) -> Option<String> {
        let (reached, flag) = match (self.steps, self.epochs) {
            (Some(steps), _) if step > steps => (format!("step {step}, past {steps}"), "--steps"),
            (Some(steps), _) if step == steps => (format!("step {step} of {steps}"), "--steps"),
            (_, Some(limit)) if epochs >= limit => (format!("epoch {epochs} of {limit}, step {step}"), "--epochs"),
            _ => return None,
        };
        Some(format!("the run is finished: {reached}, in {place}; a larger {flag} trains on from there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(steps: Option<u64>, epochs: Option<u64>, at: (u64, u64)) -> Option<String> {
        Limits { steps, epochs }.finished(at.0, at.1, "run")
    }

    #[test]
    fn a_run_is_finished_by_whichever_limit_it_has_reached() {
        let by_steps = "the run is finished: step 100 of 100, in run; a larger --steps trains on from there";
        assert_eq!(finished(Some(100), None, (100, 0)).as_deref(), Some(by_steps));
        assert_eq!(finished(Some(100), Some(9), (100, 3)).as_deref(), Some(by_steps));
        let past = "the run is finished: step 500, past 300, in run; a larger --steps trains on from there";
        assert_eq!(finished(Some(300), None, (500, 3)).as_deref(), Some(past));
        let by_epochs = "the run is finished: epoch 3 of 3, step 100, in run; a larger --epochs trains on from there";
        assert_eq!(finished(None, Some(3), (100, 3)).as_deref(), Some(by_epochs));
        assert_eq!(finished(Some(200), Some(3), (100, 3)).as_deref(), Some(by_epochs));
    }

    #[test]
    fn a_run_with_something_left_is_not_finished() {
        assert_eq!(finished(Some(100), Some(3), (99, 2)), None);
        assert_eq!(finished(None, None, (99, 2)), None);
    }
}
