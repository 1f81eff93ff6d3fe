//! How a launched run ended, in words: the error of a failed task, what remains of the run, and how to resume it.

use windlass_core::lifecycle::{NOT_SAVED, exit_code};
use windlass_worker::event::Stopped;

use super::last_status::LastWord;
use super::{Cause, Launcher};
use crate::failure::{Failure, RESUME};
use crate::launch::child::{Child, Ended, STARTED};
use crate::signals::StopSignal;
use crate::stopping::Stop;

/// The number of lines shown from a failed task's log.
const TAIL: usize = 15;
/// The prefix of the error with which a failing task ends its log.
const ERROR: &str = "error: ";
const HINT: &str = "hint: ";

/// How a stopped run can be resumed.
pub(in crate::launch) struct Resumption {
    /// The location of its checkpoints.
    pub(in crate::launch) checkpoints: Option<String>,
    /// Whether the run itself resumed from an earlier checkpoint.
    pub(in crate::launch) resumes: bool,
    /// When the run began, in seconds since 1970.
    pub(in crate::launch) began: u64,
    /// The command that resumes it.
    pub(in crate::launch) command: String,
}

impl Launcher {
    /// Describes the early end of a run, for its user and for the record in its directory.
    pub(super) fn describe_end(&self, cause: Cause) -> (Failure, LastWord) {
        let (failure, why) = match cause {
            Cause::Failed(failure) => (failure, None),
            Cause::Died(failure) => {
                let word = LastWord::failed(failure.exit_code, &failure.message);
                return (self.describe_death(failure), word);
            }
            Cause::Stopped(exit_code, signal) => {
                let why = match (&signal, self.stopped.first()) {
                    (Some((signal, _)), _) => format!("it was told to stop by {}", signal.name()),
                    (None, Some(Stopped { task, signal, .. })) => format!("{task} was told to stop by {signal}"),
                    (None, None) => "a task was told to stop".to_owned(),
                };
                (self.describe_stop(exit_code, signal), Some(why))
            }
        };
        let word = match why {
            Some(why) if failure.exit_code == exit_code::CHECKPOINT => {
                let unsaved = self.unsaved.as_ref().or(self.overdue_coordinator.as_ref());
                let unsaved = unsaved.map_or(NOT_SAVED, String::as_str);
                LastWord::failed(failure.exit_code, &format!("{why}, and {unsaved}"))
            }
            Some(why) => LastWord::stopped(why),
            None => LastWord::failed(failure.exit_code, &failure.message),
        };
        (failure, word)
    }

    /// Describes a run that was stopped by a signal, either to this launcher or to one of its tasks.
    fn describe_stop(&self, exit_code: u8, signal: Option<(StopSignal, u64)>) -> Failure {
        let (by, why, told) = match (signal, self.stopped.first()) {
            (Some((signal, time)), _) => (Some(signal), signal.name().to_owned(), Some(time)),
            (None, Some(Stopped { time, task, signal })) => {
                (StopSignal::named(signal), format!("{task} was told to stop by {signal}"), Some(*time))
            }
            (None, None) => (None, "a task was told to stop".to_owned(), None),
        };
        // The exit code depends on the signal, not on which task ended first.
        let exit_code = match &self.unsaved {
            Some(_) => exit_code::CHECKPOINT,
            None => by.map_or(exit_code, StopSignal::exit_code),
        };
        self.with_stop(exit_code, why, told, |stop, command| stop.report(RESUME, command))
    }

    /// How a run came to harm, and what remains of it.
    fn describe_death(&self, harm: Failure) -> Failure {
        if !self.has_begun() {
            return harm;
        }
        self.with_stop(harm.exit_code, String::new(), None, |stop, command| {
            Stop { died: true, ..stop }.report_remains(harm, RESUME, command)
        })
    }

    fn with_stop<T>(&self, exit_code: u8, why: String, told: Option<u64>, tell: impl FnOnce(Stop, &str) -> T) -> T {
        let log = self.children.first().map(|child| child.log.display().to_string());
        let Resumption { checkpoints, resumes, began, command } = &self.resumption;
        self.progress.extent().with(|extent| {
            let stop = Stop {
                exit_code,
                why,
                extent: Some(extent),
                checkpoints: checkpoints.clone(),
                resumes: *resumes,
                began: *began,
                told,
                unsaved: self.unsaved.clone(),
                overdue: self.overdue_coordinator.clone(),
                log,
                at_once: self.at_once,
                died: false,
            };
            tell(stop, command)
        })
    }

    /// Describes a failed task by its last error, or else by the end of its log.
    pub(super) fn describe_failure(&self, child: &Child, ended: Ended) -> Failure {
        let exit_code = match ended {
            Ended::Exited(code) => u8::try_from(code).unwrap_or(1),
            Ended::Killed(_) => 1,
        };
        let (task, how, log) = (&child.name, describe(ended), child.log.display());
        let text = child.log_text();
        // Only lines since the last start.
        let mut lines: Vec<&str> = text.lines().rev().take_while(|line| !line.starts_with(STARTED)).collect();
        lines.reverse();
        let said =
            lines.iter().rposition(|line| line.starts_with(ERROR)).filter(|_| !matches!(ended, Ended::Killed(_)));
        let Some(said) = said else {
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n  ");
            let message = format!("{task} {how}; the end of {log}:\n  {tail}");
            let hint = (self.restarts == 0 && !self.has_restarted && matches!(ended, Ended::Killed(_)))
                .then(|| "--restart N starts killed tasks again, up to N times".to_owned());
            return Failure { exit_code, message, hint };
        };
        let words = child.own_words(&lines[said..]);
        let (hints, words): (Vec<&str>, Vec<&str>) = words.into_iter().partition(|line| line.starts_with(HINT));
        let message = words.join("\n");
        Failure {
            exit_code,
            message: format!("{}\n({task} {how}; its log is {log})", message.trim_start_matches(ERROR)),
            hint: hints.first().map(|hint| hint.trim_start_matches(HINT).to_owned()),
        }
    }

    /// The task's explanation of why the last checkpoint could not be written, if that is why it ended.
    pub(super) fn why_not_saved(&self, position: usize, ended: Ended) -> Option<String> {
        self.describe_failure(&self.children[position], ended).why_not_saved().map(str::to_owned)
    }
}

pub(super) fn describe(ended: Ended) -> String {
    match ended {
        Ended::Exited(code) => format!("ended with exit code {code}"),
        Ended::Killed(signal) => format!("was killed by signal {signal}"),
    }
}
