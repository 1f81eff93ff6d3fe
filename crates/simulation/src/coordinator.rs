//! The production coordinator in the simulated process of ps 0: its clock, its sessions and its store.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use windlass_checkpoint::{CheckpointError, CheckpointId};
use windlass_core::admission::ShardStatistics;
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::{RunLayout, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{NOT_SAVED, Phase};
use windlass_server::coordinator::{
    Beginning, Claimed, Coordinator, CoordinatorConfig, Effect, Event as CoordinatorEvent, OwnShard, TICK,
};
use windlass_server::{CheckpointConfig, Resume};
use windlass_wire::control::proto::Mark;
use windlass_wire::control::proto::coordinator_message::Kind;

use crate::shard::Shard;
use crate::store::{self, LOCATION};
use crate::world::{Connection, Message, Pid, Port, Timer, World};

/// How long a checkpoint may be written or published without progress.
const STALL: Duration = Duration::from_secs(15);

/// The shard of a process, if it has one.
pub type SharedShard = Rc<RefCell<Option<Shard>>>;

/// The shard beside the coordinator. Its server polls the shard's waiting threads a moment later.
#[derive(Debug)]
pub struct Beside(SharedShard);

impl OwnShard for Beside {
    fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Option<Standing> {
        self.0.borrow_mut().as_mut().map(|shard| shard.announce(worker, incarnation, clock))
    }

    fn clock(&self) -> Option<u64> {
        self.0.borrow().as_ref().map(|shard| shard.gate.clock())
    }

    fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Option<Standing> {
        self.0.borrow_mut().as_mut().map(|shard| shard.gate.retire(worker, incarnation))
    }

    fn statistics(&self) -> Option<ShardStatistics> {
        self.0.borrow().as_ref().map(|shard| shard.gate.statistics())
    }
}

/// A running coordinator.
pub struct CoordinatorNode {
    pid: Pid,
    shard: SharedShard,
    machine: Option<Coordinator<Beside>>,
    /// The events that arrive before the checkpoints are open.
    early: Vec<CoordinatorEvent>,
    opened: BTreeSet<Connection>,
    generation: u64,
    /// The previous claim: its first generation, and whether it crashed.
    followed: Option<(u64, bool)>,
    /// The time at the last tick, by a clock that stops while the process is paused.
    ticked_at: Duration,
    ticked: Duration,
    /// When the last publication ends. A later checkpoint is not published before an earlier one.
    published_by: Duration,
    /// The checkpoints that are being published.
    under_way: BTreeSet<CheckpointId>,
    /// The number of the latest attempt at the run's last checkpoint, and since when it has been publishing.
    last: Option<(u64, Option<Duration>)>,
}

impl CoordinatorNode {
    /// Starts a coordinator that opens its checkpoints.
    pub fn start(pid: Pid, shard: SharedShard, world: &mut World) -> Self {
        let (ready, _) = world.store_delay();
        let ready = if world.scenario.checkpoints.is_some() { ready } else { world.now };
        world.remind(pid, ready, Timer::StoreOpened);
        Self {
            pid,
            shard,
            machine: None,
            early: Vec::new(),
            opened: BTreeSet::new(),
            generation: 0,
            followed: None,
            ticked_at: Duration::ZERO,
            ticked: world.now,
            published_by: Duration::ZERO,
            under_way: BTreeSet::new(),
            last: None,
        }
    }

    /// Handles the opening of the checkpoints.
    pub fn open(&mut self, world: &mut World) {
        let scenario = &world.scenario;
        let config = CoordinatorConfig {
            servers: scenario.servers,
            workers: (!scenario.dynamic).then_some(scenario.workers),
            layout: RunLayout::Apart,
            patience: scenario.patience,
            peer_timeout: scenario.peer_timeout,
            memory: None,
            before: Incarnation((world.now.as_micros() as u64 + 1) << 20),
        };
        let claimed = scenario.checkpoints.map(|(every_steps, every)| {
            let (generation, followed) = world.store.claim();
            (self.generation, self.followed) = (generation, followed);
            let at = world.store_delay().0;
            world.remind(self.pid, at, Timer::Found(1, None));
            let config = CheckpointConfig {
                location: LOCATION.to_owned(),
                every,
                every_steps,
                keep: 1000,
                resume: Resume::Auto,
                restarted: true,
                stall: STALL,
                take_over: false,
                description: String::new(),
            };
            Claimed { config, location: LOCATION.to_owned(), generation, salt: 0, goes_on: followed.is_some() }
        });
        self.machine = Some(Coordinator::new(config, Beside(self.shard.clone()), claimed));
        (self.ticked_at, self.ticked) = (Duration::ZERO, world.now);
        for event in std::mem::take(&mut self.early) {
            self.handle(event, world);
        }
        world.remind(self.pid, world.now, Timer::Tick);
    }

    /// How many tasks have not learned yet that the run is over, once it is.
    pub fn unheard(&self) -> Option<usize> {
        self.machine.as_ref().and_then(Coordinator::unheard)
    }

    /// The exit code of the run, if it has ended and nothing is left to do for it. Until that is recorded, a killed
    /// process has to be restarted: otherwise the tasks that have not been told of the end cannot learn of it.
    pub fn exit_code(&self, world: &World) -> Option<u8> {
        let recorded = world.scenario.checkpoints.is_none() || world.store.is_released(self.generation);
        match self.machine.as_ref()?.phase() {
            Phase::Over(outcome) if recorded => Some(outcome.exit_code),
            _ => None,
        }
    }

    /// Advances the time.
    pub fn tick(&mut self, world: &mut World) {
        (self.ticked_at, self.ticked) = (self.now(world), world.now);
        self.handle(CoordinatorEvent::Tick { has_read_on: false }, world);
        world.remind(self.pid, world.now + TICK, Timer::Tick);
        if self.generation > 0 && world.store.newest_generation() > self.generation {
            let (generation, newest) = (self.generation, world.store.newest_generation());
            let error = CheckpointError::Fenced { generation, newest };
            self.handle(CoordinatorEvent::Overtaken(error), world);
        }
    }

    fn now(&self, world: &World) -> Duration {
        self.ticked_at + (world.now - self.ticked).min(2 * TICK)
    }

    /// Handles a message on a session.
    pub fn arrived(&mut self, connection: Connection, message: Message, world: &mut World) {
        let Message::Task(message) = message else { return };
        if self.opened.insert(connection) {
            self.take(CoordinatorEvent::Opened(connection as u64), world);
        }
        self.take(CoordinatorEvent::Message(connection as u64, *message), world);
    }

    /// Handles the end of a session.
    pub fn closed(&mut self, connection: Connection, world: &mut World) {
        if self.opened.contains(&connection) {
            self.take(CoordinatorEvent::Closed(connection as u64), world);
        }
    }

    fn take(&mut self, event: CoordinatorEvent, world: &mut World) {
        match self.machine {
            Some(_) => self.handle(event, world),
            None => self.early.push(event),
        }
    }

    /// Handles the completion of a store operation.
    pub fn stored(&mut self, timer: Timer, world: &mut World) {
        let event = match timer {
            Timer::Found(lookup, first) => CoordinatorEvent::Found(lookup, self.find(first, world)),
            Timer::Published(number, manifest, fails) => {
                self.under_way.remove(&manifest.id);
                self.last.take_if(|(last, _)| *last == number);
                let published = if fails { Err(store::full()) } else { world.store.publish((*manifest).clone()) };
                if published.is_ok() {
                    let World { watch, store, scenario, .. } = world;
                    watch.check_published(&manifest, store, scenario.keeps_its_processes());
                }
                CoordinatorEvent::Published(number, published)
            }
            Timer::Released(outcome) => {
                world.store.release(self.generation, outcome);
                CoordinatorEvent::Released
            }
            _ => return,
        };
        self.handle(event, world);
    }

    /// Looks up the checkpoint to begin from, or to roll back to. Publications still under way are abandoned.
    fn find(&mut self, first: Option<Box<Beginning>>, world: &mut World) -> Result<Box<Beginning>, CheckpointError> {
        if world.store.is_unreadable(world.now) {
            world.store.kept_a_run_from_beginning |= first.is_none() && self.followed.is_none();
            return Err(store::unreadable());
        }
        let given_up = std::mem::take(&mut self.under_way);
        given_up.into_iter().for_each(|id| world.store.disown(id));
        Ok(Box::new(match first {
            Some(first) => world.store.find_again(*first),
            None => world.store.find(self.generation, self.followed),
        }))
    }

    fn handle(&mut self, event: CoordinatorEvent, world: &mut World) {
        let now = self.now(world);
        let Some(machine) = &mut self.machine else { return };
        let saved = matches!(machine.phase(), Phase::Saving(_));
        let effects = machine.handle(event, now);
        let saves = matches!(machine.phase(), Phase::Saving(_));
        let published_for = self.last.and_then(|(_, since)| Some(now - since?)).filter(|_| saved);
        check_that_nobody_is_missed(machine.phase(), published_for, world);
        for effect in effects {
            match effect {
                Effect::Send(id, message) => {
                    if let Some(Kind::Mark(Mark { number })) = message.kind.as_ref().filter(|_| saves) {
                        self.last = Some((*number, None));
                    }
                    world.send(id as Connection, self.pid, Port::Coordinator, Message::Coordinator(Box::new(message)));
                }
                Effect::Dismiss(id) | Effect::Close(id) => {
                    world.close(id as Connection, self.pid, Port::Coordinator);
                    // The task closes its end when it learns of this, and then the coordinator is told.
                }
                Effect::Admit(..) => {}
                Effect::Look(lookup, first) => {
                    let at = world.store_delay().0.max(self.published_by.min(world.now + STALL));
                    world.remind(self.pid, at, Timer::Found(lookup, first));
                }
                Effect::Publish(number, manifest, _) => {
                    self.under_way.insert(manifest.id);
                    let (at, fails) = world.store_delay();
                    let at = at.max(world.store.takes_manifests_from(world.now));
                    self.published_by = at.max(self.published_by);
                    if let Some((_, since)) = self.last.as_mut().filter(|(last, _)| *last == number) {
                        *since = Some(now);
                    }
                    world.remind(self.pid, self.published_by, Timer::Published(number, manifest, fails));
                }
                Effect::BeganIn(first) => world.store.began_in(self.generation, first),
                Effect::Release(outcome) => {
                    let at = world.now + world.random.millis(1, 50);
                    world.remind(self.pid, at, Timer::Released(outcome));
                }
            }
        }
    }
}

/// Checks that once all parts of the last checkpoint are written, the loss of a server neither rolls the run back nor
/// leaves it unsaved, unless the store takes too long.
fn check_that_nobody_is_missed(phase: &Phase, published_for: Option<Duration>, world: &mut World) {
    let missed = match phase {
        Phase::Gathering => Some("the run rolls back"),
        Phase::Over(outcome) if outcome.reason.contains(&format!("{NOT_SAVED}: lost ")) => {
            Some(outcome.reason.as_str())
        }
        _ => None,
    };
    let is_in_time = |waited: Duration| waited + Duration::from_secs(1) < STALL;
    if let Some(missed) = missed.filter(|_| published_for.is_some_and(is_in_time)) {
        world.watch.fail(|| format!("all parts of the last checkpoint are written, but: {missed}"));
    }
}
