//! `windlass completions SHELL`: a script that lets a shell complete this program's commands, models and flags.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output;

/// Print a completion script for a shell
#[derive(Debug, Parser)]
struct CompletionsCommand {
    /// The shell that reads it
    shell: Shell,
}

pub(crate) fn command() -> Command {
    CompletionsCommand::command().name("completions")
}

/// Prints the script for `root`, the whole program.
pub(crate) fn run(matches: &ArgMatches, mut root: Command) -> Result<(), Failure> {
    let CompletionsCommand { shell } = CompletionsCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let name = root.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut root, name, &mut script);
    output::print_line(String::from_utf8_lossy(&script).trim_end());
    Ok(())
}
