//! `windlass status HOST:PORT`: how a run is doing, asked of its coordinator from anywhere.

use std::time::Duration;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use windlass_core::lifecycle::exit_code;
use windlass_page::{Status, text};

use crate::failure::Failure;
use crate::{output, terminal};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that a status can be.
const LARGEST: u64 = 16 << 20;
/// Columns, where there is no terminal.
const WIDTH: usize = 80;

/// Show how a run is doing
#[derive(Debug, Parser)]
struct StatusCommand {
    /// Address of the run's coordinator: ps 0, or worker 0 of a run with --colocate
    #[arg(value_name = "HOST:PORT")]
    address: String,
    /// Print everything that is known of the run as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn command() -> Command {
    StatusCommand::command().name("status").about("Show how a run is doing")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let StatusCommand { address, json } = StatusCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let answer = ask(&address)?;
    let not_a_run = |error| Failure::usage(format!("{address} does not answer like a run: {error}"));
    let status: Status = serde_json::from_str(&answer).map_err(not_a_run)?;
    if json {
        output::print_line(answer.trim_end());
    } else {
        output::print_line(text(&status, terminal::columns().map_or(WIDTH, usize::from)).trim_end());
    }
    Ok(())
}

/// The status as its JSON.
pub(crate) fn ask(address: &str) -> Result<String, Failure> {
    // As the log and `launch` print it.
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    if !address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
        let hint = "give a host and a port, such as 127.0.0.1:2222".to_owned();
        return Err(Failure::usage(format!("{address:?} is not HOST:PORT")).with_hint(hint));
    }
    let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false).build();
    let unreachable = |error: ureq::Error| Failure {
        exit_code: exit_code::INTERNAL,
        message: format!("cannot reach a run at {address}: {error}"),
        hint: Some(
            "the log of ps 0 and the first lines of `launch` show the address: live page at http://…".to_owned(),
        ),
    };
    let mut answer =
        ureq::Agent::from(agent).get(format!("http://{address}/status.json")).call().map_err(unreachable)?;
    if !answer.status().is_success() {
        let message = format!("{address} is not the coordinator of a run ({})", answer.status());
        return Err(Failure::usage(message).with_hint("ask ps 0, or worker 0 of a run with --colocate".to_owned()));
    }
    answer.body_mut().with_config().limit(LARGEST).read_to_string().map_err(unreachable)
}
