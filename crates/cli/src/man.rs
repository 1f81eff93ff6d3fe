//! `windlass man`: manual pages, made from the same definitions as the help.

use std::io;
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use clap_mangen::Man;

use crate::failure::Failure;
use crate::output::{self, count};

/// Print the manual page, or write one for every command
#[derive(Debug, Parser)]
struct ManCommand {
    /// Write a page for every command and model to this directory instead
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn command() -> Command {
    ManCommand::command().name("man")
}

/// Prints the pages of `root`, the whole program, or writes them to files.
pub(crate) fn run(matches: &ArgMatches, root: Command) -> Result<(), Failure> {
    let ManCommand { dir } = ManCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    // The long version describes this build and this machine; a page applies to all.
    let mut root = root.disable_help_subcommand(true).long_version(Resettable::Reset);
    root.build();
    let Some(directory) = dir else {
        let page = render(root).map_err(Failure::internal)?;
        output::print_line(String::from_utf8_lossy(&page).trim_end());
        return Ok(());
    };
    let written = write_all(root, &directory)
        .map_err(|error| Failure::usage(format!("cannot write manual pages to {}: {error}", directory.display())))?;
    output::print_line(&format!("wrote {} to {}", count(written, "manual page"), directory.display()));
    Ok(())
}

fn write_all(root: Command, directory: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let (mut pending, mut written) = (vec![root], 0);
    while let Some(command) = pending.pop() {
        pending.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        let name = Man::new(command.clone()).get_filename();
        windlass_files::write(&directory.join(name), &[&render(command)?])?;
        written += 1;
    }
    Ok(written)
}

fn render(command: Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
