//! The tasks of a cluster and their addresses, checked. Does not know where they were read from, nor which task this
//! process is.

use std::collections::BTreeMap;

use super::{Address, ClusterError, Job, TaskId};

/// The tasks of a cluster and where each is reached.
///
/// Usually every address is known. In the *sparse* cluster that Kubeflow describes to a TFJob with
/// `enableDynamicWorker`, a task knows less: a worker knows all ps tasks and itself, a ps task only itself, and the
/// number of workers is open, since it may change. Then [`task_count`](Self::task_count) is `None` and the addresses of
/// the others are unknown; a ps task learns of the workers when they connect to it.
///
/// In a *co-located* cluster each worker process also holds a shard of the parameters, at the
/// worker's own address: ps `i` is then found in worker `i`, and no process has job ps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSpec {
    ps: JobAddresses,
    workers: JobAddresses,
    colocated: bool,
}

impl ClusterSpec {
    /// A cluster of parameter servers and workers, each a process of its own.
    pub fn new(ps: Vec<Address>, workers: Vec<Address>) -> Result<ClusterSpec, ClusterError> {
        ClusterDraft { ps: JobAddresses::listed(ps), workers: JobAddresses::listed(workers), colocated: false }.check()
    }

    /// A cluster in which the workers hold the parameters.
    pub fn colocated(workers: Vec<Address>) -> Result<ClusterSpec, ClusterError> {
        ClusterDraft { ps: JobAddresses::default(), workers: JobAddresses::listed(workers), colocated: true }.check()
    }

    /// Whether each worker process holds a shard of the parameters.
    pub fn is_colocated(&self) -> bool {
        self.colocated
    }

    /// Whether all parameter servers are processes of their own on one host, so that a second one brings no more cores,
    /// memory or network than there are.
    pub fn has_servers_on_one_host(&self) -> bool {
        let mut hosts = self.ps.known.values().map(Address::host);
        let first = hosts.next();
        !self.colocated && self.ps.complete && hosts.all(|host| Some(host) == first)
    }

    /// Whether some tasks are unknown here, as in Kubeflow's `sparseCluster`.
    pub fn is_sparse(&self) -> bool {
        !(self.ps.complete && self.workers.complete)
    }

    /// How many tasks the job has; `None` if this task does not know. In a co-located cluster, job ps counts the
    /// shards.
    pub fn task_count(&self, job: Job) -> Option<u32> {
        let addresses = self.job(job);
        addresses.complete.then_some(addresses.known.len() as u32)
    }

    /// The job's addresses in order of index; `None` if this task does not know all of them.
    pub fn addresses(&self, job: Job) -> Option<Vec<&Address>> {
        let addresses = self.job(job);
        addresses.complete.then(|| addresses.known.values().collect())
    }

    /// The address of a task; `None` if there is no such task or this task does not know it.
    pub fn address(&self, task: TaskId) -> Option<&Address> {
        self.job(task.job).known.get(&task.index)
    }

    /// The tasks whose addresses are known, ps first, one for each process: a co-located shard is not a separate task.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> + '_ {
        let ps = self.ps.known.keys().map(|index| TaskId::ps(*index));
        let workers = self.workers.known.keys();
        ps.filter(|_| !self.colocated).chain(workers.map(|index| TaskId::worker(*index)))
    }

    /// The known addresses of a job, in the format of `--ps_hosts` and `--worker_hosts`.
    pub fn host_list(&self, job: Job) -> String {
        self.job(job).host_list()
    }

    /// The cluster map, one line per job, in TensorFlow's form: `job ps -> {0 -> a:2222}`. The entry of `own` is
    /// marked.
    pub fn map_lines(&self, own: Option<TaskId>) -> Vec<String> {
        let line = |job| {
            let own = own.filter(|task| task.job == job).map(|task| task.index);
            format!("job {job} -> {{{}}}", self.job(job).entries(own).join(", "))
        };
        let ps = if self.colocated { "job ps -> co-located, shard i in worker i".to_owned() } else { line(Job::Ps) };
        vec![ps, line(Job::Worker)]
    }

    fn job(&self, job: Job) -> &JobAddresses {
        match job {
            Job::Ps => &self.ps,
            // A client is not in any list; its workers are.
            Job::Worker | Job::Client => &self.workers,
        }
    }
}

/// A cluster as one source states it, not yet checked as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterDraft {
    pub(super) ps: JobAddresses,
    pub(super) workers: JobAddresses,
    pub(super) colocated: bool,
}

impl ClusterDraft {
    pub(super) fn check(self) -> Result<ClusterSpec, ClusterError> {
        let ClusterDraft { mut ps, workers, colocated } = self;
        if colocated {
            if !ps.known.is_empty() {
                return Err(ClusterError::ColocatedWithPs { ps: ps.host_list() });
            }
            if !workers.complete {
                return Err(ClusterError::ColocatedSparse);
            }
            ps = workers.clone();
        }
        for (job, addresses) in [(Job::Worker, &workers), (Job::Ps, &ps)] {
            if addresses.complete && addresses.known.is_empty() {
                return Err(ClusterError::NoTasks { job });
            }
        }
        let spec = ClusterSpec { ps, workers, colocated };
        spec.refuse_duplicates()?;
        Ok(spec)
    }
}

impl ClusterSpec {
    fn refuse_duplicates(&self) -> Result<(), ClusterError> {
        let mut seen: BTreeMap<&Address, TaskId> = BTreeMap::new();
        for task in self.tasks() {
            let Some(address) = self.address(task) else {
                continue;
            };
            if let Some(first) = seen.insert(address, task) {
                return Err(ClusterError::DuplicateAddress { first, second: task, address: address.clone() });
            }
        }
        Ok(())
    }
}

/// The addresses of one job's tasks. A map rather than a list, so that a sparse cluster's largest
/// index costs nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobAddresses {
    pub(super) known: BTreeMap<u32, Address>,
    /// Whether `known` has all addresses, with indices from 0 without gaps.
    pub(super) complete: bool,
}

impl Default for JobAddresses {
    fn default() -> Self {
        JobAddresses::listed(Vec::new())
    }
}

impl JobAddresses {
    pub(super) fn listed(addresses: Vec<Address>) -> JobAddresses {
        JobAddresses { known: (0..).zip(addresses).collect(), complete: true }
    }

    pub(super) fn sparse(known: BTreeMap<u32, Address>) -> JobAddresses {
        JobAddresses { known, complete: false }
    }

    fn host_list(&self) -> String {
        let hosts: Vec<String> = self.known.values().map(Address::to_string).collect();
        hosts.join(",")
    }

    fn entries(&self, own: Option<u32>) -> Vec<String> {
        let mut entries = Vec::new();
        let mut next: u64 = 0;
        for (&index, address) in &self.known {
            match u64::from(index) - next {
                0 => {}
                1 => entries.push(format!("{next} -> {UNKNOWN}")),
                _ => entries.push(format!("{next}..={} -> {UNKNOWN}", index - 1)),
            }
            let mark = if own == Some(index) { " (this task)" } else { "" };
            entries.push(format!("{index} -> {address}{mark}"));
            next = u64::from(index) + 1;
        }
        if !self.complete {
            entries.push(format!("{next}.. -> {UNKNOWN}"));
        }
        entries
    }
}

const UNKNOWN: &str = "unknown (sparseCluster)";

/// Parses the entries of a host list. The error for a malformed entry names the list, the entry and its position.
pub(super) fn parse_entries<'a>(
    list: &str,
    entries: impl ExactSizeIterator<Item = &'a str>,
) -> Result<Vec<Address>, ClusterError> {
    let count = entries.len();
    (1..)
        .zip(entries)
        .map(|(position, entry)| {
            entry.parse().map_err(|problem| ClusterError::Entry {
                list: list.to_owned(),
                position,
                count,
                entry: entry.to_owned(),
                problem,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Vec<Address> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn seed_003() -> ClusterSpec {
        ClusterSpec::new(addresses(&["localhost:2222"]), addresses(&["192.168.1.171:2222", "192.168.1.172:2222"]))
            .unwrap()
    }

    #[test]
    fn the_map_reads_as_tensorflow_logs_it_with_the_own_entry_marked() {
        assert_eq!(
            seed_003().map_lines(Some(TaskId::worker(1))),
            [
                "job ps -> {0 -> localhost:2222}",
                "job worker -> {0 -> 192.168.1.171:2222, 1 -> 192.168.1.172:2222 (this task)}",
            ]
        );
    }

    #[test]
    fn the_map_marks_nothing_for_an_onlooker() {
        assert!(!seed_003().map_lines(None).concat().contains("this task"));
    }

    #[test]
    fn tasks_come_with_ps_first_and_their_addresses() {
        let spec = seed_003();
        let tasks: Vec<TaskId> = spec.tasks().collect();
        assert_eq!(tasks, [TaskId::ps(0), TaskId::worker(0), TaskId::worker(1)]);
        let address = spec.address(TaskId::worker(1)).unwrap();
        assert_eq!(address.to_string(), "192.168.1.172:2222");
        assert_eq!(spec.address(TaskId::ps(1)), None);
    }

    #[test]
    fn servers_are_on_one_host_if_their_addresses_differ_in_the_port_alone() {
        let cluster = |ps: &[&str]| ClusterSpec::new(addresses(ps), addresses(&["w:1"])).unwrap();
        for (ps, expected) in [(&["a:1"][..], true), (&["a:1", "a:2"], true), (&["a:1", "b:1"], false)] {
            assert_eq!(cluster(ps).has_servers_on_one_host(), expected, "{ps:?}");
        }
        let colocated = ClusterSpec::colocated(addresses(&["a:1", "a:2"])).unwrap();
        assert!(!colocated.has_servers_on_one_host());
    }

    #[test]
    fn a_job_without_tasks_is_refused() {
        let some = addresses(&["a:1"]);
        assert_eq!(ClusterSpec::new(vec![], some.clone()), Err(ClusterError::NoTasks { job: Job::Ps }));
        assert_eq!(ClusterSpec::new(some, vec![]), Err(ClusterError::NoTasks { job: Job::Worker }));
    }

    #[test]
    fn an_address_of_two_tasks_is_refused_naming_both() {
        let error = ClusterSpec::new(addresses(&["a:1"]), addresses(&["b:1", "a:1"])).unwrap_err();
        assert_eq!(error.to_string(), "ps 0 and worker 1 have the same address a:1, expected one task per address");
    }

    #[test]
    fn a_colocated_cluster_has_a_shard_at_each_workers_address() {
        let spec = ClusterSpec::colocated(addresses(&["a:1", "b:1"])).unwrap();
        assert_eq!(spec.addresses(Job::Ps), spec.addresses(Job::Worker));
        assert_eq!(spec.tasks().count(), 2);
        assert_eq!(
            spec.map_lines(Some(TaskId::worker(0))),
            ["job ps -> co-located, shard i in worker i", "job worker -> {0 -> a:1 (this task), 1 -> b:1}",]
        );
    }

    #[test]
    fn unknown_tasks_of_a_sparse_cluster_are_shown_in_runs() {
        let known = [1, 5].map(|index| (index, Address::new("w", 1 + index as u16).unwrap()));
        let workers = JobAddresses::sparse(known.into());
        assert_eq!(
            workers.entries(Some(5)).join(", "),
            "0 -> unknown (sparseCluster), 1 -> w:2, 2..=4 -> unknown (sparseCluster), \
             5 -> w:6 (this task), 6.. -> unknown (sparseCluster)"
        );
    }

    #[test]
    fn the_largest_index_of_a_sparse_cluster_is_shown_like_any_other() {
        let known = [(u32::MAX, Address::new("w", 1).unwrap())];
        let entries = JobAddresses::sparse(known.into()).entries(None);
        assert_eq!(entries.len(), 3);
    }

    #[test]
    fn a_malformed_entry_is_named_with_list_and_position() {
        let error = parse_entries("--ps_hosts", ["a:1", "b"].into_iter()).unwrap_err();
        assert_eq!(error.to_string(), "entry 2 of 2 in --ps_hosts, \"b\": no port, expected host:port");
        assert_eq!(error.hint().unwrap(), "add a port, as in a:2222");
    }
}
