//! The client of a run whose model is divided among joined workers: it has the data, the training loop and perhaps the
//! parameters, and all data that flows from one stage to the next passes through it.

use std::net::TcpListener;

use tracing::info;
use windlass_core::cluster::WorkerId;
use windlass_worker::joined::protocol::PlacedStages;
use windlass_worker::model::Model;
use windlass_worker::summary::JoinedSummary;
use windlass_worker::task::Ended;

use super::Process;
use super::in_graph::closed;
use crate::failure::Failure;
use crate::in_graph::Client;

impl Process {
    /// Runs everything in this process except for remote stages and the servers, if there are any.
    pub(super) fn placed<M: Model>(
        &mut self,
        flags: &M::Flags,
        client: &Client,
        listener: TcpListener,
    ) -> Result<Ended, Failure> {
        let placed = self.answering(&listener, || self.load_placed::<M>(flags, client.workers.len()))?;
        let is_soft = self.config.stages.as_ref().is_some_and(|stages| stages.is_soft);
        let stages = PlacedStages { is_soft, stages: placed.assigned().to_vec() };
        let crew = self.crew(&placed, client, Some(stages))?;
        self.joined = Some(crew.sites());
        placed.meet(crew.clone(), self.config.stop.clone());
        let ((coordinator, own), serving) = self.ready(&crew, client, listener, 1)?;
        let worker = self.worker_config(WorkerId(0), Some(1), client.ps.len() as u32, coordinator, own);
        self.instruments.probes().started();
        let mut ended = self.train(Box::new(placed), worker);
        if let Some(summary) = &mut ended.summary {
            summary.joined = crew.tally().into_iter().filter(|it| it.joined > 0).collect();
        }
        for JoinedSummary { worker, joined: times, .. } in crew.tally().into_iter().filter(|it| it.joined > 1) {
            info!("{worker} has joined {times} times");
        }
        let ended = closed(ended, serving);
        crew.leave(&ended.outcome);
        Ok(ended)
    }
}
