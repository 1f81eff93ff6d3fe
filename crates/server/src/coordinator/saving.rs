//! How the coordinator takes checkpoints: step by step while others train, and the last one before a run ends.

use std::time::Duration;

use tracing::warn;
use windlass_checkpoint::CheckpointError;
use windlass_core::checkpoint::Next;
use windlass_core::lifecycle::{Outcome, Phase, exit_code};
use windlass_wire::control::coordinator_message::Kind;
use windlass_wire::control::{Abandon, Cut, Mark};

use super::checkpoints::{Checkpoints, Done};
use super::{Coordinator, is_server};
use crate::checkpoint::Part;

/// How long the last checkpoint may take before the run ends without it.
const SAVE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often it is tried.
const SAVE_ATTEMPTS: u32 = 3;

impl Coordinator {
    /// Lets the checkpoints decide what is next, and does it.
    pub(super) fn checkpoint(&mut self, decide: impl FnOnce(&mut Checkpoints) -> Option<Next<Part>>) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let Some(next) = decide(checkpoints) else { return };
        let number = checkpoints.cycle().number();
        match next {
            Next::Mark => self.members.tell(is_server, &Kind::Mark(Mark { number })),
            Next::Cut(cut) => {
                let id = checkpoints.name(&cut, self.positions.clone()).to_string();
                let cut = serde_json::to_string(&cut).unwrap_or_default();
                self.members.tell(is_server, &Kind::Cut(Cut { number, id, cut }));
            }
            Next::Publish(parts) => {
                let Some((_, run)) = &self.run else { return };
                checkpoints.publish(run, parts, ends_well(self.lifecycle.phase()));
            }
            Next::Abandon(reason) => {
                warn!("no checkpoint: {reason}; training goes on, and the last good one stays");
                self.members.tell(is_server, &Kind::Abandon(Abandon { number }));
            }
        }
    }

    pub(super) fn done(&mut self, done: Done) {
        match done {
            // Whoever has taken over goes on with the run, and what is trained here could never be saved.
            Done::Published(Err(error @ CheckpointError::Fenced { .. })) => {
                let effects = self.lifecycle.overtaken(unusable(&error));
                self.carry_out(effects);
            }
            Done::Published(published) => {
                if let Some(checkpoints) = &mut self.checkpoints {
                    checkpoints.published(&published);
                }
                if matches!(self.lifecycle.phase(), Phase::Saving(_)) {
                    self.save();
                }
            }
            Done::Released => {
                if let Some(checkpoints) = &mut self.checkpoints {
                    checkpoints.lease.released();
                }
            }
            Done::Found(Ok(found)) => {
                if let Some(checkpoints) = &mut self.checkpoints {
                    checkpoints.go_back_to(found);
                }
                if self.looking.take() == Some(true) {
                    self.prepare();
                }
            }
            Done::Found(Err(error)) => {
                let effects = self.lifecycle.failed(unusable(&error));
                self.carry_out(effects);
            }
        }
    }

    /// Writes the last checkpoint, after one that is under way; if it is written or cannot be, the run is over.
    pub(super) fn save(&mut self) {
        let (now, step, ends_well) = (self.now(), self.step(), ends_well(self.lifecycle.phase()));
        let (began, attempts) = self.saving.unwrap_or((now, 0));
        self.saving = Some((began, attempts));
        match &mut self.checkpoints {
            Some(checkpoints) if checkpoints.is_busy() => {}
            Some(checkpoints) if attempts < SAVE_ATTEMPTS && !checkpoints.is_saved(step, ends_well) => {
                self.saving = Some((began, attempts + 1));
                self.checkpoint(|checkpoints| checkpoints.cycle().begin(now, step));
            }
            _ => {
                let effects = self.lifecycle.saved();
                self.carry_out(effects);
            }
        }
    }

    /// Sees to it that the last checkpoint comes to an end.
    pub(super) fn go_on_saving(&mut self, now: Duration) {
        if self.saving.is_some_and(|(began, _)| now.saturating_sub(began) > SAVE_TIMEOUT) {
            warn!("the last checkpoint takes too long; ending without it");
            let effects = self.lifecycle.saved();
            self.carry_out(effects);
        } else {
            self.checkpoint(|checkpoints| checkpoints.cycle().tick(now));
            self.save();
        }
    }
}

/// True once the run has ended well but for its last checkpoint.
fn ends_well(phase: &Phase) -> bool {
    matches!(phase, Phase::Saving(outcome) if outcome.exit_code == 0)
}

/// How a run ends whose checkpoints cannot be kept or read.
pub(super) fn unusable(error: &CheckpointError) -> Outcome {
    let exit_code = match error {
        CheckpointError::BadLocation { .. } | CheckpointError::NotWritable { .. } => exit_code::USAGE,
        _ => exit_code::CHECKPOINT,
    };
    Outcome { exit_code, reason: error.to_string() }
}
