//! `RUN_DIR/utilization.jsonl`: the hardware usage of every node, one line per second.
//!
//! Tasks report it in their heartbeats, and tasks on one host report the same host. A disk that hangs or is full costs
//! lines, never the coordinator's time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::watch;
use tracing::warn;
use windlass_core::cluster::TaskId;
use windlass_wire::control::proto::Usage;

use super::observation::{NodeObservation, Observation};

const EVERY: Duration = Duration::from_secs(1);
/// A larger file is moved aside, replacing the one moved before.
const LARGEST: u64 = 64 << 20;
/// The file in the run directory.
const FILE: &str = "utilization.jsonl";

#[derive(Debug, Serialize)]
struct Line {
    /// Seconds since 1970.
    time: f64,
    step: u64,
    nodes: Vec<Node>,
}

#[derive(Debug, Serialize)]
struct Node {
    node: String,
    cores: u32,
    busy_cpus: f64,
    memory_bytes: u64,
    available_bytes: u64,
    received_bytes_per_second: f64,
    sent_bytes_per_second: f64,
    gpus: Vec<Gpu>,
    tasks: Vec<Task>,
}

#[derive(Debug, Serialize)]
struct Gpu {
    name: String,
    /// `None` if that is not known.
    utilization: Option<f64>,
    memory_used_bytes: u64,
    memory_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Task {
    task: String,
    busy_cpus: f64,
    memory_bytes: u64,
}

/// Writes a line a second for as long as the coordinator lives.
pub(super) async fn record(directory: PathBuf, observed: watch::Receiver<Arc<Observation>>) {
    let path = directory.join(FILE);
    let mut interval = tokio::time::interval(EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut warned, mut is_torn) = (false, false);
    while observed.has_changed().is_ok() {
        interval.tick().await;
        let line = line(&observed.borrow());
        if line.nodes.is_empty() {
            continue;
        }
        let written = tokio::task::spawn_blocking({
            let path = path.clone();
            move || append(&path, &line, is_torn)
        });
        let written = written.await.unwrap_or_else(|error| Err(error.into()));
        is_torn = written.is_err();
        if let Err(error) = written
            && !std::mem::replace(&mut warned, true)
        {
            warn!("cannot write {}: {error}", path.display());
        }
    }
}

/// Appends a line, on a line of its own even if the previous one was written only in part.
fn append(path: &Path, line: &Line, is_torn: bool) -> std::io::Result<()> {
    windlass_files::require_file(path)?;
    let mut text = if is_torn { vec![b'\n'] } else { Vec::new() };
    serde_json::to_writer(&mut text, line)?;
    text.push(b'\n');
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    if file.metadata()?.len() > LARGEST {
        std::fs::rename(path, path.with_extension("earlier.jsonl"))?;
        file = OpenOptions::new().create(true).append(true).open(path)?;
    }
    file.write_all(&text)
}

fn line(run: &Observation) -> Line {
    let nodes = run.nodes().into_values().map(|NodeObservation { usage, tasks }| {
        let task = |(task, usage): (TaskId, &Usage)| Task {
            task: task.to_string(),
            busy_cpus: round(usage.cpus),
            memory_bytes: usage.memory_bytes,
        };
        Node { tasks: tasks.into_iter().map(task).collect(), ..node(usage) }
    });
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Line { time, step: run.statistics.steps, nodes: nodes.collect() }
}

fn node(usage: &Usage) -> Node {
    Node {
        node: usage.node.clone(),
        cores: usage.node_cores,
        busy_cpus: round(usage.node_cpus),
        memory_bytes: usage.node_memory_bytes,
        available_bytes: usage.node_available_bytes,
        received_bytes_per_second: usage.received_per_second.round(),
        sent_bytes_per_second: usage.sent_per_second.round(),
        gpus: usage.gpus.iter().map(gpu).collect(),
        tasks: Vec::new(),
    }
}

fn gpu(gpu: &windlass_wire::control::proto::Gpu) -> Gpu {
    Gpu {
        name: gpu.name.clone(),
        utilization: gpu.utilization.map(round),
        memory_used_bytes: gpu.memory_used_bytes,
        memory_bytes: gpu.memory_bytes,
    }
}

/// More digits would be noise.
fn round(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}
