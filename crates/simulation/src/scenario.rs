//! What a seed stands for: a cluster, a run, and what goes wrong in it.

use std::time::Duration;

use windlass_core::cluster::TaskId;
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

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process of a task dies, and is started again after a while. If true, its host vanishes without a word.
    Kill(TaskId, Duration, bool),
    /// The process of a task stands still for a while.
    Pause(TaskId, Duration),
    /// The process of a task reaches nobody for a while.
    CutOff(TaskId, Duration),
    /// The connections of the process of a task break.
    Disconnect(TaskId),
    /// The checkpoint store is in trouble for a while.
    Store(Trouble, Duration),
    /// Every process is told to stop, one after another.
    Stop,
}

/// A cluster, a run, and what goes wrong in it.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// What all tasks agree on.
    pub run: RunSpec,
    /// How many parameter servers there are.
    pub servers: u32,
    /// How many workers there are.
    pub workers: u32,
    /// Whether nobody is told how many.
    pub dynamic: bool,
    /// Whether each ps is in the process of the worker of its number.
    pub colocated: bool,
    /// Steps and time between two checkpoints, if there are any.
    pub checkpoints: Option<(Option<u64>, Option<Duration>)>,
    /// When a silent task counts as dead.
    pub patience: Patience,
    /// How long peers are waited for.
    pub peer_timeout: Duration,
    /// In how many pieces a push travels.
    pub pieces: usize,
    /// How long a step takes to compute at the most, in milliseconds.
    pub compute: u64,
    /// What goes wrong, and when.
    pub faults: Vec<(Duration, Fault)>,
}

impl Scenario {
    /// What a seed stands for.
    pub fn new(random: &mut Random) -> Self {
        let servers = random.within(1, 3) as u32;
        let colocated = random.percent(20);
        let workers = if colocated { servers.max(random.within(1, 5) as u32) } else { random.within(1, 5) as u32 };
        let servers = if colocated { workers.min(3) } else { servers };
        let workers = if colocated { servers } else { workers };
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
        let run = RunSpec {
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
        };
        let checkpoints = random.percent(80).then(|| {
            let steps = random.percent(70).then(|| random.within(2, 20));
            (steps, steps.is_none().then(|| random.millis(100, 2000)))
        });
        let mut scenario = Self {
            run,
            servers,
            workers,
            dynamic: random.percent(20),
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
        scenario
    }

    fn fault(&self, random: &mut Random) -> Fault {
        let index = random.below(u64::from(self.servers + self.workers)) as u32;
        let task = if index < self.servers { TaskId::ps(index) } else { TaskId::worker(index - self.servers) };
        match random.below(100) {
            0..35 => Fault::Kill(task, random.millis(20, 3000), random.percent(10)),
            35..60 => Fault::Pause(task, random.millis(10, 15_000)),
            60..75 => Fault::CutOff(task, random.millis(10, 12_000)),
            75..90 => Fault::Disconnect(task),
            90..95 => Fault::Store(Trouble::Full, random.millis(100, 8000)),
            95..98 => Fault::Store(Trouble::Hangs, random.millis(100, 8000)),
            _ => Fault::Stop,
        }
    }

    /// True if no batch may be found in the parameters twice, whatever dies. Pushes count once, but a worker's successor
    /// goes on from what the parameters of the first server have: of several servers, a push may have reached only some
    /// when its worker dies, and a gradient in the open round will count though it does not yet.
    pub fn counts_batches_once(&self) -> bool {
        self.run.parameters.len() == 1 && !matches!(self.run.mode, Mode::Sync { .. })
    }

    /// True if nothing goes wrong.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }
}
