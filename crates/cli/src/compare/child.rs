//! One run of a comparison as a child process: this same program, as a user would start it.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};
use windlass_core::lifecycle::exit_code;
use windlass_worker::event::Event;

use crate::failure::Failure;
use crate::program::own_program;
use crate::signals::StopSignal;
use crate::tied::tie;
use crate::verbosity;

/// The file in the run's directory that receives all its output except events.
const LOG: &str = "compare.log";
/// The prefix of the line in the log that marks a start or restart of the run.
const STARTED: &str = "==== ";

/// What a comparison is notified of.
pub(super) enum Message {
    /// Something happened in the run.
    Event(Event),
    /// The run has ended.
    Ended(Ended),
    /// The comparison was told to stop.
    Signal(StopSignal),
}

/// How a run ended.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ended {
    Exited(i32),
    Killed(i32),
}

impl Ended {
    /// The exit code of this program for such an ending.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Ended::Exited(code) => u8::try_from(code).unwrap_or(exit_code::INTERNAL),
            Ended::Killed(_) => exit_code::INTERNAL,
        }
    }

    /// Why the run failed, if it did: its own last error, or how its process ended.
    pub(super) fn failure(self, directory: &Path) -> Option<String> {
        let how = match self {
            Ended::Exited(0) => return None,
            Ended::Exited(code) => format!("exit code {code}"),
            Ended::Killed(signal) => format!("killed by signal {signal}"),
        };
        let log = directory.join(LOG);
        let said = match self {
            Ended::Exited(_) => last_error(&std::fs::read_to_string(&log).unwrap_or_default()).map(str::to_owned),
            Ended::Killed(_) => None,
        };
        Some(said.unwrap_or_else(|| format!("{how}; see {}", log.display())))
    }
}

/// The last error in a run's log since its last start: an earlier start may have failed for another reason.
fn last_error(log: &str) -> Option<&str> {
    log.lines().rev().take_while(|line| !line.starts_with(STARTED)).find_map(|line| line.strip_prefix("error: "))
}

/// A run in progress.
pub(super) struct Child {
    pid: Pid,
}

impl Child {
    /// Starts a run that writes its results to a directory. Must be called on the main thread: the kernel ties children
    /// to the thread that created them.
    pub(super) fn start(
        arguments: &[String],
        directory: &Path,
        messages: &mpsc::Sender<Message>,
    ) -> Result<Self, Failure> {
        let log = OpenOptions::new().create(true).append(true).open(directory.join(LOG));
        let unwritable = |error| Failure::usage(format!("cannot write {LOG}: {error}"));
        let mut log: File = log.map_err(unwritable)?;
        writeln!(log, "{STARTED}{}", arguments.join(" ")).map_err(unwritable)?;
        let mut command = own_program()?;
        command.args(arguments).arg("--run-dir").arg(directory).args(["--format", "json"]);
        command.args(verbosity::passed_on());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C reaches only this process, which passes it on once.
        command.process_group(0);
        tie(&mut command, Signal::TERM);
        let mut child = command.spawn().map_err(|error| Failure::internal(format!("cannot start a run: {error}")))?;
        let pid = Pid::from_child(&child);
        let stdout = child.stdout.take();
        let messages = messages.clone();
        std::thread::spawn(move || {
            stdout.into_iter().for_each(|stdout| listen(stdout, &messages));
            let ended = match child.wait() {
                Ok(status) => status.code().map_or(Ended::Killed(status.signal().unwrap_or(0)), Ended::Exited),
                Err(_) => Ended::Killed(0),
            };
            let _ = messages.send(Message::Ended(ended));
        });
        Ok(Self { pid })
    }

    /// Passes a signal on.
    pub(super) fn signal(&self, signal: StopSignal) {
        let signal = match signal {
            StopSignal::Interrupt => Signal::INT,
            StopSignal::Terminate => Signal::TERM,
            StopSignal::HangUp => Signal::HUP,
            StopSignal::User => Signal::USR1,
        };
        let _ = kill_process(self.pid, signal);
    }
}

fn listen(stdout: ChildStdout, messages: &mpsc::Sender<Message>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        if let Ok(event) = serde_json::from_str(&line) {
            let _ = messages.send(Message::Event(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_killed_is_not_told_as_the_failure_of_an_earlier_start() {
        let failed = "==== train\nerror: port 2222 is in use\nhint: try another\n";
        assert_eq!(last_error(failed), Some("port 2222 is in use"));
        assert_eq!(last_error(&format!("{failed}==== train\ncomputing\n")), None);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(LOG), failed).unwrap();
        let killed = Ended::Killed(9).failure(directory.path()).unwrap();
        assert!(killed.starts_with("killed by signal 9; see "), "{killed}");
    }
}
