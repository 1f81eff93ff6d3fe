//! What goes wrong with the processes of a simulated cluster.

use std::time::Duration;

use windlass_core::cluster::{Job, TaskId};
use windlass_core::lifecycle::exit_code;

use super::Cluster;
use crate::scenario::Fault;
use crate::world::{Event, Happening, Pid};

impl Cluster {
    /// Lets something go wrong.
    pub(super) fn fault(&mut self, fault: Fault) {
        self.say(|| format!("{fault:?}"));
        let now = self.world.now;
        match fault {
            Fault::Store(trouble, lasts) => {
                self.store_failed = true;
                self.world.store.fail(trouble, now + lasts);
            }
            Fault::Stop => {
                self.stopped = true;
                for pid in 0..self.processes.len() {
                    let at = now + self.world.random.millis(0, 50);
                    self.world.at(at, Event::To(pid, Happening::Stop));
                }
            }
            Fault::Kill(task, lasts, vanishes) => {
                let Some(pid) = self.living(task) else { return };
                self.world.conditions[pid].alive = false;
                let after = if vanishes { Duration::from_secs(10) } else { Duration::ZERO };
                self.world.disconnect(pid, after);
                let task = if self.world.scenario.colocated { TaskId::ps(task.index) } else { task };
                self.note_away(task, now + lasts);
                self.server_lost |= task.job == Job::Ps;
                // Whoever has heard that training is done has gone, and a server lost after that is not made up for.
                self.lost_at_the_end |= task.job == Job::Ps && !self.exit_codes.is_empty();
                // Nobody starts again what was told to stop, or a run that is over.
                let coordinator = self.processes[pid].coordinator.as_ref();
                let over = coordinator.and_then(|coordinator| coordinator.exit_code(&self.world));
                if self.stopped || over.is_some() {
                    let code = over.unwrap_or(exit_code::TERMINATED);
                    self.exit_codes.insert(task, code);
                    if self.world.scenario.colocated {
                        self.exit_codes.insert(TaskId::worker(task.index), code);
                    }
                } else {
                    self.world.at(now + lasts, Event::Start(task));
                }
            }
            Fault::Pause(task, lasts) => {
                let Some(pid) = self.living(task) else { return };
                // A second pause does not end the first: what waits for its end would come after what is sent later.
                let paused_until = &mut self.world.conditions[pid].paused_until;
                *paused_until = (*paused_until).max(now + lasts);
                self.note_away(task, now + lasts);
            }
            Fault::CutOff(task, lasts) => {
                let Some(pid) = self.living(task) else { return };
                self.world.conditions[pid].cut_off_until = now + lasts;
                self.note_away(task, now + lasts);
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

    fn note_away(&mut self, task: TaskId, until: Duration) {
        let tasks = [task, TaskId::ps(task.index), TaskId::worker(task.index)];
        for task in tasks.iter().take(if self.world.scenario.colocated { 3 } else { 1 }) {
            let known = self.away.entry(*task).or_default();
            *known = (*known).max(until);
        }
        self.server_lost |= task.job == Job::Ps || self.world.scenario.colocated;
    }

    fn living(&self, task: TaskId) -> Option<Pid> {
        self.world.directory.get(&task).copied().filter(|pid| self.world.conditions[*pid].alive)
    }
}
