//! The cluster that one `srun` starts. Task numbers decide the jobs: with P parameter servers, tasks 0 to P - 1 are ps
//! and the rest are workers. Every task derives the same cluster from the same list of nodes. Tasks on one node get
//! consecutive ports.
//!
//! Slurm sets its variables for every process of a job, so they define a cluster only if `WINDLASS_SLURM_PS` gives the
//! number of ps. Where something else names the cluster, `SLURM_PROCID` still tells which of its tasks this is.

use super::nodelist::{self, NodeListError};
use crate::cluster::spec::{ClusterDraft, JobAddresses};
use crate::cluster::{Address, AddressError, ClusterError, ClusterSpec, Job, NamedTask, Statement, TaskId};

const DEFAULT_PORT: u16 = 2222;

/// Slurm's variables, and ours for Slurm, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlurmVariables {
    /// `SLURM_PROCID`: the number of this task in its step.
    pub proc_id: Option<String>,
    /// `SLURM_STEP_NODELIST`, or `SLURM_JOB_NODELIST` if there is none.
    pub node_list: Option<String>,
    /// `SLURM_STEP_TASKS_PER_NODE`, or `SLURM_TASKS_PER_NODE` if there is none: `2(x3),1`.
    pub tasks_per_node: Option<String>,
    /// `SLURM_DISTRIBUTION`: how tasks are numbered over the nodes.
    pub distribution: Option<String>,
    /// `WINDLASS_SLURM_PS`: how many of the tasks are parameter servers; with 0 the workers hold the parameters.
    pub ps: Option<String>,
    /// `WINDLASS_SLURM_PORT`: the port of the first task on each node.
    pub port: Option<String>,
}

/// Why Slurm's variables do not describe a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlurmError {
    /// A variable that Slurm sets is missing.
    #[error("WINDLASS_SLURM_PS is set, but {variable} is not")]
    Missing {
        /// The missing variable.
        variable: &'static str,
    },
    /// A variable is not a number.
    #[error("{variable} is {value:?}, expected {expected}")]
    Number {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is valid.
        expected: &'static str,
    },
    /// The list of nodes is malformed.
    #[error("the list of nodes is {list:?}: {problem}")]
    NodeList {
        /// The list as given.
        list: String,
        /// What is wrong with it.
        problem: NodeListError,
    },
    /// The task counts do not match the nodes.
    #[error("tasks per node are {value:?}, which does not fit {nodes} nodes")]
    TasksPerNode {
        /// The value as given.
        value: String,
        /// How many nodes the list has.
        nodes: usize,
    },
    /// Every task is a ps.
    #[error("{tasks} tasks with {ps} ps leave no worker")]
    NoWorker {
        /// How many tasks there are.
        tasks: usize,
        /// How many of them are ps.
        ps: u32,
    },
    /// This task's number is outside the cluster.
    #[error("SLURM_PROCID is {proc_id}, but the cluster has {tasks} tasks")]
    ProcIdOutside {
        /// This task's number.
        proc_id: u32,
        /// How many tasks there are.
        tasks: u32,
    },
    /// Tasks are numbered in a way that is not supported.
    #[error("the tasks are distributed as {value:?}, expected block or cyclic")]
    Distribution {
        /// The distribution.
        value: String,
    },
    /// A node's name is not a host, or its tasks run out of ports.
    #[error("node {node:?}: {problem}")]
    Node {
        /// The node's name.
        node: String,
        /// What is wrong with the address.
        problem: AddressError,
    },
}

impl SlurmError {
    pub(in crate::cluster) fn hint(&self) -> String {
        match self {
            SlurmError::Missing { .. } => {
                "start the tasks with srun; to train in one process, unset WINDLASS_SLURM_PS".to_owned()
            }
            SlurmError::NoWorker { .. } => "start one task for each ps and each worker: srun --ntasks P+W".to_owned(),
            SlurmError::ProcIdOutside { tasks, .. } => format!("start as many tasks as hosts: srun --ntasks {tasks}"),
            SlurmError::Distribution { .. } => "add --distribution=block to srun".to_owned(),
            SlurmError::Number { variable, .. } => format!("correct {variable}"),
            SlurmError::NodeList { .. } | SlurmError::TasksPerNode { .. } | SlurmError::Node { .. } => {
                "name the hosts with --ps_hosts and --worker_hosts; SLURM_PROCID then tells which task this is"
                    .to_owned()
            }
        }
    }
}

impl SlurmVariables {
    pub(super) fn read(get: impl Fn(&str) -> Option<String>) -> SlurmVariables {
        SlurmVariables {
            proc_id: get("SLURM_PROCID"),
            node_list: get("SLURM_STEP_NODELIST").or_else(|| get("SLURM_JOB_NODELIST")),
            tasks_per_node: get("SLURM_STEP_TASKS_PER_NODE").or_else(|| get("SLURM_TASKS_PER_NODE")),
            distribution: get("SLURM_DISTRIBUTION"),
            ps: get("WINDLASS_SLURM_PS"),
            port: get("WINDLASS_SLURM_PORT"),
        }
    }

    pub(super) fn statement(&self) -> Result<Option<Statement>, ClusterError> {
        let Some(ps) = &self.ps else { return Ok(None) };
        let ps: u32 = number("WINDLASS_SLURM_PS", ps, "a whole number from 0")?;
        let proc_id = self.proc_id()?.ok_or(SlurmError::Missing { variable: "SLURM_PROCID" })?;
        let mut addresses = self.addresses()?;
        if ps as usize >= addresses.len() {
            return Err(SlurmError::NoWorker { tasks: addresses.len(), ps }.into());
        }
        let workers = JobAddresses::listed(addresses.split_off(ps as usize));
        let cluster = ClusterDraft { ps: JobAddresses::listed(addresses), workers, colocated: ps == 0 };
        let worker_count = cluster.workers.known.len() as u32;
        Ok(Some(Statement { task: Some(task_of(proc_id, ps, worker_count)?), cluster: Some(cluster) }))
    }

    pub(super) fn task_in(&self, cluster: &ClusterSpec) -> Result<Option<NamedTask>, ClusterError> {
        let counts = (cluster.task_count(Job::Ps), cluster.task_count(Job::Worker));
        let (Some(proc_id), (Some(ps), Some(workers))) = (self.proc_id()?, counts) else { return Ok(None) };
        let ps = if cluster.is_colocated() { 0 } else { ps };
        task_of(proc_id, ps, workers).map(Some)
    }

    fn proc_id(&self) -> Result<Option<u32>, ClusterError> {
        self.proc_id.as_deref().map(|text| number("SLURM_PROCID", text, "a whole number from 0")).transpose()
    }

    /// The address of every task, in order of task number.
    fn addresses(&self) -> Result<Vec<Address>, ClusterError> {
        let list = self.node_list.as_ref().ok_or(SlurmError::Missing { variable: "SLURM_JOB_NODELIST" })?;
        let nodes = nodelist::expand(list).map_err(|problem| SlurmError::NodeList { list: list.clone(), problem })?;
        let counts = match &self.tasks_per_node {
            None => vec![1; nodes.len()],
            Some(text) => tasks_per_node(text, nodes.len())
                .ok_or_else(|| SlurmError::TasksPerNode { value: text.clone(), nodes: nodes.len() })?,
        };
        let first_port = match &self.port {
            None => DEFAULT_PORT,
            Some(text) => number("WINDLASS_SLURM_PORT", text, "a port from 1 to 65535")?,
        };
        let places = match self.distribution.as_deref().map(|text| text.split([':', ',']).next().unwrap_or(text)) {
            None | Some("block") => block(&counts),
            Some("cyclic") => cyclic(&counts),
            Some(_) => {
                return Err(SlurmError::Distribution { value: self.distribution.clone().unwrap_or_default() }.into());
            }
        };
        let address = |(node, local): (usize, u16)| {
            let port = first_port.checked_add(local).ok_or(AddressError::PortZero);
            port.and_then(|port| Address::new(&nodes[node], port))
                .map_err(|problem| SlurmError::Node { node: nodes[node].clone(), problem }.into())
        };
        places.into_iter().map(address).collect()
    }
}

fn task_of(proc_id: u32, ps: u32, workers: u32) -> Result<NamedTask, ClusterError> {
    let tasks = ps.saturating_add(workers);
    let TaskId { job, index } = match proc_id.checked_sub(ps) {
        None => TaskId::ps(proc_id),
        Some(index) if index < workers => TaskId::worker(index),
        Some(_) => return Err(SlurmError::ProcIdOutside { proc_id, tasks }.into()),
    };
    Ok(NamedTask { job, index: Some(index) })
}

fn number<T: std::str::FromStr>(variable: &'static str, text: &str, expected: &'static str) -> Result<T, ClusterError> {
    text.trim().parse().map_err(|_| SlurmError::Number { variable, value: text.to_owned(), expected }.into())
}

/// The largest number of tasks in a step. More would be a mistake, and exhaust the memory.
const MAX_TASKS: usize = 1 << 16;

/// Expands `2(x3),1` for four nodes to 2, 2, 2, 1. `None` if the text is malformed, does not match the number of nodes,
/// or gives too many tasks.
fn tasks_per_node(text: &str, nodes: usize) -> Option<Vec<u16>> {
    let mut counts = Vec::new();
    for part in text.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
        };
        let tasks: u16 = tasks.parse().ok()?;
        if counts.len().checked_add(times)? > nodes {
            return None;
        }
        counts.extend(std::iter::repeat_n(tasks, times));
    }
    let tasks: usize = counts.iter().map(|count| usize::from(*count)).sum();
    (counts.len() == nodes && tasks <= MAX_TASKS).then_some(counts)
}

/// For each task, its node and its number on that node, filling one node after the other.
fn block(counts: &[u16]) -> Vec<(usize, u16)> {
    counts.iter().enumerate().flat_map(|(node, count)| (0..*count).map(move |local| (node, local))).collect()
}

/// As [`block`], but going round the nodes.
fn cyclic(counts: &[u16]) -> Vec<(usize, u16)> {
    let rounds = counts.iter().copied().max().unwrap_or(0);
    let round = |local| counts.iter().enumerate().filter(move |(_, count)| local < **count);
    (0..rounds).flat_map(|local| round(local).map(move |(node, _)| (node, local))).collect()
}

#[cfg(test)]
#[path = "slurm_tests.rs"]
mod tests;
