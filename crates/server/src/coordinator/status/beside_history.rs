//! Events that the coordinator's machine does not know: joined workers that come and go, which only the client sees,
//! and updates that were lost with an earlier ps 0, which only its last status shows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::Phase;
use windlass_core::membership::Presence;

use super::Earlier;
use crate::coordinator::history::{History, HistoryEvent, HistoryKind};
use crate::coordinator::observation::Observation;

/// The most events that are remembered.
const EVENTS: usize = 100;

/// This and the machine's history together are the run's history.
#[derive(Debug, Default)]
pub(super) struct BesideHistory {
    joined: BTreeMap<TaskId, Presence>,
    events: VecDeque<HistoryEvent>,
    /// Whether the losses of an earlier ps 0 have been determined.
    is_settled: bool,
    rollbacks: u64,
    updates_lost: u64,
}

impl BesideHistory {
    /// Adds new events.
    pub(super) fn follow(&mut self, run: &Observation, earlier: Option<&Earlier>) {
        if run.layout.has_client() && !matches!(run.phase, Phase::Over(_)) {
            self.follow_joined(run);
        }
        if let Some(earlier) = earlier.filter(|_| run.phase == Phase::Training && !self.is_settled) {
            self.is_settled = true;
            // Tasks that outlived the earlier ps 0 would have told the new one, which then knows better.
            let lost = earlier.status.step.saturating_sub(run.statistics.resumed_at);
            if run.history.rollbacks == 0 && lost > 0 {
                (self.rollbacks, self.updates_lost) = (1, lost);
                let text = format!("rolled back to step {}: {lost} updates are lost", run.statistics.resumed_at);
                self.note(run.at, HistoryKind::RolledBack, text);
            }
        }
    }

    fn follow_joined(&mut self, run: &Observation) {
        let observed: BTreeSet<TaskId> = run.tasks.iter().map(|observed| observed.task).collect();
        self.joined.retain(|task, _| observed.contains(task));
        for observed in run.tasks.iter().filter(|observed| observed.task.job == Job::Worker) {
            let Some(presence) = observed.presence else { continue };
            let (task, before) = (observed.task, self.joined.insert(observed.task, presence));
            match (before, presence) {
                // A short run may have finished by the second look.
                (None, Presence::Present | Presence::Finished) => {
                    self.note(run.at, HistoryKind::Joined, format!("{task} joined"));
                }
                (Some(Presence::Dead), Presence::Present) => {
                    self.note(run.at, HistoryKind::Joined, format!("{task} joined again"));
                }
                (Some(Presence::Present), Presence::Dead) => {
                    self.note(run.at, HistoryKind::Dead, format!("lost {task}"));
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, at: Duration, kind: HistoryKind, text: String) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(HistoryEvent { at, kind, text });
    }

    /// Returns both histories combined.
    pub(super) fn with(&self, history: &History) -> History {
        let mut all = history.clone();
        all.events.extend(self.events.iter().cloned());
        all.events.make_contiguous().sort_by_key(|event| event.at);
        (all.rollbacks, all.updates_lost) =
            (all.rollbacks + self.rollbacks, all.updates_lost.saturating_add(self.updates_lost));
        all
    }
}
