//! Where each worker is in its data: what it began with, and one batch for every push since.

use std::collections::BTreeMap;

use windlass_checkpoint::{WorkerPosition, WorkerState};
use windlass_core::checkpoint::Pushes;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;

/// Where the workers are in their data.
#[derive(Debug, Default)]
pub(super) struct Positions(BTreeMap<WorkerId, Position>);

#[derive(Debug, Default)]
struct Position {
    /// The living process, of which pushes are counted.
    process: Incarnation,
    /// Batches before its first push.
    batches: u64,
    /// Batches in one pass over the data.
    pass: u64,
}

impl Positions {
    /// Goes back to where a checkpoint was taken.
    pub(super) fn restore(&mut self, states: &[WorkerState]) {
        for position in self.0.values_mut() {
            (position.process, position.batches) = (Incarnation::default(), 0);
        }
        for state in states {
            self.0.entry(state.worker).or_default().batches = state.position.local_step;
        }
    }

    /// Another process plays a worker from now on, or none; so far it has come to `pushes`.
    pub(super) fn replace(&mut self, worker: WorkerId, process: Incarnation, pushes: &Pushes) {
        let position = self.0.entry(worker).or_default();
        position.batches += position.pushed(worker, pushes);
        position.process = process;
    }

    /// Notes how many batches make one pass over a worker's data.
    pub(super) fn set_pass(&mut self, worker: WorkerId, pass: u64) {
        self.0.entry(worker).or_default().pass = pass;
    }

    /// The batches that a worker had before its process began.
    pub(super) fn began(&self, worker: WorkerId) -> u64 {
        self.0.get(&worker).map_or(0, |position| position.batches)
    }

    /// Where everyone is, once these pushes have been made.
    pub(super) fn at(&self, pushes: &Pushes) -> Vec<WorkerState> {
        let state = |(worker, position): (&WorkerId, &Position)| {
            let batches = position.batches + position.pushed(*worker, pushes);
            let pass = position.pass.max(1);
            let position = WorkerPosition { epoch: batches / pass, batch: batches % pass, local_step: batches };
            WorkerState { worker: *worker, position, state: serde_json::Value::Null }
        };
        self.0.iter().map(state).collect()
    }
}

impl Position {
    fn pushed(&self, worker: WorkerId, pushes: &Pushes) -> u64 {
        match pushes.get(&worker) {
            Some((process, sequence)) if *process == self.process => *sequence,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    fn pushes(process: u64, sequence: u64) -> Pushes {
        [(WORKER, (Incarnation(process), sequence))].into()
    }

    #[test]
    fn a_worker_started_again_goes_on_where_it_was() {
        let mut positions = Positions::default();
        positions.set_pass(WORKER, 10);
        positions.replace(WORKER, Incarnation(1), &Pushes::new());
        assert_eq!(positions.began(WORKER), 0);
        positions.replace(WORKER, Incarnation(2), &pushes(1, 25));
        assert_eq!(positions.began(WORKER), 25);
        let at = &positions.at(&pushes(2, 3))[0].position;
        assert_eq!((at.epoch, at.batch, at.local_step), (2, 8, 28));
        assert_eq!(positions.at(&pushes(1, 25))[0].position.local_step, 25, "the old process counts no more");
    }

    #[test]
    fn a_restored_position_is_where_the_next_process_begins() {
        let mut positions = Positions::default();
        positions.replace(WORKER, Incarnation(1), &Pushes::new());
        let saved = positions.at(&pushes(1, 7));
        positions.restore(&saved);
        positions.replace(WORKER, Incarnation(9), &pushes(1, 100));
        assert_eq!(positions.began(WORKER), 7);
    }
}
