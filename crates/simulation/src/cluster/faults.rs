//! Carries out the faults of a simulated cluster.

use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::exit_code;

use super::Cluster;
use crate::scenario::{Fault, Scenario, Whom};
use crate::store::Trouble;
use crate::world::{Event, Happening, Pid};

/// A process paused for less than this is not missed: a task that has lost its connection has a second to reconnect.
const UNNOTICED: Duration = Duration::from_millis(500);

impl Cluster {
    /// Carries out a fault.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.say(|| format!("{fault:?}"));
        let now = self.world.now;
        match fault {
            Fault::Store(trouble, lasts) => {
                // These only delay reading and publishing.
                self.store_failed |= !matches!(trouble, Trouble::Unreadable | Trouble::SlowToPublish);
                self.world.store.fail(trouble, now + lasts);
            }
            Fault::Stop(whom) => self.stop(whom),
            Fault::ScaleDown(task) => {
                let Some(pid) = self.living(task) else { return };
                self.world.conditions[pid].alive = false;
                self.world.disconnect(pid, Duration::ZERO);
                self.note_away(task);
                self.exit_codes.insert(task, exit_code::TERMINATED);
                self.scaled_down.insert(task);
            }
            Fault::Kill(task, lasts, vanishes) => self.kill(task, lasts, vanishes),
            Fault::Pause(task, lasts) => self.pause(task, lasts),
            Fault::CutOff(task, lasts) => {
                let Some(pid) = self.living(task) else { return };
                let cut_off_until = &mut self.world.conditions[pid].cut_off_until;
                *cut_off_until = (*cut_off_until).max(now + lasts);
                // Even if it is short: a task that tries to connect just then notices only seconds later.
                self.note_away(task);
                if lasts > Duration::from_secs(8) {
                    let at = Duration::from_secs(8);
                    self.world.disconnect(pid, at);
                }
            }
            Fault::Disconnect(task) => {
                let Some(pid) = self.living(task) else { return };
                self.world.disconnect(pid, Duration::ZERO);
            }
        }
    }

    fn stop(&mut self, whom: Whom) {
        let now = self.world.now;
        let Scenario { servers, workers, .. } = self.world.scenario;
        let tasks = (0..servers).map(TaskId::ps).chain((0..workers).map(TaskId::worker));
        for task in tasks.filter(|task| self.living(*task).is_none()).collect::<Vec<_>>() {
            self.some_were_away_at_stop = true;
            self.stopped_some |= task == TaskId::ps(0) || whom.includes(task);
        }
        for pid in 0..self.processes.len() {
            let tasks = self.processes[pid].tasks();
            if tasks.iter().any(|task| whom.includes(*task)) && self.world.conditions[pid].alive {
                let at = now + self.world.random.millis(0, 50);
                self.world.at(at, Event::To(pid, Happening::Stop));
                self.stopped.extend(tasks);
            }
        }
    }

    fn kill(&mut self, task: TaskId, lasts: Duration, vanishes: bool) {
        let now = self.world.now;
        let Some(pid) = self.living(task) else { return };
        self.world.conditions[pid].alive = false;
        let after = if vanishes { Duration::from_secs(10) } else { Duration::ZERO };
        self.world.disconnect(pid, after);
        let task = if self.world.scenario.colocated { TaskId::ps(task.index) } else { task };
        self.note_away(task);
        self.killed.insert(task, now);
        // Tasks that were told that training is done have exited, so a server lost after that is not replaced.
        self.lost_at_the_end |= task.job == Job::Ps && !self.exit_codes.is_empty();
        // A task that was told to stop, or whose run is over, is not restarted.
        let coordinator = self.processes[pid].coordinator.as_ref();
        let over = coordinator.and_then(|coordinator| coordinator.exit_code(&self.world));
        if self.stopped.contains(&task) || over.is_some() {
            let code = over.unwrap_or(exit_code::TERMINATED);
            self.exit_codes.insert(task, code);
            if self.world.scenario.colocated {
                self.exit_codes.insert(TaskId::worker(task.index), code);
            }
        } else {
            self.world.at(now + lasts, Event::Start(task));
        }
    }

    fn pause(&mut self, task: TaskId, lasts: Duration) {
        let now = self.world.now;
        let Some(pid) = self.living(task) else { return };
        // A second pause must not end the first early: the events that the first holds back would come after later
        // ones.
        let paused_until = &mut self.world.conditions[pid].paused_until;
        *paused_until = (*paused_until).max(now + lasts);
        let (since, until) = self.paused.entry(task).or_insert((now, now));
        *since = if now > *until { now } else { *since };
        *until = (*until).max(now + lasts);
        if *until - *since >= UNNOTICED {
            self.note_away(task);
        }
    }

    fn note_away(&mut self, task: TaskId) {
        let tasks = [task, TaskId::ps(task.index), TaskId::worker(task.index)];
        self.away.extend(tasks.iter().take(if self.world.scenario.colocated { 3 } else { 1 }));
        self.server_lost |= task.job == Job::Ps || self.world.scenario.colocated;
    }

    fn living(&self, task: TaskId) -> Option<Pid> {
        self.world.directory.get(&task).copied().filter(|pid| self.world.conditions[*pid].alive)
    }
}
