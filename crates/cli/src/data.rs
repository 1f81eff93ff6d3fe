//! `windlass data`: downloads data sets.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches, Parser};
use windlass_data::download::{DownloadError, DownloadEvent, download};

use crate::failure::Failure;
use crate::terminal::Terminal;
use crate::{logging, output, verbosity};

/// Get data sets
#[derive(Debug, Parser)]
struct DataCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Download a data set and verify it; an interrupted download resumes where it stopped
    Download(DownloadArgs),
}

#[derive(Debug, Args)]
struct DownloadArgs {
    /// Data set: mnist
    dataset: String,
    /// Where to put it
    #[arg(long, value_name = "DIR", default_value = "data/mnist")]
    dir: PathBuf,
    /// Base URL to download from, instead of the public mirrors
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,
}

pub(crate) fn command() -> Command {
    <DataCommand as clap::CommandFactory>::command().name("data").about("Get data sets")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let command = DataCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    logging::start();
    let Action::Download(args) = command.action;
    let live = std::io::stderr().is_terminal() && !verbosity::is_quiet();
    let terminal = Terminal::default();
    let mut report = |event: DownloadEvent<'_>| match event {
        DownloadEvent::Present { file } => terminal.print_note(&format!("{file}: already present, checksum OK")),
        DownloadEvent::Received { file, received, total } if live => {
            let _ = write!(std::io::stderr(), "\r{file}: {:3.0}%", 100.0 * received as f64 / total.max(1) as f64);
        }
        DownloadEvent::Failed { file, url, error, wait } => {
            let again = wait.map(|wait| format!("; trying again in {:.1} s", wait.as_secs_f64())).unwrap_or_default();
            terminal.print_error(&format!("{file}: {url}: {error}{again}"));
        }
        DownloadEvent::Finished { file } => {
            terminal.print_note(&format!("{}{file}: done, checksum OK", if live { "\r" } else { "" }));
        }
        _ => {}
    };
    let summary =
        download(&args.dataset, &args.dir, args.base_url.as_deref(), &mut report).map_err(|error| match error {
            // A later attempt may succeed.
            DownloadError::NoMirror { .. } => Failure::internal(error),
            error => Failure::usage(error),
        })?;
    output::print_line(&format!(
        "{} files downloaded, {} already present; train with --data-dir {}",
        summary.downloaded,
        summary.present,
        args.dir.display()
    ));
    Ok(())
}
