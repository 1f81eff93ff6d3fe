//! The rows of the task tables.

use serde::Serialize;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::hang::Wait;

use super::{Badge, state_badge};
use crate::figures::{bytes, count, duration, plain, rate};
use crate::headline::tasks;
use crate::status::{Server, Site, State, Status, TimeSplit, Worker};

/// The maximum number of a worker's sites that are named.
const SITES: usize = 4;

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct WorkerRow {
    #[serde(skip)]
    pub task: Option<TaskId>,
    #[serde(skip)]
    pub is_chief: bool,
    pub name: String,
    pub address: String,
    /// The devices that it computes on.
    pub sites: String,
    pub badge: Badge,
    pub step: String,
    pub age: String,
    pub speed: String,
    /// Shares of time computing, moving values, waiting for batches and waiting for others, in percent.
    pub split: [f64; 4],
    /// The same as text.
    pub split_text: String,
    pub staleness: String,
    pub dropped: String,
    pub wait: String,
    /// Only on the terminal screen; the page shows machines instead.
    #[serde(skip)]
    pub cpu: String,
    #[serde(skip)]
    pub memory: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct ServerRow {
    pub name: String,
    pub address: String,
    pub badge: Badge,
    pub age: String,
    pub shard: String,
    pub parameters: String,
    pub applied: String,
    pub repeated: String,
    pub dropped: String,
    /// Only on the terminal screen: servers do not report whom they wait for, so the page's column would be empty.
    #[serde(skip)]
    pub wait: String,
    /// Only on the terminal screen; the page shows machines instead.
    #[serde(skip)]
    pub cpu: String,
    #[serde(skip)]
    pub memory: String,
}

/// A worker's recent speed.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Speed {
    pub name: String,
    pub badge: Badge,
    pub now: String,
    pub recent: Vec<f32>,
}

impl WorkerRow {
    pub(super) fn new(task: TaskId, worker: &Worker, badge: Badge) -> Self {
        let is_client = task.job == Job::Client;
        let split = shares(&worker.split);
        Self {
            task: Some(task),
            is_chief: worker.chief && !is_client,
            name: if worker.chief && !is_client { format!("{task} (chief)") } else { task.to_string() },
            address: plain(&worker.address),
            sites: match &worker.stages[..] {
                [] => sites(&worker.sites),
                [stage] => format!("stage {}", plain(stage)),
                stages => format!("stages {}", plain(&stages.join(", "))),
            },
            badge,
            step: count(worker.step),
            age: age(worker.silent_secs),
            speed: rate(worker.samples_per_second),
            split_text: split_text(split),
            split,
            staleness: format!("{:.1}", if worker.staleness.is_finite() { worker.staleness } else { 0.0 }),
            dropped: count(worker.dropped),
            wait: wait(&worker.wait, worker.state),
            cpu: cpu(worker.cpus),
            memory: memory(worker.memory_bytes),
        }
    }
}

impl ServerRow {
    pub(super) fn new(server: &Server) -> Self {
        Self {
            name: TaskId::ps(server.index).to_string(),
            address: plain(&server.address),
            badge: state_badge(server.state, server.silent_secs),
            age: age(server.silent_secs),
            shard: bytes(server.shard_bytes),
            parameters: count(server.parameters),
            applied: count(server.applied),
            repeated: count(server.repeated),
            dropped: count(server.dropped),
            wait: wait(&server.wait, server.state),
            cpu: cpu(server.cpus),
            memory: memory(server.memory_bytes),
        }
    }
}

impl Speed {
    pub(super) fn new(task: TaskId, worker: &Worker, badge: Badge) -> Self {
        let recent = worker.recent_samples_per_second.iter().map(|speed| three_digits(*speed)).collect();
        let now = format!("{}/s", rate(worker.samples_per_second));
        Self { name: task.to_string(), badge, now, recent }
    }
}

/// The highest recent speed of any worker, rounded up so that it seldom changes.
pub(super) fn top_speed(status: &Status) -> f64 {
    let has_stages = status.workers.iter().any(|worker| !worker.stages.is_empty());
    let shown = status.trainers().filter(|(task, _)| (task.job == Job::Client) == has_stages);
    let speeds = shown.flat_map(|(_, worker)| &worker.recent_samples_per_second);
    let top = speeds.copied().filter(|speed| speed.is_finite()).fold(0.0, f32::max);
    if top <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(f64::from(top).log10().floor());
    let round = [1.0, 1.5, 2.0, 3.0, 5.0, 7.0, 10.0].map(|digit| digit * power);
    round.into_iter().find(|round| *round >= f64::from(top)).unwrap_or(f64::from(top))
}

/// Where steps are computed: `on 2 × cpu:0`, or `on 2 towers`. Empty if unknown.
pub(crate) fn sites(sites: &[Site]) -> String {
    let site = |site: &Site| {
        let name = plain(&site.name);
        let what = match site.replicas {
            0 | 1 => name,
            replicas if site.name == Site::TOWERS => format!("{replicas} {name}"),
            replicas => format!("{replicas} × {name}"),
        };
        format!("{what}{}", if site.reachable { "" } else { " (out of reach)" })
    };
    let mut told: Vec<String> = sites.iter().take(SITES).map(site).collect();
    let more = sites.len().saturating_sub(SITES);
    told.extend((more > 0).then(|| format!("{more} more")));
    if told.is_empty() { String::new() } else { format!("on {}", told.join(", ")) }
}

fn age(silent_secs: Option<f64>) -> String {
    silent_secs.map_or("–".into(), duration)
}

/// In percent of one processor, so several busy processors exceed 100%.
fn cpu(cpus: Option<f64>) -> String {
    cpus.filter(|cpus| cpus.is_finite()).map_or("–".into(), |cpus| format!("{:.0}%", cpus.max(0.0) * 100.0))
}

fn memory(held: Option<u64>) -> String {
    held.map_or("–".into(), bytes)
}

fn wait(wait: &Option<Wait>, state: State) -> String {
    match wait {
        Some(Wait { on, secs }) if state != State::Dead && !on.is_empty() => {
            format!("{} for {}", duration(*secs), tasks(on))
        }
        _ => "–".into(),
    }
}

/// Whole percentages whose sum never exceeds 100.
fn shares(split: &TimeSplit) -> [f64; 4] {
    let parts = [split.compute, split.network, split.data, split.wait];
    let parts = parts.map(|share| if share.is_finite() { share.max(0.0) } else { 0.0 });
    let sum = parts.iter().sum::<f64>().max(1.0);
    parts.map(|share| (share / sum * 100.0).floor())
}

fn split_text(split: [f64; 4]) -> String {
    if split.iter().all(|part| *part == 0.0) {
        return "–".into();
    }
    let parts = ["compute", "network", "data", "wait"].into_iter().zip(split);
    let shown: Vec<String> =
        parts.filter(|(_, part)| *part >= 1.0).map(|(name, part)| format!("{name} {part:.0}%")).collect();
    shown.join(", ")
}

fn three_digits(speed: f32) -> f32 {
    if speed <= 0.0 || !speed.is_finite() {
        return 0.0;
    }
    let scale = 10f32.powi(2 - speed.log10().floor() as i32);
    (speed * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_time_never_exceed_the_whole() {
        let split = TimeSplit { compute: 0.9, wait: 0.9, data: f64::NAN, network: -1.0 };
        assert_eq!(shares(&split), [50.0, 0.0, 0.0, 50.0]);
        assert_eq!(split_text(shares(&split)), "compute 50%, wait 50%");
        assert_eq!(split_text([0.0; 4]), "–");
    }

    #[test]
    fn the_scale_of_speeds_is_round_and_holds_the_highest() {
        let mut status = Status::default();
        assert_eq!(top_speed(&status), 1.0);
        let recent_samples_per_second = vec![10.0, 12_300.0];
        status.workers.push(Worker { recent_samples_per_second, ..Worker::default() });
        assert_eq!(top_speed(&status), 15_000.0);
    }

    #[test]
    fn towers_of_a_joined_worker_are_counted_and_replicas_on_a_device_are_multiplied() {
        let site = |name: &str, replicas| Site { name: name.into(), replicas, reachable: true };
        assert_eq!(sites(&[site("gpu:0", 1), site("gpu:1", 2)]), "on gpu:0, 2 × gpu:1");
        assert_eq!(sites(&[Site { reachable: false, ..site(Site::TOWERS, 2) }]), "on 2 towers (out of reach)");
    }

    #[test]
    fn what_a_dead_worker_waited_for_is_not_shown() {
        let waits = Some(Wait { on: vec![TaskId::ps(0)], secs: 3.0 });
        assert_eq!(wait(&waits, State::Waiting), "3.0 s for ps 0");
        assert_eq!(wait(&waits, State::Dead), "–");
    }
}
