//! The tasks' processes, shared by the two threads that signal them: the launcher, which may be busy showing events,
//! and the thread that handles signals and must not wait for that.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use windlass_core::cluster::TaskId;

/// The processes that are not yet known to have ended.
#[derive(Clone, Default)]
pub(super) struct Processes(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    living: BTreeMap<TaskId, Process>,
    /// Whether they are about to end anyway: tasks that were already told to stop take a second signal as an order to
    /// end at once.
    are_ending: bool,
}

struct Process {
    pid: Pid,
    was_told: bool,
}

impl Processes {
    pub(super) fn started(&self, task: TaskId, pid: Pid) {
        self.lock().living.insert(task, Process { pid, was_told: false });
    }

    pub(super) fn ended(&self, task: TaskId, pid: Pid) {
        let mut known = self.lock();
        if known.living.get(&task).is_some_and(|process| process.pid == pid) {
            known.living.remove(&task);
        }
    }

    /// Notes that the run is ending: from now on only the launcher tells tasks to stop.
    pub(super) fn are_ending(&self) {
        self.lock().are_ending = true;
    }

    /// Asks all processes to end, unless the run is already ending.
    pub(super) fn terminate_all_if_running(&self) {
        let mut known = self.lock();
        if !known.are_ending {
            known.living.values_mut().for_each(Process::terminate);
        }
    }

    /// Asks a process to end, once.
    pub(super) fn terminate(&self, task: TaskId) {
        self.lock().living.get_mut(&task).into_iter().for_each(Process::terminate);
    }

    /// Whether a process is suspended, and does nothing until it is continued. Detected only on Linux.
    pub(super) fn is_suspended(&self, task: TaskId) -> bool {
        self.lock().living.get(&task).is_some_and(Process::is_suspended)
    }

    /// Kills a process.
    pub(super) fn kill(&self, task: TaskId) {
        self.lock().living.get(&task).into_iter().for_each(Process::kill);
    }

    /// Kills all processes.
    pub(super) fn kill_all(&self) {
        self.lock().living.values().for_each(Process::kill);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    fn terminate(&mut self) {
        if !std::mem::replace(&mut self.was_told, true) {
            let _ = kill_process(self.pid, Signal::TERM);
        }
    }

    fn is_suspended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_pid())).unwrap_or_default();
        // The name before the state is in parentheses, and may contain any character.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}
