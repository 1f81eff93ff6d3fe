//! `windlass bench`: how fast this machine trains in each layout, and how fast parameters move.
//!
//! Machines are noisy, so every round runs all layouts one after the other, ratios are taken within a round, and
//! medians over the rounds are shown. Nothing here is a test: it prints what it measures.

mod bulk;
mod course;
mod layouts;
mod peers;

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use comfy_table::CellAlignment;

use crate::failure::Failure;
use crate::logging;
use crate::output::plain_table;
use layouts::{LAYOUTS, Measured};

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
    let (mut rounds, mut courses, mut peers) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=args.rounds {
        eprintln!("round {round} of {}", args.rounds);
        let measured = LAYOUTS.iter().map(|layout| layout.measure(args.steps)).collect::<Result<Vec<_>, _>>()?;
        rounds.push(measured);
        courses.push(course::measure()?);
        if let Some(program) = &args.peers {
            peers.push(peers::measure(program)?);
        }
    }
    println!("{}", crate::processor::describe());
    print_layouts(&rounds);
    println!();
    course::print(&courses);
    if !peers.is_empty() {
        println!();
        peers::print(&rounds, &peers);
    }
    if args.bulk > 0 {
        println!();
        for transport in [bulk::Transport::Local, bulk::Transport::Tcp] {
            println!("{}", bulk::measure(args.bulk * 1_000_000, transport)?);
        }
    }
    Ok(())
}

fn print_layouts(rounds: &[Vec<Measured>]) {
    let mut table = plain_table();
    table.set_header(["layout", "step ms", "samples/s", "step vs single", "samples/s vs single", "first step s"]);
    for column in 1..6 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for (index, layout) in LAYOUTS.iter().enumerate() {
        let over_rounds =
            |value: &dyn Fn(&[Measured]) -> f64| median(rounds.iter().map(|round| value(round)).collect());
        table.add_row([
            layout.name.to_owned(),
            format!("{:.3}", over_rounds(&|round| round[index].step_ms)),
            format!("{:.0}", over_rounds(&|round| round[index].samples_per_second)),
            format!("{:.2}", over_rounds(&|round| round[index].step_ms / round[0].step_ms)),
            format!("{:.2}", over_rounds(&|round| round[index].samples_per_second / round[0].samples_per_second)),
            format!("{:.2}", over_rounds(&|round| round[index].first_step_seconds)),
        ]);
    }
    println!("mnist sigmoid, batch {}, medians of {} rounds", layouts::BATCH, rounds.len());
    println!("{table}");
}

/// The middle value.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    if values.is_empty() { f64::NAN } else { values[values.len() / 2] }
}
