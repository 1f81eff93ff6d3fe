//! The state of a run as the coordinator knows it. Data only: what is made of it is in the other modules.
//!
//! All of it is JSON at `/status.json`. Every field has a default, so that an older `windlass status` reads what a newer
//! run says. Durations are in seconds, and ages are as of the moment the status was made.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::cluster::TaskId;
use windlass_core::hang::{self, HangReport, TaskState, Wait};
use windlass_core::straggler::Verdict;

use crate::curve::Curve;
use crate::timeline::Timeline;

/// Without progress for longer than this, a run that should train is reported as hanging, unless its steps are longer.
const HANG_SECS: f64 = 10.0;
/// After this share of the time in which a run is called stuck, it is no longer called fast.
const STALL_SHARE: f64 = 0.3;
/// A task speaks twice a second; one that has been silent for this long may be the one that others wait for.
const QUIET_SECS: f64 = 2.0;
/// The most measurements of a worker's recent speed.
const MOST_SPEEDS: usize = 60;

/// Reads what JSON has for a number that is not finite, which would otherwise make the whole status unreadable.
fn number<'a, D: Deserializer<'a>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The state of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The model's name.
    pub model: String,
    /// How updates are made: `async`, `sync`, `ssp 4`.
    pub mode: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// How tasks are laid out: `2 ps, 8 workers`.
    pub layout: String,
    /// Where the run stands.
    pub phase: Phase,
    /// The tasks that the phase waits for, and for how long already.
    pub awaited: Option<Wait>,
    /// The global step.
    pub step: u64,
    /// The step at which the run ends, if steps limit it.
    pub target: Option<u64>,
    /// The step that the run began at: 0, or that of the checkpoint it resumed from.
    pub start: u64,
    /// Time since the run began.
    #[serde(deserialize_with = "number")]
    pub elapsed_secs: f64,
    /// Time since the global step last changed.
    #[serde(deserialize_with = "number")]
    pub stalled_secs: f64,
    /// Without progress for longer than this, it hangs. Zero is as good as ten seconds.
    #[serde(deserialize_with = "number")]
    pub hang_after_secs: f64,
    /// Steps per second of late.
    #[serde(deserialize_with = "number")]
    pub steps_per_second: f64,
    /// Samples per second of late, of all workers.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Time until the run ends, if that can be told.
    pub left_secs: Option<f64>,
    /// The training loss.
    pub loss: Curve,
    /// The scores: a curve for each.
    pub scores: Vec<Curve>,
    /// The client, if the workers are those that have joined one.
    pub client: Option<Worker>,
    /// The workers, by index.
    pub workers: Vec<Worker>,
    /// The parameter servers, by index.
    pub servers: Vec<Server>,
    /// The machines that tasks run on.
    pub nodes: Vec<Node>,
    /// The checkpoints that can be used, the newest first.
    pub checkpoints: Vec<Checkpoint>,
    /// What happened.
    pub timeline: Timeline,
    /// How often the run went back to a checkpoint.
    pub rollbacks: u64,
    /// Updates that were lost by that.
    pub updates_lost: u64,
    /// The time that made progress which was kept.
    #[serde(deserialize_with = "number")]
    pub kept_secs: f64,
    /// The updates made in that time.
    pub kept_updates: u64,
    /// The share of the elapsed time that made progress which was kept, from 0 to 1.
    pub goodput: Option<f64>,
    /// Which worker slows the run down.
    pub straggler: Verdict,
}

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Phase {
    /// Tasks are awaited.
    #[default]
    Gathering,
    /// Servers allocate or restore their shards.
    Preparing,
    /// The chief pushes the first values.
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
        /// By whom, as a sentence without a full stop.
        why: String,
    },
    /// The run ended for another reason.
    Failed {
        /// Why, as a sentence without a full stop.
        why: String,
    },
    /// The run ended without a last word. No coordinator says so; who reads what one has left does.
    Died,
    /// Whether the run goes on cannot be told from here: its processes were on another machine. Said by the same reader.
    Unknown,
}

/// How a task is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It has not joined.
    #[default]
    Missing,
    /// It works.
    Alive,
    /// It waits for other tasks.
    Waiting,
    /// It was declared dead.
    Dead,
    /// It has finished.
    Done,
    /// It was there when the run ended before its time.
    Ended,
}

/// Shares of a worker's time of late. They need not add up to 1: the rest is time in which it did nothing it knows of.
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

/// A worker, or the client of those that have joined it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Worker {
    /// Its number.
    pub index: u32,
    /// Where it listens, as users wrote it.
    pub address: String,
    /// How it is doing.
    pub state: State,
    /// Whether it is the chief.
    pub chief: bool,
    /// Its own step.
    pub step: u64,
    /// Time since it was last heard from; `None` if it never was.
    pub silent_secs: Option<f64>,
    /// Samples per second of late.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Its latest speeds at equal intervals, the oldest first: see [`Worker::record_speed`].
    pub recent_samples_per_second: Vec<f32>,
    /// What its time went into of late.
    pub split: TimeSplit,
    /// How many updates old its gradients were of late, on average.
    #[serde(deserialize_with = "number")]
    pub staleness: f64,
    /// Updates of its that were dropped as stale.
    pub dropped: u64,
    /// Processors that it keeps busy, where that is known.
    pub cpus: Option<f64>,
    /// Memory that it holds, where that is known.
    pub memory_bytes: Option<u64>,
    /// Whom it waits for, and for how long already.
    pub wait: Option<Wait>,
    /// Where its steps are computed.
    pub sites: Vec<Site>,
    /// The stages that it computes; none if it computes all of the model.
    pub stages: Vec<String>,
}

/// A place where replicas of a worker's network compute, such as a device; or the towers of a joined worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// How many compute there.
    pub replicas: u32,
    /// Whether it can be reached now.
    pub reachable: bool,
}

impl Site {
    /// The name of the towers of a joined worker, whose devices are not known.
    pub const TOWERS: &str = "towers";
}

impl Worker {
    /// Notes its speed of late, and forgets the oldest one if there are too many.
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

/// A parameter server, or a worker's shard where there are no ps tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Its number.
    pub index: u32,
    /// Where it listens, as users wrote it.
    pub address: String,
    /// How it is doing.
    pub state: State,
    /// Time since it was last heard from; `None` if it never was.
    pub silent_secs: Option<f64>,
    /// Bytes of the parameters it holds; 0 if it holds none and is idle.
    pub shard_bytes: u64,
    /// How many parameters those are.
    pub parameters: u64,
    /// Pushes it has applied.
    pub applied: u64,
    /// Pushes it had already applied and did not apply again.
    pub repeated: u64,
    /// Pushes it dropped as stale.
    pub dropped: u64,
    /// Processors that it keeps busy, where that is known.
    pub cpus: Option<f64>,
    /// Memory that it holds, where that is known.
    pub memory_bytes: Option<u64>,
    /// Whom it waits for, and for how long already.
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
    /// Use of its processors, from 0 to 1, over all cores.
    #[serde(deserialize_with = "number")]
    pub cpu: f64,
    /// How many cores it has.
    pub cores: u32,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Memory there is.
    pub memory_bytes: u64,
    /// Bytes received per second.
    #[serde(deserialize_with = "number")]
    pub received_per_second: f64,
    /// Bytes sent per second.
    #[serde(deserialize_with = "number")]
    pub sent_per_second: f64,
    /// Use of its GPUs, from 0 to 1 each, where that is known.
    pub gpus: Vec<f64>,
}

/// A checkpoint that can be used.
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

/// What every status says, of whatever version: without it something else has answered.
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
    /// Reads what a coordinator of any version has answered.
    ///
    /// # Errors
    /// If it is not the status of a run.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        serde_json::from_str::<Always>(text)?;
        serde_json::from_str(text)
    }

    /// The same once the run has ended like this: no task works any more, and nothing is left to be done.
    #[must_use]
    pub fn ended(mut self, phase: Phase) -> Self {
        // Before its time a task has rather left than finished.
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

    /// The client if there is one, and all workers, with their names.
    pub fn trainers(&self) -> impl Iterator<Item = (TaskId, &Worker)> {
        let client = self.client.iter().map(|client| (TaskId::CLIENT, client));
        client.chain(self.workers.iter().map(|worker| (TaskId::worker(worker.index), worker)))
    }

    /// Why nothing progresses; `None` if the run is not training, or is getting on.
    pub fn hang(&self) -> Option<HangReport> {
        let hangs = self.phase == Phase::Training && self.stalled_secs >= self.hang_after_secs.max(HANG_SECS);
        if hangs { hang::report(&self.task_states(), self.stalled_secs) } else { None }
    }

    /// Whether it takes much longer than usual until the next step.
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

    /// What every task that has not finished is doing.
    fn task_states(&self) -> Vec<TaskState> {
        let state = |task, step, state: State, silent: Option<f64>, wait: &Option<Wait>| TaskState {
            task,
            step,
            silent_secs: silent.unwrap_or(self.elapsed_secs),
            dead: state == State::Dead,
            // What a silent client last waited for explains nothing: nobody else tells of its workers.
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
