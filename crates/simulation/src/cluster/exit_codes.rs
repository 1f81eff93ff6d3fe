//! Which exit codes what went wrong explains.

use windlass_core::cluster::TaskId;
use windlass_core::lifecycle::exit_code;

use super::Cluster;

impl Cluster {
    /// Whether all tasks have ended with an exit code that what went wrong explains.
    pub(super) fn check_exit_codes(&mut self) {
        let checkpoints = self.world.scenario.checkpoints.is_some();
        let failed = self.exit_codes.values().any(|code| !matches!(*code, 0 | exit_code::PEERS));
        for (task, code) in self.exit_codes.clone() {
            let (task_away, coordinator_away) = (self.away.contains_key(&task), self.away.contains_key(&TaskId::ps(0)));
            let was_away = task_away || coordinator_away;
            // Its claim may not have been released, or not have said in which generation the run began.
            let unrecorded = task_away && coordinator_away;
            let right = match code {
                0 => true,
                exit_code::TERMINATED => self.stopped,
                // A run whose last checkpoint could not be written, because the store or a server was away just then.
                exit_code::CHECKPOINT => checkpoints && (self.store_failed || self.server_lost || self.stopped),
                // Whoever was away when a run failed knows no more than that; and without checkpoints a run does not
                // outlive its servers or all of its workers.
                exit_code::PEERS => {
                    let excused = failed && was_away || unrecorded || self.lost_at_the_end || self.stopped;
                    let excused = excused || self.unknown.contains(&task) && !checkpoints;
                    excused || !checkpoints && !self.away.is_empty()
                }
                _ => false,
            };
            if !right {
                self.world.watch.fail(|| format!("{task} ended with exit code {code}"));
            }
        }
    }
}
