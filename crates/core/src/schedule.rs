//! How the learning rate changes with the global step.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A rule for the learning rate. Written `constant`, `exponential:DECAY:STEPS`, `step:DECAY:STEPS` or
/// `cosine:STEPS`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Always the initial rate.
    #[default]
    Constant,
    /// initial × decay^(step / steps), smoothly.
    Exponential {
        /// The factor per `steps` steps.
        decay: f32,
        /// Steps for one factor.
        steps: u64,
    },
    /// initial × decay^⌊step / steps⌋, a staircase.
    Step {
        /// The factor per stair.
        decay: f32,
        /// Steps from stair to stair.
        steps: u64,
    },
    /// Half a cosine from the initial rate to zero over `steps`.
    Cosine {
        /// Where the rate reaches zero.
        steps: u64,
    },
}

impl Schedule {
    /// The rate after `step` global steps.
    pub fn rate(&self, initial: f32, step: u64) -> f32 {
        match *self {
            Schedule::Constant => initial,
            Schedule::Exponential { decay, steps } => initial * decay.powf((step as f64 / steps as f64) as f32),
            Schedule::Step { decay, steps } => initial * decay.powi((step / steps).min(i32::MAX as u64) as i32),
            Schedule::Cosine { steps } => {
                let progress = (step as f64 / steps as f64).min(1.0);
                (f64::from(initial) * 0.5 * (1.0 + (std::f64::consts::PI * progress).cos())) as f32
            }
        }
    }
}

/// A schedule that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a schedule: write constant, exponential:DECAY:STEPS, step:DECAY:STEPS or cosine:STEPS")]
pub struct ScheduleError(String);

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ScheduleError(text.to_owned());
        let parts: Vec<&str> = text.split(':').collect();
        let decay = |word: &str| word.parse::<f32>().ok().filter(|decay| *decay > 0.0 && decay.is_finite());
        let steps = |word: &str| word.parse::<u64>().ok().filter(|steps| *steps > 0);
        match parts[..] {
            ["constant"] => Ok(Schedule::Constant),
            ["exponential", d, s] => {
                Ok(Schedule::Exponential { decay: decay(d).ok_or_else(bad)?, steps: steps(s).ok_or_else(bad)? })
            }
            ["step", d, s] => Ok(Schedule::Step { decay: decay(d).ok_or_else(bad)?, steps: steps(s).ok_or_else(bad)? }),
            ["cosine", s] => Ok(Schedule::Cosine { steps: steps(s).ok_or_else(bad)? }),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Constant => write!(formatter, "constant"),
            Schedule::Exponential { decay, steps } => write!(formatter, "exponential:{decay}:{steps}"),
            Schedule::Step { decay, steps } => write!(formatter, "step:{decay}:{steps}"),
            Schedule::Cosine { steps } => write!(formatter, "cosine:{steps}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_written_as_they_are_read() {
        for text in ["constant", "exponential:0.96:1000", "step:0.1:30000", "cosine:10000"] {
            assert_eq!(text.parse::<Schedule>().unwrap().to_string(), text);
        }
        for text in ["", "linear", "step:0.1", "step:0.1:0", "step:-1:10", "cosine:x"] {
            assert!(text.parse::<Schedule>().is_err(), "{text}");
        }
    }

    #[test]
    fn rates_follow_their_formulas() {
        let close = |schedule: &str, step, expected: f32| {
            let rate = schedule.parse::<Schedule>().unwrap().rate(0.8, step);
            assert!((rate - expected).abs() < 1e-6, "{schedule} at {step}: {rate}");
        };
        close("constant", 5000, 0.8);
        close("exponential:0.25:100", 50, 0.4);
        close("step:0.5:100", 99, 0.8);
        close("step:0.5:100", 200, 0.2);
        close("cosine:100", 0, 0.8);
        close("cosine:100", 50, 0.4);
        close("cosine:100", 1000, 0.0);
    }
}
