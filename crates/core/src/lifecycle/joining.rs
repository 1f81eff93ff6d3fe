//! How tasks join: which process may play a task, and what follows in each phase.

use std::time::Duration;

use super::{Decision, Lifecycle, Outcome, Phase};
use crate::cluster::{Job, TaskId, WorkerId};
use crate::ledger::Incarnation;
use crate::membership::Occupied;

/// Why a task was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another process plays that task.
    #[error("{0} is already running: two processes were started with the same --task_index")]
    Taken(TaskId),
    /// Another process plays the task, or did until a moment ago: retry.
    #[error("another process already runs as {0}; waiting to see whether it is still alive")]
    Contested(TaskId),
    /// The task is not in the cluster.
    #[error("{0} is not in the cluster that ps 0 was started with ({1})")]
    Unknown(TaskId, String),
    /// All steps have been made, and the chief is scoring the network: retry.
    #[error("all steps have been made, and the network is being scored; waiting to hear how the run ends")]
    Scoring,
    /// The run ends once its last checkpoint is written: retry.
    #[error("the last checkpoint of the run is being written; waiting to hear how the run ends")]
    Saving,
    /// The run has ended, or is about to.
    #[error("the run has ended")]
    Over(Outcome),
}

impl Lifecycle {
    /// Handles a process that offers to play a task, perhaps again after a broken connection.
    pub fn join(
        &mut self,
        task: TaskId,
        earlier: Option<Incarnation>,
        now: Duration,
    ) -> Result<(Incarnation, Vec<Decision>), JoinError> {
        let is_welcome = self.config.workers.is_none() && task.job == Job::Worker;
        if !is_welcome && !self.tasks.contains(&task) {
            return Err(JoinError::Unknown(task, self.describe_cluster()));
        }
        if let Some(incarnation) = earlier
            && self.membership.rejoin(task, incarnation, now)
        {
            return Ok((incarnation, Vec::new()));
        }
        self.check_phase(task)?;
        let incarnation = self.membership.join(task, now).map_err(|occupied| match occupied {
            Occupied::Alive => JoinError::Taken(task),
            Occupied::Unsure => JoinError::Contested(task),
        })?;
        self.tasks.insert(task);
        if self.phase == Phase::Gathering && self.missing().iter().all(|task| task.job == Job::Worker) {
            self.servers_here_since.get_or_insert(now);
        }
        let mut decisions = Vec::new();
        if task.job == Job::Worker {
            decisions.push(self.worker_joined(WorkerId(task.index), incarnation));
        }
        decisions.extend(self.go_on_with(task));
        Ok((incarnation, decisions))
    }

    /// Refuses a process for which the run has nothing left to do.
    fn check_phase(&self, task: TaskId) -> Result<(), JoinError> {
        let chief = TaskId::from(self.chief);
        match &self.phase {
            Phase::Over(outcome) => Err(JoinError::Over(outcome.clone())),
            // The end is not certain yet: if a server is lost now, the run continues.
            Phase::Saving(_) if task.job == Job::Worker => Err(JoinError::Saving),
            // The chief itself, restarted before its old process is known to be dead, still has to score.
            Phase::Finishing if task.job == Job::Worker && task != chief && !self.is_abandoned() => {
                // If the chief is lost, another worker has to score.
                Err(JoinError::Scoring)
            }
            _ => Ok(()),
        }
    }

    /// Adds a worker to those that train. If there is no chief, it becomes chief.
    fn worker_joined(&mut self, worker: WorkerId, incarnation: Incarnation) -> Decision {
        self.left.remove(&worker);
        self.leaving.remove(&worker);
        self.failures.remove(&worker);
        if self.phase != Phase::Gathering && !self.membership.is_present(TaskId::from(self.chief)) {
            self.chief = worker;
        }
        Decision::Joined(worker, incarnation)
    }

    /// Decides what a task that has joined is to do, and what else follows from its joining.
    fn go_on_with(&mut self, task: TaskId) -> Vec<Decision> {
        match self.phase {
            Phase::Gathering if self.missing().is_empty() => self.prepare(),
            Phase::Initialising if task == TaskId::from(self.chief) => vec![Decision::Initialise(self.chief)],
            Phase::Training if task.job == Job::Worker => vec![Decision::Start(WorkerId(task.index))],
            // No worker was left to score the network. This one finds nothing left to train, and scores it.
            Phase::Finishing if task.job == Job::Worker => {
                self.phase = Phase::Training;
                vec![Decision::Start(WorkerId(task.index))]
            }
            Phase::Gathering => Vec::new(),
            _ if self.idle.contains(&task) => vec![Decision::PrepareIdle(task)],
            _ if task.job == Job::Ps => self.server_lost(format!("{task} was restarted and has lost its parameters")),
            _ => Vec::new(),
        }
    }

    fn describe_cluster(&self) -> String {
        let count = |job| self.tasks.iter().filter(|task| task.job == job).count();
        format!("{} ps, {} workers", count(Job::Ps), count(Job::Worker))
    }
}
