//! The names of jobs and tasks. Holds no addresses: those are in `spec`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ClusterError;

/// The role a task plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Job {
    /// Holds parameters and applies updates.
    Ps,
    /// Computes gradients.
    Worker,
    /// Holds the data and the training loop of a run whose steps joined workers compute. Servers see it as one worker,
    /// or several; it has this name only where users read about tasks, and the joined workers are the workers there.
    Client,
}

impl fmt::Display for Job {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Job::Ps => "ps",
            Job::Worker => "worker",
            Job::Client => "client",
        })
    }
}

impl FromStr for Job {
    type Err = ClusterError;

    /// Accepts `ps` and `worker`. `TF_CONFIG`'s `chief` and `master` are converted to worker 0 where the variable is
    /// read, since they mean an index as well as a job.
    fn from_str(text: &str) -> Result<Self, ClusterError> {
        match text {
            "ps" => Ok(Job::Ps),
            "worker" => Ok(Job::Worker),
            _ => Err(ClusterError::UnknownJob { job: text.to_owned() }),
        }
    }
}

/// The number of a worker task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

impl fmt::Display for WorkerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {}", self.0)
    }
}

/// The number of a parameter server task, or of a co-located worker's parameter shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServerId(pub u32);

impl fmt::Display for ServerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ps {}", self.0)
    }
}

/// One task of the cluster. Ordered by job (ps first), then index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    /// The job the task belongs to.
    pub job: Job,
    /// The task's number within the job, from 0.
    pub index: u32,
}

impl TaskId {
    /// The worker that initialises, evaluates and writes summaries while it lives.
    pub const CHIEF: TaskId = TaskId::worker(0);

    /// The client of joined workers. A run has one.
    pub const CLIENT: TaskId = TaskId { job: Job::Client, index: 0 };

    /// The parameter server with this index.
    pub const fn ps(index: u32) -> TaskId {
        TaskId { job: Job::Ps, index }
    }

    /// The worker with this index.
    pub const fn worker(index: u32) -> TaskId {
        TaskId { job: Job::Worker, index }
    }

    /// Parses a task's display name, such as `worker 3`.
    pub fn named(name: &str) -> Option<TaskId> {
        let (job, index) = name.split_once(' ')?;
        Some(TaskId { job: job.parse().ok()?, index: index.parse().ok()? })
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            Job::Client => formatter.write_str("the client"),
            job => write!(formatter, "{job} {}", self.index),
        }
    }
}

impl From<WorkerId> for TaskId {
    fn from(id: WorkerId) -> TaskId {
        TaskId::worker(id.0)
    }
}

impl From<ServerId> for TaskId {
    fn from(id: ServerId) -> TaskId {
        TaskId::ps(id.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_ids_are_shown_as_job_and_number() {
        assert_eq!(TaskId::worker(3).to_string(), "worker 3");
        assert_eq!(TaskId::ps(0).to_string(), "ps 0");
        assert_eq!(TaskId::CLIENT.to_string(), "the client");
        assert_eq!(WorkerId(3).to_string(), "worker 3");
        assert_eq!(ServerId(1).to_string(), "ps 1");
        assert_eq!(
            ["worker 3", "ps 0", "3 more"].map(TaskId::named),
            [Some(TaskId::worker(3)), Some(TaskId::ps(0)), None]
        );
    }

    #[test]
    fn tasks_are_ordered_by_job_then_index() {
        let mut tasks = [TaskId::worker(1), TaskId::ps(2), TaskId::worker(0)];
        tasks.sort();
        assert_eq!(tasks, [TaskId::ps(2), TaskId::worker(0), TaskId::worker(1)]);
    }

    #[test]
    fn a_job_is_read_as_it_is_shown() {
        for job in [Job::Ps, Job::Worker] {
            assert_eq!(job.to_string().parse::<Job>().unwrap(), job);
        }
    }

    #[test]
    fn an_unknown_job_lists_the_valid_ones() {
        let error = "server".parse::<Job>().unwrap_err();
        assert_eq!(error.to_string(), "unknown job \"server\", expected ps, worker or evaluator");
    }

    #[test]
    fn the_chief_as_a_job_is_refused_with_a_hint_to_worker_0() {
        let error = "chief".parse::<Job>().unwrap_err();
        assert_eq!(error.hint().unwrap(), "the chief is worker 0: --job_name worker --task_index 0");
    }
}
