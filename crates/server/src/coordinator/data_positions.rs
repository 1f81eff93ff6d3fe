//! Where each worker is in its data: what it began with, and one batch for every push since. And what it wants back if
//! it has to go on from there.

use std::collections::BTreeMap;

use windlass_checkpoint::{WorkerPosition, WorkerState};
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;

/// Where the workers are in their data.
#[derive(Debug, Clone, Default)]
pub(super) struct DataPositions(BTreeMap<WorkerId, Position>);

#[derive(Debug, Clone, Default)]
struct Position {
    /// The living process, of which pushes are counted.
    process: Incarnation,
    /// Batches before its first push.
    batches: u64,
    /// The note of the last of those; empty if there was none.
    note: String,
    /// Batches in one pass over the data.
    pass: u64,
    /// Where that process was when it left or was replaced, and its last note.
    left_at: Option<(u64, String)>,
}

impl DataPositions {
    /// Goes back to where a checkpoint was taken. If its steps had another number of samples, `samples` has that and the
    /// one of now: a worker goes on after as many whole passes and samples.
    pub(super) fn restore(&mut self, states: &[WorkerState], samples: Option<(u64, u64)>) {
        for position in self.0.values_mut() {
            *position = Position { pass: position.pass, ..Position::default() };
        }
        for state in states {
            let position = self.0.entry(state.worker).or_default();
            let WorkerPosition { epoch, batch, local_step } = state.position;
            position.batches = match samples {
                Some((then, now)) if then != now && position.pass > 0 => {
                    epoch * position.pass + batch * then / now.max(1)
                }
                _ => local_step,
            };
            position.note = if state.state.is_null() { String::new() } else { state.state.to_string() };
        }
    }

    /// Another process plays a worker from now on, or none; so far it has come to where it is in `standing`.
    pub(super) fn replace(&mut self, worker: WorkerId, process: Incarnation, standing: &Standing) {
        let position = self.0.entry(worker).or_default();
        let (batches, note) = position.at(worker, standing);
        (position.batches, position.note) = (batches, note.to_owned());
        position.process = process;
    }

    /// The process that plays a worker has left or was replaced; it had come to where it is in `standing`. For positions
    /// that belong to a cut: servers that take it before that count the pushes of the process, and those that take it
    /// later have forgotten them, but hold them all.
    pub(super) fn note_left(&mut self, worker: WorkerId, standing: &Standing) {
        if let Some(position) = self.0.get_mut(&worker).filter(|position| position.left_at.is_none()) {
            let (batches, note) = position.at(worker, standing);
            position.left_at = Some((batches, note.to_owned()));
        }
    }

    /// Notes how many batches make one pass over a worker's data.
    pub(super) fn set_pass(&mut self, worker: WorkerId, pass: u64) {
        self.0.entry(worker).or_default().pass = pass;
    }

    /// The batches that a worker had before its process began.
    pub(super) fn began(&self, worker: WorkerId) -> u64 {
        self.0.get(&worker).map_or(0, |position| position.batches)
    }

    /// The whole passes over its data that a worker had made before its process began.
    pub(super) fn epochs(&self, worker: WorkerId) -> u64 {
        self.0.get(&worker).map_or(0, |position| position.batches / position.pass.max(1))
    }

    /// The batches that each worker had before its process began.
    pub(super) fn all_began(&self) -> BTreeMap<WorkerId, u64> {
        self.0.iter().map(|(worker, position)| (*worker, position.batches)).collect()
    }

    /// What the worker's process is to be given back when it begins.
    pub(super) fn note(&self, worker: WorkerId) -> &str {
        self.0.get(&worker).map_or("", |position| &position.note)
    }

    /// Where everyone is, with the workers this far.
    pub(super) fn at(&self, standing: &Standing) -> Vec<WorkerState> {
        let state = |(worker, position): (&WorkerId, &Position)| {
            let (batches, note) = position.at(*worker, standing);
            let pass = position.pass.max(1);
            let position = WorkerPosition { epoch: batches / pass, batch: batches % pass, local_step: batches };
            // What is not JSON nobody can want back.
            WorkerState { worker: *worker, position, state: serde_json::from_str(note).unwrap_or_default() }
        };
        self.0.iter().map(state).collect()
    }
}

impl Position {
    /// Batches so far, and the note of the last.
    fn at<'a>(&'a self, worker: WorkerId, standing: &'a Standing) -> (u64, &'a str) {
        match standing.pushes.get(&worker) {
            Some((process, pushed)) if *process == self.process && *pushed > 0 => {
                (self.batches + pushed, standing.notes.get(&worker).map_or("", String::as_str))
            }
            Some((process, _)) if *process > self.process => match &self.left_at {
                Some((batches, note)) => (*batches, note),
                None => (self.batches, &self.note),
            },
            _ => (self.batches, &self.note),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: WorkerId = WorkerId(1);

    #[test]
    fn a_worker_that_leaves_while_a_checkpoint_is_taken_keeps_its_place_in_the_data() {
        let standing = |process: u64, pushed: u64| Standing {
            pushes: [(WORKER, (Incarnation(process), pushed))].into(),
            ..Standing::default()
        };
        let mut positions = DataPositions::default();
        positions.set_pass(WORKER, 1000);
        positions.replace(WORKER, Incarnation(5), &Standing::default());
        let mut of_cut = positions.clone();
        let batches = |positions: &DataPositions, standing| positions.at(&standing)[0].position.local_step;
        of_cut.note_left(WORKER, &standing(5, 608));
        assert_eq!(batches(&of_cut, standing(5, 600)), 600, "cut before it left");
        assert_eq!(batches(&of_cut, standing(6, 0)), 608, "cut after it left");
        of_cut.note_left(WORKER, &standing(6, 0));
        assert_eq!(batches(&of_cut, standing(6, 3)), 608, "another process plays the worker by now");
    }

    fn standing(process: u64, sequence: u64) -> Standing {
        let pushes = [(WORKER, (Incarnation(process), sequence))].into();
        Standing { pushes, notes: [(WORKER, format!("{{\"push\":{sequence}}}"))].into() }
    }

    #[test]
    fn a_worker_started_again_goes_on_where_it_was() {
        let mut positions = DataPositions::default();
        positions.set_pass(WORKER, 10);
        positions.replace(WORKER, Incarnation(1), &Standing::default());
        assert_eq!((positions.began(WORKER), positions.note(WORKER)), (0, ""));
        positions.replace(WORKER, Incarnation(2), &standing(1, 25));
        assert_eq!((positions.began(WORKER), positions.note(WORKER)), (25, "{\"push\":25}"));
        let at = &positions.at(&standing(2, 3))[0].position;
        assert_eq!((at.epoch, at.batch, at.local_step), (2, 8, 28));
        assert_eq!(positions.at(&standing(1, 25))[0].position.local_step, 25, "the old process counts no more");
    }

    #[test]
    fn steps_of_another_size_go_on_after_as_many_passes_and_samples() {
        let mut positions = DataPositions::default();
        positions.set_pass(WORKER, 550);
        positions.replace(WORKER, Incarnation(1), &Standing::default());
        let saved = positions.at(&standing(1, 5 * 550 + 40));
        positions.set_pass(WORKER, 137); // of 400 samples instead of 100
        positions.restore(&saved, Some((100, 400)));
        assert_eq!((positions.began(WORKER), positions.epochs(WORKER)), (5 * 137 + 10, 5));
        positions.restore(&saved, Some((100, 100)));
        assert_eq!(positions.began(WORKER), 5 * 550 + 40);
    }

    #[test]
    fn a_restored_position_is_where_the_next_process_begins() {
        let mut positions = DataPositions::default();
        positions.replace(WORKER, Incarnation(1), &Standing::default());
        let saved = positions.at(&standing(1, 7));
        positions.restore(&saved, None);
        positions.replace(WORKER, Incarnation(9), &standing(1, 100));
        assert_eq!((positions.began(WORKER), positions.note(WORKER)), (7, "{\"push\":7}"));
        assert_eq!(positions.at(&Standing::default()), saved, "it has not pushed yet, and wants the same back");
    }
}
