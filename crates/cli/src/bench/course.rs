//! Whether steps late in a run take as long as early ones: the README's first command, ReLU and Adam, in one process.
//!
//! Late steps would be slower if decaying numbers could become denormal, as Adam's means do after some 700 steps:
//! Intel's processors take a hundred times as long for denormal numbers.

use std::fmt;
use std::process::Stdio;

use serde::Serialize;
use windlass_worker::event::Event;

use super::{median, own_program};
use crate::failure::Failure;

const STEPS: u64 = 5000;
/// Steps that count as early or late.
const SLICE: u64 = 500;
/// The number of steps that are averaged; the median of these means is shown.
const MEAN_OF: u64 = 10;

/// How long early and late steps took.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Course {
    early_ms: f64,
    late_ms: f64,
    late_vs_early: f64,
}

/// Runs the benchmark once.
pub(super) fn measure() -> Result<Course, Failure> {
    let output = own_program()?
        .args(["train", "mnist", "--evaluate", "end", "--format", "json"])
        .args(["--steps", &STEPS.to_string(), "--log-every", &MEAN_OF.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(Failure::internal)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::internal(format!("train mnist failed: {said}")));
    }
    Ok(course(&String::from_utf8_lossy(&output.stdout)))
}

fn course(events: &str) -> Course {
    let steps: Vec<(u64, f64)> = events
        .lines()
        .filter_map(|line| match serde_json::from_str(line) {
            Ok(Event::Step(step)) => Some((step.local_step, step.step_ms)),
            _ => None,
        })
        .collect();
    let over = |slice: &dyn Fn(u64) -> bool| {
        median(steps.iter().filter(|(step, _)| slice(*step)).map(|(_, step_ms)| *step_ms).collect())
    };
    let (early_ms, late_ms) = (over(&|step| step <= SLICE), over(&|step| step > STEPS - SLICE));
    Course { early_ms, late_ms, late_vs_early: late_ms / early_ms }
}

/// The medians over all rounds.
pub(super) fn median_of(courses: &[Course]) -> Course {
    let over_rounds = |value: fn(&Course) -> f64| median(courses.iter().map(value).collect());
    Course {
        early_ms: over_rounds(|course| course.early_ms),
        late_ms: over_rounds(|course| course.late_ms),
        late_vs_early: over_rounds(|course| course.late_vs_early),
    }
}

impl fmt::Display for Course {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { early_ms, late_ms, late_vs_early } = self;
        write!(
            formatter,
            "mnist relu with Adam, single process: {early_ms:.3} ms a step in the first {SLICE} steps, {late_ms:.3} in \
             the last {SLICE} of {STEPS}; late vs early {late_vs_early:.2}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_and_late_steps_are_told_apart_and_other_events_left_out() {
        let step = |step: u64, step_ms: f64| {
            format!(
                r#"{{"event":"step","time":1.0,"worker":0,"local_step":{step},"global_step":{step},"epoch":1,"batch":1,"batches":2,"loss":0.5,"step_ms":{step_ms}}}"#
            )
        };
        let lines = [step(10, 1.0), step(500, 1.0), step(510, 9.0), step(4500, 9.0), step(4510, 3.0), step(5000, 3.0)];
        let Course { early_ms, late_ms, .. } = course(&format!("{}\nno event\n", lines.join("\n")));
        assert_eq!((early_ms, late_ms), (1.0, 3.0));
    }
}
