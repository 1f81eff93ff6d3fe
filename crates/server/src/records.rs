//! What a run's checkpoint store tells a task that has lost the coordinator: whether the run has ended without it.

use std::pin::Pin;

use tracing::debug;
use windlass_checkpoint::{CheckpointError, ReadCounter, Store};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_wire::session::Records;

use crate::checkpoint::generation_of;

/// The records of a run in its checkpoint store.
#[derive(Debug)]
pub struct RunRecords {
    location: String,
    /// The step at which a run that this task is about to join has nothing left to do.
    steps: Option<u64>,
}

impl RunRecords {
    /// Records in the store at this location, for a task of a run of so many steps. A server does not know how many.
    pub fn new(location: String, steps: Option<u64>) -> Self {
        Self { location, steps }
    }

    async fn look(&self, incarnation: Option<Incarnation>) -> Result<Option<Outcome>, CheckpointError> {
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
            (None, Some(step)) if self.steps.is_some_and(|steps| steps <= step) => {
                Some((0, format!("the run in {} has ended at step {step}", self.location)))
            }
            (None, _) => None,
        }
        .map(|(exit_code, reason)| Outcome { exit_code, reason }))
    }
}

impl Records for RunRecords {
    fn outcome(&self, incarnation: Option<Incarnation>) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>> {
        Box::pin(async move {
            // A task may well have no way to the store: then it goes on waiting.
            self.look(incarnation).await.unwrap_or_else(|error| {
                debug!(%error, "no word from the checkpoints about the run");
                None
            })
        })
    }
}
