//! `RUN_DIR/utilization.jsonl` and what was put aside of it: what nodes and tasks used while a run trained, as means over
//! it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::RunError;

const FILE: &str = "utilization.jsonl";
/// What became of that file when it had grown too large.
const EARLIER: &str = "utilization.earlier.jsonl";
/// What the file calls the client of joined workers.
const CLIENT: &str = "the client";

/// The hardware resources that a run used, on average while it trained. The client of joined workers counts as a
/// worker: if it has stages of the model it computes as they do, and its purpose is not to serve parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Utilization {
    /// Processors kept busy by all parameter servers; `None` if they had no processes of their own.
    pub ps_cpus: Option<f64>,
    /// Processors kept busy by all workers.
    pub worker_cpus: Option<f64>,
    /// The peak memory of all parameter servers.
    pub ps_memory_bytes: Option<f64>,
    /// The peak memory of all workers.
    pub worker_memory_bytes: Option<f64>,
    /// The hosts.
    pub nodes: Vec<NodeUse>,
}

/// The resources that a host used, by all processes that ran there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeUse {
    /// Its name.
    pub node: String,
    /// The kind of tasks that it ran.
    pub role: NodeRole,
    /// The number of its processors.
    pub cores: u32,
    /// The number of busy processors.
    pub busy_cpus: f64,
    /// Bytes per second received from other hosts.
    pub received_bytes_per_second: f64,
    /// Bytes per second sent to other hosts.
    pub sent_bytes_per_second: f64,
    /// How busy its GPUs were, from 0 to 1, if it has any of which that is known.
    pub gpu_utilization: Option<f64>,
}

/// The kind of tasks that a host runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// Only parameter servers.
    Ps,
    /// Only workers, or their client.
    Worker,
    /// Both.
    PsAndWorker,
}

impl NodeRole {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            NodeRole::Ps => "ps",
            NodeRole::Worker => "worker",
            NodeRole::PsAndWorker => "ps, worker",
        }
    }
}

#[derive(Debug, Deserialize)]
struct Line {
    step: u64,
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    node: String,
    cores: u32,
    busy_cpus: f64,
    #[serde(default)]
    received_bytes_per_second: f64,
    #[serde(default)]
    sent_bytes_per_second: f64,
    #[serde(default)]
    gpus: Vec<Gpu>,
    tasks: Vec<Task>,
}

#[derive(Debug, Deserialize)]
struct Gpu {
    /// `None` if that is not known.
    utilization: Option<f64>,
}

#[derive(Debug, Deserialize)]
struct Task {
    task: String,
    busy_cpus: f64,
    memory_bytes: u64,
}

impl Task {
    fn is_ps(&self) -> bool {
        self.task.starts_with("ps ")
    }

    fn is_client(&self) -> bool {
        self.task == CLIENT
    }
}

/// Reads the resources that a run used. `share_processes` says that servers and workers were the same processes.
/// Returns `None` without the file, or if no line was written while the run trained.
///
/// # Errors
/// If a file cannot be read. Without one, or without a line from while the run trained, there is none.
pub fn read(directory: &Path, share_processes: bool) -> Result<Option<Utilization>, RunError> {
    let mut means = Means::default();
    for path in [EARLIER, FILE].map(|name| directory.join(name)) {
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(source) => return Err(RunError::Unreadable { path, source }),
        };
        for line in BufReader::new(file).split(b'\n') {
            let line = line.map_err(|source| RunError::Unreadable { path: path.clone(), source })?;
            // A process that is killed may leave half a line.
            if let Ok(line) = serde_json::from_slice::<Line>(&line) {
                means.add(&line, share_processes);
            }
        }
    }
    Ok(means.into_utilization())
}

#[derive(Default)]
struct Means {
    lines: f64,
    ps: Role,
    workers: Role,
    nodes: BTreeMap<String, NodeSums>,
}

#[derive(Default)]
struct Role {
    tasks: usize,
    cpus: f64,
    memory_bytes: f64,
}

#[derive(Default)]
struct NodeSums {
    lines: f64,
    cores: u32,
    cpus: f64,
    received: f64,
    sent: f64,
    gpus: f64,
    /// Lines that tell of GPUs.
    gpu_lines: f64,
    has_ps: bool,
    has_workers: bool,
}

impl Means {
    fn add(&mut self, line: &Line, share_processes: bool) {
        let tasks = || line.nodes.iter().flat_map(|node| &node.tasks);
        // Before the first step a run loads its data, and the first report of a process always shows it as idle.
        if line.step == 0 || tasks().all(|task| task.busy_cpus == 0.0) {
            return;
        }
        self.lines += 1.0;
        let has_workers = tasks().any(|task| !task.is_ps());
        let counts_as_worker = |task: &Task| !task.is_ps() || (share_processes && !has_workers);
        // Joined workers never share a process with the parameters; their client may.
        let serve_everywhere = share_processes && !tasks().any(Task::is_client);
        self.workers.add(tasks().filter(|task| counts_as_worker(task)));
        self.ps.add(tasks().filter(|task| task.is_ps() && !share_processes));
        for node in &line.nodes {
            let sums = self.nodes.entry(node.node.clone()).or_default();
            sums.lines += 1.0;
            sums.cores = node.cores;
            sums.cpus += node.busy_cpus;
            sums.received += node.received_bytes_per_second;
            sums.sent += node.sent_bytes_per_second;
            let known: Vec<f64> = node.gpus.iter().filter_map(|gpu| gpu.utilization).collect();
            if !known.is_empty() {
                sums.gpu_lines += 1.0;
                sums.gpus += known.iter().sum::<f64>() / known.len() as f64;
            }
            sums.has_ps |= serve_everywhere || node.tasks.iter().any(Task::is_ps);
            sums.has_workers |= node.tasks.iter().any(counts_as_worker);
        }
    }

    fn into_utilization(self) -> Option<Utilization> {
        let lines = self.lines;
        let cpus = |role: &Role| (role.tasks > 0).then_some(role.cpus / lines);
        let memory = |role: &Role| (role.tasks > 0).then_some(role.memory_bytes);
        (lines > 0.0).then(|| Utilization {
            ps_cpus: cpus(&self.ps),
            worker_cpus: cpus(&self.workers),
            ps_memory_bytes: memory(&self.ps),
            worker_memory_bytes: memory(&self.workers),
            nodes: self.nodes.into_iter().map(|(name, sums)| sums.into_use(name)).collect(),
        })
    }
}

impl Role {
    fn add<'a>(&mut self, tasks: impl Iterator<Item = &'a Task>) {
        let (mut count, mut memory_bytes) = (0, 0.0);
        for task in tasks {
            count += 1;
            self.cpus += task.busy_cpus;
            memory_bytes += task.memory_bytes as f64;
        }
        self.tasks = self.tasks.max(count);
        self.memory_bytes = self.memory_bytes.max(memory_bytes);
    }
}

impl NodeSums {
    fn into_use(self, node: String) -> NodeUse {
        let mean = |sum: f64| sum / self.lines.max(1.0);
        NodeUse {
            node,
            role: match (self.has_ps, self.has_workers) {
                (true, true) => NodeRole::PsAndWorker,
                (true, false) => NodeRole::Ps,
                _ => NodeRole::Worker,
            },
            cores: self.cores,
            busy_cpus: mean(self.cpus),
            received_bytes_per_second: mean(self.received),
            sent_bytes_per_second: mean(self.sent),
            gpu_utilization: (self.gpu_lines > 0.0).then(|| self.gpus / self.gpu_lines),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_lines(lines: &[String], share_processes: bool) -> Option<Utilization> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), lines.join("\n")).unwrap();
        read(directory.path(), share_processes).unwrap()
    }

    fn node(name: &str, busy_cpus: f64, tasks: &[(&str, f64)]) -> String {
        let task =
            |(task, cpus): &(&str, f64)| format!(r#"{{"task":"{task}","busy_cpus":{cpus},"memory_bytes":1000}}"#);
        let tasks: Vec<String> = tasks.iter().map(task).collect();
        format!(
            r#"{{"node":"{name}","cores":4,"busy_cpus":{busy_cpus},"memory_bytes":1,"available_bytes":1,
            "received_bytes_per_second":100.0,"sent_bytes_per_second":50.0,"gpus":[],"tasks":[{}]}}"#,
            tasks.join(",")
        )
        .replace('\n', "")
    }

    fn line(step: u64, nodes: &[String]) -> String {
        format!(r#"{{"time":1.0,"step":{step},"nodes":[{}]}}"#, nodes.join(","))
    }

    #[test]
    fn servers_and_workers_are_told_apart_and_the_time_before_training_does_not_count() {
        let tasks = |ps, workers| [("ps 0", ps), ("worker 0", workers), ("worker 1", workers)];
        let used = read_lines(
            &[
                line(0, &[node("a", 4.0, &tasks(0.9, 0.9))]),
                line(5, &[node("a", 0.0, &tasks(0.0, 0.0))]),
                line(10, &[node("a", 2.0, &tasks(0.25, 0.5))]),
                line(20, &[node("a", 3.0, &tasks(0.75, 1.0))]),
                "{\"time\":1.0,\"st".to_owned(),
            ],
            false,
        )
        .unwrap();
        assert_eq!((used.ps_cpus, used.worker_cpus), (Some(0.5), Some(1.5)));
        assert_eq!((used.ps_memory_bytes, used.worker_memory_bytes), (Some(1000.0), Some(2000.0)));
        let [node] = &*used.nodes else { panic!("{used:?}") };
        assert_eq!((node.role, node.busy_cpus, node.received_bytes_per_second), (NodeRole::PsAndWorker, 2.5, 100.0));
    }

    #[test]
    fn nodes_with_servers_alone_are_told_from_those_with_workers() {
        let used =
            read_lines(&[line(10, &[node("a", 0.5, &[("ps 0", 0.25)]), node("b", 2.0, &[("worker 0", 1.5)])])], false)
                .unwrap();
        let roles: Vec<_> = used.nodes.iter().map(|node| (&*node.node, node.role, node.busy_cpus)).collect();
        assert_eq!(roles, [("a", NodeRole::Ps, 0.5), ("b", NodeRole::Worker, 2.0)]);
    }

    #[test]
    fn a_process_that_is_server_and_worker_counts_once() {
        let both = [("ps 0", 0.5), ("worker 0", 0.5)];
        let used = read_lines(&[line(10, &[node("a", 1.0, &both)])], true).unwrap();
        assert_eq!((used.ps_cpus, used.worker_cpus), (None, Some(0.5)));
        assert_eq!(used.nodes[0].role, NodeRole::PsAndWorker);
    }

    #[test]
    fn a_client_counts_as_a_worker_whether_it_has_the_parameters_or_servers_do() {
        let used = |share_processes| {
            let client = node("a", 1.5, &[("ps 0", 0.25), ("the client", 1.0)]);
            let workers = node("b", 3.0, &[("worker 0", 1.5), ("worker 1", 1.5)]);
            read_lines(&[line(10, &[client, workers])], share_processes).unwrap()
        };
        let (apart, together) = (used(false), used(true));
        assert_eq!((apart.ps_cpus, apart.worker_cpus), (Some(0.25), Some(4.0)));
        assert_eq!((together.ps_cpus, together.worker_cpus), (None, Some(4.0)), "what ps 0 uses, the client does");
        for used in [&apart, &together] {
            let roles: Vec<NodeRole> = used.nodes.iter().map(|node| node.role).collect();
            assert_eq!(roles, [NodeRole::PsAndWorker, NodeRole::Worker]);
        }
        let alone = read_lines(&[line(10, &[node("a", 1.0, &[("the client", 1.0)])])], false).unwrap();
        assert_eq!((alone.ps_cpus, alone.nodes[0].role), (None, NodeRole::Worker));
    }

    #[test]
    fn gpus_that_do_not_tell_how_busy_they_are_do_not_count() {
        let line = |gpus: &str| line(10, &[node("a", 1.0, &[("worker 0", 1.0)]).replace("[]", gpus)]);
        let of = |utilization: &str| format!(r#"{{"name":"A","utilization":{utilization}}}"#);
        let used = |lines: &[String]| read_lines(lines, false).unwrap();
        let (both, none) = (line(&format!("[{},{}]", of("0.5"), of("null"))), line(&format!("[{}]", of("null"))));
        assert_eq!(used(&[both, none.clone()]).nodes[0].gpu_utilization, Some(0.5));
        assert_eq!(
            (used(std::slice::from_ref(&none)).nodes[0].gpu_utilization, used(&[none]).worker_cpus),
            (None, Some(1.0))
        );
    }

    #[test]
    fn what_was_put_aside_because_there_was_much_counts_too() {
        let directory = tempfile::tempdir().unwrap();
        for (file, cores, cpus) in [(EARLIER, 4, 1.0), (FILE, 8, 2.0)] {
            let line = line(10, &[node("a", cpus, &[("worker 0", cpus)])]);
            std::fs::write(directory.path().join(file), line.replace("\"cores\":4", &format!("\"cores\":{cores}")))
                .unwrap();
        }
        let used = read(directory.path(), false).unwrap().unwrap();
        assert_eq!(used.worker_cpus, Some(1.5));
        assert_eq!(used.nodes[0].cores, 8, "the later file has the last word");
        std::fs::remove_file(directory.path().join(FILE)).unwrap();
        assert_eq!(read(directory.path(), false).unwrap().unwrap().worker_cpus, Some(1.0));
    }

    #[test]
    fn a_run_that_was_too_short_has_none() {
        assert_eq!(read_lines(&[], false), None);
        assert_eq!(read_lines(&[line(0, &[node("a", 1.0, &[("ps 0", 1.0)])])], false), None);
        assert_eq!(read(tempfile::tempdir().unwrap().path(), false).unwrap(), None);
    }
}
