//! A task as a child process: starting it, reading its events, ending it.
//!
//! A child inherits the listening socket of its task, so that its port is taken before it starts and tasks can connect
//! to each other in any order. The kernel ends it if the launcher dies, whatever kills the launcher.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal};
use windlass_core::cluster::{Job, TaskId};
use windlass_worker::event::Event;

use super::inbox::{Message, Outbox};
use super::processes::Processes;
use crate::config::{COMMAND_VARIABLE, command_line};
use crate::failure::Failure;
use crate::in_graph::CLIENT;
use crate::logging::Remark;
use crate::output::{self, Trainers};
use crate::run_file::RunFile;
use crate::signals::unix_seconds;
use crate::tied::tie;

/// The prefix of the line in a log that marks a start or restart of the task.
pub(super) const STARTED: &str = "==== ";

/// As many events as a pipe holds: a task may have ended, with the reason in its log, before the launcher reads its
/// events.
const MOST_LATE: usize = 512;

/// The variable that passes the inherited listening socket to a child.
const LISTENER_VARIABLE: &str = "WINDLASS_LISTENER";

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
}

/// The tasks to start and restart. The listeners stay open here, so that no connection is refused in between.
pub(super) struct Plan {
    pub(super) run_dir: PathBuf,
    /// The settings, which every task reads.
    pub(super) run_file: RunFile,
    pub(super) arguments: Vec<OsString>,
    /// How to start the workers of an in-graph run, which join and receive everything from its client.
    pub(super) joined: Option<Vec<OsString>>,
    /// The task of that client.
    pub(super) client: Option<TaskId>,
    /// Whom events refer to as workers.
    pub(super) trainers: Trainers,
    /// The joined workers that every step needs, because they have stages of the model.
    pub(super) needed: BTreeSet<TaskId>,
    /// Variables that tasks must not inherit: their settings are in the file.
    pub(super) variables: Vec<String>,
    pub(super) listeners: Vec<(TaskId, TcpListener)>,
    pub(super) messages: Outbox,
    pub(super) processes: Processes,
}

/// A task's process.
pub(super) struct Child {
    pub(super) task: TaskId,
    /// The name shown to users.
    pub(super) name: String,
    pub(super) log: PathBuf,
    /// An open handle to the same log, which can be read even if its directory was removed.
    file: File,
    told: Told,
    processes: Processes,
    running: bool,
}

/// The recent events of a task, in the words that were added to its log.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<VecDeque<String>>>);

impl Told {
    fn add(&self, text: String) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= MOST_LATE {
            told.pop_front();
        }
        told.push_back(text);
    }

    /// The lines that the task itself wrote, among the last lines of its log, without the events that the launcher
    /// added in between.
    fn own_words<'a>(&self, lines: &[&'a str]) -> Vec<&'a str> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |line: &&&str| !told.iter().flat_map(|text| text.lines()).any(|told| told == **line);
        lines.iter().filter(is_own).copied().collect()
    }
}

impl Plan {
    /// Starts every task. Must be called on the main thread: the kernel ties children to the thread that made them.
    pub(super) fn start(&self) -> Result<Vec<Child>, Failure> {
        let mut children = Vec::new();
        for (task, listener) in &self.listeners {
            let log = match self.is_client(*task) {
                true => self.run_dir.join("client.log"),
                false => self.run_dir.join(format!("{}-{}.log", task.job, task.index)),
            };
            match self.start_task(*task, false, listener, &log) {
                Ok(child) => children.push(child),
                Err(error) => {
                    children.iter().for_each(Child::kill);
                    return Err(Failure::internal(format!("cannot start {}: {error}", self.name(*task))));
                }
            }
        }
        Ok(children)
    }

    /// Restarts a task that has ended, on the main thread, too. It appends to the same log.
    pub(super) fn start_again(&self, child: &mut Child) -> std::io::Result<()> {
        let listener = self.listeners.iter().find(|(task, _)| *task == child.task).map(|(_, listener)| listener);
        let listener = listener.ok_or(std::io::ErrorKind::NotFound)?;
        self.run_file.ensure()?;
        *child = self.start_task(child.task, true, listener, &child.log)?;
        Ok(())
    }

    pub(super) fn is_client(&self, task: TaskId) -> bool {
        self.client == Some(task)
    }

    /// Whether a task is a worker that joined the client and computes what the client sends.
    pub(super) fn is_joined(&self, task: TaskId) -> bool {
        self.joined.is_some() && task.job == Job::Worker && !self.is_client(task)
    }

    /// The name of a task as shown to users.
    pub(super) fn name(&self, task: TaskId) -> String {
        if self.is_client(task) { CLIENT.to_owned() } else { task.to_string() }
    }

    /// The command line of a task; `again` marks a restart.
    fn command_line(&self, task: TaskId, again: bool, listener: &TcpListener) -> std::io::Result<Vec<OsString>> {
        let place = |flag: &str| [OsString::from(flag), task.index.to_string().into()];
        if let Some(joined) = self.joined.as_ref().filter(|_| self.is_joined(task)) {
            let listen = ["--listen".into(), listener.local_addr()?.to_string().into()];
            return Ok(joined.iter().cloned().chain(listen).chain(place("--task-index")).collect());
        }
        let mut arguments = self.arguments.clone();
        if again {
            arguments.push("--restarted".into());
        }
        if !self.is_client(task) {
            arguments.extend(["--job-name".into(), task.job.to_string().into()]);
            arguments.extend(place("--task-index"));
        }
        Ok(arguments)
    }

    fn start_task(&self, task: TaskId, again: bool, listener: &TcpListener, log: &Path) -> std::io::Result<Child> {
        // Appended to, because what an earlier run logged here may be the reason why this one was started.
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(log)?;
        writeln!(file, "{STARTED}{} at {}", self.name(task), now())?;
        let kept = file.try_clone()?;
        let mut command = Command::new(std::env::current_exe()?);
        for variable in &self.variables {
            command.env_remove(variable);
        }
        command
            .args(self.command_line(task, again, listener)?)
            .env(LISTENER_VARIABLE, listener.as_raw_fd().to_string())
            .env(COMMAND_VARIABLE, command_line())
            .env_remove("TF_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file.try_clone()?)
            .process_group(0);
        tie(&mut command, Signal::KILL);
        leave_listener(&mut command, listener.as_fd());
        let mut process = command.spawn()?;
        let pid = Pid::from_child(&process);
        let stdout = process.stdout.take();
        let (messages, processes, trainers) = (self.messages.clone(), self.processes.clone(), self.trainers);
        let told = Told::default();
        let tells = told.clone();
        processes.started(task, pid);
        std::thread::spawn(move || {
            if let Some(stdout) = stdout {
                listen(stdout, file, trainers, &tells, &messages);
            }
            let ended = match process.wait() {
                Ok(status) => status.code().map_or(Ended::Killed(status.signal().unwrap_or(0)), Ended::Exited),
                Err(_) => Ended::Exited(1),
            };
            processes.ended(task, pid);
            messages.send(Message::Ended(task, ended));
        });
        let name = self.name(task);
        Ok(Child {
            task,
            name,
            log: log.to_owned(),
            file: kept,
            told,
            processes: self.processes.clone(),
            running: true,
        })
    }
}

impl Child {
    pub(super) fn is_running(&self) -> bool {
        self.running
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.processes.is_suspended(self.task)
    }

    pub(super) fn ended(&mut self) {
        self.running = false;
    }

    /// The contents of its log.
    pub(super) fn log_text(&self) -> String {
        let mut bytes = Vec::new();
        let mut chunk = [0; 1 << 16];
        while let Ok(count @ 1..) = self.file.read_at(&mut chunk, bytes.len() as u64) {
            bytes.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The lines that the task itself wrote, among the last lines of its log, without its events.
    pub(super) fn own_words<'a>(&self, lines: &[&'a str]) -> Vec<&'a str> {
        self.told.own_words(lines)
    }

    /// Asks the process to end, unless it has been asked before.
    pub(super) fn terminate(&self) {
        self.processes.terminate(self.task);
    }

    /// Kills the process.
    pub(super) fn kill(&self) {
        self.processes.kill(self.task);
    }
}

/// The date and time for the log.
fn now() -> String {
    let time = chrono::DateTime::from_timestamp(unix_seconds() as i64, 0).unwrap_or_default();
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Lets a child inherit its listener.
#[allow(unsafe_code)]
fn leave_listener(command: &mut Command, listener: BorrowedFd<'_>) {
    let listener = listener.as_raw_fd();
    let prepare = move || {
        // SAFETY: the listener is open in the launcher until after the child has been made, and so in its copy.
        let listener = unsafe { BorrowedFd::borrow_raw(listener) };
        rustix::io::fcntl_setfd(listener, rustix::io::FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(prepare) };
}

/// The listening socket that the launcher passed to this process. It can be taken only once.
#[allow(unsafe_code)]
pub(crate) fn inherited_listener() -> Option<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let descriptor: i32 = std::env::var(LISTENER_VARIABLE).ok()?.parse().ok().filter(|descriptor| *descriptor > 2)?;
    if TAKEN.swap(true, Ordering::SeqCst) {
        return None;
    }
    // SAFETY: the launcher opened this descriptor for this process, and it is taken only once.
    let listener = unsafe { OwnedFd::from_raw_fd(descriptor) };
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::CLOEXEC).ok()?;
    Some(TcpListener::from(listener))
}

/// Forwards a task's events, and adds them to its log in words.
fn listen(stdout: ChildStdout, mut log: File, trainers: Trainers, told: &Told, messages: &Outbox) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str::<Event>(&line) {
            Ok(event) => {
                // The task has already logged its notices.
                if !matches!(event, Event::Progress(_) | Event::Notice { .. }) {
                    // In one write, because the task writes to the same file.
                    let text = output::human(&event, trainers) + "\n";
                    let _ = log.write_all(text.as_bytes());
                    told.add(text);
                }
                messages.send(Message::Event(event));
            }
            Err(_) => match serde_json::from_str::<Remark>(&line) {
                // The task has already logged this, too.
                Ok(Remark { remark }) => {
                    messages.send(Message::Remark(remark));
                }
                Err(_) => {
                    let _ = writeln!(log, "{line}");
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_tells_while_it_fails_is_not_taken_for_its_last_words() {
        let told = Told::default();
        told.add("worker 0 finished: 600 steps\n".to_owned());
        told.add(" run    linear on 1 ps\n steps  600\n\nwrote run/summary.json\n".to_owned());
        let log = ["error: the disk is full", " run    linear on 1 ps", " steps  600", "", "hint: make room"];
        assert_eq!(told.own_words(&log), ["error: the disk is full", "hint: make room"]);
    }

    #[test]
    fn of_what_a_task_tells_only_the_latest_is_kept() {
        let told = Told::default();
        (0..=MOST_LATE).for_each(|step| told.add(format!("step {step}\n")));
        assert_eq!(told.own_words(&["step 0", "step 1", "step 512"]), ["step 0"]);
    }
}
