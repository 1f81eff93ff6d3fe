//! How the coordinator takes checkpoints: stage by stage during training, and the last one before a run ends.

use std::time::Duration;

use tracing::warn;
use windlass_checkpoint::CheckpointError;
use windlass_core::checkpoint::{Next, Setback, SetbackKind};
use windlass_core::cluster::{Job, ServerId, TaskId};
use windlass_core::lifecycle::{Outcome, Phase, exit_code};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{Abandon, Cut, Mark, Waiting};

use super::checkpoints::Checkpoints;
use crate::NOTICE;
use crate::checkpoint::{Part, store_patience};
use crate::coordinator::interface::{Effect, Event, OwnShard};
use crate::coordinator::machine::{Coordinator, SPEAK_EVERY};

/// The number of attempts at the last checkpoint when something fails.
const ATTEMPTS: u32 = 3;
/// How long the last checkpoint is retried when servers miss the cut.
const LONGEST: Duration = Duration::from_secs(30);

/// The progress of the last checkpoint of a run.
#[derive(Debug)]
pub(in crate::coordinator) struct LastCheckpoint {
    /// When the first attempt began.
    began: Option<Duration>,
    /// The number of the last attempt.
    attempt: Option<u64>,
    written: bool,
    failures: u32,
    /// Why the latest attempt failed.
    reason: String,
}

impl LastCheckpoint {
    fn new() -> Self {
        Self { began: None, attempt: None, written: false, failures: 0, reason: String::new() }
    }

    fn set_back(&mut self, setback: Setback) {
        self.failures += match setback.kind {
            SetbackKind::Missed => 0,
            SetbackKind::Failed => 1,
            SetbackKind::Stalled => ATTEMPTS,
        };
        self.reason = setback.reason;
    }

    /// True if there is no point in another attempt.
    fn is_hopeless(&self, now: Duration) -> bool {
        self.failures >= ATTEMPTS || self.began.is_some_and(|began| now.saturating_sub(began) > LONGEST)
    }
}

impl<S: OwnShard> Coordinator<S> {
    /// Lets the checkpoints decide what is next, and does it.
    pub(in crate::coordinator) fn checkpoint(&mut self, decide: impl FnOnce(&mut Checkpoints) -> Option<Next<Part>>) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let Some(next) = decide(checkpoints) else { return };
        let number = checkpoints.cycle().number();
        let servers = checkpoints.cycle().servers().clone();
        let has_part = |task: TaskId| task.job == Job::Ps && servers.contains(&ServerId(task.index));
        match next {
            Next::Mark => self.members.tell(has_part, &Kind::Mark(Mark { number })),
            Next::Cut(cut) => {
                let id = checkpoints.name(&cut, self.positions.clone()).to_string();
                let cut = serde_json::to_string(&cut).unwrap_or_default();
                self.members.tell(has_part, &Kind::Cut(Cut { number, id, cut }));
            }
            Next::Publish(parts) => {
                let Some((_, run)) = &self.run else { return };
                // A checkpoint that was begun before the end is not the last, even if the run has ended meanwhile.
                let is_own = self.saving.as_ref().is_some_and(|saving| saving.attempt == Some(number));
                let last = is_own && ends_well(self.lifecycle.phase());
                self.effects.extend(checkpoints.publish(run, parts, last));
                if is_own {
                    self.lifecycle.parts_written();
                }
            }
            Next::Abandon(setback) => {
                self.set_back(setback);
                self.members.tell(has_part, &Kind::Abandon(Abandon { number }));
            }
            Next::Overdue(setback) => self.not_published(setback),
        }
    }

    /// Notes that a checkpoint was not published. If it was to be the last, a server may have been lost meanwhile.
    fn not_published(&mut self, setback: Setback) {
        self.set_back(setback);
        let decisions = self.lifecycle.not_published();
        self.carry_out(decisions);
    }

    /// Notes that an attempt at a checkpoint failed.
    fn set_back(&mut self, setback: Setback) {
        match setback.kind {
            SetbackKind::Missed => self.history.missed += 1,
            SetbackKind::Failed | SetbackKind::Stalled => self.history.not_saved(self.now, &setback.reason),
        }
        match &mut self.saving {
            Some(saving) => {
                warn!(target: NOTICE, "checkpoint failed: {}", setback.reason);
                saving.set_back(setback);
            }
            // If servers only missed the cut, nothing is wrong, and the next attempt follows at once.
            None if setback.kind == SetbackKind::Missed => {
                warn!("checkpoint failed: {}; trying again soon", setback.reason)
            }
            None => warn!(
                target: NOTICE,
                "checkpoint failed: {}; training continues, and earlier checkpoints are kept",
                setback.reason
            ),
        }
    }

    /// Handles the result of work in the store.
    pub(in crate::coordinator) fn stored(&mut self, event: Event) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        match event {
            // The process that has taken over continues the run, and what is trained here could never be saved.
            Event::Overtaken(error) | Event::Published(_, Err(error @ CheckpointError::Fenced { .. })) => {
                let decisions = self.lifecycle.overtaken(unusable(&error));
                self.carry_out(decisions);
            }
            Event::Published(number, published) => self.published(number, published),
            Event::Released => checkpoints.released(),
            Event::Found(lookup, _) if !checkpoints.is_last_look(lookup) => {}
            Event::Found(_, Ok(found)) => {
                if found.finished {
                    self.lifecycle.finished_before();
                }
                self.effects.push(Effect::BeganIn(found.first_generation));
                checkpoints.begin_from(*found);
                self.note_if_more_is_wanted();
                if self.looking.take() == Some(true) {
                    self.prepare();
                }
            }
            Event::Found(_, Err(error)) => {
                let patience = store_patience(self.config.peer_timeout);
                if !checkpoints.is_looked_for_again(&error, self.now, patience) {
                    self.refuse_to_begin(unusable(&error));
                }
            }
            _ => {}
        }
    }

    /// Notes the progress of a lookup, retries it, and gives it up when it takes too long.
    pub(in crate::coordinator) fn go_on_looking(&mut self, has_read_on: bool) {
        let (now, patience) = (self.now, store_patience(self.config.peer_timeout));
        let is_waiting = matches!(self.lifecycle.phase(), Phase::Gathering | Phase::Preparing);
        let Some(checkpoints) = self.checkpoints.as_mut().filter(|_| self.looking.is_some() && is_waiting) else {
            return;
        };
        if has_read_on {
            checkpoints.read_on(now);
            self.lifecycle.progressed(now);
        }
        self.effects.extend(checkpoints.look_if_due(now));
        if let Some(outcome) = checkpoints.gives_up_looking(now, patience) {
            self.refuse_to_begin(outcome);
        }
    }

    fn published(&mut self, number: u64, published: Result<windlass_checkpoint::CheckpointId, CheckpointError>) {
        let Some(checkpoints) = &mut self.checkpoints else { return };
        let (awaited, saved) = checkpoints.published(number, &published, self.now);
        saved.into_iter().for_each(|saved| self.history.saved(saved));
        if let Some(saving) = self.saving.as_mut().filter(|saving| saving.attempt == Some(number)) {
            saving.written |= published.is_ok();
        }
        if let Err(error) = published
            && awaited
        {
            self.not_published(Setback { reason: error.to_string(), kind: SetbackKind::Failed });
        }
        if matches!(self.lifecycle.phase(), Phase::Saving(_)) {
            self.save();
        }
    }

    /// Writes the last checkpoint, after any that is under way. Once it is written, or cannot be, the run is over.
    pub(in crate::coordinator) fn save(&mut self) {
        let (now, step, ends_well) = (self.now, self.step(), ends_well(self.lifecycle.phase()));
        let saving = self.saving.get_or_insert_with(|| {
            self.spoken_of_checkpoint = self.now;
            LastCheckpoint::new()
        });
        let decisions = match &mut self.checkpoints {
            Some(checkpoints) if checkpoints.is_busy() => return,
            Some(checkpoints) if !saving.written && !checkpoints.is_saved(step, ends_well) => {
                if !saving.is_hopeless(now) {
                    saving.began.get_or_insert(now);
                    saving.attempt = Some(checkpoints.cycle().number() + 1);
                    return self.checkpoint(|checkpoints| checkpoints.cycle().begin(now, step));
                }
                self.lifecycle.not_saved(&saving.reason)
            }
            _ => self.lifecycle.saved(),
        };
        self.carry_out(decisions);
    }

    /// Continues the last checkpoint until it is written or has failed.
    pub(in crate::coordinator) fn go_on_saving(&mut self, now: Duration) {
        self.checkpoint(|checkpoints| checkpoints.cycle().tick(now));
        // If a server was lost meanwhile, the run may return to training instead.
        if matches!(self.lifecycle.phase(), Phase::Saving(_)) {
            self.save();
        }
    }

    /// Reports what a checkpoint waits for: to all tasks, if the end of the run waits for it.
    pub(in crate::coordinator) fn mention_checkpoint(&mut self) {
        if self.now.saturating_sub(self.spoken_of_checkpoint) < SPEAK_EVERY {
            return;
        }
        let wait = self.checkpoints.as_mut().and_then(|checkpoints| checkpoints.cycle().describe_wait());
        let saves = matches!(self.lifecycle.phase(), Phase::Saving(_));
        match wait {
            Some(wait) if !saves => warn!("{wait}"),
            None if !saves => return,
            // Tasks that were told to stop stay as long as they keep receiving this.
            wait => {
                let (tasks, notices) = match wait {
                    Some(wait) => (Vec::new(), vec![wait]),
                    None => (vec!["the last checkpoint to be written".to_owned()], Vec::new()),
                };
                self.members.mention(&Kind::Waiting(Waiting { tasks, notices }));
            }
        }
        self.spoken_of_checkpoint = self.now;
    }
}

/// True once the run has ended well but for its last checkpoint.
fn ends_well(phase: &Phase) -> bool {
    matches!(phase, Phase::Saving(outcome) if outcome.exit_code == 0)
}

/// Returns how a run ends if its checkpoints cannot be written or read.
pub(in crate::coordinator) fn unusable(error: &CheckpointError) -> Outcome {
    let exit_code = match error {
        CheckpointError::BadLocation { .. } | CheckpointError::NotWritable { .. } => exit_code::USAGE,
        _ => exit_code::CHECKPOINT,
    };
    Outcome { exit_code, reason: error.with_hint() }
}

#[cfg(test)]
#[path = "saving_tests.rs"]
mod tests;
