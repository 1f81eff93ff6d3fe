//! The client of a run whose model is divided among joined workers: it has the data, the loop and perhaps the parameters,
//! and whatever goes from one stage to the next goes through it.

use std::sync::Arc;

use tracing::info;
use windlass_core::cluster::WorkerId;
use windlass_worker::joined::protocol::PlacedStages;
use windlass_worker::model::Model;
use windlass_worker::summary::JoinedSummary;
use windlass_worker::task::Ended;

use super::Process;
use crate::failure::Failure;
use crate::in_graph::Client;
use crate::launch;

impl Process {
    /// The whole of it, in this process but for the stages elsewhere and the servers, if there are any.
    pub(super) fn placed<M: Model>(&mut self, flags: &M::Flags, client: &Client) -> Result<Ended, Failure> {
        let listener = launch::inherited_listener();
        let placed = self.load_placed::<M>(flags, client.workers.len())?;
        let is_soft = self.config.stages.as_ref().is_some_and(|stages| stages.is_soft);
        let stages = PlacedStages { is_soft, stages: placed.assigned().to_vec() };
        let crew = Arc::new(self.crew(&placed, client, Some(stages))?);
        placed.meet(crew.clone(), self.config.stop.clone());
        let (parameters, serving) = self.parameters_of(client, listener, 1)?;
        let (coordinator, own) = parameters;
        let worker = self.worker_config(WorkerId(0), Some(1), client.ps.len() as u32, coordinator, own);
        self.instruments.probes().started();
        let mut ended = self.train(Box::new(placed), worker);
        if let Some(summary) = &mut ended.summary {
            let told = |(worker, steps, joined)| JoinedSummary { worker, steps, joined };
            summary.joined = crew.tally().into_iter().map(told).collect();
        }
        for (worker, _, times) in crew.tally().into_iter().filter(|(_, _, times)| *times > 1) {
            info!("{worker} has joined {times} times");
        }
        crew.leave(&ended.outcome);
        Ok(self.closed(ended, serving))
    }
}
