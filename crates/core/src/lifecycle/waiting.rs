//! Which tasks a run waits for, why, and for how long. Every phase that can wait has a deadline here.

use std::time::Duration;

use super::{Decision, Lifecycle, Outcome, Phase, exit_code};
use crate::cluster::{Job, TaskId};

/// How long an ended run waits for a worker that wants more steps, in multiples of the patience with silence.
const MORE: u32 = 6;

/// How long the others wait for a living chief to score the network, in multiples of the peer timeout.
const SCORING: u32 = 12;

impl Lifecycle {
    /// The tasks that the run waits for: tasks that have not joined, servers that prepare, the chief that pushes the
    /// first values or scores the network, or any worker at all.
    pub fn awaited(&self) -> Vec<TaskId> {
        let prepares = |task: &TaskId| !self.ready.contains(task);
        match self.phase {
            Phase::Gathering => self.missing(),
            Phase::Preparing => self.active_servers().filter(prepares).collect(),
            _ if self.is_abandoned() => self.workers().into_iter().map(TaskId::from).collect(),
            Phase::Initialising | Phase::Finishing => vec![TaskId::from(self.chief)],
            _ => Vec::new(),
        }
    }

    /// What the run waits for, as a clause after the names of the awaited tasks; empty if they only have to join.
    pub fn awaited_for(&self) -> &'static str {
        match self.phase {
            Phase::Preparing => " to prepare its parameters",
            _ if self.is_abandoned() => "",
            Phase::Initialising => " to send the initial values",
            Phase::Finishing => " to score the network",
            _ => "",
        }
    }

    /// True if parameters have been trained, or are about to be, and no worker is left.
    pub(super) fn is_abandoned(&self) -> bool {
        let trains = matches!(self.phase, Phase::Initialising | Phase::Training | Phase::Finishing);
        trains && self.present_workers().is_empty()
    }

    /// Records that one of the awaited tasks has made progress.
    pub fn progressed(&mut self, now: Duration) {
        self.awaited_since.values_mut().for_each(|since| *since = now);
    }

    /// Waits for the tasks that the run cannot continue without, but for none of them longer than the timeout.
    pub(super) fn wait_for_tasks(&mut self, now: Duration) -> Vec<Decision> {
        let phase = std::mem::discriminant(&self.phase);
        let awaited = self.awaited();
        if phase != self.awaited_in {
            (self.awaited_in, self.servers_here_since) = (phase, None);
            self.awaited_since.clear();
        }
        self.awaited_since.retain(|task, _| awaited.contains(task));
        for task in &awaited {
            self.awaited_since.entry(*task).or_insert(now);
        }
        let waited = self.awaited_since.values().map(|since| now.saturating_sub(*since)).max().unwrap_or_default();
        let (silent, nobody) = (self.config.patience.silent, self.present_workers().is_empty());
        // Tasks of the ended run rejoin within that time. The missing ones have been told of its end.
        if self.finished_before && self.again && !nobody && waited >= silent {
            return self.end(Outcome::done());
        }
        if awaited.iter().any(|task| task.job == Job::Ps) {
            self.servers_here_since = None;
        } else if self.phase == Phase::Gathering {
            // Workers rejoin after the servers, and get as much time as if they had just been lost.
            let servers_here = now.saturating_sub(*self.servers_here_since.get_or_insert(now));
            if self.again && !nobody && servers_here >= silent {
                return self.prepare();
            }
            if self.finished_before && nobody && servers_here >= silent.saturating_mul(MORE) {
                return self.end(Outcome::done());
            }
        }
        let scores = self.phase == Phase::Finishing && !self.is_abandoned();
        let patience = self.config.peer_timeout.saturating_mul(if scores { SCORING } else { 1 });
        if awaited.is_empty() || waited < patience {
            return Vec::new();
        }
        if self.finished_before {
            return self.end(Outcome::done());
        }
        let mut names: Vec<String> = awaited.iter().map(|task| self.named(*task).to_string()).collect();
        names.dedup();
        let (names, purpose) = (names.join(", "), self.awaited_for());
        let reason = format!("gave up waiting for {names}{purpose} after {} s", waited.as_secs());
        self.end(Outcome { exit_code: exit_code::PEERS, reason })
    }
}
