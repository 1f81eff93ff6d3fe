//! Other ways of using several devices: each is compared with the layout that it replaces, in the same round.

use std::fmt;

use serde::Serialize;

use super::layouts::Layout;
use super::median;
use crate::failure::Failure;

/// A layout and its baseline. Each makes `steps` steps, with batches of its own size.
struct Pair {
    name: &'static str,
    steps: u64,
    before: (Layout, usize),
    after: (Layout, usize),
}

/// Two towers against one that has the threads of both; in-graph against between-graph replication with the same number
/// of samples per step; four micro-batches against the whole batch.
const PAIRS: &[Pair] = &[
    Pair {
        name: "784-1024-1024-10",
        steps: 100,
        before: (Layout { name: "one tower, 2 threads", arguments: ONE_TOWER }, 256),
        after: (Layout { name: "2 towers", arguments: TWO_TOWERS }, 256),
    },
    Pair {
        name: "784-100-10, 2 workers, sync",
        steps: 1000,
        before: (Layout { name: "between-graph", arguments: BETWEEN_GRAPH }, 100),
        after: (Layout { name: "in-graph", arguments: IN_GRAPH }, 200),
    },
    Pair {
        name: "784-1024-512-10, 2 stages on 2 tasks",
        steps: 40,
        before: (Layout { name: "whole batches", arguments: STAGES }, STAGED_BATCH),
        after: (Layout { name: "4 micro-batches", arguments: STAGES_OF_FOUR }, STAGED_BATCH),
    },
];

const ONE_TOWER: &[&str] = &["train", "mnist", "--hidden", "1024,1024", "--threads", "2"];
const TWO_TOWERS: &[&str] = &["train", "mnist", "--hidden", "1024,1024", "--threads", "2", "--towers", "2"];

const BETWEEN_GRAPH: &[&str] = &["launch", "mnist", "--ps", "1", "--workers", "2", "--mode", "sync"];
/// Its batch is the sum of both workers' batches.
const IN_GRAPH: &[&str] = &["launch", "mnist", "--in-graph", "--workers", "2", "--mode", "sync"];

/// Large enough to make moving parameters cheap compared with computing.
const STAGED_BATCH: usize = 2000;
/// Two stages of equal cost: the second has fewer connections, but also computes the gradient of its inputs.
const STAGES: &[&str] =
    &["launch", "mnist", "--workers", "2", "--threads", "1", "--hidden", "1024,512", "--place", PLACES];
const STAGES_OF_FOUR: &[&str] = &[
    "launch",
    "mnist",
    "--workers",
    "2",
    "--threads",
    "1",
    "--hidden",
    "1024,512",
    "--place",
    PLACES,
    "--microbatches",
    "4",
];
const PLACES: &str = "hidden0=/job:worker/task:0,hidden1=/job:worker/task:1,output=/job:worker/task:1";

/// Samples per second of both.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Compared {
    name: &'static str,
    before: &'static str,
    before_samples_per_second: f64,
    after: &'static str,
    after_samples_per_second: f64,
    ratio: f64,
}

impl fmt::Display for Compared {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, before, before_samples_per_second, after, after_samples_per_second, ratio } = self;
        write!(
            formatter,
            "{name}: {before} {before_samples_per_second:.0} samples/s, {after} {after_samples_per_second:.0}, {ratio:.2} \
             times as many"
        )
    }
}

/// Runs both layouts of every pair once.
pub(super) fn measure() -> Result<Vec<Compared>, Failure> {
    PAIRS.iter().map(Pair::measure).collect()
}

impl Pair {
    fn measure(&self) -> Result<Compared, Failure> {
        let speed = |(layout, batch): &(Layout, usize)| {
            Ok::<f64, Failure>(layout.measure_with(self.steps, *batch)?.samples_per_second)
        };
        let (before, after) = (speed(&self.before)?, speed(&self.after)?);
        Ok(Compared {
            name: self.name,
            before: self.before.0.name,
            before_samples_per_second: before,
            after: self.after.0.name,
            after_samples_per_second: after,
            ratio: after / before,
        })
    }
}

/// The medians over the rounds; ratios are computed within a round first.
pub(super) fn medians_of(rounds: &[Vec<Compared>]) -> Vec<Compared> {
    let median_of = |(index, first): (usize, &Compared)| {
        let of = |value: fn(&Compared) -> f64| median(rounds.iter().map(|round| value(&round[index])).collect());
        Compared {
            before_samples_per_second: of(|compared| compared.before_samples_per_second),
            after_samples_per_second: of(|compared| compared.after_samples_per_second),
            ratio: of(|compared| compared.ratio),
            ..*first
        }
    };
    rounds.first().into_iter().flatten().enumerate().map(median_of).collect()
}
