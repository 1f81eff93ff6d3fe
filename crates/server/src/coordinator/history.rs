//! What has happened to a run so far, for its observers: tasks that came and went, checkpoints, rollbacks. Bounded,
//! however long the run.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use windlass_core::cluster::TaskId;
use windlass_page::figures;

/// Events that are remembered.
const EVENTS: usize = 200;
/// Checkpoints that are remembered.
const CHECKPOINTS: usize = 20;

/// Something that happened to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The time of the event, on the coordinator's clock.
    pub at: Duration,
    /// What kind of event it was.
    pub kind: HistoryKind,
    /// The event in words.
    pub text: String,
}

/// What kind of event it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryKind {
    /// A task joined.
    Joined,
    /// A task finished, or was told to stop.
    Left,
    /// A task was declared dead.
    Dead,
    /// The run goes back to a checkpoint.
    RolledBack,
    /// A checkpoint was published.
    Saved,
    /// A checkpoint could not be taken.
    NotSaved,
    /// The run began to train, or ended.
    Phase,
}

/// A checkpoint that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SavedCheckpoint {
    /// When it was published or, if by an earlier coordinator, found; on the coordinator's clock.
    pub at: Duration,
    /// When an earlier coordinator wrote it, in seconds since 1970.
    pub written_before: Option<u64>,
    /// The step whose values it holds.
    pub step: u64,
    /// The size of its parts.
    pub bytes: u64,
    /// From the first mark to the manifest.
    pub duration: Duration,
    /// The longest time that it held up a push.
    pub held_up: Duration,
}

/// What has happened to a run so far.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The last events, oldest first.
    pub events: VecDeque<HistoryEvent>,
    /// The last checkpoints, oldest first.
    pub checkpoints: VecDeque<SavedCheckpoint>,
    /// Checkpoints that were published.
    pub saved: u64,
    /// The total time that publishing them took.
    pub saving: Duration,
    /// Checkpoints that could not be taken.
    pub not_saved: u64,
    /// The number of older events that have been forgotten.
    pub forgotten: u64,
    /// Attempts in which servers missed the cut.
    pub missed: u64,
    /// How many processes have played each task.
    pub processes: BTreeMap<TaskId, u64>,
    /// The number that the last process of each task gave itself.
    last_process: BTreeMap<TaskId, u64>,
    /// How often the run rolled back to a checkpoint.
    pub rollbacks: u64,
    /// The updates that rollbacks lost.
    pub updates_lost: u64,
}

impl History {
    /// Remembers an event.
    pub(super) fn note(&mut self, at: Duration, kind: HistoryKind, text: impl Into<String>) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back(HistoryEvent { at, kind, text: text.into() });
    }

    /// Notes that a process plays a task. Its number identifies it, because after a rollback the same process rejoins.
    /// The event is recorded under `name`, which users know, if that is given.
    pub(super) fn joined(&mut self, at: Duration, task: TaskId, process: u64, name: Option<TaskId>) {
        let before = self.last_process.insert(task, process);
        if before != Some(process) {
            *self.processes.entry(task).or_default() += 1;
        }
        let again = if before.is_some() { " again" } else { "" };
        if let Some(name) = name {
            self.note(at, HistoryKind::Joined, format!("{name} joined{again}"));
        }
    }

    /// Notes that a checkpoint was published.
    pub(super) fn saved(&mut self, checkpoint: SavedCheckpoint) {
        self.remember(checkpoint);
        self.saved += 1;
        self.saving += checkpoint.duration;
        self.note(checkpoint.at, HistoryKind::Saved, format!("checkpoint of step {}", figures::count(checkpoint.step)));
    }

    /// Notes the checkpoint that the run resumes from, although this run has not written it.
    pub(super) fn resumed_from(&mut self, checkpoint: SavedCheckpoint) {
        if self.checkpoints.is_empty() {
            self.remember(checkpoint);
        }
    }

    fn remember(&mut self, checkpoint: SavedCheckpoint) {
        if self.checkpoints.len() == CHECKPOINTS {
            self.checkpoints.pop_front();
        }
        self.checkpoints.push_back(checkpoint);
    }

    /// Notes that a checkpoint could not be taken.
    pub(super) fn not_saved(&mut self, at: Duration, reason: &str) {
        self.not_saved += 1;
        self.note(at, HistoryKind::NotSaved, format!("checkpoint failed: {reason}"));
    }

    /// Notes a rollback from one step to another.
    pub(super) fn rolled_back(&mut self, at: Duration, from: u64, to: u64) {
        self.rollbacks += 1;
        self.updates_lost = self.updates_lost.saturating_add(from.saturating_sub(to));
        self.note(
            at,
            HistoryKind::RolledBack,
            format!("rolled back from step {} to step {}", figures::count(from), figures::count(to)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_written_as_everywhere_on_the_page() {
        let mut history = History::default();
        history.saved(SavedCheckpoint { step: 59561, ..SavedCheckpoint::default() });
        history.rolled_back(Duration::ZERO, 61000, 59561);
        let texts: Vec<&str> = history.events.iter().map(|event| event.text.as_str()).collect();
        assert_eq!(texts, ["checkpoint of step 59,561", "rolled back from step 61,000 to step 59,561"]);
    }

    #[test]
    fn only_the_last_events_are_remembered_but_all_are_counted() {
        let mut history = History::default();
        for step in 0..1000 {
            history.saved(SavedCheckpoint { step, duration: Duration::from_secs(1), ..SavedCheckpoint::default() });
            history.joined(Duration::from_secs(step), TaskId::worker(3), step / 2, Some(TaskId::worker(3)));
        }
        assert_eq!((history.events.len(), history.checkpoints.len()), (EVENTS, CHECKPOINTS));
        assert_eq!((history.saved, history.saving.as_secs(), history.processes[&TaskId::worker(3)]), (1000, 1000, 500));
        assert_eq!(history.events.back().unwrap().text, "worker 3 joined again");
        assert_eq!(history.checkpoints.back().unwrap().step, 999);
    }
}
