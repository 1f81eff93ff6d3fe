//! A whole simulated cluster: processes, who starts them again, and what goes wrong with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::exit_code;
use windlass_server::coordinator::{Farewell, TICK};
use windlass_server::{LAST_WORDS, ServerEvent};
use windlass_wire::control::session::SessionEvent;

use crate::coordinator::{CoordinatorNode, SharedShard};
use crate::random::Random;
use crate::scenario::{Fault, Scenario};
use crate::server::ServerNode;
use crate::worker::WorkerNode;
use crate::world::{Condition, Connection, Event, Happening, Message, Pid, Port, Timer, World};

/// How long a run may go on after the last fault is over.
const BOUND: Duration = Duration::from_secs(400);

/// What came of a seed.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What is wrong, if something is.
    pub wrong: Option<String>,
    /// How long it took, in virtual time.
    pub time: Duration,
    /// How many things happened.
    pub events: u64,
    /// How many checkpoints were published.
    pub published: u64,
    /// How often a server was restored from one.
    pub restored: u64,
    /// How often a batch was found in values twice, by two processes of a worker.
    pub repeated: u64,
    /// The exit codes of all tasks.
    pub exit_codes: BTreeMap<String, u8>,
}

struct Process {
    server: Option<ServerNode>,
    coordinator: Option<CoordinatorNode>,
    worker: Option<WorkerNode>,
    /// How long it still stays for others to hear of the end, if it is ps 0 and has ended.
    farewell: Option<Farewell>,
}

struct Cluster {
    world: World,
    processes: Vec<Process>,
    exit_codes: BTreeMap<TaskId, u8>,
    /// Tasks that a process was lost of, or that were away, and when that was over.
    away: BTreeMap<TaskId, Duration>,
    stopped: bool,
    store_failed: bool,
    server_lost: bool,
    lost_at_the_end: bool,
    /// Workers that the coordinator was never told of and has never seen. It does not wait for them at the end, and
    /// without checkpoints there are no records to tell them of it.
    unknown: BTreeSet<TaskId>,
    last_fault: Duration,
}

/// Runs what a seed stands for.
pub fn run(seed: u64, trace: bool) -> Report {
    let mut random = Random::new(seed);
    let scenario = Scenario::new(&mut random);
    if trace {
        println!("seed {seed}: {scenario:#?}");
    }
    let mut cluster = Cluster {
        world: World::new(random, scenario, trace),
        processes: Vec::new(),
        exit_codes: BTreeMap::new(),
        away: BTreeMap::new(),
        stopped: false,
        store_failed: false,
        server_lost: false,
        lost_at_the_end: false,
        unknown: BTreeSet::new(),
        last_fault: Duration::ZERO,
    };
    let events = cluster.run();
    let Cluster { world, exit_codes, .. } = cluster;
    Report {
        seed,
        wrong: world.watch.wrong,
        time: world.now,
        events,
        published: world.watch.published,
        restored: world.watch.restored,
        repeated: world.watch.repeated,
        exit_codes: exit_codes.into_iter().map(|(task, code)| (task.to_string(), code)).collect(),
    }
}

impl Cluster {
    fn run(&mut self) -> u64 {
        let scenario = self.world.scenario.clone();
        for index in 0..scenario.servers.max(scenario.workers) {
            let tasks =
                [(index < scenario.servers, TaskId::ps(index)), (index < scenario.workers, TaskId::worker(index))];
            for (_, task) in tasks.into_iter().filter(|(is_there, _)| *is_there) {
                if task.job == Job::Ps || !scenario.colocated {
                    let at = self.world.random.millis(0, 300);
                    self.world.at(at, Event::Start(task));
                }
            }
        }
        for (index, (at, fault)) in scenario.faults.iter().enumerate() {
            self.world.at(*at, Event::Fault(index));
            let lasts = match fault {
                Fault::Kill(_, lasts, _)
                | Fault::Pause(_, lasts)
                | Fault::CutOff(_, lasts)
                | Fault::Store(_, lasts) => *lasts,
                _ => Duration::ZERO,
            };
            self.last_fault = self.last_fault.max(*at + lasts);
        }
        let tasks = (scenario.servers + scenario.workers) as usize;
        let mut events = 0;
        while self.world.watch.wrong.is_none() && self.exit_codes.len() < tasks {
            let Some(event) = self.world.step() else {
                self.world.watch.fail(|| "nothing happens any more".to_owned());
                break;
            };
            events += 1;
            if self.world.now > self.last_fault + BOUND {
                let ended = format!("{:?}", self.exit_codes);
                self.world.watch.fail(|| format!("the run does not end; so far {ended}"));
                break;
            }
            match event {
                Event::Start(task) => self.start(task),
                Event::Fault(index) => self.fault(scenario.faults[index].1),
                Event::To(pid, happening) => self.happen(pid, happening),
            }
        }
        if self.world.watch.wrong.is_none() {
            self.check_exit_codes();
        }
        events
    }

    /// Starts the process of a task, unless the run has ended meanwhile.
    fn start(&mut self, task: TaskId) {
        let run_has_ended = self.exit_codes.keys().any(|ended| ended.job == Job::Ps);
        // Who has heard of the end has gone, but the records do not know of it yet: ps 0 was killed before it could say so,
        // and only when it is started again can those hear of it who have not.
        let unrecorded = task == TaskId::ps(0)
            && self.world.scenario.checkpoints.is_some()
            && self.exit_codes.values().all(|code| *code == 0);
        if run_has_ended && !unrecorded || self.exit_codes.contains_key(&task) {
            self.exit_codes.insert(task, 0);
            if self.world.scenario.colocated {
                self.exit_codes.insert(TaskId::worker(task.index), 0);
            }
            return;
        }
        let pid = self.processes.len();
        self.world.conditions.push(Condition { alive: true, ..Condition::default() });
        self.world.directory.insert(task, pid);
        let shard = SharedShard::default();
        let mut process = Process { server: None, coordinator: None, worker: None, farewell: None };
        self.say(|| format!("{task} starts as process {pid}"));
        if task == TaskId::ps(0) {
            process.coordinator = Some(CoordinatorNode::start(pid, shard.clone(), &mut self.world));
        }
        if task.job == Job::Ps {
            process.server = Some(ServerNode::start(task.index, pid, shard, &mut self.world));
        }
        if task.job == Job::Worker || self.world.scenario.colocated {
            self.world.directory.insert(TaskId::worker(task.index), pid);
            process.worker = Some(WorkerNode::start(task.index, pid, &mut self.world));
        }
        self.processes.push(process);
    }

    fn say(&self, line: impl FnOnce() -> String) {
        if self.world.trace {
            println!("{:>10.4} {}", self.world.now.as_secs_f64(), line());
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.say(|| format!("{fault:?}"));
        let now = self.world.now;
        match fault {
            Fault::Store(trouble, lasts) => {
                self.store_failed = true;
                self.world.store.fail(trouble, now + lasts);
            }
            Fault::Stop => {
                self.stopped = true;
                for pid in 0..self.processes.len() {
                    let at = now + self.world.random.millis(0, 50);
                    self.world.at(at, Event::To(pid, Happening::Stop));
                }
            }
            Fault::Kill(task, lasts, vanishes) => {
                let Some(pid) = self.living(task) else { return };
                self.world.conditions[pid].alive = false;
                let after = if vanishes { Duration::from_secs(10) } else { Duration::ZERO };
                self.world.disconnect(pid, after);
                let task = if self.world.scenario.colocated { TaskId::ps(task.index) } else { task };
                self.note_away(task, now + lasts);
                self.server_lost |= task.job == Job::Ps;
                // Whoever has heard that training is done has gone, and a server lost after that is not made up for.
                self.lost_at_the_end |= task.job == Job::Ps && !self.exit_codes.is_empty();
                // Nobody starts again what was told to stop, or a run that is over.
                let coordinator = self.processes[pid].coordinator.as_ref();
                let over = coordinator.and_then(|coordinator| coordinator.exit_code(&self.world));
                if self.stopped || over.is_some() {
                    let code = over.unwrap_or(exit_code::TERMINATED);
                    self.exit_codes.insert(task, code);
                    if self.world.scenario.colocated {
                        self.exit_codes.insert(TaskId::worker(task.index), code);
                    }
                } else {
                    self.world.at(now + lasts, Event::Start(task));
                }
            }
            Fault::Pause(task, lasts) => {
                let Some(pid) = self.living(task) else { return };
                // A second pause does not end the first: what waits for its end would come after what is sent later.
                let paused_until = &mut self.world.conditions[pid].paused_until;
                *paused_until = (*paused_until).max(now + lasts);
                self.note_away(task, now + lasts);
            }
            Fault::CutOff(task, lasts) => {
                let Some(pid) = self.living(task) else { return };
                self.world.conditions[pid].cut_off_until = now + lasts;
                self.note_away(task, now + lasts);
                if lasts > Duration::from_secs(8) {
                    let at = Duration::from_secs(8);
                    self.world.disconnect(pid, at);
                }
            }
            Fault::Disconnect(task) => {
                let Some(pid) = self.living(task) else { return };
                self.world.disconnect(pid, Duration::ZERO);
            }
        }
    }

    fn note_away(&mut self, task: TaskId, until: Duration) {
        let tasks = [task, TaskId::ps(task.index), TaskId::worker(task.index)];
        for task in tasks.iter().take(if self.world.scenario.colocated { 3 } else { 1 }) {
            let known = self.away.entry(*task).or_default();
            *known = (*known).max(until);
        }
        self.server_lost |= task.job == Job::Ps || self.world.scenario.colocated;
    }

    fn living(&self, task: TaskId) -> Option<Pid> {
        self.world.directory.get(&task).copied().filter(|pid| self.world.conditions[*pid].alive)
    }

    fn happen(&mut self, pid: Pid, happening: Happening) {
        if self.world.trace && !matches!(happening, Happening::Timer(_)) {
            self.say(|| format!("process {pid}: {happening:?}"));
        }
        let Self { world, processes, .. } = self;
        let process = &mut processes[pid];
        if let (Happening::Timer(Timer::Farewell), Some(farewell)) = (&happening, &mut process.farewell) {
            farewell.tick();
            world.remind(pid, world.now + TICK, Timer::Farewell);
        }
        process.happen(happening, world);
        self.end_if_done(pid);
    }

    fn end_if_done(&mut self, pid: Pid) {
        let process = &mut self.processes[pid];
        let server = process.server.as_ref().map(|server| (server.task(), server.ended.clone()));
        let worker = process.worker.as_ref().map(|worker| (worker.task(), worker.ended.clone()));
        let ended = [server, worker].into_iter().flatten().map(|(task, ended)| Some((task, ended?)));
        let Some(ended) = ended.collect::<Option<Vec<_>>>() else { return };
        if let Some(coordinator) = &process.coordinator {
            let farewell = process.farewell.get_or_insert_with(|| {
                self.world.remind(pid, self.world.now + TICK, Timer::Farewell);
                Farewell::new(LAST_WORDS)
            });
            if !farewell.is_over(coordinator.unheard()) {
                return;
            }
        }
        for (task, outcome) in &ended {
            self.exit_codes.insert(*task, outcome.exit_code);
        }
        if let Some(worker) =
            process.worker.as_ref().filter(|worker| self.world.scenario.dynamic && !worker.was_let_in())
        {
            self.unknown.insert(worker.task());
        }
        if let Some(server) = process.server.as_ref().filter(|_| ended.iter().all(|(_, end)| end.exit_code == 0)) {
            server.check_end(&mut self.world);
        }
        self.say(|| format!("process {pid} ends: {ended:?}"));
        self.world.disconnect_gently(pid);
        self.world.conditions[pid].alive = false;
    }

    /// Whether all tasks have ended with an exit code that what went wrong explains.
    fn check_exit_codes(&mut self) {
        let checkpoints = self.world.scenario.checkpoints.is_some();
        let failed = self.exit_codes.values().any(|code| !matches!(*code, 0 | exit_code::PEERS));
        for (task, code) in self.exit_codes.clone() {
            let (task_away, coordinator_away) = (self.away.contains_key(&task), self.away.contains_key(&TaskId::ps(0)));
            let was_away = task_away || coordinator_away;
            // Its claim may not have been released, or not have said in which generation the run began.
            let unrecorded = task_away && coordinator_away;
            let right = match code {
                0 => true,
                exit_code::TERMINATED => self.stopped,
                // A run whose last checkpoint could not be written, because the store or a server was away just then.
                exit_code::CHECKPOINT => checkpoints && (self.store_failed || self.server_lost || self.stopped),
                // Whoever was away when a run failed knows no more than that; and without checkpoints a run does not
                // outlive its servers or all of its workers.
                exit_code::PEERS => {
                    let excused = failed && was_away || unrecorded || self.lost_at_the_end || self.stopped;
                    let excused = excused || self.unknown.contains(&task) && !checkpoints;
                    excused || !checkpoints && !self.away.is_empty()
                }
                _ => false,
            };
            if !right {
                self.world.watch.fail(|| format!("{task} ended with exit code {code}"));
            }
        }
    }
}

impl Process {
    fn happen(&mut self, happening: Happening, world: &mut World) {
        match happening {
            Happening::Arrived(connection, port, message) => self.arrived(connection, port, Some(message), world),
            Happening::Closed(connection, port) => self.arrived(connection, port, None, world),
            Happening::Connected(port, connection) => match port {
                Port::ServerSession => self.server(|server, world| server.connected(connection, world), world),
                Port::WorkerSession => self.worker(|worker, world| worker.connected(connection, world), world),
                Port::Lane(server) => {
                    self.worker(|worker, world| worker.lane_connected(server, connection, world), world)
                }
                Port::Coordinator | Port::Stream => {}
            },
            Happening::Looked(port, number, found) => match port {
                Port::ServerSession => {
                    self.server(|server, world| server.session(SessionEvent::Looked(number, found), world), world)
                }
                _ => self.worker(|worker, world| worker.session(SessionEvent::Looked(number, found), world), world),
            },
            Happening::Stop => {
                self.server(|server, world| server.handle(ServerEvent::Stop, world), world);
                self.worker(WorkerNode::stop, world);
            }
            Happening::Timer(timer) => self.remind(timer, world),
        }
    }

    fn arrived(&mut self, connection: Connection, port: Port, message: Option<Message>, world: &mut World) {
        match (port, message) {
            (Port::ServerSession, message) => {
                self.server(|server, world| server.arrived(connection, message, world), world)
            }
            (Port::WorkerSession, message) => {
                self.worker(|worker, world| worker.arrived(connection, message, world), world)
            }
            (Port::Coordinator, message) => self.coordinator(
                |coordinator, world| match message {
                    Some(message) => coordinator.arrived(connection, message, world),
                    None => coordinator.closed(connection, world),
                },
                world,
            ),
            (Port::Stream, Some(Message::Frame(frame))) => {
                self.server(|server, world| server.stream(connection, Some(frame), world), world)
            }
            (Port::Stream, _) => self.server(|server, world| server.stream(connection, None, world), world),
            (Port::Lane(id), Some(Message::Answer(answer))) => {
                self.worker(|worker, world| worker.answered(id, connection, answer, world), world)
            }
            (Port::Lane(id), _) => self.worker(|worker, world| worker.lane_closed(id, connection, world), world),
        }
    }

    fn remind(&mut self, timer: Timer, world: &mut World) {
        match timer {
            // It is the process that stays, not what is in it.
            Timer::Farewell => {}
            Timer::Worker => self.worker(WorkerNode::tick, world),
            Timer::Tick => self.coordinator(CoordinatorNode::tick, world),
            Timer::StoreOpened => self.coordinator(CoordinatorNode::open, world),
            Timer::Found(..) | Timer::Published(..) | Timer::Released => {
                self.coordinator(|coordinator, world| coordinator.stored(timer, world), world);
            }
            Timer::Session(Port::ServerSession) => {
                self.server(|server, world| server.session(SessionEvent::Tick, world), world)
            }
            Timer::Session(_) => {
                self.worker(|worker, world| worker.session(SessionEvent::Tick, world), world);
            }
            Timer::Shard(shards, timer) => {
                self.server(|server, world| server.remind_shard(shards, &timer, world), world)
            }
            Timer::Prepared(number) => self.server(|server, world| server.prepared(number, world), world),
            Timer::Written(shards, number, fails) => {
                self.server(|server, world| server.part_written((shards, number), fails, world), world)
            }
            Timer::Quiet => self.server(|server, world| server.handle(ServerEvent::Quiet, world), world),
            Timer::Computed(ticket) => self.worker(|worker, world| worker.computed(ticket, world), world),
            Timer::Retry(server, attempt) => {
                self.worker(|worker, world| worker.try_again(server, attempt, world), world)
            }
        }
    }

    /// A server or worker that has ended does nothing more.
    fn server(&mut self, act: impl FnOnce(&mut ServerNode, &mut World), world: &mut World) {
        if let Some(server) = self.server.as_mut().filter(|server| server.ended.is_none()) {
            act(server, world);
        }
    }

    fn worker(&mut self, act: impl FnOnce(&mut WorkerNode, &mut World), world: &mut World) {
        if let Some(worker) = self.worker.as_mut().filter(|worker| worker.ended.is_none()) {
            act(worker, world);
        }
    }

    fn coordinator(&mut self, act: impl FnOnce(&mut CoordinatorNode, &mut World), world: &mut World) {
        if let Some(coordinator) = &mut self.coordinator {
            act(coordinator, world);
            self.server(ServerNode::poll, world);
        }
    }
}
