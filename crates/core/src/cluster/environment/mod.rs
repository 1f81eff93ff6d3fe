//! The variables by which schedulers describe their tasks: `JOB_COMPLETION_INDEX` for Kubernetes' Indexed Jobs, and
//! `SLURM_PROCID`, `SLURM_JOB_NODELIST` and the like for Slurm. They come last in precedence, since a scheduler sets
//! them for every process, whether or not it is a task of a cluster.
//!
//! Must not read the environment: [`Environment::read`] takes a function that does.

mod job_index;
mod nodelist;
mod slurm;

pub use nodelist::NodeListError;
pub use slurm::{SlurmError, SlurmVariables};

use super::{ClusterError, ClusterSpec, NamedTask, Source, Statement};

/// The scheduler's variables, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `JOB_COMPLETION_INDEX`: the index of this pod in an Indexed Job.
    pub job_completion_index: Option<String>,
    /// Slurm's variables, and ours for Slurm.
    pub slurm: SlurmVariables,
}

impl Environment {
    /// Picks the variables from an environment. An empty variable counts as unset.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Environment {
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        Environment { job_completion_index: get(job_index::VARIABLE), slurm: SlurmVariables::read(get) }
    }

    /// The whole cluster and this process's task in it, if Slurm's variables are to define one.
    pub(super) fn statement(&self) -> Result<Option<(Statement, Source)>, ClusterError> {
        Ok(self.slurm.statement()?.map(|statement| (statement, Source::Slurm)))
    }

    /// The task of a known cluster that this process is.
    pub(super) fn task_in(&self, cluster: &ClusterSpec) -> Result<Option<(NamedTask, Source)>, ClusterError> {
        Ok(self.slurm.task_in(cluster)?.map(|task| (task, Source::Slurm)))
    }

    /// The index of a task whose job is known.
    pub(super) fn index(&self) -> Result<Option<(u32, Source)>, ClusterError> {
        let index = self.job_completion_index.as_deref().map(job_index::parse).transpose()?;
        Ok(index.map(|index| (index, Source::JobIndex)))
    }
}
