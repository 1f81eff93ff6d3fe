//! Everything that the page shows, worded and formatted.
//!
//! The page is rendered from it twice, first by `html` and then by the script, so everything that must be decided,
//! rounded or worded is done here, once.

mod drawing;
mod tasks;

use serde::Serialize;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::hang::Root;
use windlass_core::straggler::{Course, Straggler, Verdict};

use crate::chart::Chart;
use crate::figures::{byte_rate, bytes, count, duration, percent, plain, rate};
use crate::headline::{headline, tasks};
use crate::status::{Checkpoint, Node, Phase, State, Status, Worker};
use crate::timeline::{Event, EventKind};
pub(crate) use drawing::{Drawing, TaskBox};
pub(crate) use tasks::{ServerRow, Speed, WorkerRow};

/// The maximum number of checkpoints shown.
const CHECKPOINTS: usize = 8;
/// The maximum number of chains of waits shown.
const CHAINS: usize = 8;
/// An unfinished task that has been silent for this long is highlighted.
const SILENT_SECS: f64 = 5.0;
/// The maximum number of events shown.
const EVENTS: usize = 20;

/// The contents of the page.
#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct View {
    pub title: String,
    pub headline: String,
    pub badge: Badge,
    /// In percent.
    pub progress: f64,
    pub facts: Vec<Fact>,
    pub charts: Vec<Chart>,
    /// The highest speed of a worker, the common scale of all sparklines.
    pub speed_top: f64,
    pub speeds: Vec<Speed>,
    pub speeds_note: String,
    pub workers: Vec<WorkerRow>,
    pub servers: Vec<ServerRow>,
    pub drawing: Drawing,
    pub findings: Vec<Finding>,
    pub chains: Vec<Finding>,
    pub nodes: Vec<NodeRow>,
    pub checkpoints: Vec<CheckpointRow>,
    pub checkpoints_note: String,
    pub events: Vec<EventRow>,
    pub events_note: String,
    pub goodput: Goodput,
}

/// A state as word and symbol; `tone` selects a colour.
#[derive(Debug, Default, Clone, Copy, Serialize)]
pub(crate) struct Badge {
    pub word: &'static str,
    pub symbol: &'static str,
    pub tone: &'static str,
}

const fn badge(word: &'static str, symbol: &'static str, tone: &'static str) -> Badge {
    Badge { word, symbol, tone }
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Fact {
    pub label: &'static str,
    pub value: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Finding {
    pub badge: Badge,
    pub text: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct NodeRow {
    pub name: String,
    pub tasks: String,
    pub cpu: String,
    /// In percent.
    pub cpu_bar: f64,
    pub memory: String,
    /// In percent.
    pub memory_bar: f64,
    pub received: String,
    pub sent: String,
    pub gpu: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct CheckpointRow {
    pub step: String,
    pub age: String,
    pub size: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct EventRow {
    pub at: String,
    pub badge: Badge,
    pub what: String,
}

#[derive(Debug, Default, Clone, Serialize)]
pub(crate) struct Goodput {
    pub share: String,
    /// In percent.
    pub bar: f64,
    pub text: String,
}

impl View {
    pub(crate) fn new(status: &Status) -> Self {
        let model = plain(&status.model);
        let speed_top = tasks::top_speed(status);
        let workers = || status.trainers().map(|(task, worker)| (task, worker, worker_badge(status, task, worker)));
        // A stage of a model has no speed of its own.
        let has_stages = status.workers.iter().any(|worker| !worker.stages.is_empty());
        let has_speed = |task: TaskId| (task.job == Job::Client) == has_stages;
        Self {
            title: if model.is_empty() { "Windlass".into() } else { format!("{} · {model}", count(status.step)) },
            headline: headline(status),
            badge: phase_badge(status),
            progress: progress(status),
            facts: facts(status),
            charts: std::iter::once(&status.loss).chain(&status.scores).map(Chart::new).collect(),
            speed_top,
            speeds: workers()
                .filter(|(task, ..)| has_speed(*task))
                .map(|(task, worker, badge)| Speed::new(task, worker, badge))
                .collect(),
            speeds_note: speeds_note(status, speed_top),
            workers: workers().map(|(task, worker, badge)| WorkerRow::new(task, worker, badge)).collect(),
            servers: status.servers.iter().map(ServerRow::new).collect(),
            drawing: Drawing::new(status),
            findings: findings(status),
            chains: chains(status),
            nodes: status.nodes.iter().map(NodeRow::new).collect(),
            checkpoints: status.checkpoints.iter().take(CHECKPOINTS).map(CheckpointRow::new).collect(),
            checkpoints_note: checkpoints_note(status),
            events: status.timeline.events().rev().take(EVENTS).map(EventRow::new).collect(),
            events_note: events_note(status),
            goodput: goodput(status),
        }
    }
}

/// The state of a task, and whether it has fallen silent.
pub(crate) fn state_badge(state: State, silent_secs: Option<f64>) -> Badge {
    match state {
        State::Alive | State::Waiting if silent_secs.is_some_and(|secs| secs >= SILENT_SECS) => {
            badge("silent", "▲", "bad")
        }
        State::Missing => badge("missing", "○", "idle"),
        State::Alive => badge("alive", "●", "good"),
        State::Waiting => badge("waiting", "◐", "wait"),
        State::Dead => badge("dead", "✕", "bad"),
        State::Done => badge("done", "✓", "done"),
        State::Ended => badge("ended", "■", "idle"),
    }
}

/// The state of a worker, and whether it is a straggler.
pub(crate) fn worker_badge(status: &Status, task: TaskId, worker: &Worker) -> Badge {
    let is_slow = |found: &Straggler| TaskId::from(found.worker) == task && found.course == Course::Chronic;
    match &status.straggler {
        Verdict::Stragglers { stragglers } if worker.state == State::Alive && stragglers.iter().any(is_slow) => {
            badge("slow", "▲", "wait")
        }
        _ => state_badge(worker.state, worker.silent_secs),
    }
}

fn phase_badge(status: &Status) -> Badge {
    let troubled = status.trainers().any(|(_, worker)| worker.state == State::Dead)
        || status.servers.iter().any(|server| server.state == State::Dead);
    match &status.phase {
        Phase::Gathering => badge("gathering", "○", "wait"),
        Phase::Preparing => badge("preparing", "○", "wait"),
        Phase::Initialising => badge("initialising", "○", "wait"),
        Phase::Training if status.hang().is_some() => badge("stuck", "✕", "bad"),
        Phase::Training if troubled || status.stalls() => badge("training", "▲", "wait"),
        Phase::Training => badge("training", "●", "good"),
        Phase::Finishing => badge("finishing", "●", "good"),
        Phase::Saving => badge("saving", "●", "good"),
        Phase::Over => badge("over", "✓", "done"),
        Phase::Stopped { .. } => badge("stopped", "■", "idle"),
        Phase::Failed { .. } => badge("failed", "✕", "bad"),
        Phase::Died => badge("died", "✕", "bad"),
        Phase::Unknown => badge("unknown", "○", "idle"),
    }
}

fn progress(status: &Status) -> f64 {
    let share = match (status.target, &status.phase) {
        (_, Phase::Over) => 1.0,
        (Some(target), _) if target > 0 => (status.step as f64 / target as f64).min(1.0),
        _ => 0.0,
    };
    tenths(share * 100.0)
}

fn facts(status: &Status) -> Vec<Fact> {
    let fact = |label, value| Fact { label, value };
    let named = |text: &str| if text.is_empty() { "–".into() } else { plain(text) };
    let step = match status.target {
        Some(target) => format!("{} of {}", count(status.step), count(target)),
        None => count(status.step),
    };
    vec![
        fact("Model", named(&status.model)),
        fact("Mode", named(&status.mode)),
        fact("Optimizer", named(&status.optimizer)),
        fact("Layout", named(&status.layout)),
        fact("Step", step),
        fact("Began at step", count(status.start)),
        fact("Elapsed", duration(status.elapsed_secs)),
        fact("Left", status.left_secs.map_or("–".into(), |left| format!("about {}", crate::figures::about(left)))),
        fact("Steps/s", rate(status.steps_per_second)),
        fact("Samples/s", rate(status.samples_per_second)),
        fact("Lost", updates_lost(status)),
    ]
}

/// Updates lost to rollbacks: `3,120 updates in 2 rollbacks`.
pub(crate) fn updates_lost(status: &Status) -> String {
    let s = |count| if count == 1 { "" } else { "s" };
    let (lost, rollbacks) = (status.updates_lost, status.rollbacks);
    match rollbacks {
        0 => "no updates".into(),
        _ => format!("{} update{} in {} rollback{}", count(lost), s(lost), count(rollbacks), s(rollbacks)),
    }
}

fn speeds_note(status: &Status, top: f64) -> String {
    match status.workers.len() {
        0 => "no workers yet".into(),
        1 => format!("the last minute, from 0 to {}", rate(top)),
        _ => format!("the last minute; every curve goes from 0 to {}", rate(top)),
    }
}

/// The verdict on stragglers; empty if the run hangs, since the verdict is then outdated.
fn findings(status: &Status) -> Vec<Finding> {
    if status.hang().is_some() || matches!(status.phase, Phase::Died | Phase::Unknown) {
        return Vec::new();
    }
    if let Some(root) = status.holds_up() {
        return vec![Finding { badge: badge("holds up", "▲", "bad"), text: dependents_wait(&root) }];
    }
    match &status.straggler {
        Verdict::NotEnoughEvidence { .. } => {
            let text = sentence(&format!("stragglers: {}", plain(&status.straggler.to_string())));
            vec![Finding { badge: badge("unknown", "○", "idle"), text }]
        }
        Verdict::Even => {
            if let Some(absent) = absent(status) {
                let text = sentence(&format!("{absent}; the others take about the same time"));
                return vec![Finding { badge: badge("absent", "✕", "bad"), text }];
            }
            vec![Finding { badge: badge("even", "✓", "good"), text: sentence(&status.straggler.to_string()) }]
        }
        Verdict::Stragglers { stragglers } => {
            let finding = |straggler: &dyn std::fmt::Display| Finding {
                badge: badge("straggler", "▲", "wait"),
                text: sentence(&straggler.to_string()),
            };
            stragglers.iter().map(|straggler| finding(straggler)).collect()
        }
    }
}

/// The workers excluded from the comparison because nothing is heard from them: `worker 2 is dead`.
fn absent(status: &Status) -> Option<String> {
    let of = |word| {
        let alike = status.trainers().filter(move |(task, worker)| worker_badge(status, *task, worker).word == word);
        let alike: Vec<TaskId> = alike.map(|(task, _)| task).collect();
        let are = if alike.len() == 1 { "is" } else { "are" };
        (!alike.is_empty()).then(|| format!("{} {are} {word}", tasks(&alike)))
    };
    let told: Vec<String> = ["dead", "silent"].into_iter().filter_map(of).collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// A task that others wait for: `Worker 2 has been silent for 5.1 s (2 tasks wait for it)`.
fn dependents_wait(root: &Root) -> String {
    if root.dependents == 0 {
        return sentence(&root.finding);
    }
    let tasks = if root.dependents == 1 { "task waits" } else { "tasks wait" };
    format!("{} ({} {tasks} for it)", sentence(&root.finding), root.dependents)
}

/// If the run hangs, the chains of waits: first the tasks to look at, then every chain.
fn chains(status: &Status) -> Vec<Finding> {
    let Some(report) = status.hang() else { return Vec::new() };
    let look_here = || badge("look here", "✕", "bad");
    let roots = report.roots.iter().map(|root| Finding { badge: look_here(), text: dependents_wait(root) });
    let more = report.chains.len().saturating_sub(CHAINS);
    let more = (more > 0).then(|| format!("{more} more tasks wait"));
    let chains = report.chains.iter().take(CHAINS).map(|chain| sentence(chain)).chain(more);
    let chains = chains.map(|text| Finding { badge: badge("waiting", "◐", "wait"), text });
    roots.chain(chains).collect()
}

fn checkpoints_note(status: &Status) -> String {
    match status.checkpoints.len() {
        0 => "No checkpoint yet: if a server is lost, training starts over.".into(),
        shown if shown <= CHECKPOINTS => String::new(),
        all => format!("{} older ones are not shown.", all - CHECKPOINTS),
    }
}

fn events_note(status: &Status) -> String {
    let all = status.timeline.forgotten() + status.timeline.events().count() as u64;
    match all {
        0 => "Nothing has happened yet.".into(),
        all if all <= EVENTS as u64 => String::new(),
        all => format!("{} earlier events are not shown.", count(all - EVENTS as u64)),
    }
}

fn goodput(status: &Status) -> Goodput {
    let Some(share) = status.goodput.filter(|share| share.is_finite()) else {
        return Goodput { share: "–".into(), bar: 0.0, text: "not known yet".into() };
    };
    let text = "of the time made progress that was kept; the rest was starting, waiting, saving, or rolled back";
    Goodput { share: percent(share), bar: tenths(share.clamp(0.0, 1.0) * 100.0), text: text.into() }
}

impl NodeRow {
    fn new(node: &Node) -> Self {
        let share = |used: u64, all: u64| if all > 0 { (used as f64 / all as f64).min(1.0) } else { 0.0 };
        let memory = share(node.memory_used_bytes, node.memory_bytes);
        let cores = if node.cores == 1 { "core" } else { "cores" };
        let gpus: Vec<String> = node.gpus.iter().map(|gpu| percent(*gpu)).collect();
        Self {
            name: plain(&node.name),
            tasks: if node.tasks.is_empty() { "–".into() } else { tasks(&node.tasks) },
            cpu: format!("{} of {} {cores}", percent(node.cpu), node.cores),
            cpu_bar: whole_percent(node.cpu),
            memory: format!("{} of {}", bytes(node.memory_used_bytes), bytes(node.memory_bytes)),
            memory_bar: whole_percent(memory),
            received: byte_rate(node.received_per_second),
            sent: byte_rate(node.sent_per_second),
            gpu: if gpus.is_empty() { "–".into() } else { gpus.join(", ") },
        }
    }
}

impl CheckpointRow {
    fn new(checkpoint: &Checkpoint) -> Self {
        let age = format!("{} ago", duration(checkpoint.age_secs));
        Self { step: count(checkpoint.step), age, size: bytes(checkpoint.bytes) }
    }
}

impl EventRow {
    fn new(event: &Event) -> Self {
        let badge = match event.kind {
            EventKind::Joined => badge("joined", "●", "good"),
            EventKind::Finished => badge("finished", "✓", "done"),
            EventKind::DeclaredDead => badge("dead", "✕", "bad"),
            EventKind::RolledBack => badge("rolled back", "◀", "bad"),
            EventKind::Saved => badge("saved", "■", "done"),
            EventKind::Phase => badge("phase", "○", "idle"),
            EventKind::Warning => badge("warning", "▲", "wait"),
        };
        Self { at: duration(event.at_secs), badge, what: plain(&event.what) }
    }
}

/// Capitalises the first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn whole_percent(share: f64) -> f64 {
    if share.is_finite() { (share.clamp(0.0, 1.0) * 100.0).round() } else { 0.0 }
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
