//! Everything outside the simulated processes: virtual time, the event queue, and in `network` the connections between
//! processes.

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

/// A message on a connection.
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

/// The end of a connection within a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The session of the process's server.
    ServerSession,
    /// The session of the process's worker.
    WorkerSession,
    /// The coordinator of the process.
    Coordinator,
    /// The shard of the process.
    Stream,
    /// The connection of the process's worker to a server.
    Lane(u32),
}

/// An event in a process.
#[derive(Debug)]
pub enum Happening {
    /// A message arrives.
    Arrived(Connection, Port, Message),
    /// A connection was closed.
    Closed(Connection, Port),
    /// A connection was made, or could not be.
    Connected(Port, Option<Connection>),
    /// A timer is due.
    Timer(Timer),
    /// The lookup of the run's records is done.
    Looked(Port, u64, Option<Outcome>),
    /// The process is told to stop.
    Stop,
}

/// A timer of a process.
#[derive(Debug)]
pub enum Timer {
    /// The coordinator's tick.
    Tick,
    /// The coordinator's checkpoints are open.
    StoreOpened,
    /// The nth lookup is done: of a checkpoint to begin from or, given the run's beginning, to roll back to.
    Found(u64, Option<Box<windlass_server::coordinator::Beginning>>),
    /// A manifest is written, or writing it failed.
    Published(u64, Box<windlass_checkpoint::Manifest>, bool),
    /// The lease is released, with the run's outcome.
    Released(Outcome),
    /// The session's timer.
    Session(Port),
    /// A timer of the shard with this number.
    Shard(u64, ShardTimer),
    /// The server's shard is prepared.
    Prepared(u64),
    /// A part is written, or writing it failed.
    Written(u64, u64, bool),
    /// A deadline of the server.
    Quiet,
    /// A deadline of the worker.
    Worker,
    /// The worker has computed its step.
    Computed(u64),
    /// The worker retries a server.
    Retry(u32, u64),
    /// ps 0 stays so that others can learn of the end.
    Farewell,
}

/// A timer of a shard.
#[derive(Debug)]
pub enum ShardTimer {
    /// Polls the waiting threads.
    Poll,
    /// Applies the next block of the round.
    RoundPiece,
    /// Reads the next block of a cut.
    ReadPiece(u64),
}

/// An event in the world.
#[derive(Debug)]
pub enum Event {
    /// An event in a process.
    To(Pid, Happening),
    /// A fault of the scenario.
    Fault(usize),
    /// The restart of a task.
    Start(TaskId),
}

/// The condition of a process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Condition {
    /// True until the process ends or is killed.
    pub alive: bool,
    /// Events wait until this time.
    pub paused_until: Duration,
    /// The process cannot send or receive until this time.
    pub cut_off_until: Duration,
}

/// Everything outside the processes.
#[derive(Debug)]
pub struct World {
    /// The current virtual time.
    pub now: Duration,
    /// The random numbers of the run.
    pub random: Random,
    /// The simulated scenario.
    pub scenario: Scenario,
    /// The checkpoint store.
    pub store: Store,
    /// The invariant checks.
    pub watch: Watch,
    /// The processes, by their numbers.
    pub conditions: Vec<Condition>,
    /// The process that listens for each task.
    pub directory: BTreeMap<TaskId, Pid>,
    /// True to print a line for every event.
    pub trace: bool,
    queue: BTreeMap<(Duration, u64), Event>,
    next: u64,
    links: Vec<Link>,
}

impl World {
    /// A world in which nothing has happened yet.
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

    /// Schedules an event.
    pub fn at(&mut self, time: Duration, event: Event) {
        self.next += 1;
        self.queue.insert((time.max(self.now), self.next), event);
    }

    /// Sets a timer of a process.
    pub fn remind(&mut self, pid: Pid, time: Duration, timer: Timer) {
        self.at(time, Event::To(pid, Happening::Timer(timer)));
    }

    /// Advances the time to the next event, and returns it. Events for a paused process wait.
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
                    // The event keeps its own number: extending a pause must not let later messages of a connection
                    // overtake it.
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

    /// When an operation of the store will finish, and whether it fails.
    pub fn store_delay(&mut self) -> (Duration, bool) {
        let (from, fails) = self.store.outlook(self.now);
        let delay = if self.random.percent(5) { self.random.millis(50, 1500) } else { self.random.millis(1, 30) };
        (from + delay, fails)
    }
}
