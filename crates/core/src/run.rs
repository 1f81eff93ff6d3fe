//! The settings that all tasks of a run must agree on.
//!
//! The workers know the model and bring these settings to the servers, which therefore need no flags except their place
//! in the cluster.

use serde::{Deserialize, Serialize};

use crate::consistency::Mode;
use crate::difference::Difference;
use crate::identity::{Fingerprint, Identity};
use crate::optimizer::Optimizer;
use crate::parameter::ParameterTable;
use crate::plan::Sharding;
use crate::schedule::Schedule;

/// The settings of one run, equal for all workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The model's name.
    pub model: String,
    /// How pushes become updates.
    pub mode: Mode,
    /// The optimizer that the servers apply.
    pub optimizer: Optimizer,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How the learning rate changes with the global step.
    pub schedule: Schedule,
    /// How parameters are spread over the servers.
    pub sharding: Sharding,
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// Sum the gradients of a round in the order of workers, regardless of the order of arrival.
    pub deterministic: bool,
    /// Divide the learning rate of a push by the number of updates since its values were read.
    #[serde(default)]
    pub staleness_scaling: bool,
    /// The largest norm of a worker's gradient; a larger gradient is scaled down to it before it is pushed.
    #[serde(default)]
    pub clip_norm: Option<f32>,
    /// The parameters.
    pub parameters: ParameterTable,
    /// The model's identity besides its parameters.
    #[serde(default)]
    pub identity: Identity,
    /// The training data; runs from before this was recorded have none.
    #[serde(default)]
    pub data: Option<DataSpec>,
}

/// What a worker trains on, and in which way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataSpec {
    /// How many samples there are.
    pub samples: u64,
    /// The samples' fingerprint, if the model can compute one.
    pub fingerprint: Option<Fingerprint>,
    /// Where the samples are read from, if they are not built in. May differ between hosts.
    pub directory: Option<String>,
    /// The seed of first values, built-in data and the order of samples.
    pub seed: u64,
    /// Samples per step of a worker.
    pub batch_size: u64,
    /// The number of batches that a step is computed in, one after another.
    #[serde(default = "one")]
    pub accumulate: u64,
    /// The number of replicas that each worker divides a step among.
    #[serde(default = "one")]
    pub towers: u64,
    /// Whether the workers divide the data.
    pub shard_data: bool,
    /// The passes over the data after which a worker stops, if the run ends by them.
    pub epochs: Option<u64>,
}

fn one() -> u64 {
    1
}

impl DataSpec {
    /// Describes the difference if these are not the same samples.
    pub fn difference(&self, other: &Self) -> Option<Difference> {
        let prints = self.fingerprint.zip(other.fingerprint);
        let same = self.samples == other.samples && prints.is_none_or(|(here, there)| here == there);
        (!same).then(|| Difference::Data { here: self.describe(), there: other.describe() })
    }

    fn describe(&self) -> String {
        let print = self.fingerprint.map(|print| format!(", fingerprint {}", print.short())).unwrap_or_default();
        format!("{} samples{print}", self.samples)
    }
}

impl RunSpec {
    /// The first difference between two workers' runs in something that they must agree on.
    pub fn first_difference(&self, other: &RunSpec) -> Option<Difference> {
        let data = self.data.as_ref().zip(other.data.as_ref());
        // The model's flags come first, since other defaults follow from them.
        self.difference_of_model(other)
            .or_else(|| self.identity.difference_between_workers(&other.identity))
            .or_else(|| flags(&self.mode_flags(), &other.mode_flags()))
            .or_else(|| flags(&optimizer_flags(&self.optimizer), &optimizer_flags(&other.optimizer)))
            .or_else(|| flags(&self.other_flags(), &other.other_flags()))
            .or_else(|| data.and_then(|(here, there)| flags(&here.flags(), &there.flags())))
            .or_else(|| match self.mode {
                // The mean over workers is that over samples only if all have equally many.
                Mode::Sync { .. } => self.tolerated_difference(other),
                _ => None,
            })
            .or_else(|| data.and_then(|(here, there)| here.difference(there)))
            .or_else(|| self.parameters.first_difference(&other.parameters).map(Difference::Parameters))
    }

    /// A difference that is allowed between workers where each gradient is applied by itself, but is hardly ever
    /// intended.
    pub fn tolerated_difference(&self, other: &RunSpec) -> Option<Difference> {
        let batch_size = |run: &RunSpec| {
            let size = run.data.as_ref().map(|data| format!("with {} samples per step", data.batch_size));
            size.into_iter().collect::<Vec<_>>()
        };
        flags(&batch_size(self), &batch_size(other))
    }

    /// Why this run cannot resume from a checkpoint of that run, other than by the shapes of parameters.
    pub fn difference_from_checkpoint(&self, trained: &RunSpec) -> Option<Difference> {
        let model = self.difference_of_model(trained);
        model.or_else(|| self.identity.difference_from_checkpoint(&trained.identity))
    }

    /// How this run trains differently from the one that it resumes: allowed, but not always intended. The learning
    /// rate is not included: without a schedule it comes from the checkpoint.
    pub fn changes_since(&self, trained: &RunSpec) -> Vec<Difference> {
        let settings = |run: &RunSpec| {
            let mut settings = optimizer_flags(&run.optimizer);
            settings.push(format!("with --learning-rate-schedule {}", run.schedule));
            settings.push(option("clip-norm", run.clip_norm));
            settings.push(switch("staleness-scaling", run.staleness_scaling));
            // Each part of a step draws its own random numbers, and has its own statistics.
            let parts = run.data.as_ref().map_or((1, 1), |data| (data.accumulate, data.towers));
            settings.push(format!("with --accumulate {}", parts.0));
            settings.push(format!("with --towers {}", parts.1));
            settings
        };
        // A different optimizer has different constants, and is refused anyway.
        if self.optimizer.name() != trained.optimizer.name() {
            return Vec::new();
        }
        let pairs = settings(self).into_iter().zip(settings(trained));
        pairs.filter(|(here, there)| here != there).map(|(here, there)| Difference::flag(here, there)).collect()
    }

    /// True if this run ends where that one did: by the same limits, over the same data in batches of the same size.
    pub fn ends_like(&self, other: &RunSpec) -> bool {
        let ends_alike = |(here, there): (&DataSpec, &DataSpec)| {
            (here.epochs, here.batch_size, here.shard_data) == (there.epochs, there.batch_size, there.shard_data)
                && here.difference(there).is_none()
        };
        self.steps == other.steps && self.data.as_ref().zip(other.data.as_ref()).is_some_and(ends_alike)
    }

    /// True if the workers divide the data.
    pub fn shares_data(&self) -> bool {
        self.data.as_ref().is_some_and(|data| data.shard_data)
    }

    fn difference_of_model(&self, other: &RunSpec) -> Option<Difference> {
        let model = |run: &RunSpec| vec![format!("with the model {}", run.model)];
        flags(&model(self), &model(other))
    }

    fn mode_flags(&self) -> Vec<String> {
        let option = match self.mode {
            Mode::Async => String::new(),
            Mode::Sync { replicas_to_aggregate } => option("replicas-to-aggregate", replicas_to_aggregate),
            Mode::Ssp { staleness } => format!("with --staleness {staleness}"),
        };
        vec![format!("with --mode {}", self.mode.name()), option]
    }

    fn other_flags(&self) -> Vec<String> {
        let least = match self.sharding {
            Sharding::Balanced { min_bytes } => format!("with --min-shard-bytes {min_bytes}"),
            Sharding::RoundRobin => String::new(),
        };
        vec![
            format!("with --learning-rate {}", self.learning_rate),
            format!("with --learning-rate-schedule {}", self.schedule),
            format!("with --sharding {}", self.sharding),
            least,
            option("steps", self.steps),
            switch("deterministic", self.deterministic),
            switch("staleness-scaling", self.staleness_scaling),
            option("clip-norm", self.clip_norm),
        ]
    }
}

impl DataSpec {
    fn flags(&self) -> Vec<String> {
        vec![format!("with --seed {}", self.seed), switch("shard-data", self.shard_data), option("epochs", self.epochs)]
    }
}

fn optimizer_flags(optimizer: &Optimizer) -> Vec<String> {
    let mut flags = vec![format!("with --optimizer {optimizer}")];
    if let Ok(serde_json::Value::Object(constants)) = serde_json::to_value(optimizer) {
        let constants = constants.iter().filter(|(name, _)| *name != "name");
        let text = |value: &serde_json::Value| match value.as_f64() {
            // As it was written: JSON stores it in double precision.
            Some(number) => (number as f32).to_string(),
            None => value.to_string(),
        };
        flags.extend(constants.map(|(name, value)| format!("with --optimizer-option {name}={}", text(value))));
    }
    flags
}

fn option(name: &str, value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| format!("without --{name}"), |value| format!("with --{name} {value}"))
}

fn switch(name: &str, on: bool) -> String {
    format!("{} --{name}", if on { "with" } else { "without" })
}

/// The first pair of flags that differ, in lists of the same order.
fn flags(here: &[String], there: &[String]) -> Option<Difference> {
    let (here, there) = here.iter().zip(there).find(|(here, there)| here != there)?;
    Some(Difference::flag(here.clone(), there.clone()))
}

/// A learning rate and its version. Every change of the rate raises the version; a task that sees a higher version than
/// its own adopts it, so a schedule or a decay decided by one task reaches all of them, once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// Raised with every change.
    pub version: u64,
    /// The rate.
    pub rate: f32,
}

impl LearningRate {
    /// The rate with which a run continues from a checkpoint of another, whose rate had come to `reached`. A rate that this
    /// run sets itself counts; a schedule counts from the first step on anyway.
    pub fn resumed(run: &RunSpec, checkpoint: &RunSpec, reached: Self) -> Self {
        match run.schedule {
            Schedule::Constant if run.learning_rate != checkpoint.learning_rate => {
                Self { version: reached.version.saturating_add(1), rate: run.learning_rate }
            }
            _ => reached,
        }
    }

    /// The rate a run starts with.
    pub fn initial(rate: f32) -> Self {
        Self { version: 0, rate }
    }

    /// Whether this can be an intended rate: schedules reach zero, but nothing goes below it.
    pub fn is_sound(&self) -> bool {
        self.rate.is_finite() && self.rate >= 0.0
    }

    /// Adopts a later rate, if it is sound.
    pub fn adopt(&mut self, other: LearningRate) {
        if other.version > self.version && other.is_sound() {
            *self = other;
        }
    }
}

/// The rate for a gradient that is this many updates old. With two workers taking turns every gradient is one update
/// old, which is no reason to slow down.
pub fn staleness_scaled(rate: f32, staleness: u64) -> f32 {
    rate / staleness.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::{Access, ParameterKind, ParameterSpec};

    fn run() -> RunSpec {
        let spec =
            ParameterSpec { name: "w".into(), shape: vec![2], access: Access::Dense, kind: ParameterKind::Trained };
        RunSpec {
            model: "linear".into(),
            mode: Mode::Async,
            optimizer: Optimizer::Sgd,
            learning_rate: 0.1,
            schedule: Schedule::Constant,
            sharding: Sharding::BALANCED,
            steps: Some(10),
            deterministic: false,
            staleness_scaling: false,
            clip_norm: None,
            parameters: ParameterTable::new(vec![spec]).unwrap(),
            identity: Identity::default(),
            data: Some(DataSpec {
                samples: 100,
                fingerprint: Some(Fingerprint::of(b"samples")),
                directory: Some("/data".into()),
                seed: 1,
                batch_size: 20,
                accumulate: 1,
                towers: 1,
                shard_data: false,
                epochs: None,
            }),
        }
    }

    fn told(one: &RunSpec, other: &RunSpec) -> Option<String> {
        one.first_difference(other).map(|difference| difference.describe("worker 1", "the other workers"))
    }

    fn with_data(change: impl FnOnce(&mut DataSpec)) -> RunSpec {
        let mut run = run();
        run.data.as_mut().map(change);
        run
    }

    #[test]
    fn a_resumed_run_has_its_own_rate_if_that_is_another_and_else_the_one_that_was_reached() {
        let reached = LearningRate { version: 3, rate: 0.05 };
        assert_eq!(LearningRate::resumed(&run(), &run(), reached), reached, "it had been lowered since");
        let faster = RunSpec { learning_rate: 0.5, ..run() };
        assert_eq!(LearningRate::resumed(&faster, &run(), reached), LearningRate { version: 4, rate: 0.5 });
        let schedule = Schedule::Step { decay: 0.5, steps: 10 };
        assert_eq!(LearningRate::resumed(&RunSpec { schedule, ..faster }, &run(), reached), reached);
    }

    #[test]
    fn equal_runs_do_not_differ() {
        assert_eq!(run().first_difference(&run()), None);
    }

    #[test]
    fn a_run_ends_like_another_of_the_same_limits_over_the_same_data() {
        let alike = with_data(|data| (data.seed, data.directory) = (9, None));
        assert!(RunSpec { learning_rate: 0.5, ..alike }.ends_like(&run()));
        let others = [
            RunSpec { steps: Some(11), ..run() },
            RunSpec { data: None, ..run() },
            with_data(|data| data.epochs = Some(3)),
            with_data(|data| data.batch_size = 10),
            with_data(|data| data.shard_data = true),
            with_data(|data| data.samples = 99),
        ];
        assert!(others.iter().all(|other| !other.ends_like(&run())));
    }

    #[test]
    fn the_first_difference_names_the_flag_with_both_values() {
        let cases = [
            (RunSpec { steps: Some(20), ..run() }, "with --steps 20, the other workers with --steps 10"),
            (RunSpec { steps: None, ..run() }, "without --steps, the other workers with --steps 10"),
            (
                RunSpec { mode: Mode::Ssp { staleness: 2 }, ..run() },
                "with --mode ssp, the other workers with --mode async",
            ),
            (
                RunSpec { optimizer: Optimizer::named("adam").unwrap(), ..run() },
                "with --optimizer adam, the other workers with --optimizer sgd",
            ),
            (
                RunSpec { sharding: Sharding::Balanced { min_bytes: 9 }, ..run() },
                "with --min-shard-bytes 9, the other workers with --min-shard-bytes 0",
            ),
            (
                RunSpec { deterministic: true, ..run() },
                "with --deterministic, the other workers without --deterministic",
            ),
            (
                RunSpec { staleness_scaling: true, ..run() },
                "with --staleness-scaling, the other workers without --staleness-scaling",
            ),
            (with_data(|data| data.seed = 7), "with --seed 7, the other workers with --seed 1"),
            (with_data(|data| data.shard_data = true), "with --shard-data, the other workers without --shard-data"),
            (with_data(|data| data.epochs = Some(3)), "with --epochs 3, the other workers without --epochs"),
        ];
        for (other, words) in cases {
            assert_eq!(told(&other, &run()), Some(format!("worker 1 was started {words}")));
        }
    }

    #[test]
    fn a_constant_of_the_optimizer_is_named() {
        let adam = |beta1| RunSpec {
            optimizer: Optimizer::Adam(crate::optimizer::Adam { beta1, ..crate::optimizer::Adam::default() }),
            ..run()
        };
        let told = told(&adam(0.5), &adam(0.25)).unwrap();
        assert!(told.contains("with --optimizer-option beta1=0.5, the other workers with"), "{told}");
    }

    #[test]
    fn a_resumed_run_that_trains_otherwise_is_told_from_its_checkpoint() {
        let trained = RunSpec { clip_norm: Some(5.0), ..run() };
        assert_eq!(trained.changes_since(&trained), []);
        let schedule = Schedule::Cosine { steps: 10 };
        let in_towers = with_data(|data| data.towers = 2);
        let resumed = RunSpec { clip_norm: None, schedule, steps: Some(99), ..in_towers };
        let told = resumed.changes_since(&trained);
        let told: Vec<String> = told.iter().map(|change| change.describe("this run", "checkpoint 7")).collect();
        let expected = [
            "this run was started with --learning-rate-schedule cosine:10, checkpoint 7 with \
             --learning-rate-schedule constant",
            "this run was started without --clip-norm, checkpoint 7 with --clip-norm 5",
            "this run was started with --towers 2, checkpoint 7 with --towers 1",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn other_data_differ_wherever_they_are() {
        assert_eq!(told(&with_data(|data| data.directory = None), &run()), None);
        let fewer = told(&with_data(|data| data.samples = 99), &run()).unwrap();
        assert!(fewer.starts_with("worker 1 reads different data from the other workers (99 samples, "), "{fewer}");
        let others = with_data(|data| data.fingerprint = Some(Fingerprint::of(b"others")));
        assert!(told(&others, &run()).unwrap().contains("is --data-dir the same?"));
        assert_eq!(told(&with_data(|data| data.fingerprint = None), &run()), None, "a model need not tell");
    }

    #[test]
    fn batches_may_differ_in_size_only_where_no_mean_is_taken_over_workers() {
        let smaller = with_data(|data| data.batch_size = 10);
        assert_eq!(told(&smaller, &run()), None);
        assert!(smaller.tolerated_difference(&run()).is_some());
        let sync = |run| RunSpec { mode: Mode::Sync { replicas_to_aggregate: None }, ..run };
        let told = told(&sync(smaller), &sync(run())).unwrap();
        assert_eq!(told, "worker 1 was started with 10 samples per step, the other workers with 20 samples per step");
    }

    #[test]
    fn a_later_learning_rate_wins_wherever_it_came_from() {
        let mut rate = LearningRate::initial(0.5);
        rate.adopt(LearningRate { version: 2, rate: 0.1 });
        rate.adopt(LearningRate { version: 1, rate: 0.3 });
        assert_eq!(rate, LearningRate { version: 2, rate: 0.1 });
    }

    #[test]
    fn a_rate_that_nobody_could_have_meant_is_not_adopted() {
        let mut rate = LearningRate::initial(0.5);
        for unsound in [f32::NAN, f32::INFINITY, -0.1] {
            rate.adopt(LearningRate { version: 2, rate: unsound });
            assert_eq!(rate, LearningRate::initial(0.5));
        }
        rate.adopt(LearningRate { version: 1, rate: 0.0 });
        assert_eq!(rate.rate, 0.0, "where a cosine ends");
    }

    #[test]
    fn a_run_survives_json() {
        let json = serde_json::to_string(&run()).unwrap();
        assert_eq!(serde_json::from_str::<RunSpec>(&json).unwrap(), run());
    }

    #[test]
    fn a_run_from_before_rates_shrank_with_staleness_is_read() {
        let mut json = serde_json::to_value(run()).unwrap();
        json.as_object_mut().unwrap().remove("staleness_scaling");
        assert_eq!(serde_json::from_value::<RunSpec>(json).unwrap(), run());
    }

    #[test]
    fn a_run_from_before_models_had_an_identity_is_read() {
        let mut json = serde_json::to_value(run()).unwrap();
        json.as_object_mut().unwrap().retain(|field, _| field != "identity" && field != "data");
        let read: RunSpec = serde_json::from_value(json).unwrap();
        assert_eq!((&read.identity, &read.data), (&Identity::default(), &None));
        assert_eq!(run().difference_from_checkpoint(&read), None);
    }
}
