//! The coordinator as a pure machine: timed events go in, actions come out (`interface`).
//!
//! `windlass_core::lifecycle` and `windlass_core::checkpoint` decide, and the machine informs the tasks. It touches no
//! parameters, sockets or store, reads no clock and starts nothing: that is left to `actor`, or to a simulated cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass_core::cluster::{Job, ServerId, TaskId, WorkerId};
use windlass_core::fault::{self, Fault};
use windlass_core::lifecycle::{Lifecycle, LifecycleConfig, Phase};
use windlass_core::plan::ShardPlan;
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{Endpoint, Heartbeat, Memory, Prepare, Waiting, WorkerReport, task_message};

use super::checkpoint::{Checkpoints, LastCheckpoint, unusable};
use super::client_process::ClientProcess;
use super::data_positions::DataPositions;
use super::history::History;
use super::interface::{Claimed, CoordinatorConfig, Effect, Event, OwnShard};
use super::members::Members;
use super::observation::RunFacts;
use super::refusing::Untold;
use crate::checkpoint::before_generation;

/// How often waiting tasks are told what they wait for.
pub(super) const SPEAK_EVERY: Duration = Duration::from_secs(3);
const SPEAK_AT_LEAST_EVERY: Duration = Duration::from_secs(20);

/// Where a run began: at a checkpoint, or from scratch.
#[derive(Debug, Clone, Default)]
pub(super) struct Began {
    /// The global step.
    pub(super) step: u64,
    /// The batches that each worker has had.
    pub(super) batches: BTreeMap<WorkerId, u64>,
}

/// The one place that knows the whole cluster. It lives in ps 0.
pub struct Coordinator<S> {
    pub(super) config: CoordinatorConfig,
    pub(super) shard: S,
    pub(super) lifecycle: Lifecycle,
    pub(super) members: Members,
    pub(super) run: Option<(String, RunSpec)>,
    pub(super) facts: Option<Arc<RunFacts>>,
    pub(super) checkpoints: Option<Checkpoints>,
    pub(super) positions: DataPositions,
    /// Where the run was when it first began to train, as far as this coordinator knows.
    pub(super) began: Option<Began>,
    /// The last global step that anyone had seen before a server was lost.
    pub(super) seen_step: u64,
    /// While the checkpoint to roll back to is looked up: whether to prepare the servers once it is found.
    pub(super) looking: Option<bool>,
    /// The last `Prepare` for the servers; its number counts them.
    pub(super) prepare: Prepare,
    /// The last checkpoint, while the run waits for it.
    pub(super) saving: Option<LastCheckpoint>,
    /// Tasks that have yet to learn that the run cannot begin, or how it ended.
    pub(super) untold: Untold,
    pub(super) endpoints: BTreeMap<u32, Endpoint>,
    /// The memory that each server found when it was started, as far as it knows.
    pub(super) memory: BTreeMap<u32, Memory>,
    pub(super) reports: BTreeMap<WorkerId, WorkerReport>,
    pub(super) progress: BTreeMap<TaskId, Heartbeat>,
    pub(super) history: History,
    /// The workers of a run with a client, as the one process that they are.
    pub(super) client: ClientProcess,
    /// Why awaited tasks were refused, by task name.
    pub(super) refused: BTreeMap<String, String>,
    pub(super) spoken: Duration,
    /// When the run began to wait for a task.
    waits_since: Duration,
    /// When a message last said what a checkpoint waits for.
    pub(super) spoken_of_checkpoint: Duration,
    /// The time of the event that is being handled.
    pub(super) now: Duration,
    /// Effects other than messages.
    pub(super) effects: Vec<Effect>,
}

impl<S: OwnShard> Coordinator<S> {
    /// A coordinator whose tasks have not come yet, of a run with these checkpoints, if it has any.
    pub fn new(config: CoordinatorConfig, shard: S, claimed: Option<Claimed>) -> Self {
        let before = claimed.as_ref().map_or(config.before, |claimed| before_generation(claimed.generation));
        let lifecycle = Lifecycle::new(LifecycleConfig {
            servers: config.servers,
            workers: config.workers,
            has_client: config.layout.has_client(),
            patience: config.patience,
            peer_timeout: config.peer_timeout,
            checkpoints: claimed.is_some(),
            before,
        });
        Self {
            lifecycle,
            shard,
            members: Members::default(),
            run: None,
            facts: None,
            positions: DataPositions::default(),
            began: None,
            seen_step: 0,
            looking: claimed.as_ref().map(|_| false),
            checkpoints: claimed.map(Checkpoints::new),
            prepare: Prepare::default(),
            saving: None,
            untold: Untold::default(),
            endpoints: BTreeMap::new(),
            // A worker may join before ps 0 has said hello.
            memory: config.memory.map(|memory| (0, memory)).into_iter().collect(),
            reports: BTreeMap::new(),
            progress: BTreeMap::new(),
            history: History::default(),
            client: ClientProcess::default(),
            refused: BTreeMap::new(),
            spoken: Duration::ZERO,
            waits_since: Duration::ZERO,
            spoken_of_checkpoint: Duration::ZERO,
            now: Duration::ZERO,
            effects: Vec::new(),
            config,
        }
    }

    /// Once the run is over: how many tasks have not learned of it, counting an unreleased lease as one more.
    pub fn unheard(&self) -> Option<usize> {
        let over = matches!(self.lifecycle.phase(), Phase::Over(_));
        let releasing = self.checkpoints.as_ref().is_some_and(Checkpoints::is_releasing);
        over.then(|| self.members.unheard() + self.untold.count() + usize::from(releasing))
    }

    /// Returns the current phase of the run.
    pub fn phase(&self) -> &Phase {
        self.lifecycle.phase()
    }

    /// Handles an event, and returns what to do. The clock does not advance while this process is stopped: if it was
    /// stopped or starved, the others' heartbeats are waiting to be read, and none of them has been silent.
    pub fn handle(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        self.now = now;
        match event {
            Event::Opened(id) => self.members.opened(id),
            Event::Undelivered(id) => self.members.undelivered(id),
            Event::Closed(id) => {
                self.untold.closed(id);
                if let Some((task, incarnation)) = self.members.closed(id) {
                    self.lifecycle.disconnected(task, incarnation, now);
                    // A worker that has said goodbye does not come back to learn the rest. A server does if it has yet
                    // to write its part of the last checkpoint.
                    let saves = is_server(task) && matches!(self.lifecycle.phase(), Phase::Saving(_));
                    let saves = saves && !fault::is_back(Fault::StoppedServerForgotten);
                    if self.lifecycle.has_left(task, incarnation) && !saves {
                        self.members.remove(task);
                    }
                }
            }
            Event::Message(id, message) => match message.kind {
                Some(task_message::Kind::Hello(hello)) => self.hello(id, &hello, message.heard),
                Some(kind) => {
                    if let Some((task, incarnation)) = self.members.speaker(id) {
                        self.lifecycle.heard(task, incarnation, now);
                        if self.members.hear(task, message.number, message.heard) {
                            self.message(task, incarnation, kind);
                        }
                    }
                }
                None => {}
            },
            Event::Tick { has_read_on } => self.tick(has_read_on),
            Event::Published(..) | Event::Overtaken(_) | Event::Released | Event::Found(..) => self.stored(event),
            Event::Unusable(error) => self.refuse_to_begin(unusable(&error)),
        }
        let mut effects = self.members.take_effects();
        effects.append(&mut self.effects);
        effects
    }

    fn tick(&mut self, has_read_on: bool) {
        let now = self.now;
        self.go_on_looking(has_read_on);
        let decisions = self.lifecycle.tick(now);
        self.carry_out(decisions);
        self.dismiss_the_dead();
        let step = self.step();
        match self.lifecycle.phase() {
            Phase::Training => self.checkpoint(|checkpoints| checkpoints.tick(now, step)),
            Phase::Finishing => self.checkpoint(|checkpoints| checkpoints.cycle().tick(now)),
            Phase::Saving(_) => self.go_on_saving(now),
            _ => {}
        }
        if self.lifecycle.awaited().is_empty() {
            (self.spoken, self.waits_since) = (now, now);
        } else if now.saturating_sub(self.spoken) >= speak_every(now.saturating_sub(self.waits_since)) {
            self.spoken = now;
            self.members.mention(&Kind::Waiting(self.waiting()));
        }
        self.mention_checkpoint();
    }

    /// Closes the sessions of processes that were declared dead. One that is alive after all says hello again, and is
    /// admitted as another incarnation.
    fn dismiss_the_dead(&mut self) {
        let over = matches!(self.lifecycle.phase(), Phase::Over(_));
        if !over && !fault::is_back(Fault::SleeperNotDismissed) {
            let lifecycle = &self.lifecycle;
            self.members.remove_those(|task, incarnation| lifecycle.is_dead(task, incarnation));
        }
    }

    /// The global step: what ps 0 has applied.
    pub(super) fn step(&self) -> u64 {
        self.shard.statistics().map_or(0, |statistics| statistics.steps)
    }

    /// The servers that take part in a run.
    pub(super) fn active_servers(&self, run: &RunSpec) -> BTreeSet<ServerId> {
        ShardPlan::new(&run.parameters, self.config.servers as usize, run.sharding).active_servers()
    }

    /// Returns the tasks that the run waits for, and why some of them were refused.
    pub(super) fn waiting(&self) -> Waiting {
        if let (Phase::Preparing, Some(_), Some(checkpoints)) =
            (self.lifecycle.phase(), self.looking, &self.checkpoints)
        {
            let looking = || format!("looking for a whole checkpoint in {}", checkpoints.looks_in());
            let notice = checkpoints.trouble().map_or_else(looking, str::to_owned);
            return Waiting { tasks: Vec::new(), notices: vec![notice] };
        }
        let awaited = self.lifecycle.awaited();
        let mut tasks: Vec<String> = awaited.iter().map(|task| self.lifecycle.named(*task).to_string()).collect();
        tasks.dedup();
        let refused = self.refused.iter().filter(|(task, _)| tasks.contains(task));
        let refused = refused.map(|(task, reason)| format!("{task} was refused: {reason}"));
        let trouble = self.checkpoints.as_ref().and_then(Checkpoints::trouble).map(str::to_owned);
        let notices = refused.chain(trouble).collect();
        if let Some(last) = tasks.last_mut() {
            last.push_str(self.lifecycle.awaited_for());
            let waited = self.now.saturating_sub(self.waits_since).as_secs();
            if waited > 0 {
                last.push_str(&format!(" ({waited} s)"));
            }
        }
        Waiting { tasks, notices }
    }

    pub(super) fn tell(&mut self, task: TaskId, kind: Kind) {
        self.members.tell(|other| other == task, &kind);
    }
}

/// How often to log a wait of this length.
fn speak_every(waited: Duration) -> Duration {
    (waited / 4).clamp(SPEAK_EVERY, SPEAK_AT_LEAST_EVERY)
}

pub(super) fn is_server(task: TaskId) -> bool {
    task.job == Job::Ps
}
