//! What micro-batches gain a model that is divided between two tasks.

use std::fmt;

use serde::Serialize;

use super::layouts::Layout;
use super::median;
use crate::failure::Failure;

/// Steps of a run. Each has a batch that makes moving parameters cheap beside computing.
const STEPS: u64 = 40;
const BATCH: usize = 2000;

/// Two stages of equal weight: the second has fewer connections, but goes back through its inputs as well.
const PLACED: Layout = Layout {
    name: "two stages on two tasks",
    arguments: &[
        "launch",
        "mnist",
        "--workers",
        "2",
        "--threads",
        "1",
        "--hidden",
        "1024,512",
        "--place",
        "hidden0=/job:worker/task:0,hidden1=/job:worker/task:1,output=/job:worker/task:1",
    ],
};

/// Samples a second of a model on two tasks of one thread each, with a batch in one part and in four.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Pipelined {
    whole_samples_per_second: f64,
    four_micro_batches_samples_per_second: f64,
    ratio: f64,
}

impl fmt::Display for Pipelined {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "mnist 784-1024-512-10 in two stages on two tasks, batch {BATCH}: {:.0} samples/s, with 4 micro-batches {:.0}, \
             {:.2} times as many",
            self.whole_samples_per_second, self.four_micro_batches_samples_per_second, self.ratio,
        )
    }
}

/// Runs both once.
pub(super) fn measure() -> Result<Pipelined, Failure> {
    let speed = |micro_batches: &str| {
        let measured = PLACED.measure_with(STEPS, BATCH, &["--microbatches", micro_batches])?;
        Ok::<f64, Failure>(measured.samples_per_second)
    };
    let (whole, four) = (speed("1")?, speed("4")?);
    Ok(Pipelined { whole_samples_per_second: whole, four_micro_batches_samples_per_second: four, ratio: four / whole })
}

/// The medians over the rounds; of the ratio, that of those within a round.
pub(super) fn median_of(rounds: &[Pipelined]) -> Pipelined {
    let of = |value: fn(&Pipelined) -> f64| median(rounds.iter().map(value).collect());
    Pipelined {
        whole_samples_per_second: of(|round| round.whole_samples_per_second),
        four_micro_batches_samples_per_second: of(|round| round.four_micro_batches_samples_per_second),
        ratio: of(|round| round.ratio),
    }
}
