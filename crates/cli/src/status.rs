//! `windlass status HOST:PORT` or `RUN_DIR`: the state of a run, as its coordinator reports it or as its directory last
//! recorded it.

use std::io;
use std::path::Path;
use std::time::Duration;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use windlass_core::cluster::{Address, AddressError};
use windlass_core::lifecycle::exit_code;
use windlass_page::{Phase, STATUS_FILE, Status, figures, text};
use windlass_runs::{Ending, Run};

use crate::failure::Failure;
use crate::signals::unix_seconds;
use crate::{output, runs, terminal};

/// The timeout for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// The maximum size of a status.
const LARGEST: u64 = 16 << 20;
/// The hint for a text that is not an address.
const ADDRESS_HINT: &str = "give a host and a port, such as 127.0.0.1:2222";
const IPV6_HINT: &str = "write an IPv6 address and its port as [::1]:2222";
/// The text before the address and the reason when a run does not respond.
const UNREACHABLE: &str = "cannot reach a run at";
/// The number of columns where there is no terminal.
const WIDTH: usize = 80;

/// Show how a run is doing
#[derive(Debug, Parser)]
struct StatusCommand {
    /// Address of the run's coordinator (ps 0, or worker 0 of a run with --colocate), or a run directory
    #[arg(value_name = "HOST:PORT|RUN_DIR")]
    place: String,
    /// Print everything that is known of the run as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn command() -> Command {
    StatusCommand::command().name("status").about("Show how a run is doing")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let StatusCommand { place, json } = StatusCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let directory = runs::named(Path::new(&place));
    if directory.is_dir() {
        return of_directory(&directory, json);
    }
    let address = parse_address(&place).map_err(|hint| {
        Failure::usage(format!("{place:?} is neither HOST:PORT nor a directory")).with_hint(hint.to_owned())
    })?;
    let answer = ask(address, PATIENCE)?;
    let status = parse(address, &answer)?;
    if json {
        output::print_line(answer.trim_end());
    } else {
        output::print_line(text(&status, width()).trim_end());
    }
    Ok(())
}

/// Prints the last status recorded in a directory.
fn of_directory(directory: &Path, json: bool) -> Result<(), Failure> {
    let run = Run::read(directory).map_err(runs::failure)?;
    let Some(last) = &run.last_status else {
        let damage = run.problems.iter().find(|problem| problem.starts_with(STATUS_FILE));
        let why = damage.map_or_else(|| format!("no {STATUS_FILE}"), |damage| format!("a damaged {damage}"));
        let hint = format!("`runs show {}` tells what else is known", directory.display());
        return Err(Failure::usage(format!("{} has {why}", directory.display())).with_hint(hint));
    };
    let status = as_it_ended(last.status.clone(), &run.ending);
    if json {
        return output::print_json(&status);
    }
    let age = figures::duration(unix_seconds().saturating_sub(last.written) as f64);
    let why = run.ending.why().map_or_else(String::new, |why| format!(": {}", figures::plain(why)));
    let state = sentence(&run.ending);
    let live = match run.ending {
        Ending::Running if !last.address.is_empty() => format!("; live at {}", figures::plain(&last.address)),
        _ => String::new(),
    };
    let known = format!("{state}{why}. Its directory was last updated {age} ago{live}:");
    output::print_line(&textwrap::fill(&known, width()));
    output::print_line(&format!("\n{}", text(&status, width()).trim_end()));
    Ok(())
}

/// The state of a run in a sentence, as far as its directory shows.
fn sentence(ending: &Ending) -> &'static str {
    match ending {
        Ending::Running => "The run is active",
        Ending::Finished => "The run has finished",
        Ending::Stopped { .. } => "The run was stopped",
        Ending::Failed { .. } => "The run failed",
        Ending::Died => "The run died",
        Ending::NotBegun => "The run never began to train",
        Ending::Unknown { .. } => "What became of the run is unknown",
    }
}

/// The last known status of a run, put in the past tense if the run could not record its own end, or may not be alive
/// any more.
fn as_it_ended(status: Status, ending: &Ending) -> Status {
    match ending {
        Ending::Died | Ending::NotBegun => status.ended(Phase::Died),
        Ending::Unknown { .. } => status.ended(Phase::Unknown),
        Ending::Stopped { why } => status.ended(Phase::Stopped { why: why.clone() }),
        Ending::Running | Ending::Finished | Ending::Failed { .. } => status,
    }
}

fn width() -> usize {
    terminal::columns().map_or(WIDTH, usize::from)
}

/// Fetches the status from a coordinator.
pub(crate) fn fetch(address: &str, patience: Duration) -> Result<Status, Failure> {
    parse(address, &ask(address, patience)?)
}

fn parse(address: &str, answer: &str) -> Result<Status, Failure> {
    Status::from_json(answer).map_err(|error| Failure::usage(format!("{address} does not answer like a run: {error}")))
}

/// The host and port of an address as users give it, or as the log and `launch` print it; the error is a hint.
pub(crate) fn parse_address(place: &str) -> Result<&str, &'static str> {
    let address = place.strip_prefix("http://").unwrap_or(place).trim_end_matches('/');
    match address.parse::<Address>() {
        Ok(_) => Ok(address),
        Err(AddressError::Brackets | AddressError::Colons { .. }) => Err(IPV6_HINT),
        Err(_) => Err(ADDRESS_HINT),
    }
}

/// Why the address does not respond, as briefly as possible.
pub(crate) fn reason<'a>(message: &'a str, address: &str) -> &'a str {
    let reason = message.strip_prefix(UNREACHABLE).and_then(|rest| rest.trim_start().strip_prefix(address));
    reason.map_or(message, |reason| reason.trim_start_matches(": "))
}

/// Describes an error without the system's error numbers.
fn in_words(error: &ureq::Error, patience: Duration) -> String {
    match error {
        ureq::Error::Timeout(_) => format!("no answer within {} s", patience.as_secs()),
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            "connection refused: nothing is listening there".to_owned()
        }
        ureq::Error::Io(error) => {
            let text = error.to_string();
            text.split_once(" (os error").map_or(text.clone(), |(text, _)| text.to_owned())
        }
        error => error.to_string(),
    }
}

/// Fetches the status as JSON.
fn ask(address: &str, patience: Duration) -> Result<String, Failure> {
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(patience))
        .http_status_as_error(false)
        // Proxies are for the web. Tasks reach each other without one, and a proxy could not reach this machine's own
        // addresses.
        .proxy(None)
        .build();
    let unreachable = |error: ureq::Error| {
        Failure {
        exit_code: exit_code::INTERNAL,
        message: format!("{UNREACHABLE} {address}: {}", in_words(&error, patience)),
        hint: Some(
            "if the run is over, `windlass status RUN_DIR` tells how it ended; the address of a run is in the first lines of \
             `launch` and in the log of ps 0 or of the client"
                .to_owned(),
        ),
    }
    };
    let mut answer =
        ureq::Agent::from(agent).get(format!("http://{address}/status.json")).call().map_err(unreachable)?;
    if !answer.status().is_success() {
        let message = format!("{address} is not the coordinator of a run ({})", answer.status());
        return Err(Failure::usage(message)
            .with_hint("ask ps 0, worker 0 of a run with --colocate, or the client of joined workers".to_owned()));
    }
    answer.body_mut().with_config().limit(LARGEST).read_to_string().map_err(unreachable)
}
