//! The state of a run as the coordinator knows it. Data only: other modules present it.
//!
//! All of it is served as JSON at `/status.json`. Every field has a default, so that an older `windlass status` can
//! read the status of a newer run. Durations are in seconds, and ages are relative to the time of the status.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::cluster::TaskId;
use windlass_core::hang::{self, HangReport, TaskState, Wait};
use windlass_core::straggler::Verdict;

use crate::curve::Curve;
use crate::timeline::Timeline;

/// A run that should train but makes no progress for this long is reported as hanging, unless its steps take longer.
const HANG_SECS: f64 = 10.0;
/// After this share of the time until a run counts as hanging, it is shown as stalled rather than with a speed.
const STALL_SHARE: f64 = 0.3;
/// A task reports twice a second. One that has been silent for this long may be the one that others wait for.
const QUIET_SECS: f64 = 2.0;
/// The maximum number of measurements of a worker's recent speed.
const MOST_SPEEDS: usize = 60;

/// Reads a number that may be null in JSON because it was not finite; a null would make the whole status unreadable.
fn number<'a, D: Deserializer<'a>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The state of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The model's name.
    pub model: String,
    /// The consistency mode: `async`, `sync`, `ssp 4`.
    pub mode: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// The tasks of the run: `2 ps, 8 workers`.
    pub layout: String,
    /// The phase of the run.
    pub phase: Phase,
    /// The tasks that the phase waits for, and how long it has waited.
    pub awaited: Option<Wait>,
    /// The global step.
    pub step: u64,
    /// The step at which the run ends, if steps limit it.
    pub target: Option<u64>,
    /// The step at which the run began: 0, or that of the checkpoint it resumed from.
    pub start: u64,
    /// Time since the run began.
    #[serde(deserialize_with = "number")]
    pub elapsed_secs: f64,
    /// Time since the global step last changed.
    #[serde(deserialize_with = "number")]
    pub stalled_secs: f64,
    /// How long the run may go without progress before it counts as hanging. Values below ten seconds count as ten.
    #[serde(deserialize_with = "number")]
    pub hang_after_secs: f64,
    /// Recent steps per second.
    #[serde(deserialize_with = "number")]
    pub steps_per_second: f64,
    /// Recent samples per second of all workers together.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Estimated time until the run ends, if known.
    pub left_secs: Option<f64>,
    /// The training loss.
    pub loss: Curve,
    /// The scores, one curve each.
    pub scores: Vec<Curve>,
    /// The client, if the workers have joined one.
    pub client: Option<Worker>,
    /// The workers, by index.
    pub workers: Vec<Worker>,
    /// The parameter servers, by index.
    pub servers: Vec<Server>,
    /// The machines that tasks run on.
    pub nodes: Vec<Node>,
    /// The usable checkpoints, newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// The events so far.
    pub timeline: Timeline,
    /// How often the run rolled back to a checkpoint.
    pub rollbacks: u64,
    /// Updates lost to rollbacks.
    pub updates_lost: u64,
    /// Time spent on progress that was kept.
    #[serde(deserialize_with = "number")]
    pub kept_secs: f64,
    /// Updates made in that time.
    pub kept_updates: u64,
    /// The share of the elapsed time spent on progress that was kept, from 0 to 1.
    pub goodput: Option<f64>,
    /// The verdict on which worker slows the run down.
    pub straggler: Verdict,
}

/// The phase of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Phase {
    /// The run waits for tasks to join.
    #[default]
    Gathering,
    /// Servers allocate or restore their shards.
    Preparing,
    /// The chief pushes the initial values.
    Initialising,
    /// Workers train.
    Training,
    /// The chief scores the final values and writes the summary.
    Finishing,
    /// The last checkpoint is being written.
    Saving,
    /// The run ended successfully.
    Over,
    /// The run was told to stop.
    Stopped {
        /// Who stopped it, as a sentence without a full stop.
        why: String,
    },
    /// The run failed.
    Failed {
        /// Why, as a sentence without a full stop.
        why: String,
    },
    /// The run ended without a final status. Not set by a coordinator, but by readers of the record that it left.
    Died,
    /// Whether the run is still active cannot be determined here, because its processes were on another machine. Set by
    /// the same readers.
    Unknown,
}

/// The state of a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The task has not joined yet.
    #[default]
    Missing,
    /// The task is working.
    Alive,
    /// The task waits for other tasks.
    Waiting,
    /// The task was declared dead.
    Dead,
    /// The task has finished.
    Done,
    /// The task was present when the run ended early.
    Ended,
}

/// Recent shares of a worker's time. They need not add up to 1; the rest is unaccounted for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeSplit {
    /// Computing gradients.
    #[serde(deserialize_with = "number")]
    pub compute: f64,
    /// Waiting for other workers: a round, or the staleness bound.
    #[serde(deserialize_with = "number")]
    pub wait: f64,
    /// Waiting for batches.
    #[serde(deserialize_with = "number")]
    pub data: f64,
    /// Moving values and gradients.
    #[serde(deserialize_with = "number")]
    pub network: f64,
}

/// A worker, or the client that workers have joined.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Its index.
    pub index: u32,
    /// Where a joined worker listens, as users wrote it; empty for other workers.
    pub address: String,
    /// Its state.
    pub state: State,
    /// Whether it is the chief.
    pub chief: bool,
    /// Its own step.
    pub step: u64,
    /// Time since it was last heard from; `None` if it never was.
    pub silent_secs: Option<f64>,
    /// Recent samples per second.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Its recent speeds at equal intervals, oldest first: see [`Worker::record_speed`].
    pub recent_samples_per_second: Vec<f32>,
    /// The recent split of its time.
    pub split: TimeSplit,
    /// The recent mean staleness of its gradients, in updates.
    #[serde(deserialize_with = "number")]
    pub staleness: f64,
    /// How many of its updates were dropped as stale.
    pub dropped: u64,
    /// Processors that it keeps busy, if known.
    pub cpus: Option<f64>,
    /// Memory that it uses, if known.
    pub memory_bytes: Option<u64>,
    /// The tasks that it waits for, and how long it has waited.
    pub wait: Option<Wait>,
    /// Where its steps are computed.
    pub sites: Vec<Site>,
    /// The stages that it computes; empty if it computes the whole model.
    pub stages: Vec<String>,
}

/// Where replicas of a worker's network compute: a device, or the towers of a joined worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// How many replicas compute there.
    pub replicas: u32,
    /// Whether it is currently reachable.
    pub reachable: bool,
}

impl Site {
    /// The name of the towers of a joined worker, whose devices are not known.
    pub const TOWERS: &str = "towers";
}

impl Worker {
    /// Records its current speed, and drops the oldest measurement if there are too many.
    pub fn record_speed(&mut self, samples_per_second: f64) {
        self.samples_per_second = samples_per_second;
        self.recent_samples_per_second.push(if samples_per_second.is_finite() {
            samples_per_second as f32
        } else {
            0.0
        });
        let excess = self.recent_samples_per_second.len().saturating_sub(MOST_SPEEDS);
        self.recent_samples_per_second.drain(..excess);
    }
}

/// A parameter server, or a worker's shard if there are no ps tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Its index.
    pub index: u32,
    /// Where it listens, as users wrote it.
    pub address: String,
    /// Its state.
    pub state: State,
    /// Time since it was last heard from; `None` if it never was.
    pub silent_secs: Option<f64>,
    /// Size of the parameters it holds; 0 if it holds none and is idle.
    pub shard_bytes: u64,
    /// How many parameters it holds.
    pub parameters: u64,
    /// Pushes it has applied.
    pub applied: u64,
    /// Pushes it received again after it had applied them, and ignored.
    pub repeated: u64,
    /// Pushes it dropped as stale.
    pub dropped: u64,
    /// Processors that it keeps busy, if known.
    pub cpus: Option<f64>,
    /// Memory that it uses, if known.
    pub memory_bytes: Option<u64>,
    /// The tasks that it waits for, and how long it has waited.
    pub wait: Option<Wait>,
}

/// A machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name or address.
    pub name: String,
    /// The tasks on it.
    pub tasks: Vec<TaskId>,
    /// Utilisation of its processors, from 0 to 1, over all cores.
    #[serde(deserialize_with = "number")]
    pub cpu: f64,
    /// How many cores it has.
    pub cores: u32,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Total memory.
    pub memory_bytes: u64,
    /// Bytes received per second.
    #[serde(deserialize_with = "number")]
    pub received_per_second: f64,
    /// Bytes sent per second.
    #[serde(deserialize_with = "number")]
    pub sent_per_second: f64,
    /// Utilisation of each of its GPUs, from 0 to 1, if known.
    pub gpus: Vec<f64>,
}

/// A usable checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checkpoint {
    /// The step it holds.
    pub step: u64,
    /// How old it is.
    #[serde(deserialize_with = "number")]
    pub age_secs: f64,
    /// Its size.
    pub bytes: u64,
}

/// The fields in a status of any version: an answer without them is not a status.
#[derive(Deserialize)]
struct Always {
    #[serde(rename = "phase")]
    _phase: IgnoredAny,
    #[serde(rename = "step")]
    _step: IgnoredAny,
    #[serde(rename = "workers")]
    _workers: IgnoredAny,
}

impl Status {
    /// Parses the answer of a coordinator of any version.
    ///
    /// # Errors
    /// Fails if the text is not the status of a run.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str::<Always>(text)?;
        serde_json::from_str(text)
    }

    /// The status after the run has ended with this phase: no task is working, and no time is left.
    #[must_use]
    pub fn ended(mut self, phase: Phase) -> Self {
        // If the run ended early, a task that was done has left rather than finished.
        let is_over = phase == Phase::Over;
        let after = match phase {
            Phase::Over => State::Done,
            Phase::Unknown => State::Missing,
            _ => State::Ended,
        };
        let was_there = |state: &State| match state {
            State::Alive | State::Waiting => true,
            State::Done => !is_over,
            State::Missing | State::Dead | State::Ended => false,
        };
        let states = self.client.iter_mut().chain(&mut self.workers);
        let states = states.map(|worker| (&mut worker.state, &mut worker.wait));
        let states = states.chain(self.servers.iter_mut().map(|server| (&mut server.state, &mut server.wait)));
        for (state, wait) in states.filter(|(state, _)| was_there(state)) {
            (*state, *wait) = (after, None);
        }
        (self.phase, self.awaited, self.left_secs) = (phase, None, None);
        self
    }

    /// The client, if there is one, and all workers, with their names.
    pub fn trainers(&self) -> impl Iterator<Item = (TaskId, &Worker)> {
        let client = self.client.iter().map(|client| (TaskId::CLIENT, client));
        client.chain(self.workers.iter().map(|worker| (TaskId::worker(worker.index), worker)))
    }

    /// Why nothing progresses; `None` if the run is not training, or is making progress.
    pub fn hang(&self) -> Option<HangReport> {
        let hangs = self.phase == Phase::Training && self.stalled_secs >= self.hang_after_secs.max(HANG_SECS);
        if hangs { hang::report(&self.task_states(), self.stalled_secs) } else { None }
    }

    /// Whether the next step is taking much longer than usual.
    pub fn stalls(&self) -> bool {
        let after = STALL_SHARE * self.hang_after_secs.max(HANG_SECS);
        self.phase == Phase::Training && self.stalled_secs >= after
    }

    /// The silent task that most others wait for while no step is made.
    pub fn holds_up(&self) -> Option<hang::Root> {
        let report = hang::report(&self.task_states(), self.stalled_secs).filter(|_| self.stalls())?;
        let is_silent = |task: &TaskId| {
            self.task_states().iter().any(|state| state.task == *task && state.silent_secs >= QUIET_SECS)
        };
        report.roots.into_iter().find(|root| root.dependents > 0 && root.tasks.iter().all(is_silent))
    }

    /// The state of every task that has not finished.
    fn task_states(&self) -> Vec<TaskState> {
        let state = |task, step, state: State, silent: Option<f64>, wait: &Option<Wait>| TaskState {
            task,
            step,
            silent_secs: silent.unwrap_or(self.elapsed_secs),
            dead: state == State::Dead,
            // What a silent client last waited for explains nothing: only the client reports on its workers.
            wait: wait.clone().filter(|_| task != TaskId::CLIENT || silent.is_none_or(|secs| secs < QUIET_SECS)),
        };
        let servers = self.servers.iter().map(|ps| (TaskId::ps(ps.index), None, ps.state, ps.silent_secs, &ps.wait));
        let workers = self.trainers();
        let workers = workers.map(|(task, it)| (task, Some(it.step), it.state, it.silent_secs, &it.wait));
        let unfinished =
            servers.chain(workers).filter(|(_, _, state, ..)| !matches!(state, State::Done | State::Ended));
        unfinished.map(|(task, step, now, silent, wait)| state(task, step, now, silent, wait)).collect()
    }
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
