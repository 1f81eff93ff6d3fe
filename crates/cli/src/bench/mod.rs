//! `windlass bench`: how fast this machine trains in each layout, and how fast parameters move.
//!
//! Machines are noisy, so every round runs all layouts one after the other, ratios are computed within a round, and
//! medians over the rounds are shown. Nothing here is a test: the command only prints its measurements.

mod bulk;
mod course;
mod layouts;
mod peers;
mod replicas;

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use comfy_table::CellAlignment;
use rustix::process::Signal;
use serde::Serialize;
use windlass_compare::Figure;

use crate::failure::Failure;
use crate::logging;
use crate::output::{plain_table, print_json, print_line};
use crate::program;
use crate::terminal::Terminal;
use crate::tied::tie;
use layouts::{LAYOUTS, Layout, Measured};

/// The flags of `bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// How many times to run each layout
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
    /// Global steps per run
    #[arg(long, value_name = "N", default_value_t = 2000)]
    steps: u64,
    /// Size of the push/pull benchmark in millions of parameters; 0 to skip it
    #[arg(long, value_name = "N", default_value_t = 25)]
    bulk: usize,
    /// A program that measures the same network in other systems, run once per round. It prints JSON lines with
    /// peer, layout, ms_per_step and batches_per_s
    #[arg(long, value_name = "PROGRAM")]
    peers: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// All measurements, as medians over the rounds.
#[derive(Serialize)]
struct Results {
    processor: String,
    /// The number of completed rounds.
    rounds: usize,
    batch_size: usize,
    layouts: Vec<LayoutResult>,
    course: course::Course,
    replicas: Vec<replicas::Compared>,
    peers: Vec<peers::PeerResult>,
    bulk: Vec<bulk::Moved>,
}

/// The measurements of one layout.
#[derive(Serialize)]
struct LayoutResult {
    layout: &'static str,
    step_ms: f64,
    samples_per_second: f64,
    step_vs_single: f64,
    samples_per_second_vs_single: f64,
    first_step_seconds: f64,
}

pub(crate) fn command() -> Command {
    BenchArgs::augment_args(Command::new("bench")).about("Measure how fast this machine trains in each layout")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let args = BenchArgs::from_arg_matches(matches).map_err(Failure::usage)?;
    if args.rounds == 0 || args.steps < 100 {
        return Err(Failure::usage("--rounds must be at least 1 and --steps at least 100"));
    }
    logging::start();
    let (rounds, failed_round) = until_failure((1..=args.rounds).map(|round| {
        Terminal::default().print_note(&format!("round {round} of {}", args.rounds));
        Round::measure(&args)
    }));
    let transports = [bulk::Transport::Local, bulk::Transport::Tcp].into_iter();
    let transports = transports.filter(|_| args.bulk > 0 && failed_round.is_none());
    let moved = transports.map(|transport| bulk::measure(args.bulk * 1_000_000, transport));
    let (bulk, failed_bulk) = until_failure(moved);
    if !rounds.is_empty() {
        let results = Results::new(rounds, bulk);
        if args.json {
            print_json(&results)?;
        } else {
            print(&results);
        }
    }
    failed_round.or(failed_bulk).map_or(Ok(()), Err)
}

/// The measurements of one round.
struct Round {
    layouts: Vec<Measured>,
    course: course::Course,
    replicas: Vec<replicas::Compared>,
    /// Empty without --peers.
    peers: Vec<peers::Peer>,
}

impl Round {
    fn measure(args: &BenchArgs) -> Result<Self, Failure> {
        Ok(Self {
            layouts: LAYOUTS.iter().map(|layout| layout.measure(args.steps)).collect::<Result<_, _>>()?,
            course: course::measure()?,
            replicas: replicas::measure()?,
            peers: args.peers.as_deref().map(peers::measure).transpose()?.unwrap_or_default(),
        })
    }
}

impl Results {
    fn new(rounds: Vec<Round>, bulk: Vec<bulk::Moved>) -> Self {
        let count = rounds.len();
        let (mut measured, mut courses, mut replicated, mut peers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in rounds {
            measured.push(round.layouts);
            courses.push(round.course);
            replicated.push(round.replicas);
            peers.push(round.peers);
        }
        Self {
            processor: crate::processor::describe(),
            rounds: count,
            batch_size: layouts::BATCH,
            layouts: layouts(&measured),
            course: course::median_of(&courses),
            replicas: replicas::medians_of(&replicated),
            peers: peers::compare(&measured, &peers),
            bulk,
        }
    }
}

/// The measurements up to the first failure, and that failure. Measuring takes minutes, so no result is discarded.
fn until_failure<T>(measured: impl Iterator<Item = Result<T, Failure>>) -> (Vec<T>, Option<Failure>) {
    let mut done = Vec::new();
    for measured in measured {
        match measured {
            Ok(measured) => done.push(measured),
            Err(failure) => return (done, Some(failure)),
        }
    }
    (done, None)
}

/// The medians of every layout.
fn layouts(rounds: &[Vec<Measured>]) -> Vec<LayoutResult> {
    let result = |(index, layout): (usize, &Layout)| {
        let over_rounds =
            |value: &dyn Fn(&[Measured]) -> f64| median(rounds.iter().map(|round| value(round)).collect());
        LayoutResult {
            layout: layout.name,
            step_ms: over_rounds(&|round| round[index].step_ms),
            samples_per_second: over_rounds(&|round| round[index].samples_per_second),
            step_vs_single: over_rounds(&|round| round[index].step_ms / round[0].step_ms),
            samples_per_second_vs_single: over_rounds(&|round| {
                round[index].samples_per_second / round[0].samples_per_second
            }),
            first_step_seconds: over_rounds(&|round| round[index].first_step_seconds),
        }
    };
    LAYOUTS.iter().enumerate().map(result).collect()
}

fn print(results: &Results) {
    print_line(&results.processor);
    print_layouts(results);
    print_line(&format!("\n{}", results.course));
    results.replicas.iter().for_each(|compared| print_line(&compared.to_string()));
    if !results.peers.is_empty() {
        print_line("");
        peers::print(&results.peers);
    }
    if !results.bulk.is_empty() {
        print_line("");
        results.bulk.iter().for_each(|moved| print_line(&moved.to_string()));
    }
}

fn print_layouts(results: &Results) {
    let mut table = plain_table();
    table.set_header(["layout", "step ms", "samples/s", "step vs single", "samples/s vs single", "first step s"]);
    for column in 1..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for result in &results.layouts {
        table.add_row([
            result.layout.to_owned(),
            format!("{:.3}", result.step_ms),
            format!("{:.0}", result.samples_per_second),
            format!("{:.2}", result.step_vs_single),
            format!("{:.2}", result.samples_per_second_vs_single),
            format!("{:.2}", result.first_step_seconds),
        ]);
    }
    print_line(&format!("mnist sigmoid, batch {}, medians of {} rounds", results.batch_size, results.rounds));
    print_line(&table.to_string());
}

/// A command that runs this program for a measurement, and ends with this process.
fn own_program() -> Result<std::process::Command, Failure> {
    let mut command = program::own_program()?;
    tie(&mut command, Signal::TERM);
    Ok(command)
}

/// The median, as `compare` defines it; NaN without values.
fn median(values: Vec<f64>) -> f64 {
    Figure::of(values).map_or(f64::NAN, |figure| figure.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_rounds_is_the_mean_of_the_middle_two() {
        assert_eq!(median(vec![4.0, 1.0, 2.0, 8.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn what_was_measured_before_a_failure_is_kept() {
        let (done, failure) = until_failure([Ok(1), Err(Failure::usage("the ps is gone")), Ok(3)].into_iter());
        assert_eq!((done, failure.map(|failure| failure.message)), (vec![1], Some("the ps is gone".to_owned())));
        assert!(matches!(until_failure([Ok(1), Ok(2)].into_iter()), (done, None) if done == [1, 2]));
    }
}
