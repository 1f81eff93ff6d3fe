//! How a launched run ended, in words: what a task that failed has said, what remains of the run, and how it goes on.

use windlass_core::lifecycle::{NOT_SAVED, exit_code};
use windlass_worker::event::Stopped;

use super::last_status::LastWord;
use super::{Cause, Launcher};
use crate::failure::{Failure, RESUME};
use crate::launch::child::{Child, Ended, STARTED};
use crate::signals::StopSignal;
use crate::stopping::Stop;

/// Lines of a failed task's log that are shown.
const TAIL: usize = 15;
/// How the last words of a task that fails begin.
const ERROR: &str = "error: ";
const HINT: &str = "hint: ";

/// How a run that is stopped can be taken up again.
pub(in crate::launch) struct Resumption {
    /// Where its checkpoints are.
    pub(in crate::launch) checkpoints: Option<String>,
    /// Whether it goes on from a checkpoint that was there before it.
    pub(in crate::launch) resumes: bool,
    /// When it began, in seconds since 1970.
    pub(in crate::launch) began: u64,
    /// The command that goes on.
    pub(in crate::launch) command: String,
}

impl Launcher {
    /// How a run ended before its time: for its user, and for the record in its directory.
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

    /// How a run was stopped, of which somebody has told a task, or this launcher by a signal.
    fn describe_stop(&self, exit_code: u8, signal: Option<(StopSignal, u64)>) -> Failure {
        let (by, why, told) = match (signal, self.stopped.first()) {
            (Some((signal, time)), _) => (Some(signal), signal.name().to_owned(), Some(time)),
            (None, Some(Stopped { time, task, signal })) => {
                (StopSignal::named(signal), format!("{task} was told to stop by {signal}"), Some(*time))
            }
            (None, None) => (None, "a task was told to stop".to_owned(), None),
        };
        // The signal decides, and not which of the tasks was the first to end.
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

    /// What a task that failed said last; if it did not come to that, the end of its log.
    pub(super) fn describe_failure(&self, child: &Child, ended: Ended) -> Failure {
        let exit_code = match ended {
            Ended::Exited(code) => u8::try_from(code).unwrap_or(1),
            Ended::Killed(_) => 1,
        };
        let (task, how, log) = (&child.name, describe(ended), child.log.display());
        let text = child.log_text();
        // Of this start, not of one before.
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

    /// What a task says of a last checkpoint that could not be written, if that is why it ended.
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
