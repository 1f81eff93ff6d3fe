//! What a run's checkpoint store tells a task that has lost the coordinator: whether the run has ended without it.

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
        // A directory that is not there would be made.
        if !self.location.contains("://")
            && !tokio::fs::metadata(&self.location).await.is_ok_and(|found| found.is_dir())
        {
            return Ok(None);
        }
        let store = Store::open_counted(&self.location, ReadCounter::default()).await?;
        let Some(end) = store.run_end(generation).await? else { return Ok(None) };
        let finished = end.finished_at();
        Ok(match (incarnation, finished) {
            (Some(_), Some(step)) => Some((0, format!("the run ended at step {step} while this task was away"))),
            (Some(_), None) => Some((exit_code::PEERS, "the run ended while this task was away".to_owned())),
            (None, Some(step)) if self.is_enough(&end, step) => {
                Some((0, format!("the run in {} has ended at step {step}", self.location)))
            }
            (None, _) => None,
        }
        .map(|(exit_code, reason)| Outcome { exit_code, reason }))
    }
}

impl RunRecords {
    /// Whether a run that ended at this step has had what this task would train for.
    fn is_enough(&self, end: &RunEnd, step: u64) -> bool {
        let Limits { steps, epochs } = self.limits;
        let trained = end.newest.as_ref().map(|manifest| &manifest.run);
        let same_epochs = trained.is_some_and(|run| {
            run.steps == steps && run.data.as_ref().is_some_and(|data| epochs.is_some() && data.epochs == epochs)
        });
        same_epochs || steps.is_some_and(|steps| steps <= step)
    }
}

impl Records for RunRecords {
    fn outcome(&self, incarnation: Option<Incarnation>) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>> {
        Box::pin(async move {
            // A task may well have no way to the store: then it goes on waiting.
            self.find_outcome(incarnation).await.unwrap_or_else(|error| {
                debug!(%error, "no word from the checkpoints about the run");
                None
            })
        })
    }
}
