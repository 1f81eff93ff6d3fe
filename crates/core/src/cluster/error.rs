//! The errors of a cluster description, and hints on what to do about them. Texts and hints only: the checks are where
//! the values are.

use super::{Address, AddressError, Job, SlurmError, Source, TaskId};

/// Why a cluster, or this process's place in it, could not be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The error is in this source. (Errors in flags name the flag and are not wrapped.)
    #[error("{origin}: {error}")]
    In {
        /// The file, `TF_CONFIG` or Slurm.
        origin: Source,
        /// What is wrong in it.
        error: Box<ClusterError>,
    },
    /// An entry of a host list is not an address.
    #[error("entry {position} of {count} in {list}, {entry:?}: {problem}")]
    Entry {
        /// The list: `--ps_hosts`, or `cluster.ps` of a file or `TF_CONFIG`.
        list: String,
        /// The position of the entry, from 1.
        position: usize,
        /// The number of entries.
        count: usize,
        /// The entry as given.
        entry: String,
        /// What is wrong with it.
        problem: AddressError,
    },
    /// Two tasks share an address.
    #[error("{first} and {second} have the same address {address}, expected one task per address")]
    DuplicateAddress {
        /// The task named first.
        first: TaskId,
        /// The task named second.
        second: TaskId,
        /// The shared address.
        address: Address,
    },
    /// A job that every cluster needs has no tasks.
    #[error("the cluster has no {job} tasks, expected at least one")]
    NoTasks {
        /// The empty job.
        job: Job,
    },
    /// Only one of the two host lists was given.
    #[error("{given} is given without {missing}, expected both")]
    HalfACluster {
        /// The flag that is there.
        given: &'static str,
        /// The flag that is not.
        missing: &'static str,
    },
    /// Co-located shards and separate parameter servers at once.
    #[error("the cluster is co-located, but also names ps tasks ({ps})")]
    ColocatedWithPs {
        /// The addresses of the parameter servers, separated by commas.
        ps: String,
    },
    /// Co-located shards, but no workers to put them in.
    #[error("--colocate is given without a cluster")]
    ColocatedWithoutCluster,
    /// Co-located shards in a cluster whose workers do not know each other.
    #[error("the cluster is co-located, but does not name all its workers")]
    ColocatedSparse,
    /// This process is to be a parameter server in a co-located cluster, which has no separate ones.
    #[error("job ps has no tasks in a co-located cluster, expected job worker")]
    ColocatedPsTask,
    /// A job that does not exist.
    #[error("unknown job {job:?}, expected ps, worker or evaluator")]
    UnknownJob {
        /// The job as given.
        job: String,
    },
    /// Flags name a task, but nothing names a cluster.
    #[error("--job_name {job} is given without a cluster")]
    JobWithoutCluster {
        /// The job named.
        job: Job,
    },
    /// An index was given without the job that it belongs to.
    #[error("--task_index {index} is given without --job_name")]
    IndexWithoutJob {
        /// The index given.
        index: u32,
    },
    /// There is a cluster, but nothing says which of its tasks this is.
    #[error("a cluster is given by {origin}, but not which of its tasks this process is")]
    TaskMissing {
        /// Where the cluster comes from.
        origin: Source,
    },
    /// The job has several tasks, so the index cannot be guessed.
    #[error("no task_index is given for job {job}, which has {}", tasks(*.count))]
    IndexMissing {
        /// The job named.
        job: Job,
        /// How many tasks it has, where that is known.
        count: Option<u32>,
    },
    /// The index is not one of the job's.
    #[error("task_index {index} is outside job {job}, which has {}", tasks(Some(*.count)))]
    IndexOutside {
        /// The index given.
        index: u32,
        /// The job it was given for.
        job: Job,
        /// How many tasks the job has.
        count: u32,
    },
    /// A sparse cluster leaves out this task's own address.
    #[error("the sparse cluster names no address for {task}, which is this process")]
    OwnAddressUnknown {
        /// This task.
        task: TaskId,
    },
    /// A sparse cluster leaves out parameter servers that this worker needs.
    #[error("the sparse cluster does not name all ps tasks, which {task} needs")]
    PsUnknown {
        /// This task.
        task: TaskId,
    },
    /// The cluster file is not TOML, or not of the form described in `file`.
    #[error("line {line}, column {column}: {problem}")]
    File {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The parser's message.
        problem: String,
    },
    /// `TF_CONFIG` is not JSON, or does not have the expected structure.
    #[error("malformed JSON near `{near}`: {problem}")]
    Json {
        /// The text just before the position.
        near: String,
        /// The parser's message, with line and column.
        problem: String,
    },
    /// A task index in `TF_CONFIG` is not a valid index.
    #[error("task index {value} is not a whole number from 0")]
    TaskIndex {
        /// The JSON value given.
        value: String,
    },
    /// `TF_CONFIG` names more than one chief.
    #[error("the cluster names {count} tasks under chief and master, expected one at most")]
    SeveralChiefs {
        /// The number of tasks it names.
        count: usize,
    },
    /// `TF_CONFIG` says that this process is the chief, but its cluster has none.
    #[error("this process is the {job}, but the cluster names none")]
    NoChief {
        /// `chief` or `master`, as given.
        job: String,
    },
    /// `TF_CONFIG` says this is the evaluator.
    #[error("an evaluator does not train, expected ps, worker, chief or master")]
    Evaluator,
    /// `JOB_COMPLETION_INDEX` is not an index.
    #[error("JOB_COMPLETION_INDEX is {value:?}, expected a whole number from 0")]
    JobIndex {
        /// The value of the variable.
        value: String,
    },
    /// Slurm's variables do not describe a cluster.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
}

impl ClusterError {
    /// The next step, where there is one.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            ClusterError::In { error, .. } => return error.hint(),
            ClusterError::Entry { problem, .. } => return problem.hint(),
            ClusterError::DuplicateAddress { .. } => {
                "give each task a port of its own; to hold parameters inside the workers, leave out \
                 the ps tasks and use --colocate"
            }
            ClusterError::NoTasks { job: Job::Ps } => {
                "name a ps task, or use --colocate to hold parameters inside the workers"
            }
            ClusterError::NoTasks { job: Job::Worker | Job::Client } => "name a worker task",
            ClusterError::HalfACluster { missing, .. } if *missing == "--ps_hosts" => {
                "add --ps_hosts a:2222, or --colocate to hold parameters inside the workers"
            }
            ClusterError::HalfACluster { missing, .. } => {
                return Some(format!("add {missing} a:2222,b:2222"));
            }
            ClusterError::ColocatedWithPs { .. } => "leave out either the ps tasks (--ps_hosts) or --colocate",
            ClusterError::ColocatedWithoutCluster => {
                "name the workers with --worker_hosts a:2222,b:2222, or leave out --colocate: a \
                 single process holds its own parameters anyway"
            }
            ClusterError::ColocatedSparse => {
                "turn off enableDynamicWorker in the TFJob, or name the workers with --worker_hosts"
            }
            ClusterError::ColocatedPsTask => "use --job_name worker: shard i of the parameters lives in worker i",
            ClusterError::UnknownJob { job } if job == "chief" || job == "master" => {
                "the chief is worker 0: --job_name worker --task_index 0"
            }
            ClusterError::UnknownJob { .. } => "an evaluator scores new checkpoints while the others train",
            ClusterError::JobWithoutCluster { .. } => {
                "name the cluster with --ps_hosts and --worker_hosts, --cluster FILE or TF_CONFIG, or \
                 leave out --job_name to train in a single process"
            }
            ClusterError::IndexWithoutJob { .. } => "add --job_name ps or --job_name worker",
            ClusterError::TaskMissing { .. } => {
                "add --job_name and --task_index, as in --job_name worker --task_index 0"
            }
            ClusterError::IndexMissing { .. } => "add --task_index, or index under [task] if the file names the job",
            ClusterError::IndexOutside { .. } => {
                "indices count from 0; check the index, or add the missing host to the list"
            }
            ClusterError::OwnAddressUnknown { .. } | ClusterError::PsUnknown { .. } => {
                "name the whole cluster with --ps_hosts and --worker_hosts, or turn off \
                 enableDynamicWorker in the TFJob"
            }
            ClusterError::File { .. } => {
                "a cluster file has [cluster] with ps = [\"a:2222\"] (or colocate = true) and \
                 worker = [\"b:2222\"], and may have [task] with job = \"worker\" and index = 0"
            }
            ClusterError::Json { .. } => {
                "expected {\"cluster\": {\"ps\": [\"a:2222\"], \"worker\": [\"b:2222\"]}, \"task\": \
                 {\"type\": \"worker\", \"index\": 0}}"
            }
            ClusterError::TaskIndex { .. } => "expected \"task\": {\"type\": \"worker\", \"index\": 0}",
            ClusterError::SeveralChiefs { .. } => "name all but one of them as workers",
            ClusterError::NoChief { .. } => {
                "name the chief in the cluster; Kubeflow does not when enableDynamicWorker is on: use Worker \
                 replicas only, worker 0 is the chief"
            }
            ClusterError::JobIndex { .. } => "Kubernetes sets it in Indexed Jobs; elsewhere, give --task_index",
            ClusterError::Slurm(error) => return Some(error.hint()),
            ClusterError::Evaluator => "it needs no cluster: leave out --job_name, --ps_hosts and --worker_hosts",
        };
        Some(hint.to_owned())
    }

    /// Adds the source that the error is in, unless the message already names a flag.
    pub(super) fn at(self, origin: &Source) -> ClusterError {
        match origin {
            Source::Flags => self,
            _ => ClusterError::In { origin: origin.clone(), error: Box::new(self) },
        }
    }
}

fn tasks(count: Option<u32>) -> String {
    match count {
        None => "a number of tasks unknown here".to_owned(),
        Some(0) => "no tasks".to_owned(),
        Some(1) => "1 task (index 0)".to_owned(),
        Some(count) => format!("{count} tasks, 0 to {}", count - 1),
    }
}
