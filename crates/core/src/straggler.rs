//! Which worker slows a run down, and why, from measurements of time windows of equal length.
//!
//! In a synchronous run every worker is as slow as the slowest, so speed alone does not identify a straggler. The time
//! that a worker waited for others is therefore subtracted first; the rest is its own, and is compared with the median
//! of the other workers. Pure: the caller measures.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cluster::WorkerId;

/// With fewer measured windows than this, no worker is named.
pub const LEAST_WINDOWS: usize = 3;
/// A window is slow if a step took this many times as long as the other workers' median.
const SLOW: f64 = 1.5;
/// Above this factor, even a single window is worth reporting.
const BLIP: f64 = 3.0;
/// A cause explains a delay if it makes up at least this share of it.
const EXPLAINS: f64 = 0.5;
/// A computing worker whose processor use is below this share of the others' is not being scheduled.
const UNSCHEDULED: f64 = 0.6;
/// Memory is short if the share of time stalled on memory is at least this.
const MEMORY_STALL: f64 = 0.1;
/// A worker suffers from swapping if at least this share of its memory is swapped out.
const SWAPPED_OUT: f64 = 0.1;

/// The activity of one worker in one window of time.
///
/// The four parts need not add up to `span_secs`. The rest is time in which the worker did nothing that it knows of: it
/// was stopped, swapped out, or never reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Window {
    /// The length of the window.
    pub span_secs: f64,
    /// Steps finished in the window.
    pub steps: u64,
    /// Samples in those steps. Workers may have batches of different sizes.
    pub samples: u64,
    /// Time spent computing gradients.
    pub compute_secs: f64,
    /// Time spent waiting for the next batch.
    pub data_secs: f64,
    /// Time spent moving values and gradients.
    pub network_secs: f64,
    /// Time in which a server held the answer back because of other workers: a round, or the staleness bound.
    pub wait_secs: f64,
    /// Processor time used while computing, over all threads, if it is known.
    pub processor_secs: Option<f64>,
    /// Share of the time in which the process or its host was stalled on memory, from 0 to 1, if it is known.
    pub memory_stall: Option<f64>,
    /// Share of the process's memory that is swapped out, from 0 to 1, if it is known.
    pub swapped: Option<f64>,
}

/// The windows of one worker, oldest first. The windows of all workers cover the same times and end together.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The worker.
    pub worker: WorkerId,
    /// The latest windows.
    pub windows: Vec<Window>,
}

/// Why a worker is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// It computes all the time and takes longer: a slower processor, or fewer threads.
    Compute,
    /// It waits for its own batches.
    Data,
    /// Its values and gradients take longer to move.
    Network,
    /// Its process or host is short of memory.
    MemoryPressure,
    /// Its host has swapped out part of its memory.
    SwappedOut,
    /// Its process is not running: stopped, throttled, or displaced from the processor by others.
    NotScheduled,
    /// No part of its step stands out.
    Unclear,
}

/// Whether a worker is slow repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Course {
    /// Slow in at least half of the windows.
    Chronic,
    /// Slow only now and then, but by a lot.
    OneOff,
}

/// A worker that slows the run down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Straggler {
    /// The worker.
    pub worker: WorkerId,
    /// Whether it is slow repeatedly.
    pub course: Course,
    /// How many times as long as the others' its steps took in the slow windows (median).
    pub slowdown: f64,
    /// The likely cause.
    pub cause: Cause,
    /// The number of slow windows that count.
    pub slow_windows: usize,
    /// How many windows could be judged.
    pub judged_windows: usize,
}

/// The result of judging all workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verdict {
    /// Too little was measured to say whether any worker is slow.
    NotEnoughEvidence {
        /// The missing evidence.
        lacking: String,
    },
    /// All workers take about as long.
    Even,
    /// These workers are slow.
    Stragglers {
        /// Slowest first; never empty.
        stragglers: Vec<Straggler>,
    },
}

impl Default for Verdict {
    fn default() -> Self {
        Verdict::NotEnoughEvidence { lacking: "nothing has been measured yet".into() }
    }
}

/// Judges all workers of a run. Leave out those that have ended or were declared dead.
pub fn judge(workers: &[Measured]) -> Verdict {
    let lacking = |lacking: String| Verdict::NotEnoughEvidence { lacking };
    if workers.len() < 2 {
        return lacking("there is no second worker to compare with".into());
    }
    let count = workers.iter().map(|worker| worker.windows.len()).max().unwrap_or(0);
    let judged: Vec<Vec<Judged>> = (0..count).rev().map(|age| judge_window(workers, age)).collect();
    let windows = judged.iter().filter(|window| !window.is_empty()).count();
    if windows < LEAST_WINDOWS {
        return lacking(format!("{windows} of the {LEAST_WINDOWS} windows needed were measured of two workers"));
    }
    let mut stragglers: Vec<Straggler> = workers
        .iter()
        .filter_map(|worker| {
            let own = judged.iter().flatten().filter(|judged| judged.worker == worker.worker);
            sum_up(worker.worker, own.collect())
        })
        .collect();
    stragglers.sort_by(|a, b| b.slowdown.total_cmp(&a.slowdown));
    if stragglers.is_empty() { Verdict::Even } else { Verdict::Stragglers { stragglers } }
}

/// One worker in one window, compared with the others.
struct Judged {
    worker: WorkerId,
    slowdown: f64,
    cause: Cause,
}

/// One worker's step in parts, without the time spent waiting for others.
#[derive(Clone, Copy, Default)]
struct Step {
    compute: f64,
    data: f64,
    network: f64,
    /// Unaccounted time.
    absent: f64,
    /// Processor time per second of computing.
    processor: Option<f64>,
    memory_stall: f64,
    swapped: f64,
    finished: bool,
}

impl Step {
    fn total(&self) -> f64 {
        self.compute + self.data + self.network + self.absent
    }
}

/// Judges the workers in the window at position `age` from the end; empty if fewer than two have measured it.
fn judge_window(workers: &[Measured], age: usize) -> Vec<Judged> {
    let window = |worker: &Measured| worker.windows.iter().rev().nth(age).copied();
    let present: Vec<(WorkerId, Window)> =
        workers.iter().filter_map(|worker| Some((worker.worker, window(worker)?))).collect();
    let batches = present.iter().filter(|(_, window)| window.steps > 0);
    let Some(batch) = median(batches.map(|(_, window)| window.samples as f64 / window.steps as f64)) else {
        // No worker finished a step. That is a hang, which this module does not judge.
        return Vec::new();
    };
    let steps: Vec<(WorkerId, Step)> =
        present.iter().filter_map(|(worker, window)| Some((*worker, own_step(window, batch)?))).collect();
    if steps.len() < 2 {
        return Vec::new();
    }
    let compare = |(worker, step): &(WorkerId, Step)| {
        // An unfinished step gives only a lower bound on its time.
        let others = || steps.iter().filter(|(other, step)| other != worker && step.finished).map(|(_, step)| step);
        let usual = median(others().map(Step::total)).unwrap_or(0.0);
        let slowdown = if usual > 0.0 { step.total() / usual } else { 1.0 };
        Judged { worker: *worker, slowdown, cause: cause(step, &others().copied().collect::<Vec<_>>()) }
    };
    steps.iter().map(compare).collect()
}

/// The worker's own cost of a step with the usual batch; `None` if it only waited, so that nothing is known.
fn own_step(window: &Window, batch: f64) -> Option<Step> {
    let known = window.compute_secs + window.data_secs + window.network_secs;
    let absent = (window.span_secs - known - window.wait_secs).max(0.0);
    // An unfinished step has taken at least as long as this.
    let steps = window.steps.max(1) as f64;
    let by_sample = if window.samples > 0 { batch / window.samples as f64 } else { 1.0 };
    let step = Step {
        compute: window.compute_secs * by_sample,
        data: window.data_secs * by_sample,
        network: window.network_secs / steps,
        absent: absent / steps,
        processor: window.processor_secs.filter(|_| window.compute_secs > 0.0).map(|used| used / window.compute_secs),
        memory_stall: window.memory_stall.unwrap_or(0.0),
        swapped: window.swapped.unwrap_or(0.0),
        finished: window.steps > 0,
    };
    let only_waited = window.steps == 0 && known + absent < 0.5 * window.span_secs;
    (!only_waited && step.total().is_finite()).then_some(step)
}

/// Finds the part of the step that exceeds the others' the most, and the reason for it.
fn cause(step: &Step, others: &[Step]) -> Cause {
    let excess = |part: fn(&Step) -> f64| (part(step) - median(others.iter().map(part)).unwrap_or(0.0)).max(0.0);
    let parts = [
        (Cause::Compute, excess(|step| step.compute)),
        (Cause::Data, excess(|step| step.data)),
        (Cause::Network, excess(|step| step.network)),
        (Cause::NotScheduled, excess(|step| step.absent)),
    ];
    let all: f64 = parts.iter().map(|(_, excess)| excess).sum();
    let (cause, largest) = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Cause::Unclear, 0.0));
    if all <= 0.0 || largest < EXPLAINS * all {
        return Cause::Unclear;
    }
    let starved = match (step.processor, median(others.iter().filter_map(|other| other.processor))) {
        (Some(own), Some(usual)) => own < UNSCHEDULED * usual,
        _ => false,
    };
    let usual_stall = median(others.iter().map(|other| other.memory_stall)).unwrap_or(0.0);
    let thrashes = step.memory_stall >= MEMORY_STALL && step.memory_stall > 2.0 * usual_stall;
    let usual_swapped = median(others.iter().map(|other| other.swapped)).unwrap_or(0.0);
    let is_swapped = step.swapped >= SWAPPED_OUT && step.swapped > 2.0 * usual_swapped;
    match cause {
        Cause::Compute | Cause::Data | Cause::NotScheduled if is_swapped => Cause::SwappedOut,
        Cause::Compute | Cause::Data | Cause::NotScheduled if thrashes => Cause::MemoryPressure,
        Cause::Compute if starved => Cause::NotScheduled,
        cause => cause,
    }
}

/// Combines the windows of one worker.
fn sum_up(worker: WorkerId, judged: Vec<&Judged>) -> Option<Straggler> {
    let slow: Vec<&&Judged> = judged.iter().filter(|judged| judged.slowdown >= SLOW).collect();
    let chronic = slow.len() >= LEAST_WINDOWS && 2 * slow.len() >= judged.len();
    let counted: Vec<&&Judged> = slow.into_iter().filter(|judged| chronic || judged.slowdown >= BLIP).collect();
    let slowdown = median(counted.iter().map(|judged| judged.slowdown))?;
    let votes = |cause| counted.iter().filter(|judged| judged.cause == cause).count();
    let cause = counted.iter().map(|judged| judged.cause).max_by_key(|cause| votes(*cause))?;
    Some(Straggler {
        worker,
        course: if chronic { Course::Chronic } else { Course::OneOff },
        slowdown,
        cause: if 2 * votes(cause) > counted.len() { cause } else { Cause::Unclear },
        slow_windows: counted.len(),
        judged_windows: judged.len(),
    })
}

/// The lower median: of two values the smaller, so that a worker is compared with the faster of two others.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Cause::Compute => "its computation is slow",
            Cause::Data => "it waits for its own data",
            Cause::Network => "its network is slow",
            Cause::MemoryPressure => "it is short of memory",
            Cause::SwappedOut => "part of its memory is swapped out",
            Cause::NotScheduled => "its process is not being scheduled (stopped or throttled)",
            Cause::Unclear => "no single cause stands out",
        })
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Straggler { worker, slowdown, cause, slow_windows, judged_windows, .. } = self;
        let course = match self.course {
            Course::Chronic => "is a chronic straggler",
            Course::OneOff => "was slow for a moment",
        };
        let (times, windows) = (format!("{slowdown:.1}"), format!("{slow_windows} of {judged_windows}"));
        write!(formatter, "{worker} {course}: {times} times the others' step time in {windows} windows; {cause}")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::NotEnoughEvidence { lacking } => write!(formatter, "not enough evidence: {lacking}"),
            Verdict::Even => formatter.write_str("no stragglers: all workers take about the same time"),
            Verdict::Stragglers { stragglers } => {
                let lines: Vec<String> = stragglers.iter().map(Straggler::to_string).collect();
                formatter.write_str(&lines.join("\n"))
            }
        }
    }
}

#[cfg(test)]
#[path = "straggler_tests.rs"]
mod tests;
