//! Everything outside the simulated processes: virtual time, what happens next, and in `network` the connections between
//! them.

mod network;

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::cluster::TaskId;
use windlass_core::lifecycle::Outcome;
use windlass_wire::control::proto::{CoordinatorMessage, TaskMessage};

use crate::check::Watch;
use crate::random::Random;
use crate::scenario::Scenario;
use crate::shard::{Answer, Frame};
use crate::store::Store;
use network::Link;

/// A process, by the order in which they were started.
pub type Pid = usize;
/// A connection.
pub type Connection = usize;

/// What travels.
#[derive(Debug)]
pub enum Message {
    /// To the coordinator.
    Task(Box<TaskMessage>),
    /// From the coordinator.
    Coordinator(Box<CoordinatorMessage>),
    /// To a shard.
    Frame(Frame),
    /// From a shard.
    Answer(Answer),
}

/// Where in a process a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The session of its server.
    ServerSession,
    /// The session of its worker.
    WorkerSession,
    /// Its coordinator.
    Coordinator,
    /// Its shard.
    Stream,
    /// Its worker's way to a server.
    Lane(u32),
}

/// What happens to a process.
#[derive(Debug)]
pub enum Happening {
    /// Something arrives.
    Arrived(Connection, Port, Message),
    /// A connection has closed.
    Closed(Connection, Port),
    /// A connection was made, or could not be.
    Connected(Port, Option<Connection>),
    /// The time has come.
    Timer(Timer),
    /// The records have been looked at.
    Looked(Port, u64, Option<Outcome>),
    /// It is told to stop.
    Stop,
}

/// What a process wants to be reminded of.
#[derive(Debug)]
pub enum Timer {
    /// The coordinator's tick.
    Tick,
    /// The coordinator's checkpoints are open.
    StoreOpened,
    /// The checkpoint to go back to is found for the nth time, or where the run began; or what to begin from.
    Found(u64, Option<Box<windlass_server::coordinator::Beginning>>),
    /// A manifest is written, or it failed.
    Published(u64, Box<windlass_checkpoint::Manifest>, bool),
    /// The lease is released, with word of how the run ended.
    Released(Outcome),
    /// A session.
    Session(Port),
    /// The shard of this number.
    Shard(u64, ShardTimer),
    /// The server's shard is prepared.
    Prepared(u64),
    /// A part is written, or it failed.
    Written(u64, u64, bool),
    /// The server has heard nothing.
    Quiet,
    /// The worker waits for something to be heard.
    Worker,
    /// The worker has computed its step.
    Computed(u64),
    /// The worker tries a server again.
    Retry(u32, u64),
    /// ps 0 stays for others to hear of the end.
    Farewell,
}

/// What a shard wants to be reminded of.
#[derive(Debug)]
pub enum ShardTimer {
    /// Those who wait.
    Poll,
    /// The round that is applied.
    RoundPiece,
    /// The cut that is read.
    ReadPiece(u64),
}

/// What happens in the world.
#[derive(Debug)]
pub enum Event {
    /// To a process.
    To(Pid, Happening),
    /// A fault of the scenario.
    Fault(usize),
    /// A task is started again.
    Start(TaskId),
}

/// A process as the world sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Condition {
    /// Until it ends or is killed.
    pub alive: bool,
    /// Nothing happens to it before that.
    pub paused_until: Duration,
    /// Nothing reaches it or leaves it before that.
    pub cut_off_until: Duration,
}

/// Everything outside the processes.
#[derive(Debug)]
pub struct World {
    /// The time.
    pub now: Duration,
    /// The random numbers of the run.
    pub random: Random,
    /// What is simulated.
    pub scenario: Scenario,
    /// The checkpoint store.
    pub store: Store,
    /// What is watched.
    pub watch: Watch,
    /// The processes, by their numbers.
    pub conditions: Vec<Condition>,
    /// Which process listens for a task.
    pub directory: BTreeMap<TaskId, Pid>,
    /// A line for everything that happens, if it is wanted.
    pub trace: bool,
    queue: BTreeMap<(Duration, u64), Event>,
    next: u64,
    links: Vec<Link>,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(random: Random, scenario: Scenario, trace: bool) -> Self {
        let watch = Watch::new(scenario.counts_batches_once());
        Self {
            now: Duration::ZERO,
            random,
            scenario,
            store: Store::default(),
            watch,
            conditions: Vec::new(),
            directory: BTreeMap::new(),
            trace,
            queue: BTreeMap::new(),
            next: 0,
            links: Vec::new(),
        }
    }

    /// Lets something happen at a time.
    pub fn at(&mut self, time: Duration, event: Event) {
        self.next += 1;
        self.queue.insert((time.max(self.now), self.next), event);
    }

    /// Reminds a process at a time.
    pub fn remind(&mut self, pid: Pid, time: Duration, timer: Timer) {
        self.at(time, Event::To(pid, Happening::Timer(timer)));
    }

    /// What happens next, at the time at which it does. What concerns a process that stands still waits.
    pub fn step(&mut self) -> Option<Event> {
        loop {
            let ((time, number), mut event) = self.queue.pop_first()?;
            self.now = time;
            if let Event::To(pid, happening) = &mut event {
                let condition = self.conditions[*pid];
                if !condition.alive {
                    continue;
                }
                if condition.paused_until > time {
                    // With its own number: a pause that is made longer must not let later messages of a connection by.
                    self.queue.insert((condition.paused_until, number), event);
                    continue;
                }
                if let Happening::Arrived(connection, port, _) = happening {
                    let link = &self.links[*connection];
                    let end = usize::from(link.ports[0] != *port || link.pids[0] != *pid);
                    if !link.open[end] {
                        continue;
                    }
                }
                if let Happening::Connected(_, connected) = happening
                    && connected
                        .is_some_and(|connection| self.links[connection].broken || !self.links[connection].open[0])
                {
                    *connected = None;
                }
                if let Happening::Closed(connection, port) = happening {
                    let link = &mut self.links[*connection];
                    let end = usize::from(link.ports[0] != *port || link.pids[0] != *pid);
                    if !std::mem::replace(&mut link.open[end], false) {
                        continue;
                    }
                }
            }
            return Some(event);
        }
    }

    /// When an operation of the store is over, and whether it fails.
    pub fn store_delay(&mut self) -> (Duration, bool) {
        let (from, fails) = self.store.outlook(self.now);
        let delay = if self.random.percent(5) { self.random.millis(50, 1500) } else { self.random.millis(1, 30) };
        (from + delay, fails)
    }
}
