//! `windlass compare`: runs layouts one after the other on this machine, or takes existing run directories, and makes one
//! table and one picture.

mod child;
mod runner;

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser, ValueEnum};
use windlass_compare::{CompareFile, Comparison, Plan, PlanError, RunError, Wishes, file, layout, render};
use windlass_runs::names::RUNS;

use crate::config::read_text;
use crate::failure::Failure;
use crate::runs::named;
use crate::settings::Schema;
use crate::terminal::Terminal;
use crate::{output, terminal};
use runner::Runner;

/// The width of a table, in columns, where there is no terminal.
const WIDTH: usize = 80;

/// Run a model in several layouts, or take runs that are there, and print one table
#[derive(Debug, Parser)]
#[command(
    override_usage = "windlass compare [OPTIONS] --layouts LIST -- MODEL FLAGS\n       \
                      windlass compare [OPTIONS] FILE.toml [-- FLAGS]\n       \
                      windlass compare [OPTIONS] RUN_DIR...",
    after_help = "Layouts: single (one process), 1ps1w, 1ps2w-async, 2ps2w-sync, 1ps3w-ssp5 (staleness 5), \
                  2w-colocated-sync and so on.\n\
                  Run an interrupted comparison again to continue it: finished runs are not repeated."
)]
struct CompareCommand {
    /// A comparison as a TOML file, or run directories to compare
    #[arg(value_name = "FILE|RUN_DIR")]
    paths: Vec<PathBuf>,
    /// Layouts to run, separated by commas [default: those of the file]
    #[arg(long, value_name = "LIST")]
    layouts: Option<String>,
    /// Run each layout N times; the table then shows the median and half the range. The Nth run has --seed N, unless the
    /// flags set a seed [default: 1, or that of the file]
    #[arg(long, value_name = "N")]
    repeat: Option<u32>,
    /// Directory for the runs, the table and the picture [default: runs/compare-MODEL or runs/FILE; for run directories,
    /// none]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Score to show, such as test_accuracy [default: the first that is a fraction, or the first of all if none is]
    #[arg(long, value_name = "NAME")]
    score: Option<String>,
    /// How to print the table
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    format: TableFormat,
    /// Print JSON, as --format json does
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// The model and its flags, as after `windlass train`
    #[arg(last = true, value_name = "MODEL FLAGS")]
    words: Vec<String>,
}

/// How a table is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    Text,
    Markdown,
    Csv,
    Json,
}

pub(crate) fn command() -> Command {
    CompareCommand::command().name("compare").about("Run a model in several layouts and compare the results")
}

/// Compares. `check` refuses a model and flags that no run could have, for so many workers; `schema` has the flags of a
/// model, if there is such a model.
pub(crate) fn run(
    matches: &ArgMatches,
    check: impl Fn(&[String], u32) -> Result<(), Failure>,
    schema: impl Fn(&str) -> Option<Schema>,
) -> Result<(), Failure> {
    let command = CompareCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let are_directories = command.paths.first().is_some_and(|path| named(path).is_dir()) || command.paths.len() > 1;
    if are_directories { command.compare_directories() } else { command.compare_layouts(check, schema) }
}

impl CompareCommand {
    fn compare_directories(self) -> Result<(), Failure> {
        if self.layouts.is_some() || self.repeat.is_some() || !self.words.is_empty() {
            let hint = "omit --layouts, --repeat and what comes after --, or omit the directories".to_owned();
            return Err(Failure::usage("run directories are compared as they are").with_hint(hint));
        }
        let paths: Vec<PathBuf> = self.paths.iter().map(|path| named(path)).collect();
        let comparison = Comparison::of_directories(&paths, self.score.clone()).map_err(unusable_run)?;
        check_score(&comparison)?;
        if let Some(output) = &self.output {
            write_files(&comparison, output)?;
            warn_without_picture(&comparison);
        }
        self.print(&comparison);
        Ok(())
    }

    fn compare_layouts(
        self,
        check: impl Fn(&[String], u32) -> Result<(), Failure>,
        schema: impl Fn(&str) -> Option<Schema>,
    ) -> Result<(), Failure> {
        let (file, name) = match &*self.paths {
            [] => (CompareFile::default(), None),
            [path, ..] => (read_file(path)?, path.file_stem().map(|stem| stem.to_string_lossy().into_owned())),
        };
        let layouts = self.layouts.as_deref().map(layout::parse_list).transpose();
        let wishes = Wishes {
            layouts: layouts.map_err(|error| unusable(error.into()))?,
            repeat: self.repeat,
            score: self.score.clone(),
            words: self.words.clone(),
        };
        let plan = match schema(&wishes.model(&file).map_err(unusable)?) {
            Some(schema) => Plan::new(file, wishes, &schema),
            // Refused below, as is whatever flags it is given.
            None => Plan::new(file, wishes, &()),
        };
        let plan = plan.map_err(unusable)?;
        for (words, workers) in plan.training_words() {
            check(&words, workers)?;
        }
        let name = name.unwrap_or_else(|| format!("compare-{}", plan.model));
        let output = self.output.clone().unwrap_or_else(|| Path::new(RUNS).join(name));
        let mut runner = Runner::new(plan, output)?;
        let ended = runner.run();
        let comparison = runner.comparison();
        if comparison.rows.iter().any(|row| row.finished().next().is_some()) {
            self.print(comparison);
            warn_without_picture(comparison);
            runner.say_where();
        }
        ended
    }

    fn print(&self, comparison: &Comparison) {
        let width = terminal::columns().map_or(WIDTH, usize::from).max(40);
        let text = match self.format {
            _ if self.json => render::json(comparison),
            TableFormat::Text => render::text(comparison, width),
            TableFormat::Markdown => render::markdown(comparison),
            TableFormat::Csv => render::csv(comparison),
            TableFormat::Json => render::json(comparison),
        };
        output::print_line(text.trim_end());
    }
}

fn read_file(path: &Path) -> Result<CompareFile, Failure> {
    let text = read_text(path, "the comparison")?;
    let in_file = |error: PlanError| Failure::usage(format!("{}: {error}", path.display())).with_hint(error.hint());
    file::parse(&text).map_err(in_file)
}

/// Writes the table in every format, and the picture, to a directory.
fn write_files(comparison: &Comparison, directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Failure::usage(format!("cannot make the directory {}: {error}", directory.display())))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        windlass_files::write(&path, &[bytes])
            .map_err(|error| Failure::internal(format!("cannot write {}: {error}", path.display())))
    };
    write("comparison.txt", render::text(comparison, WIDTH).as_bytes())?;
    write("comparison.md", render::markdown(comparison).as_bytes())?;
    write("comparison.csv", render::csv(comparison).as_bytes())?;
    write("comparison.json", render::json(comparison).as_bytes())?;
    if let Some(svg) = windlass_compare::svg(comparison).map_err(Failure::internal)? {
        write("loss.svg", svg.as_bytes())?;
    }
    if let Some(png) = windlass_compare::png(comparison).map_err(Failure::internal)? {
        write("loss.png", &png)?;
    }
    Ok(())
}

/// Warns that there is no picture, and says why.
fn warn_without_picture(comparison: &Comparison) {
    if !windlass_compare::has_picture(comparison) {
        Terminal::default().print_error("warning: no run has recorded its loss over time, so there is no picture");
    }
}

/// Refuses a score that no run has.
fn check_score(comparison: &Comparison) -> Result<(), Failure> {
    let names = comparison.score_names();
    match comparison.score.as_deref().filter(|score| !names.is_empty() && !names.contains(score)) {
        Some(score) => {
            let hint = format!("there are {}", names.join(", "));
            Err(Failure::usage(format!("no run has a score called {score}")).with_hint(hint))
        }
        None => Ok(()),
    }
}

fn unusable(error: PlanError) -> Failure {
    Failure::usage(&error).with_hint(error.hint())
}

fn unusable_run(error: RunError) -> Failure {
    Failure::usage(&error).with_hint(error.hint())
}
