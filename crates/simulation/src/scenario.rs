//! The scenario of a seed: a cluster, a run, and its faults.

use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::membership::Patience;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;

use crate::random::Random;
use crate::store::Trouble;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process of a task dies, and is restarted after a while. If the flag is true, its host vanishes without
    /// closing connections.
    Kill(TaskId, Duration, bool),
    /// The process of a task is paused for a while.
    Pause(TaskId, Duration),
    /// The process of a task is cut off from all others for a while.
    CutOff(TaskId, Duration),
    /// The connections of the process of a task break.
    Disconnect(TaskId),
    /// The checkpoint store fails for a while.
    Store(Trouble, Duration),
    /// Processes are told to stop, one after another.
    Stop(Whom),
    /// The process of a worker dies and is not restarted; the number of workers is open.
    ScaleDown(TaskId),
}

/// The tasks that are told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whom {
    /// All tasks.
    All,
    /// Every worker.
    Workers,
    /// The process of one task.
    One(TaskId),
}

impl Whom {
    /// Whether this task is told to stop.
    pub fn includes(self, task: TaskId) -> bool {
        match self {
            Self::All => true,
            Self::Workers => task.job == Job::Worker,
            Self::One(one) => one == task,
        }
    }
}

/// A cluster, a run, and its faults.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What all tasks agree on.
    pub run: RunSpec,
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are.
    pub workers: u32,
    /// Whether the number of workers is open.
    pub dynamic: bool,
    /// Whether worker 0 joins long after the others.
    pub first_worker_is_late: bool,
    /// Whether each ps shares the process of the worker with the same number.
    pub colocated: bool,
    /// Steps and time between two checkpoints; `None` without checkpoints.
    pub checkpoints: Option<(Option<u64>, Option<Duration>)>,
    /// When a silent task is declared dead.
    pub patience: Patience,
    /// How long a task waits for peers.
    pub peer_timeout: Duration,
    /// The number of pieces in which a push travels.
    pub pieces: usize,
    /// The longest time that computing a step takes, in milliseconds.
    pub compute: u64,
    /// The faults, and when they happen.
    pub faults: Vec<(Duration, Fault)>,
}

impl Scenario {
    /// Derives the scenario from a seed's random numbers.
    pub fn new(random: &mut Random) -> Self {
        let servers = random.within(1, 3) as u32;
        let colocated = random.percent(20);
        let workers = if colocated { servers.max(random.within(1, 5) as u32) } else { random.within(1, 5) as u32 };
        let servers = if colocated { workers.min(3) } else { servers };
        let workers = if colocated { servers } else { workers };
        let run = random_run(servers, random);
        let checkpoints = random.percent(80).then(|| {
            let steps = random.percent(70).then(|| random.within(2, 20));
            (steps, steps.is_none().then(|| random.millis(100, 2000)))
        });
        let mut scenario = Self {
            run,
            servers,
            workers,
            dynamic: random.percent(20),
            first_worker_is_late: false,
            colocated,
            checkpoints,
            patience: Patience::new(random.millis(2000, 8000)),
            peer_timeout: Duration::from_secs(60),
            pieces: random.within(1, 4) as usize,
            compute: random.within(2, 60),
            faults: Vec::new(),
        };
        if random.percent(85) {
            for _ in 0..random.within(1, 5) {
                let at = random.millis(0, 5000);
                let fault = scenario.fault(random);
                scenario.faults.push((at, fault));
                if random.percent(30) {
                    let together = scenario.fault(random);
                    scenario.faults.push((at + random.micros(0, 3000), together));
                }
            }
        }
        if random.percent(6) {
            scenario.leave_in_the_middle(random);
        }
        scenario
    }

    /// Replaces all faults by one: a server and the chief die together. The server is soon back, the chief only when
    /// the run cannot have waited for it.
    pub fn lose_chief_with_server(&mut self, random: &mut Random) {
        // The run has begun by this time.
        let (at, server) = (random.millis(1000, 2000), TaskId::ps(self.servers.max(2) - 1));
        let dies = |task, lasts| Fault::Kill(task, lasts, false);
        self.faults = vec![
            (at, dies(server, random.millis(20, 500))),
            (at + random.micros(0, 3000), dies(TaskId::worker(0), Duration::from_secs(100))),
        ];
        (self.first_worker_is_late, self.colocated, self.dynamic) = (false, false, false);
        (self.servers, self.workers) = (self.servers.max(2), self.workers.max(2));
        self.checkpoints.get_or_insert((Some(10), None));
    }

    /// Adds a departure at a critical moment: a server whose connection breaks, or that dies, while the last checkpoint
    /// is written or published; all workers while a run rolls back; or a worker before the run begins.
    fn leave_in_the_middle(&mut self, random: &mut Random) {
        let (at, server) = (random.millis(500, 4000), TaskId::ps(random.below(u64::from(self.servers)) as u32));
        match random.below(4) {
            0 => {
                self.faults.push((at, Fault::Stop(Whom::One(server))));
                let after = at + random.millis(0, 80);
                let dies = Fault::Kill(server, random.millis(20, 3000), false);
                self.faults.push((after, if random.percent(30) { dies } else { Fault::Disconnect(server) }));
            }
            1 if server != TaskId::ps(0) && !self.colocated => {
                self.faults.push((at, Fault::Kill(server, random.millis(1500, 3000), false)));
                self.faults.push((at + random.millis(1050, 1500), Fault::Stop(Whom::Workers)));
            }
            2 if self.dynamic && !self.colocated && self.workers > 1 => {
                let worker = TaskId::worker(random.within(1, u64::from(self.workers) - 1) as u32);
                self.faults.push((random.millis(700, 1500), Fault::ScaleDown(worker)));
                self.first_worker_is_late = true;
            }
            3 if server != TaskId::ps(0) && self.checkpoints.is_some() => {
                let after = at + random.millis(0, 1500);
                if random.percent(50) {
                    self.faults.push((at, Fault::Stop(Whom::One(server))));
                }
                let slow = Duration::from_secs(12).saturating_sub(at);
                self.faults.push((at, Fault::Store(Trouble::SlowToPublish, slow)));
                self.faults.push((after, Fault::Kill(server, random.millis(20, 3000), false)));
            }
            _ => {}
        }
    }

    fn fault(&self, random: &mut Random) -> Fault {
        let index = random.below(u64::from(self.servers + self.workers)) as u32;
        let task = if index < self.servers { TaskId::ps(index) } else { TaskId::worker(index - self.servers) };
        if self.dynamic && !self.colocated && self.workers > 1 && random.percent(10) {
            return Fault::ScaleDown(TaskId::worker(random.within(1, u64::from(self.workers) - 1) as u32));
        }
        match random.below(100) {
            0..33 => Fault::Kill(task, random.millis(20, 3000), random.percent(10)),
            33..58 => Fault::Pause(task, random.millis(10, 15_000)),
            58..73 => Fault::CutOff(task, random.millis(10, 12_000)),
            73..88 => Fault::Disconnect(task),
            88..91 => Fault::Store(Trouble::Full, random.millis(100, 8000)),
            91..92 => Fault::Store(Trouble::Hangs, random.millis(100, 8000)),
            92..93 => Fault::Store(Trouble::Hangs, random.millis(8000, 30_000)),
            93..94 => Fault::Store(Trouble::Unreadable, random.millis(100, 8000)),
            94..96 => Fault::Stop(Whom::All),
            96..98 => Fault::Stop(Whom::Workers),
            _ => Fault::Stop(Whom::One(task)),
        }
    }

    /// True if the parameters must not hold a batch twice, whatever dies. Pushes count once, but a worker's successor
    /// continues from what the parameters of the first server hold: a push may have reached only some servers when its
    /// worker dies, and a gradient in the open round will count though it does not yet.
    pub fn counts_batches_once(&self) -> bool {
        self.run.parameters.len() == 1 && !matches!(self.run.mode, Mode::Sync { .. })
    }

    /// True if no process dies, is told to stop or is declared dead, whatever else goes wrong.
    pub fn keeps_its_processes(&self) -> bool {
        self.faults.iter().all(|(_, fault)| matches!(fault, Fault::Disconnect(_) | Fault::Store(..)))
    }
}

/// A run whose parameters are spread over some or all of the servers.
fn random_run(servers: u32, random: &mut Random) -> RunSpec {
    let mode = match random.below(3) {
        0 => Mode::Async,
        1 => Mode::Sync { replicas_to_aggregate: random.percent(25).then(|| random.within(1, 3) as u32) },
        _ => Mode::Ssp { staleness: random.below(4) },
    };
    let active = if random.percent(30) { random.within(1, u64::from(servers)) as u32 } else { servers };
    let parameter = |index: u32| ParameterSpec {
        name: format!("weights {index}"),
        shape: vec![16],
        access: Access::Dense,
        kind: ParameterKind::Trained,
    };
    RunSpec {
        model: "simulated".into(),
        mode,
        optimizer: Optimizer::Sgd,
        learning_rate: 0.1,
        schedule: Schedule::Constant,
        sharding: Sharding::RoundRobin,
        steps: Some(random.within(5, 80)),
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new((0..active).map(parameter).collect()).expect("a sound table"),
        identity: Identity::default(),
        data: None,
    }
}
