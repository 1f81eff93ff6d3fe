//! What the checkpoint store records for a task that has lost the coordinator: whether the run has ended without it.

use std::pin::Pin;

use tracing::debug;
use windlass_checkpoint::{CheckpointError, ReadCounter, RunEnd, Store};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::limits::Limits;
use windlass_wire::control::session::Records;

use crate::checkpoint::generation_of;

/// The records of a run in its checkpoint store.
#[derive(Debug)]
pub struct RunRecords {
    location: String,
    /// What ends the run that this task is about to join.
    limits: Limits,
}

impl RunRecords {
    /// Records in the store at this location, for a task of a run with these limits. A server does not know them.
    pub fn new(location: String, limits: Limits) -> Self {
        Self { location, limits }
    }

    async fn find_outcome(&self, incarnation: Option<Incarnation>) -> Result<Option<Outcome>, CheckpointError> {
        let generation = incarnation.map(generation_of);
        // Opening the store would create a missing directory.
        if !self.location.contains("://")
            && !tokio::fs::metadata(&self.location).await.is_ok_and(|found| found.is_dir())
        {
            return Ok(None);
        }
        let store = Store::open_counted(&self.location, ReadCounter::default()).await?;
        let end = store.run_end(generation).await?;
        Ok(end.and_then(|end| judge_end(&end, incarnation.is_some(), self.limits, &self.location)))
    }
}

/// Returns what the end of a run means for a task that missed it: the run's outcome if it had a part in the run;
/// otherwise an outcome only if nothing is left to do. `None` means to keep waiting.
pub fn judge_end(end: &RunEnd, had_a_part: bool, limits: Limits, location: &str) -> Option<Outcome> {
    let code = end.ending.as_ref().map(|ending| ending.exit_code);
    let (exit_code, reason) = match (had_a_part, end.finished_at()) {
        (true, Some(step)) if code.is_none_or(|code| code == 0) => {
            (0, format!("the run ended at step {step} while this task was away"))
        }
        (true, _) => {
            let reason = end.ending.as_ref().map(|ending| ending.reason.as_str()).filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            (code.unwrap_or(exit_code::PEERS), format!("the run ended while this task was away{reason}"))
        }
        (false, Some(step)) if is_enough(end, step, limits) => {
            (0, format!("the run in {location} has ended at step {step}"))
        }
        (false, _) => return None,
    };
    Some(Outcome { exit_code, reason })
}

/// Returns whether a run that ended at this step has trained as much as a task with these limits asks for.
fn is_enough(end: &RunEnd, step: u64, Limits { steps, epochs }: Limits) -> bool {
    let trained = end.newest.as_ref().map(|manifest| &manifest.run);
    let same_epochs = trained.is_some_and(|run| {
        run.steps == steps && run.data.as_ref().is_some_and(|data| epochs.is_some() && data.epochs == epochs)
    });
    same_epochs || steps.is_some_and(|steps| steps <= step)
}

impl Records for RunRecords {
    fn outcome(&self, incarnation: Option<Incarnation>) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>> {
        Box::pin(async move {
            // A task without access to the store keeps waiting.
            self.find_outcome(incarnation).await.unwrap_or_else(|error| {
                debug!(%error, "no word from the checkpoints about the run");
                None
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use windlass_checkpoint::Ending;

    use super::*;

    #[test]
    fn who_has_slept_through_the_end_of_a_run_ends_with_its_exit_code() {
        let told = |ending: Option<u8>| {
            let ending = ending.map(|exit_code| Ending { exit_code, reason: "ps 1 was told to stop".into() });
            let end = RunEnd { newest: None, ending };
            judge_end(&end, true, Limits { steps: None, epochs: None }, "there").unwrap()
        };
        let stopped = told(Some(exit_code::TERMINATED));
        assert_eq!(stopped.exit_code, exit_code::TERMINATED);
        assert_eq!(stopped.reason, "the run ended while this task was away: ps 1 was told to stop");
        assert_eq!(told(None).exit_code, exit_code::PEERS, "an earlier version has left no word of it");
    }
}
