//! `windlass bench`
use clap::{ArgMatches, Command};

use crate::failure::Failure;

pub(crate) fn command() -> Command {
    Command::new("bench").about("Measure")
}

pub(crate) fn run(_matches: &ArgMatches) -> Result<(), Failure> {
    Err(Failure::usage("not yet"))
}
