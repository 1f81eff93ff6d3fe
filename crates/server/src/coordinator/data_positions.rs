//! Each worker's position in its data: where it began, plus one batch for every push since, and the note that it needs
//! to continue from there.

use std::collections::BTreeMap;

use windlass_checkpoint::{WorkerPosition, WorkerState};
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;

/// The workers' positions in their data.
#[derive(Debug, Clone, Default)]
pub(super) struct DataPositions(BTreeMap<WorkerId, Position>);

#[derive(Debug, Clone, Default)]
struct Position {
    /// The worker's current process, whose pushes are counted.
    process: Incarnation,
    /// The worker's position before the first push of that process.
    began: Point,
    /// Batches in one pass over the data.
    pass: u64,
    /// The position of that process when it left or was replaced.
    left_at: Option<Point>,
}

/// A point in the data of one worker.
#[derive(Debug, Clone, Default)]
struct Point {
    /// The number of batches so far.
    batches: u64,
    /// The note of the last of them; empty if there was none.
    note: String,
    /// One batch more, if its gradient was in the round that was open.
    open: Option<OpenBatch>,
}

/// A batch whose gradient counts in a round that was open when its worker left.
#[derive(Debug, Clone)]
struct OpenBatch {
    /// The version that the round makes.
    version: u64,
    note: String,
}

impl Point {
    /// Batches in the parameters of this version, and the note of the last.
    fn in_version(&self, version: u64) -> (u64, &str) {
        match &self.open {
            Some(open) if open.version <= version => (self.batches + 1, &open.note),
            _ => (self.batches, &self.note),
        }
    }

    /// Returns the number of batches once the open round has ended, which is where the next process begins, and the
    /// note of the last.
    fn in_full(&self) -> (u64, &str) {
        self.in_version(u64::MAX)
    }
}

impl DataPositions {
    /// Returns to the positions in a checkpoint. If its steps had another number of samples, `samples` holds that
    /// number and the present one: a worker continues after as many whole passes and samples.
    pub(super) fn restore(&mut self, states: &[WorkerState], samples: Option<(u64, u64)>) {
        for position in self.0.values_mut() {
            *position = Position { pass: position.pass, ..Position::default() };
        }
        for state in states {
            let position = self.0.entry(state.worker).or_default();
            let WorkerPosition { epoch, batch, local_step } = state.position;
            let batches = match samples {
                Some((then, now)) if then != now && position.pass > 0 => {
                    epoch.saturating_mul(position.pass).saturating_add(batch.saturating_mul(then) / now.max(1))
                }
                _ => local_step,
            };
            let note = if state.state.is_null() { String::new() } else { state.state.to_string() };
            position.began = Point { batches, note, open: None };
        }
    }

    /// Records that another process plays a worker from now on, or none. Its predecessor got as far as `standing` says.
    pub(super) fn replace(&mut self, worker: WorkerId, process: Incarnation, standing: &Standing) {
        let position = self.0.entry(worker).or_default();
        position.began = position.at(worker, standing);
        position.process = process;
    }

    /// Records how far a worker's process had got when it left or was replaced. This is for positions that belong to a
    /// cut: servers that cut before this still count the pushes of the process; those that cut later have forgotten it,
    /// but hold all of its pushes.
    pub(super) fn note_left(&mut self, worker: WorkerId, standing: &Standing) {
        if let Some(position) = self.0.get_mut(&worker).filter(|position| position.left_at.is_none()) {
            position.left_at = Some(position.at(worker, standing));
        }
    }

    /// Notes how many batches make one pass over a worker's data.
    pub(super) fn set_pass(&mut self, worker: WorkerId, pass: u64) {
        self.0.entry(worker).or_default().pass = pass;
    }

    /// The batches that a worker had before its process began.
    pub(super) fn began(&self, worker: WorkerId) -> u64 {
        self.0.get(&worker).map_or(0, |position| position.began.in_full().0)
    }

    /// Returns the full epochs that a worker had made before its current process began.
    pub(super) fn epochs(&self, worker: WorkerId) -> u64 {
        self.0.get(&worker).map_or(0, |position| position.began.in_full().0 / position.pass.max(1))
    }

    /// The batches that each worker had before its process began.
    pub(super) fn all_began(&self) -> BTreeMap<WorkerId, u64> {
        self.0.iter().map(|(worker, position)| (*worker, position.began.in_full().0)).collect()
    }

    /// Returns the note that the worker's process gets back when it begins.
    pub(super) fn note(&self, worker: WorkerId) -> &str {
        self.0.get(&worker).map_or("", |position| position.began.in_full().1)
    }

    /// Returns the state of every worker at this standing.
    pub(super) fn at(&self, standing: &Standing) -> Vec<WorkerState> {
        let state = |(worker, position): (&WorkerId, &Position)| {
            let point = position.at(*worker, standing);
            let (batches, note) = point.in_version(standing.version);
            let pass = position.pass.max(1);
            let position = WorkerPosition { epoch: batches / pass, batch: batches % pass, local_step: batches };
            // A note that is not JSON could not be restored.
            WorkerState { worker: *worker, position, state: serde_json::from_str(note).unwrap_or_default() }
        };
        self.0.iter().map(state).collect()
    }
}

impl Position {
    /// Returns the worker's position in the parameters of `standing`.
    fn at(&self, worker: WorkerId, standing: &Standing) -> Point {
        let open = standing.in_open_round.get(&worker);
        match standing.pushes.get(&worker) {
            Some((process, pushed)) if *process == self.process && (*pushed > 0 || open.is_some()) => {
                let (began, note) = self.began.in_full();
                let note = standing.notes.get(&worker).map_or(if *pushed > 0 { "" } else { note }, String::as_str);
                let open = open.map(|note| OpenBatch { version: standing.version + 1, note: note.clone() });
                Point { batches: began + pushed, note: note.to_owned(), open }
            }
            Some((process, _)) if *process > self.process => self.left_at.as_ref().unwrap_or(&self.began).clone(),
            _ => self.began.clone(),
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
        Standing { pushes, notes: [(WORKER, format!("{{\"push\":{sequence}}}"))].into(), ..Standing::default() }
    }

    #[test]
    fn a_gradient_in_the_open_round_of_a_worker_that_leaves_is_counted_once_the_round_has_ended() {
        let open =
            Standing { version: 10, in_open_round: [(WORKER, "{\"push\":11}".to_owned())].into(), ..standing(1, 10) };
        let mut positions = DataPositions::default();
        positions.replace(WORKER, Incarnation(1), &Standing::default());
        let mut of_cut = positions.clone();
        of_cut.note_left(WORKER, &open);
        positions.replace(WORKER, Incarnation::default(), &open);
        let gone = |version| Standing { version, ..standing(2, 0) };
        for positions in [&of_cut, &positions] {
            let [before, after] = [10, 11].map(|version| positions.at(&gone(version)).remove(0));
            assert_eq!((before.position.local_step, before.state["push"].as_u64()), (10, Some(10)));
            assert_eq!((after.position.local_step, after.state["push"].as_u64()), (11, Some(11)));
        }
        assert_eq!(positions.began(WORKER), 11, "its successor does not repeat the batch");
        positions.replace(WORKER, Incarnation(2), &gone(10));
        assert_eq!(positions.at(&gone(10))[0].position.local_step, 10, "nor does a checkpoint lose it");
        assert_eq!(positions.at(&Standing { version: 14, ..standing(2, 3) })[0].position.local_step, 14);
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
