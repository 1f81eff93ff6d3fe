//! Combines flags, cluster file, `TF_CONFIG` and a scheduler's variables. Precedence, for the cluster and for this
//! process's place in it separately: flags, then the file, then `TF_CONFIG`, then the variables. Must not parse formats
//! (`file`, `tf_config`, `environment`) or check addresses (`spec`, `address`).

use std::fmt;

use super::spec::{ClusterDraft, JobAddresses, parse_entries};
use super::{Address, ClusterError, ClusterSpec, Environment, Job, NamedTask, Statement, TaskId, file, tf_config};

/// Everything that may name a cluster, as read from the command line, disk and environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterInput {
    /// `--job_name`.
    pub job_name: Option<String>,
    /// `--task_index`.
    pub task_index: Option<u32>,
    /// `--ps_hosts`, entries separated by commas.
    pub ps_hosts: Option<String>,
    /// `--worker_hosts`, entries separated by commas.
    pub worker_hosts: Option<String>,
    /// `--colocate`; applies to whichever source the cluster comes from.
    pub colocate: bool,
    /// The cluster file's name and text.
    pub cluster_file: Option<(String, String)>,
    /// The variable `TF_CONFIG`; read only for what flags and file do not give.
    pub tf_config: Option<String>,
    /// The variables of a scheduler; used only for what all of these do not give.
    pub environment: Environment,
}

impl ClusterInput {
    /// True if this process is to score the training of others: by flag, or by `TF_CONFIG` if no flag names a task.
    pub fn is_evaluator(&self) -> bool {
        match (&self.job_name, &self.tf_config) {
            (Some(job), _) => job == "evaluator",
            (None, Some(text)) => tf_config::names_evaluator(text),
            (None, None) => false,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flags,
    /// The cluster file with this name.
    File(String),
    /// The environment variable `TF_CONFIG`.
    TfConfig,
    /// The index of a pod in Kubernetes' Indexed Job.
    JobIndex,
    /// The variables that Slurm sets for each task.
    Slurm,
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Source::Flags => "flags --ps_hosts/--worker_hosts",
            Source::File(name) => name,
            Source::TfConfig => "TF_CONFIG",
            Source::JobIndex => "JOB_COMPLETION_INDEX",
            Source::Slurm => "Slurm's variables",
        })
    }
}

/// A cluster, this process's place in it, and where both come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedTask {
    /// The cluster.
    pub cluster: ClusterSpec,
    /// This process's task.
    pub task: TaskId,
    /// Where others reach this process.
    pub address: Address,
    /// The source of the cluster.
    pub cluster_source: Source,
    /// The source of the task.
    pub task_source: Source,
    /// The source of the task's index, if different.
    pub index_source: Option<Source>,
}

impl ResolvedTask {
    /// The resolved cluster and task, with their sources, for `--print-cluster`.
    pub fn print_lines(&self) -> Vec<String> {
        let at = |task| match self.cluster.address(task) {
            Some(address) => address.to_string(),
            None => "an address unknown here".to_owned(),
        };
        let mut task_source = match (&self.task_source, &self.index_source) {
            (Source::Flags, None) => "flags --job_name/--task_index".to_owned(),
            (Source::Flags, Some(_)) => "flag --job_name".to_owned(),
            (other, _) => other.to_string(),
        };
        if let Some(source) = &self.index_source {
            task_source.push_str(&format!(", index from {source}"));
        }
        let chief = TaskId::CHIEF;
        let mark = if self.task == chief { " (this task)" } else { "" };
        let mut lines = vec![
            format!("cluster from {}", self.cluster_source),
            format!("task {} at {} from {task_source}", self.task, self.address),
            format!("chief is {chief} at {}{mark}", at(chief)),
        ];
        lines.extend(self.cluster.map_lines(Some(self.task)));
        lines
    }
}

/// The cluster and this process's task in it; `None` if nothing names a cluster, which means a single
/// process.
pub fn resolve(input: &ClusterInput) -> Result<Option<ResolvedTask>, ClusterError> {
    let mut cluster: Option<(ClusterDraft, Source)> = None;
    let mut task: Option<(NamedTask, Source)> = None;
    let mut merge = |statement: Statement, source: Source| {
        if let (None, Some(draft)) = (&cluster, statement.cluster) {
            cluster = Some((draft, source.clone()));
        }
        if let (None, Some(named)) = (&task, statement.task) {
            task = Some((named, source));
        }
        cluster.is_some() && task.is_some()
    };
    let mut settled = merge(from_flags(input)?, Source::Flags);
    if let Some((name, text)) = &input.cluster_file {
        let source = Source::File(name.clone());
        let statement = file::parse(text).map_err(|error| error.at(&source))?;
        settled = merge(statement, source);
    }
    if let Some(text) = input.tf_config.as_ref().filter(|_| !settled) {
        let source = Source::TfConfig;
        let statement = tf_config::parse(text).map_err(|error| error.at(&source))?;
        merge(statement, source);
    }

    if cluster.is_none()
        && let Some((statement, source)) = input.environment.statement().map_err(|error| error.at(&Source::Slurm))?
    {
        cluster = statement.cluster.map(|draft| (draft, source.clone()));
        task = task.or(statement.task.map(|named| (named, source)));
    }

    let Some((mut draft, cluster_source)) = cluster else {
        return match task {
            Some((NamedTask { job, .. }, Source::Flags)) => Err(ClusterError::JobWithoutCluster { job }),
            _ if input.colocate => Err(ClusterError::ColocatedWithoutCluster),
            _ => Ok(None),
        };
    };
    draft.colocated |= input.colocate;
    let cluster = draft.check().map_err(|error| error.at(&cluster_source))?;
    if task.is_none() {
        task = input.environment.task_in(&cluster).map_err(|error| error.at(&Source::Slurm))?;
    }
    let Some((mut named, task_source)) = task else {
        return Err(ClusterError::TaskMissing { origin: cluster_source });
    };
    let mut index_source = None;
    if named.index.is_none()
        && let Some((index, source)) = input.environment.index()?
    {
        named.index = Some(index);
        index_source = Some(source);
    }
    let origin = index_source.as_ref().unwrap_or(&task_source);
    let (task, address) = place(&cluster, named).map_err(|error| error.at(origin))?;
    Ok(Some(ResolvedTask { cluster, task, address, cluster_source, task_source, index_source }))
}

fn from_flags(input: &ClusterInput) -> Result<Statement, ClusterError> {
    let read = |list, hosts: &str| {
        let entries: Vec<&str> = hosts.split(',').collect();
        parse_entries(list, entries.into_iter()).map(JobAddresses::listed)
    };
    let (ps_flag, worker_flag) = ("--ps_hosts", "--worker_hosts");
    let cluster = match (&input.ps_hosts, &input.worker_hosts) {
        (None, None) => None,
        (Some(ps), _) if input.colocate => {
            return Err(ClusterError::ColocatedWithPs { ps: ps.clone() });
        }
        (Some(_), None) => {
            return Err(ClusterError::HalfACluster { given: ps_flag, missing: worker_flag });
        }
        (None, Some(_)) if !input.colocate => {
            return Err(ClusterError::HalfACluster { given: worker_flag, missing: ps_flag });
        }
        (ps, Some(workers)) => Some(ClusterDraft {
            ps: match ps {
                Some(ps) => read(ps_flag, ps)?,
                None => JobAddresses::default(),
            },
            workers: read(worker_flag, workers)?,
            colocated: input.colocate,
        }),
    };
    let task = match (&input.job_name, input.task_index) {
        (Some(job), index) => Some(NamedTask { job: job.parse()?, index }),
        (None, Some(index)) => return Err(ClusterError::IndexWithoutJob { index }),
        (None, None) => None,
    };
    Ok(Statement { cluster, task })
}

/// Finds the named task in the cluster, and checks that it knows enough of the cluster to work.
fn place(cluster: &ClusterSpec, named: NamedTask) -> Result<(TaskId, Address), ClusterError> {
    let NamedTask { job, index } = named;
    if cluster.is_colocated() && job == Job::Ps {
        return Err(ClusterError::ColocatedPsTask);
    }
    let count = cluster.task_count(job);
    let index = match (index, count) {
        (Some(index), _) => index,
        (None, Some(1)) => 0,
        (None, count) => return Err(ClusterError::IndexMissing { job, count }),
    };
    let task = TaskId { job, index };
    match (cluster.address(task), count) {
        (None, Some(count)) => Err(ClusterError::IndexOutside { index, job, count }),
        (None, None) => Err(ClusterError::OwnAddressUnknown { task }),
        (Some(_), _) if job == Job::Worker && cluster.task_count(Job::Ps).is_none() => {
            Err(ClusterError::PsUnknown { task })
        }
        (Some(address), _) => Ok((task, address.clone())),
    }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
