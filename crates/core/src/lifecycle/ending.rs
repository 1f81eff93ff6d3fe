//! How a run ends: with a last checkpoint if there are parameters worth saving, otherwise at once.

use super::{Decision, Lifecycle, NOT_SAVED, Outcome, Phase, exit_code};
use crate::cluster::{Job, TaskId, WorkerId};
use crate::membership::Presence;

impl Lifecycle {
    /// Handles a failure that ends the run.
    pub fn failed(&mut self, outcome: Outcome) -> Vec<Decision> {
        self.end(outcome)
    }

    /// Handles a failure of a task that ends the run. If the task is a worker, it will say goodbye.
    pub fn task_failed(&mut self, task: TaskId, exit_code: u8, error: String) -> Vec<Decision> {
        let name = self.named(task).to_string();
        let reason = if error.starts_with(&name) { error.clone() } else { format!("{name}: {error}") };
        if task.job == Job::Worker {
            self.failures.insert(WorkerId(task.index), error);
        }
        self.end(Outcome { exit_code, reason })
    }

    /// Ends the run because another coordinator has taken it over. Nothing can be saved any more.
    pub fn overtaken(&mut self, outcome: Outcome) -> Vec<Decision> {
        self.end_at_once(outcome)
    }

    /// Ends the run, after a last checkpoint if there are parameters worth saving.
    pub fn end(&mut self, outcome: Outcome) -> Vec<Decision> {
        let trained = matches!(self.phase, Phase::Training | Phase::Finishing);
        let sound = outcome.exit_code != exit_code::NUMERIC;
        let reachable = self.active_servers().all(|task| self.membership.presence(task) != Some(Presence::Dead));
        if self.config.checkpoints && trained && sound && reachable {
            self.phase = Phase::Saving(outcome);
            return vec![Decision::Save];
        }
        if matches!(self.phase, Phase::Saving(_)) { Vec::new() } else { self.end_at_once(outcome) }
    }

    /// Records that all parts of the last checkpoint are written, and that it is about to be published. Losing a server
    /// from now on does not affect it.
    pub fn parts_written(&mut self) {
        self.parts_are_written = matches!(self.phase, Phase::Saving(_));
    }

    /// Handles a failure to publish the last checkpoint. Another attempt needs the servers again, so a server that was
    /// lost meanwhile counts as lost now.
    pub fn not_published(&mut self) -> Vec<Decision> {
        self.parts_are_written = false;
        self.lost_meanwhile.take().map_or_else(Vec::new, |reason| self.server_lost(reason))
    }

    /// Records that the last checkpoint is written.
    pub fn saved(&mut self) -> Vec<Decision> {
        match &self.phase {
            Phase::Saving(outcome) => {
                let outcome = outcome.clone();
                self.end_at_once(outcome)
            }
            _ => Vec::new(),
        }
    }

    /// Handles a failure to write the last checkpoint, with the reason. Even if the run had succeeded otherwise, this
    /// is not a success, and not what a user who stopped it expects.
    pub fn not_saved(&mut self, reason: &str) -> Vec<Decision> {
        let Phase::Saving(Outcome { exit_code, reason: ended }) = &self.phase else { return Vec::new() };
        let not_saved = format!("{NOT_SAVED}: {reason}");
        let exit_code = match *exit_code {
            0 | exit_code::TERMINATED => exit_code::CHECKPOINT,
            other => other,
        };
        let reason = if ended.is_empty() { not_saved } else { format!("{ended}, and {not_saved}") };
        self.end_at_once(Outcome { exit_code, reason })
    }

    pub(super) fn end_at_once(&mut self, outcome: Outcome) -> Vec<Decision> {
        if matches!(self.phase, Phase::Over(_)) {
            return Vec::new();
        }
        self.phase = Phase::Over(outcome.clone());
        vec![Decision::Over(outcome)]
    }
}
