//! How a command fails, as the user sees it: a message, perhaps a hint, and an exit code.

use std::fmt;

use windlass_core::lifecycle::{NOT_SAVED, Outcome, exit_code};

use crate::signals::is_stop;

/// The labels of the commands that a message may suggest.
pub(crate) const RESUME: &str = "resume";
pub(crate) const RESUME_TASK: &str = "resume this task";
const COMMANDS: [&str; 2] = [RESUME, RESUME_TASK];

/// The failure of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit_code: u8,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Failure {
    /// The user asked for something impossible.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { exit_code: exit_code::USAGE, message: message.to_string(), hint: None }
    }

    /// Something went wrong that the user did not cause.
    pub(crate) fn internal(message: impl fmt::Display) -> Self {
        Self { exit_code: exit_code::INTERNAL, message: message.to_string(), hint: None }
    }

    /// Whether a line of a failure's text is a command for the user to run.
    pub(crate) fn is_command(line: &str) -> bool {
        COMMANDS.iter().any(|what| line.strip_prefix(what).is_some_and(|rest| rest.starts_with(": ")))
    }

    pub(crate) fn with_hint(self, hint: impl Into<Option<String>>) -> Self {
        Self { hint: hint.into(), ..self }
    }
}

impl Failure {
    /// The part of the message about a last checkpoint that could not be written, if that is the failure.
    pub(crate) fn why_not_saved(&self) -> Option<&str> {
        let found = self.message.find(NOT_SAVED).filter(|_| self.exit_code == exit_code::CHECKPOINT);
        found.map(|at| &self.message[at..])
    }
}

impl From<Outcome> for Failure {
    fn from(outcome: Outcome) -> Self {
        let hint = match outcome.exit_code {
            exit_code::NUMERIC => Some("try a smaller --learning-rate, or --clip-norm 1"),
            _ => None,
        };
        Self { exit_code: outcome.exit_code, message: outcome.reason, hint: hint.map(str::to_owned) }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::internal(format!("{error:#}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if is_stop(self.exit_code.into()) { "stopped" } else { "error" };
        write!(formatter, "{kind}: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(formatter, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_from_a_sentence() {
        assert!(Failure::is_command("resume: windlass launch mnist --run-dir runs/a"));
        assert!(Failure::is_command("resume this task: windlass train mnist"));
        assert!(!Failure::is_command("resumed from step 3: a sentence that may be broken"));
    }
}
