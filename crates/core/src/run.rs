//! What all tasks of a run must agree on.
//!
//! The workers know the model and bring this to the servers, which therefore need no flags but their place in
//! the cluster.

use serde::{Deserialize, Serialize};

use crate::consistency::Mode;
use crate::optimizer::Optimizer;
use crate::parameter::ParameterTable;
use crate::plan::Sharding;
use crate::schedule::Schedule;

/// One run, as every worker must see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// The model's name.
    pub model: String,
    /// How pushes become updates.
    pub mode: Mode,
    /// What the servers do with a gradient.
    pub optimizer: Optimizer,
    /// The learning rate at the start.
    pub learning_rate: f32,
    /// How the learning rate changes with the global step.
    pub schedule: Schedule,
    /// How parameters are spread over the servers.
    pub sharding: Sharding,
    /// The last global step, if the run ends by steps.
    pub steps: Option<u64>,
    /// Sum the gradients of a round in the order of workers, whatever order they came in.
    pub deterministic: bool,
    /// The parameters.
    pub parameters: ParameterTable,
}

impl RunSpec {
    /// In words, the first thing in which two workers' runs differ.
    pub fn first_difference(&self, other: &RunSpec) -> Option<String> {
        fn differ<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Option<String> {
            (ours != theirs).then(|| format!("{what} is {ours:?} here and {theirs:?} there"))
        }
        differ("the model", &self.model, &other.model)
            .or_else(|| differ("the mode", &self.mode, &other.mode))
            .or_else(|| differ("the optimizer", &self.optimizer, &other.optimizer))
            .or_else(|| differ("the learning rate", &self.learning_rate, &other.learning_rate))
            .or_else(|| differ("the learning rate's schedule", &self.schedule, &other.schedule))
            .or_else(|| differ("the sharding", &self.sharding, &other.sharding))
            .or_else(|| differ("the number of steps", &self.steps, &other.steps))
            .or_else(|| differ("--deterministic", &self.deterministic, &other.deterministic))
            .or_else(|| self.parameters.first_difference(&other.parameters))
    }
}

/// A learning rate and its version. Whoever changes the rate raises the version; a task that meets a higher
/// version than its own adopts it, so that a schedule or a decay decided by one reaches all, once.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    /// Raised with every change.
    pub version: u64,
    /// The rate.
    pub rate: f32,
}

impl LearningRate {
    /// The rate a run starts with.
    pub fn initial(rate: f32) -> Self {
        Self { version: 0, rate }
    }

    /// Whether anybody could have meant this rate: schedules reach zero, but nothing goes below it.
    pub fn is_sound(&self) -> bool {
        self.rate.is_finite() && self.rate >= 0.0
    }

    /// Takes over a later rate, if it is sound.
    pub fn adopt(&mut self, other: LearningRate) {
        if other.version > self.version && other.is_sound() {
            *self = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameter::{Access, ParameterSpec};

    fn run() -> RunSpec {
        let spec = ParameterSpec { name: "w".into(), shape: vec![2], access: Access::Dense };
        RunSpec {
            model: "linear".into(),
            mode: Mode::Async,
            optimizer: Optimizer::Sgd,
            learning_rate: 0.1,
            schedule: Schedule::Constant,
            sharding: Sharding::BALANCED,
            steps: Some(10),
            deterministic: false,
            parameters: ParameterTable::new(vec![spec]).unwrap(),
        }
    }

    #[test]
    fn equal_runs_do_not_differ() {
        assert_eq!(run().first_difference(&run()), None);
    }

    #[test]
    fn the_first_difference_is_named_with_both_values() {
        let other = RunSpec { steps: Some(20), ..run() };
        let difference = run().first_difference(&other).unwrap();
        assert_eq!(difference, "the number of steps is Some(10) here and Some(20) there");
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
}
