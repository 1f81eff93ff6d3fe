//! Finds out which task waits for which when a run makes no progress, as chains that end at the task to look at. Pure.
//!
//! The coordinator knows what each task waits for and when it was last heard from. From that, [`report`] finds the
//! tasks that the others depend on, directly or indirectly: those that wait for no task, or that wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cluster::{Job, TaskId};

/// A task that has not been heard from for this long is called silent.
const SILENT_SECS: f64 = 1.0;
/// If there are more tasks than this, only some are named.
const NAMED: usize = 4;

/// The state of one task when it was last heard from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskState {
    /// The task.
    pub task: TaskId,
    /// The task's current step, if it counts steps.
    pub step: Option<u64>,
    /// How long ago the task was last heard from.
    pub silent_secs: f64,
    /// Whether the task was declared dead.
    pub dead: bool,
    /// What the task waits for; `None` if it is working.
    pub wait: Option<Wait>,
}

/// A wait for other tasks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    /// All of these tasks are waited for.
    pub on: Vec<TaskId>,
    /// How long the wait has lasted.
    pub secs: f64,
}

/// Why nothing progresses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HangReport {
    /// How long nothing has progressed.
    pub stalled_secs: f64,
    /// The tasks that all waits lead to, those with the most dependents first; or, if no task waits, those that should
    /// be making steps.
    pub roots: Vec<Root>,
    /// One line for every waiting task, following its chain to the end.
    pub chains: Vec<String>,
}

/// The end of chains of waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Root {
    /// One task that waits for no other, or several that wait for each other.
    pub tasks: Vec<TaskId>,
    /// How many other tasks wait for these, directly or indirectly.
    pub dependents: usize,
    /// What is known about these tasks, as a sentence without a full stop.
    pub finding: String,
}

/// Builds a report from the states of all tasks. If no task waits, the tasks to look at are those that should be making
/// steps. Returns `None` if there is no worker either.
pub fn report(tasks: &[TaskState], stalled_secs: f64) -> Option<HangReport> {
    let graph = Graph { states: tasks.iter().map(|state| (state.task, state)).collect() };
    let waiting: Vec<TaskId> = graph.states.keys().copied().filter(|task| graph.waits(*task)).collect();
    if waiting.is_empty() {
        let roots = graph.idle(stalled_secs);
        return (!roots.is_empty()).then(|| HangReport { stalled_secs, roots, chains: Vec::new() });
    }
    let mut roots: Vec<Root> = graph.roots().into_iter().map(|tasks| graph.describe_root(tasks)).collect();
    roots.sort_by(|a, b| b.dependents.cmp(&a.dependents).then(a.tasks.cmp(&b.tasks)));
    Some(HangReport { stalled_secs, roots, chains: waiting.into_iter().map(|task| graph.chain(task)).collect() })
}

impl TaskState {
    fn is_silent(&self) -> bool {
        self.silent_secs >= SILENT_SECS
    }
}

struct Graph<'a> {
    states: BTreeMap<TaskId, &'a TaskState>,
}

impl Graph<'_> {
    /// The tasks that a task waits for; none if it was declared dead, since what it waited for explains nothing.
    fn awaited(&self, task: TaskId) -> &[TaskId] {
        let state = self.states.get(&task).filter(|state| !state.dead);
        state.and_then(|state| state.wait.as_ref()).map_or(&[], |wait| &wait.on)
    }

    fn waits(&self, task: TaskId) -> bool {
        !self.awaited(task).is_empty()
    }

    /// All tasks that a task depends on. Includes the task itself only if it is part of a cycle.
    fn reachable(&self, task: TaskId) -> BTreeSet<TaskId> {
        let mut reached = BTreeSet::new();
        let mut open = self.awaited(task).to_vec();
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(self.awaited(next));
            }
        }
        reached
    }

    /// Awaited tasks that wait for no other, and groups of tasks that wait only for each other.
    fn roots(&self) -> BTreeSet<Vec<TaskId>> {
        let awaited: BTreeSet<TaskId> = self.states.keys().flat_map(|task| self.awaited(*task)).copied().collect();
        let as_root = |task: TaskId| {
            let reached = self.reachable(task);
            if reached.is_empty() {
                return Some(vec![task]);
            }
            let closed = reached.contains(&task) && reached.iter().all(|other| self.reachable(*other) == reached);
            closed.then(|| reached.into_iter().collect())
        };
        awaited.into_iter().filter_map(as_root).collect()
    }

    fn describe_root(&self, tasks: Vec<TaskId>) -> Root {
        let depends = |task: &&TaskId| !tasks.contains(task) && self.reachable(**task).contains(&tasks[0]);
        let dependents = self.states.keys().filter(depends).count();
        let finding = match tasks.as_slice() {
            [task] if !self.waits(*task) => self.condition(*task),
            [task] => format!("{task} waits for itself"),
            several => format!("{} wait for each other", names(several)),
        };
        Root { tasks, dependents, finding }
    }

    /// The tasks to look at if no task waits and yet nothing progresses: a silent or dead client, else the workers,
    /// silent ones first.
    fn idle(&self, stalled_secs: f64) -> Vec<Root> {
        // If there is a client, the workers only do what it asks of them.
        let client = self.states.get(&TaskId::CLIENT).copied().filter(|client| client.is_silent() || client.dead);
        if let Some(client) = client {
            return vec![self.describe_root(vec![client.task])];
        }
        let living = self.states.values().copied().filter(|state| !state.dead && state.task.job == Job::Worker);
        let (silent, speaking): (Vec<&TaskState>, Vec<&TaskState>) = living.partition(|state| state.is_silent());
        let mut roots: Vec<Root> = silent.iter().map(|state| self.describe_root(vec![state.task])).collect();
        let tasks: Vec<TaskId> = speaking.iter().map(|state| state.task).collect();
        if !tasks.is_empty() {
            let (are, have) = if tasks.len() == 1 { ("is", "has") } else { ("are", "have") };
            let (who, stalled) = (some_names(&tasks), secs(stalled_secs));
            let finding = format!("{who} {are} alive and {have} finished no step for {stalled}");
            roots.push(Root { tasks, dependents: 0, finding });
        }
        roots
    }

    /// Describes an awaited task that waits for no other.
    fn condition(&self, task: TaskId) -> String {
        match self.states.get(&task) {
            None => format!("{task} is unknown: it has never joined"),
            Some(state) if state.dead => format!("{task} was declared dead"),
            Some(state) if state.is_silent() => {
                format!("{task} has been silent for {}", secs(state.silent_secs))
            }
            Some(_) => format!("{task} is alive and working"),
        }
    }

    /// Describes the chain of waits that starts at a task, each wait once. Where a task waits for several, the chain
    /// follows the first one that is waiting itself.
    fn chain(&self, task: TaskId) -> String {
        let (mut parts, mut told, mut task) = (Vec::new(), BTreeSet::new(), task);
        loop {
            if !told.insert(task) {
                parts.push(format!("closing the cycle at {task}"));
                break;
            }
            let Some((state, wait)) = self.wait_of(task) else {
                parts.push(self.condition(task));
                break;
            };
            let step = state.step.map(|step| format!(" at step {}", thousands(step))).unwrap_or_default();
            parts.push(format!("{task} has waited {} for {}{step}", secs(wait.secs), names(&wait.on)));
            task = wait.on.iter().copied().find(|next| self.waits(*next)).unwrap_or_else(|| self.suspect(&wait.on));
        }
        parts.join("; ")
    }

    fn wait_of(&self, task: TaskId) -> Option<(&TaskState, &Wait)> {
        let state = self.states.get(&task).filter(|_| self.waits(task))?;
        Some((state, state.wait.as_ref()?))
    }

    /// Picks the suspect among tasks that wait for no other: one dead or unknown, else the one silent longest.
    fn suspect(&self, tasks: &[TaskId]) -> TaskId {
        let silence = |task: &TaskId| match self.states.get(task) {
            Some(state) if !state.dead => state.silent_secs,
            _ => f64::INFINITY,
        };
        tasks.iter().copied().max_by(|a, b| silence(a).total_cmp(&silence(b))).expect("a wait is for somebody")
    }
}

/// Formats `12,345`, as everywhere on the page.
fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

fn secs(secs: f64) -> String {
    if secs < 10.0 { format!("{secs:.1} s") } else { format!("{secs:.0} s") }
}

/// `ps 0, ps 1 and ps 2`.
fn names(tasks: &[TaskId]) -> String {
    match tasks {
        [] => "nobody".into(),
        [one] => one.to_string(),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(TaskId::to_string).collect();
            format!("{} and {last}", first.join(", "))
        }
    }
}

/// Like [`names`], but `worker 0, worker 1, worker 2 and 29 others`.
fn some_names(tasks: &[TaskId]) -> String {
    if tasks.len() <= NAMED {
        return names(tasks);
    }
    let (named, others) = tasks.split_at(NAMED - 1);
    let named: Vec<String> = named.iter().map(TaskId::to_string).collect();
    format!("{} and {} others", named.join(", "), others.len())
}

/// The format of the file in the run directory.
impl fmt::Display for HangReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "no progress for {}", secs(self.stalled_secs))?;
        for Root { finding, dependents, .. } in &self.roots {
            match dependents {
                0 => writeln!(formatter, "look at: {finding}")?,
                1 => writeln!(formatter, "look at: {finding} (1 task waits for it)")?,
                _ => writeln!(formatter, "look at: {finding} ({dependents} tasks wait for it)")?,
            }
        }
        self.chains.iter().try_for_each(|chain| writeln!(formatter, "- {chain}"))
    }
}

#[cfg(test)]
#[path = "hang_tests.rs"]
mod tests;
