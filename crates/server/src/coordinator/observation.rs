//! The coordinator's knowledge of the run, as one value for monitoring: metrics, the record of utilisation, and the
//! live page.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use windlass_core::admission::ShardStatistics;
use windlass_core::cluster::{RunLayout, TaskId};
use windlass_core::consistency::Mode;
use windlass_core::lifecycle::Phase;
use windlass_core::membership::Presence;
use windlass_core::plan::{ServerPlan, ShardPlan};
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::{Heartbeat, Site, Usage};

use super::checkpoint::Checkpoints;
use super::history::{History, SavedCheckpoint};
use super::interface::OwnShard;
use super::joined;
use super::machine::Coordinator;

/// The run as the coordinator sees it at one moment.
#[derive(Debug, Clone)]
pub struct Observation {
    /// The time of the observation, on the coordinator's clock.
    pub at: Duration,
    /// The phase of the run.
    pub phase: Phase,
    /// The last step, if the run ends by steps.
    pub target: Option<u64>,
    /// What ps 0 has counted, or had counted before it lost its parameters.
    pub statistics: ShardStatistics,
    /// True if ps 0 holds parameters now.
    pub has_shard: bool,
    /// The step at which the run first began to train.
    pub began: u64,
    /// Every task of the cluster.
    pub tasks: Vec<TaskObservation>,
    /// What has happened so far.
    pub history: History,
    /// What is trained, once a worker has reported it.
    pub facts: Option<Arc<RunFacts>>,
    /// How servers and workers are laid out in processes.
    pub layout: RunLayout,
    /// The task that initialises, evaluates and writes the summary.
    pub chief: TaskId,
    /// Where the servers listen, by number.
    pub addresses: BTreeMap<u32, String>,
    /// How many checkpoints are kept.
    pub kept_checkpoints: usize,
    /// True if the run is over and every task has reported for the last time.
    pub is_last: bool,
}

/// What is trained, and how.
#[derive(Debug, Clone)]
pub struct RunFacts {
    /// The model's name.
    pub model: String,
    /// The mode: how pushes become updates.
    pub mode: String,
    /// The optimizer's name.
    pub optimizer: String,
    /// How many values each server holds.
    pub shards: Vec<u64>,
}

impl RunFacts {
    /// The facts of a run on this many servers.
    pub(super) fn new(run: &RunSpec, servers: u32) -> Self {
        let plan = ShardPlan::new(&run.parameters, servers as usize, run.sharding);
        let held = |own: &ServerPlan| (own.dense_elements() + own.row_elements(&run.parameters)) as u64;
        let mode = match run.mode {
            Mode::Ssp { staleness } => format!("ssp {staleness}"),
            mode => mode.name().to_owned(),
        };
        Self {
            model: run.model.clone(),
            mode,
            optimizer: run.optimizer.name().to_owned(),
            shards: plan.servers.iter().map(held).collect(),
        }
    }
}

/// A task of the cluster.
#[derive(Debug, Clone)]
pub struct TaskObservation {
    /// The task.
    pub task: TaskId,
    /// The state of its process; `None` if none has joined yet.
    pub presence: Option<Presence>,
    /// When it was last heard from, on the coordinator's clock.
    pub heard: Option<Duration>,
    /// Since when the run waits for it.
    pub awaited_since: Option<Duration>,
    /// Its last heartbeat.
    pub heartbeat: Heartbeat,
}

/// A host with tasks of the cluster.
#[derive(Debug)]
pub struct NodeObservation<'a> {
    /// The latest report on the host by one of its tasks.
    pub usage: &'a Usage,
    /// Its tasks, each with the latest report on its process.
    pub tasks: Vec<(TaskId, &'a Usage)>,
}

impl Observation {
    /// The name of the phase.
    pub fn phase_name(&self) -> &'static str {
        phase_name(&self.phase)
    }

    /// Replaces the workers that servers see with the client and its joined workers. `here` lists those that this
    /// process knows.
    #[must_use]
    pub(super) fn with_client(self, here: &[windlass_instruments::Site]) -> Self {
        let here: Vec<Site> = here.iter().cloned().map(Into::into).collect();
        Self { tasks: joined::as_known(self.tasks, &here, self.at), chief: TaskId::CLIENT, ..self }
    }

    /// Returns the same observation, but with an earlier one's counts while the parameters are being restored.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        let statistics = if self.has_shard { self.statistics } else { earlier.statistics };
        Self { statistics, ..self }
    }

    /// Returns the age of a checkpoint, by the wall clock if an earlier coordinator wrote it.
    pub fn age(&self, saved: &SavedCheckpoint) -> Duration {
        match saved.written_before {
            Some(written) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                now.saturating_sub(Duration::from_secs(written))
            }
            None => self.at.saturating_sub(saved.at),
        }
    }

    /// Returns the usage of each node, with the present tasks on it.
    pub fn nodes(&self) -> BTreeMap<&str, NodeObservation<'_>> {
        let mut nodes: BTreeMap<&str, NodeObservation<'_>> = BTreeMap::new();
        for observed in self.tasks.iter().filter(|observed| observed.presence == Some(Presence::Present)) {
            if let Some(usage) = observed.heartbeat.usage.as_deref() {
                let node = nodes.entry(&usage.node).or_insert_with(|| NodeObservation { usage, tasks: Vec::new() });
                node.tasks.push((observed.task, usage));
            }
        }
        nodes
    }
}

/// Every name that a phase can have.
pub(super) const PHASES: [&str; 7] =
    ["gathering", "preparing", "initialising", "training", "finishing", "saving", "over"];

fn phase_name(phase: &Phase) -> &'static str {
    let index = match phase {
        Phase::Gathering => 0,
        Phase::Preparing => 1,
        Phase::Initialising => 2,
        Phase::Training => 3,
        Phase::Finishing => 4,
        Phase::Saving(_) => 5,
        Phase::Over(_) => 6,
    };
    PHASES[index]
}

impl<S: OwnShard> Coordinator<S> {
    /// The run as it is now.
    pub fn observe(&self) -> Observation {
        let task = |task: TaskId| TaskObservation {
            task,
            presence: self.lifecycle.presence(task),
            heard: self.lifecycle.last_heard(task),
            awaited_since: self.lifecycle.awaited_since(task),
            heartbeat: self.progress.get(&task).cloned().unwrap_or_default(),
        };
        let statistics = self.shard.statistics();
        Observation {
            at: self.now,
            phase: self.lifecycle.phase().clone(),
            target: self.run.as_ref().and_then(|(_, run)| run.steps),
            has_shard: statistics.is_some(),
            statistics: statistics.unwrap_or_default(),
            began: self.began.as_ref().map_or(0, |began| began.step),
            tasks: self.lifecycle.tasks().map(task).collect(),
            history: self.history.clone(),
            facts: self.facts.clone(),
            layout: self.config.layout,
            chief: self.lifecycle.chief().into(),
            addresses: self.endpoints.iter().map(|(index, endpoint)| (*index, endpoint.address.clone())).collect(),
            kept_checkpoints: self.checkpoints.as_ref().map_or(0, Checkpoints::kept),
            is_last: self.unheard() == Some(0),
        }
    }
}
