//! The coordinator's shell: an actor that passes on events from sessions and the store, lets the machine decide, and
//! carries out its effects. It decides nothing itself.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use windlass_core::admission::ShardStatistics;
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::{RunLayout, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::membership::Patience;
use windlass_instruments::{Instruments, Sites, available_memory};
use windlass_page::Status;
use windlass_wire::control::proto::CoordinatorMessage;
use windlass_wire::lobby::Visit;

use super::checkpoint::{self, Opened, StoreKeeper, Tidying};
use super::interface::{Claimed, CoordinatorConfig, Effect, Event, OwnShard, SessionId, TICK};
use super::machine::Coordinator;
use super::observation::Observation;
use super::run_instruments::RunInstruments;
use super::session_service::SessionInput;
use super::status::{self, Readers};
use super::utilization;
use crate::checkpoint::{CheckpointConfig, Resume};
use crate::task::ShardSlot;

/// The capacity of the channel for the results of background work.
const DONE: usize = 16;
/// Ticks between two observations.
const OBSERVE_EVERY: u32 = 5;

/// What a coordinator has to know, and the resources that it uses.
#[derive(Clone)]
pub(crate) struct ActorConfig {
    pub(crate) servers: u32,
    /// `None` with dynamic workers.
    pub(crate) workers: Option<u32>,
    pub(crate) layout: RunLayout,
    /// The client's view of its joined workers, if the client is in this process.
    pub(crate) joined: Option<Sites>,
    pub(crate) patience: Patience,
    pub(crate) peer_timeout: Duration,
    pub(crate) started: Instant,
    pub(crate) checkpoints: Option<CheckpointConfig>,
    /// Where ps 0 listens; empty for a run in one process.
    pub(crate) address: String,
    /// The run directory.
    pub(crate) run_dir: Option<PathBuf>,
    pub(crate) instruments: Instruments,
    /// Held while old checkpoints are removed.
    pub(crate) tidying: Tidying,
}

/// The coordinator's outputs to the rest of its process.
pub(super) struct Outlets {
    /// How many tasks have not received the final message yet; `None` before the run is over.
    pub(super) unheard: watch::Sender<Option<usize>>,
    pub(super) page: watch::Sender<Arc<Status>>,
    /// True once the end of the run is recorded on disk.
    pub(super) end_recorded: watch::Sender<bool>,
}

/// Runs a coordinator. It serves sessions from the start: if checkpoints cannot be written or read, it tells every
/// task.
pub(super) async fn run(
    config: ActorConfig,
    shard: Arc<ShardSlot>,
    outlets: Outlets,
    mut inbox: mpsc::Receiver<(SessionId, SessionInput)>,
) {
    let (done, results) = mpsc::channel(DONE);
    let began = Instant::now();
    let Opened { checkpoints, early } = checkpoint::open(&config, &done, &mut inbox).await;
    let (store, claimed, refusal) = match checkpoints {
        Ok(Some((store, claimed))) => (Some(store), Some(claimed), None),
        Ok(None) => (None, None, None),
        Err(error) => (None, None, Some(error)),
    };
    // The tasks of a run that continues have waited at most this long for the store to be open.
    let awaited_for =
        continues(config.checkpoints.as_ref(), claimed.as_ref()).then(|| config.peer_timeout + began.elapsed());
    // Without a generation, the time distinguishes later coordinators from earlier ones.
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let machine = CoordinatorConfig {
        servers: config.servers,
        workers: config.workers,
        layout: config.layout,
        patience: config.patience,
        peer_timeout: config.peer_timeout,
        memory: available_memory().map(Into::into),
        before: Incarnation(seconds << 20),
    };
    let machine = Coordinator::new(machine, ShardInProcess { slot: shard, started: config.started }, claimed);
    let joined = config.joined;
    let observed = watch::Sender::new(Arc::new(seen(&machine, joined.as_ref())));
    config.instruments.read_from(RunInstruments(observed.subscribe()));
    let Outlets { unheard, page, end_recorded } = outlets;
    let (run_dir, address) = (config.run_dir.clone(), config.address);
    tokio::spawn(status::keep(observed.subscribe(), Readers { page, end_recorded, run_dir, awaited_for, address }));
    if let Some(directory) = config.run_dir {
        tokio::spawn(utilization::record(directory, observed.subscribe()));
    }
    let mut actor =
        Actor { machine, connections: BTreeMap::new(), store, clock: Clock::new(), joined, observed, unobserved: 0 };
    refusal.into_iter().for_each(|error| actor.handle(Event::Unusable(error)));
    early.into_iter().for_each(|(id, event)| actor.session_event(id, event));
    // The sender stays here, so that the results never end before the sessions do.
    let _done = done;
    actor.run(unheard, inbox, results).await;
}

/// Whether this coordinator takes the place of an earlier one of the same run. Without a claim, because the store could
/// not be opened, only a restarted task is known to: the store may belong to another run.
fn continues(checkpoints: Option<&CheckpointConfig>, claimed: Option<&Claimed>) -> bool {
    let Some(CheckpointConfig { restarted, resume, .. }) = checkpoints else { return false };
    *restarted || (*resume == Resume::Auto && claimed.is_some_and(|claimed| claimed.goes_on))
}

/// Observes the run as it is now, with its tasks under the names that users know.
fn seen(machine: &Coordinator<ShardInProcess>, joined: Option<&Sites>) -> Observation {
    let seen = machine.observe();
    if seen.layout.has_client() { seen.with_client(&joined.map_or_else(Vec::new, |joined| joined())) } else { seen }
}

/// A session's connection.
struct Connection {
    sender: mpsc::Sender<CoordinatorMessage>,
    /// The slot in the port's lobby, if it came through the port and until its task is known.
    visit: Option<Visit>,
}

struct Actor {
    machine: Coordinator<ShardInProcess>,
    connections: BTreeMap<SessionId, Connection>,
    store: Option<StoreKeeper>,
    clock: Clock,
    /// The client's view of its joined workers, if the client is in this process.
    joined: Option<Sites>,
    /// The latest observation, for monitoring.
    observed: watch::Sender<Arc<Observation>>,
    /// Ticks since the last observation.
    unobserved: u32,
}

impl Actor {
    async fn run(
        mut self,
        unheard: watch::Sender<Option<usize>>,
        mut inbox: mpsc::Receiver<(SessionId, SessionInput)>,
        mut results: mpsc::Receiver<Event>,
    ) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                arrived = inbox.recv() => match arrived {
                    Some((id, event)) => self.session_event(id, event),
                    None => return,
                },
                Some(done) = results.recv() => self.handle(done),
                _ = tick.tick() => {
                    let has_read_on = self.store.as_mut().is_some_and(StoreKeeper::has_read_on);
                    self.clock.tick();
                    self.handle(Event::Tick { has_read_on });
                    self.unobserved += 1;
                }
            }
            self.observe();
            unheard.send_replace(self.machine.unheard());
        }
    }

    /// Updates the observation for monitoring: twice a second, on every change of phase, and at the end.
    fn observe(&mut self) {
        let is_last = self.machine.unheard() == Some(0);
        let has_changed = {
            let before = self.observed.borrow();
            before.phase != *self.machine.phase() || before.is_last != is_last
        };
        if self.unobserved >= OBSERVE_EVERY || has_changed {
            self.unobserved = 0;
            let seen = seen(&self.machine, self.joined.as_ref());
            self.observed.send_modify(|observed| *observed = Arc::new(seen.after(observed)));
        }
    }

    fn session_event(&mut self, id: SessionId, event: SessionInput) {
        match event {
            SessionInput::Opened(sender, visit) => {
                self.connections.insert(id, Connection { sender, visit });
                self.handle(Event::Opened(id));
            }
            SessionInput::Message(message) => self.handle(Event::Message(id, message)),
            SessionInput::Closed => {
                self.connections.remove(&id);
                self.handle(Event::Closed(id));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        for effect in self.machine.handle(event, self.clock.now()) {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(id, message) => {
                let Some(connection) = self.connections.get(&id) else { return };
                // If a task does not read its messages, its session is closed.
                if connection.sender.try_send(message).is_err() {
                    self.connections.remove(&id);
                    self.handle(Event::Undelivered(id));
                }
            }
            Effect::Admit(id, task) => {
                if let Some(visit) = self.connections.get_mut(&id).and_then(|connection| connection.visit.take()) {
                    visit.admit(task);
                }
            }
            Effect::Dismiss(id) => {
                let visit = self.connections.remove(&id).and_then(|connection| connection.visit);
                visit.iter().for_each(Visit::was_dismissed);
            }
            Effect::Close(id) => drop(self.connections.remove(&id)),
            Effect::Look(lookup, first) => {
                self.store.iter().for_each(|store| store.look_up(lookup, first.as_deref().cloned()))
            }
            Effect::Publish(number, manifest, files) => {
                if let Some(store) = &self.store {
                    store.publish(number, manifest, files);
                }
            }
            Effect::BeganIn(generation) => {
                self.store.iter().for_each(|store| store.lease.set_first_generation(generation))
            }
            Effect::Release(outcome) => {
                if !self.store.as_mut().is_some_and(|store| store.lease.release(outcome)) {
                    self.handle(Event::Released);
                }
            }
        }
    }
}

/// A clock that does not advance while this process is stopped.
struct Clock {
    /// The time at the last tick.
    ticked_at: Duration,
    ticked: Instant,
}

impl Clock {
    fn new() -> Self {
        Self { ticked_at: Duration::ZERO, ticked: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.ticked_at + self.ticked.elapsed().min(2 * TICK)
    }

    fn tick(&mut self) {
        (self.ticked_at, self.ticked) = (self.now(), Instant::now());
    }
}

/// The shard of ps 0, in whose process the coordinator is.
struct ShardInProcess {
    slot: Arc<ShardSlot>,
    started: Instant,
}

impl OwnShard for ShardInProcess {
    fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Option<Standing> {
        self.slot.get().map(|shard| shard.join(worker, incarnation, clock))
    }

    fn clock(&self) -> Option<u64> {
        self.slot.get().map(|shard| shard.clock())
    }

    fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Option<Standing> {
        self.slot.get().map(|shard| shard.retire(worker, incarnation))
    }

    fn statistics(&self) -> Option<ShardStatistics> {
        Some(self.slot.get()?.statistics(self.started))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_resumes_its_own_checkpoints_continues_an_earlier_one() {
        let config = |restarted, resume| CheckpointConfig {
            location: "there".to_owned(),
            every: None,
            every_steps: None,
            keep: 1,
            resume,
            restarted,
            stall: Duration::from_secs(60),
            take_over: false,
            description: String::new(),
        };
        let claimed = |config: &CheckpointConfig, goes_on| {
            let (config, location) = (config.clone(), config.location.clone());
            Claimed { config, location, generation: 2, salt: 0, goes_on }
        };
        let own = config(false, Resume::Auto);
        assert!(continues(Some(&own), Some(&claimed(&own, true))));
        assert!(!continues(Some(&own), Some(&claimed(&own, false))), "the earlier run has ended");
        assert!(!continues(Some(&own), None), "another run may hold the store");
        for afresh in [Resume::Never, Resume::From("elsewhere".to_owned(), None)] {
            let afresh = config(false, afresh);
            assert!(!continues(Some(&afresh), Some(&claimed(&afresh, true))), "the earlier run crashed, and is left");
        }
        let restarted = config(true, Resume::Never);
        assert!(continues(Some(&restarted), None), "its store could not be opened");
        assert!(!continues(None, None));
    }
}
