//! The verbosity of output: `-q` and `-v`, which every command takes, or their variables. Chosen once per process, like
//! the log.

use std::ffi::OsString;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::failure::Failure;
use crate::settings::{Schema, switched};

const QUIET: &str = "quiet";
const VERBOSE: &str = "verbose";
/// The flags of every command.
pub(crate) const FLAGS: [&str; 2] = [QUIET, VERBOSE];
const QUIET_LETTER: char = 'q';
const VERBOSE_LETTER: char = 'v';

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Verbosity {
    /// Only warnings, errors and results.
    Quiet,
    #[default]
    Normal,
    /// Also debug messages.
    Verbose,
}

static CHOSEN: OnceLock<Verbosity> = OnceLock::new();

/// The verbosity that the user has chosen.
pub(crate) fn chosen() -> Verbosity {
    CHOSEN.get().copied().unwrap_or_default()
}

pub(crate) fn is_quiet() -> bool {
    chosen() == Verbosity::Quiet
}

/// The flag for a child process that should be as verbose as this one. A quiet process still needs the messages of its
/// tasks.
pub(crate) fn passed_on() -> Option<&'static str> {
    (chosen() == Verbosity::Verbose).then_some("--verbose")
}

/// Adds the flags to a program and to all its commands.
pub(crate) fn with_flags(root: Command) -> Command {
    let flag = |name: &'static str, short| {
        Arg::new(name).long(name).short(short).action(ArgAction::SetTrue).global(true).overrides_with(name)
    };
    root.arg(flag(QUIET, QUIET_LETTER).help("Print only warnings, errors and results"))
        .arg(flag(VERBOSE, VERBOSE_LETTER).help("Also log debug messages"))
}

/// Reads the choice from the command line, or else from the environment. A model may have a flag of the same name, in
/// which case neither that flag nor its variable is ours.
pub(crate) fn choose(matches: &ArgMatches, schema: Option<&Schema>) -> Result<(), Failure> {
    let is_given = |name| matches.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false);
    let is_set = |name: &str| match schema.and_then(|schema| schema.find(name)) {
        Some(_) => Ok(false),
        None => switched(name).map(Option::unwrap_or_default),
    };
    let verbosity = match (is_given(QUIET), is_given(VERBOSE)) {
        (true, true) => return Err(Failure::usage("--quiet and --verbose exclude each other")),
        (true, false) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => match (is_set(QUIET)?, is_set(VERBOSE)?) {
            (true, true) => return Err(Failure::usage("WINDLASS_QUIET and WINDLASS_VERBOSE exclude each other")),
            (true, false) => Verbosity::Quiet,
            (false, true) => Verbosity::Verbose,
            (false, false) => Verbosity::Normal,
        },
    };
    // A second choice has no effect, as in tests that run several commands in one process.
    let _ = CHOSEN.set(verbosity);
    Ok(())
}

/// Moves these flags behind the names of the command and the model, because the code that reads settings expects those
/// first.
pub(crate) fn behind_names(arguments: Vec<OsString>) -> Vec<OsString> {
    let (mut names, mut flags) = (Vec::new(), Vec::new());
    let mut words = arguments.into_iter().peekable();
    names.extend(words.next());
    while let Some(word) = words.next_if(|word| names.len() < 3 && (is_ours(word) || !is_flag(word))) {
        if is_ours(&word) { flags.push(word) } else { names.push(word) }
    }
    names.into_iter().chain(flags).chain(words).collect()
}

/// `--quiet`, `--verbose`, or their letters, together or one by one: `-v`, `-vv`.
fn is_ours(word: &OsString) -> bool {
    let Some(word) = word.to_str() else { return false };
    match word.strip_prefix("--") {
        Some(name) => FLAGS.contains(&name),
        None => word.strip_prefix('-').is_some_and(|letters| {
            !letters.is_empty() && letters.chars().all(|letter| [QUIET_LETTER, VERBOSE_LETTER].contains(&letter))
        }),
    }
}

fn is_flag(word: &OsString) -> bool {
    word.to_string_lossy().starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(line: &str) -> String {
        let words = behind_names(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_before_the_command_and_the_model_come_after_them() {
        assert_eq!(moved("windlass -v train --quiet mnist --steps 3"), "windlass train mnist -v --quiet --steps 3");
        assert_eq!(moved("windlass train mnist -v"), "windlass train mnist -v");
        assert_eq!(moved("windlass -q status a:1 --json"), "windlass status a:1 -q --json");
        assert_eq!(moved("windlass -vv train linear -qq"), "windlass train linear -vv -qq");
        assert_eq!(moved("windlass -qq launch -vqv linear"), "windlass launch linear -qq -vqv");
        assert_eq!(moved("windlass -- train linear"), "windlass -- train linear");
        assert_eq!(moved("windlass - train linear"), "windlass - train linear");
        assert_eq!(moved("windlass -q --help train"), "windlass -q --help train");
        assert_eq!(moved("windlass compare --layouts -v -- mnist"), "windlass compare --layouts -v -- mnist");
    }
}
