//! `windlass runs`: manages run directories. `windlass_runs` reads them; this module formats them as text or JSON.

mod compare;
mod list;
mod remove;
mod show;

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use windlass_core::lifecycle::exit_code;
use windlass_runs::names::RUNS;
use windlass_runs::{Run, RunsError};

use crate::failure::Failure;

/// List, show, compare and remove run directories
#[derive(Debug, Parser)]
struct RunsCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the runs below a directory, newest first
    List {
        /// Where to look
        #[arg(value_name = "DIR", default_value = RUNS)]
        directory: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of a run: settings, results, checkpoints, and what happened last
    Show {
        /// Run directory, or its name below `runs`
        #[arg(value_name = "RUN")]
        run: PathBuf,
        /// Print everything that is known as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show in which settings and results runs differ
    Compare {
        /// Run directories, or their names below `runs`
        #[arg(value_name = "RUN", num_args = 2.., required = true)]
        runs: Vec<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove run directories with the checkpoints in them; refused if a run is active, or if there are other files
    Rm {
        /// Run directories, or their names below `runs`
        #[arg(value_name = "RUN", required = true)]
        runs: Vec<PathBuf>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) fn command() -> Command {
    RunsCommand::command().name("runs")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let RunsCommand { action } = RunsCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    match action {
        Action::List { directory, json } => list::run(&directory, json),
        Action::Show { run, json } => show::run(&read(&run)?, json),
        Action::Compare { runs, json } => {
            compare::run(&runs.iter().map(|run| read(run)).collect::<Result<Vec<_>, _>>()?, json)
        }
        Action::Rm { runs, yes } => remove::run(&runs.iter().map(|run| named(run)).collect::<Vec<_>>(), yes),
    }
}

fn read(run: &Path) -> Result<Run, Failure> {
    Run::read(&named(run)).map_err(failure)
}

/// The directory of a run that a user names, by its path or as in the list of runs.
pub(crate) fn named(run: &Path) -> PathBuf {
    let below = Path::new(RUNS).join(run);
    if run.exists() || !below.is_dir() { run.to_owned() } else { below }
}

pub(crate) fn failure(error: RunsError) -> Failure {
    let exit_code = match error {
        RunsError::Active { .. } | RunsError::Unclear { .. } => exit_code::CHECKPOINT,
        RunsError::NotRemoved { .. } => exit_code::INTERNAL,
        _ => exit_code::USAGE,
    };
    let hint = error.hint().map(str::to_owned);
    Failure { exit_code, message: error.to_string(), hint }
}

/// Formats seconds since 1970 as a date and time of day, to the minute.
fn minute(seconds: u64) -> String {
    let time = chrono::DateTime::from_timestamp(seconds as i64, 0);
    time.map_or_else(|| seconds.to_string(), |time| time.format("%Y-%m-%d %H:%M").to_string())
}
