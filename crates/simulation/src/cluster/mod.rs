//! A whole simulated cluster: starts its processes, delivers events until all have ended, and restarts those that are
//! killed. `faults` carries out the faults, and `exit_codes` decides which exit codes they explain.

mod exit_codes;
mod faults;
mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_server::LAST_WORDS;
use windlass_server::coordinator::{Farewell, TICK};

use crate::coordinator::{CoordinatorNode, SharedShard};
use crate::random::Random;
use crate::scenario::{Fault, Scenario};
use crate::server::ServerNode;
use crate::worker::WorkerNode;
use crate::world::{Condition, Event, Happening, Pid, Timer, World};
use process::Process;

/// How long a run may take after the last fault is over.
const BOUND: Duration = Duration::from_secs(190);

/// The result of a seed.
#[derive(Debug, Clone)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first violation, if any.
    pub wrong: Option<String>,
    /// The virtual time that the run took.
    pub time: Duration,
    /// The number of events.
    pub events: u64,
    /// How many checkpoints were published.
    pub published: u64,
    /// How many times a server was restored from a checkpoint.
    pub restored: u64,
    /// How many times values held a batch twice, from two processes of a worker.
    pub repeated: u64,
    /// The exit codes of all tasks.
    pub exit_codes: BTreeMap<String, u8>,
}

struct Cluster {
    world: World,
    processes: Vec<Process>,
    exit_codes: BTreeMap<TaskId, u8>,
    /// Tasks that lost a process, or were away long enough to be missed.
    away: BTreeSet<TaskId>,
    /// When each process was killed that has not been restarted yet.
    killed: BTreeMap<TaskId, Duration>,
    /// When each task was last paused, and until when.
    paused: BTreeMap<TaskId, (Duration, Duration)>,
    /// Tasks whose processes were told to stop.
    stopped: BTreeSet<TaskId>,
    /// True if the coordinator, or a task to be stopped, was absent at the time: not started yet, waiting for a
    /// restart, or without a session to say goodbye on.
    stopped_some: bool,
    /// True if any task was absent or had no session when others were told to stop.
    some_were_away_at_stop: bool,
    /// True if a worker was told to stop before the run began: the run waits for it as for a restarted one.
    stopped_before_it_began: bool,
    /// True once a server has had parameters.
    begun: bool,
    /// Workers that left for good without saying goodbye.
    scaled_down: BTreeSet<TaskId>,
    store_failed: bool,
    server_lost: bool,
    lost_at_the_end: bool,
    /// Tasks whose process was never admitted. The records do not tell them of a run that failed before they joined,
    /// since another may be about to begin. At the end, the run does not wait for workers unknown to the coordinator.
    unknown: BTreeSet<TaskId>,
    last_fault: Duration,
}

/// Runs the scenario of a seed.
pub fn run(seed: u64, trace: bool) -> Report {
    let mut random = Random::new(seed);
    let scenario = Scenario::new(&mut random);
    run_scenario(seed, scenario, random, trace)
}

/// Runs the cluster of a seed, with one fault only: a server and the chief are lost together.
pub fn run_without_chief(seed: u64, trace: bool) -> Report {
    let mut random = Random::new(seed);
    let mut scenario = Scenario::new(&mut random);
    scenario.lose_chief_with_server(&mut random);
    run_scenario(seed, scenario, random, trace)
}

fn run_scenario(seed: u64, scenario: Scenario, random: Random, trace: bool) -> Report {
    if trace {
        println!("seed {seed}: {scenario:#?}");
    }
    let mut cluster = Cluster {
        world: World::new(random, scenario, trace),
        processes: Vec::new(),
        exit_codes: BTreeMap::new(),
        away: BTreeSet::new(),
        killed: BTreeMap::new(),
        paused: BTreeMap::new(),
        stopped: BTreeSet::new(),
        stopped_some: false,
        some_were_away_at_stop: false,
        stopped_before_it_began: false,
        begun: false,
        scaled_down: BTreeSet::new(),
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
                    let (first, last) = match scenario.first_worker_is_late {
                        true if task == TaskId::worker(0) => (3000, 3500),
                        true => (0, 600),
                        false if scenario.dynamic => (0, 2000),
                        false => (0, 300),
                    };
                    let at = self.world.random.millis(first, last);
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
        let ended = self.exit_codes.iter().find(|(ended, _)| ended.job == Job::Ps).map(|(_, code)| *code);
        // The tasks that were told of the end have exited, but it is not recorded yet: ps 0 was killed before recording
        // it, and the others are told only once ps 0 is restarted.
        let unrecorded = task == TaskId::ps(0)
            && self.world.scenario.checkpoints.is_some()
            && self.exit_codes.values().all(|code| *code == 0);
        if self.exit_codes.contains_key(&task) {
            return;
        }
        if let Some(code) = ended.filter(|_| !unrecorded) {
            // The task's supervisor sees that the run has ended, and how.
            self.exit_codes.insert(task, code);
            if self.world.scenario.colocated {
                self.exit_codes.entry(TaskId::worker(task.index)).or_insert(code);
            }
            return;
        }
        self.killed.remove(&task);
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
        let is_told_to_stop = matches!(happening, Happening::Stop);
        let is_heard = |process: &Process| process.is_in_session() && !world.is_being_dismissed(pid);
        self.stopped_some |= is_told_to_stop && !is_heard(process);
        self.stopped_before_it_began |= is_told_to_stop && !self.begun && process.worker.is_some();
        process.happen(happening, world);
        self.begun |= process.server.as_ref().is_some_and(ServerNode::was_prepared);
        self.some_were_away_at_stop |= is_told_to_stop && self.some_have_no_session();
        self.end_if_done(pid);
    }

    fn some_have_no_session(&self) -> bool {
        let is_alive = |pid: &Pid| self.world.conditions[*pid].alive;
        (0..self.processes.len()).filter(is_alive).any(|pid| !self.processes[pid].is_in_session())
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
            if !farewell.is_over(coordinator.unheard() == Some(0)) {
                return;
            }
        }
        for (task, outcome) in &ended {
            self.exit_codes.insert(*task, outcome.exit_code);
        }
        let server = process.server.as_ref().filter(|server| !server.was_let_in()).map(ServerNode::task);
        let worker = process.worker.as_ref().filter(|worker| !worker.was_let_in()).map(WorkerNode::task);
        self.unknown.extend(server.into_iter().chain(worker));
        if let Some(server) = process.server.as_ref().filter(|_| ended.iter().all(|(_, end)| end.exit_code == 0)) {
            server.check_end(&mut self.world);
        }
        ended.iter().for_each(|(_, outcome)| self.check_whom_it_blames(outcome));
        self.say(|| format!("process {pid} ends: {ended:?}"));
        self.world.disconnect_gently(pid);
        self.world.conditions[pid].alive = false;
    }
}
