//! The gate's decisions about cuts: where this shard stands, whether it can be cut there, and which side of the cut a
//! push is on.

use std::time::Duration;

use super::{CutSide, Gate, Request};
use crate::checkpoint::{CutPoint, HOLD, Notes};
use crate::ledger::PushId;
use crate::run::LearningRate;

/// Where a shard stands between a mark and the end of its cut.
#[derive(Debug, Default)]
pub(super) enum CutStage {
    /// No checkpoint is under way.
    #[default]
    None,
    /// No new push is applied until `until`, or until the cut is known. Nothing new has been applied if the version
    /// still is, or is about to become, `at`.
    Held { number: u64, until: Duration, at: u64 },
    /// The cut comes after a round that has not ended yet.
    Coming { number: u64, version: u64 },
    /// The cut has been made: this state is kept.
    Made { number: u64, mark: CutPoint, notes: Notes, learning_rate: LearningRate },
}

impl CutStage {
    /// The number of the current checkpoint.
    fn number(&self) -> Option<u64> {
        match self {
            CutStage::None => None,
            CutStage::Held { number, .. } | CutStage::Coming { number, .. } | CutStage::Made { number, .. } => {
                Some(*number)
            }
        }
    }
}

/// Why a shard cannot be cut.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CutError {
    /// Updates were applied after the hold had ended and before the cut was known.
    #[error("the cut came more than {} ms after the mark", HOLD.as_millis())]
    Late,
    /// The cut cannot be made from this shard's version.
    #[error("this server is at step {at}, and the cut at {cut}")]
    Passed {
        /// The version of this shard.
        at: u64,
        /// The version of the cut.
        cut: u64,
    },
    /// The checkpoint was abandoned, or the run has ended.
    #[error("the checkpoint was abandoned")]
    GivenUp,
}

impl Gate {
    /// Holds back new pushes from now on, and returns the state that this leaves: after the round that is being
    /// applied, if any. Callers need not wait for that round.
    pub fn hold(&mut self, number: u64, now: Duration) -> CutPoint {
        let at = self.comes_to();
        self.cut = CutStage::Held { number, until: now + HOLD, at };
        self.longest_held_up = Duration::ZERO;
        CutPoint { version: at, pushes: self.pushes() }
    }

    /// The version after the round that is being applied, if any.
    fn comes_to(&self) -> u64 {
        self.version() + u64::from(self.applying)
    }

    /// How much longer new pushes are held back.
    pub fn held_for(&self, now: Duration) -> Option<Duration> {
        let CutStage::Held { until, .. } = self.cut else { return None };
        let left = until.saturating_sub(now);
        (!left.is_zero() && !self.closed).then_some(left)
    }

    /// Makes the cut that all servers make. This also works after the hold, if nothing new has been applied.
    pub fn cut(&mut self, number: u64, cut: &CutPoint) -> Result<(), CutError> {
        let stage = std::mem::take(&mut self.cut);
        if !matches!(stage, CutStage::Held { number: held, at, .. } if held == number && at == self.comes_to()) {
            return Err(CutError::Late);
        }
        let at = self.version();
        if !self.has_rounds() {
            let to_come = self.ledger.outstanding_sequences(&cut.pushes);
            let version = self.limit.map_or(at + to_come, |limit| limit.min(at + to_come));
            self.make_cut(number, CutPoint { version, pushes: cut.pushes.clone() });
        } else if at == cut.version && !self.applying {
            self.make_cut(number, CutPoint { version: at, pushes: self.pushes() });
        } else if at + 1 == cut.version {
            self.cut = CutStage::Coming { number, version: cut.version };
        } else {
            return Err(CutError::Passed { at: self.comes_to(), cut: cut.version });
        }
        Ok(())
    }

    /// Makes the cut here, or where the last of these pushes will have arrived; their notes are kept as they arrive.
    fn make_cut(&mut self, number: u64, mark: CutPoint) {
        let notes = self.notes.of(&mark.pushes);
        self.cut = CutStage::Made { number, mark, notes, learning_rate: self.learning_rate };
    }

    /// Makes the cut after the round that has just ended, if the cut belongs there.
    pub(super) fn cut_after_round(&mut self) {
        if let CutStage::Coming { number, version } = self.cut
            && version == self.version()
        {
            self.make_cut(number, CutPoint { version, pushes: self.pushes() });
        }
    }

    /// Returns the state that is kept, once it is complete.
    pub fn cut_made(&self, number: u64) -> Result<Option<(CutPoint, Notes, LearningRate)>, CutError> {
        match &self.cut {
            CutStage::Made { number: made, mark, notes, learning_rate } if *made == number => {
                let outstanding = !self.has_rounds() && !self.ledger.outstanding(&mark.pushes).is_empty();
                Ok((!outstanding).then(|| (mark.clone(), notes.clone(), *learning_rate)))
            }
            CutStage::Coming { number: coming, .. } if *coming == number => Ok(None),
            _ => Err(CutError::GivenUp),
        }
    }

    /// True while this cut is still wanted.
    pub fn is_cutting(&self, number: u64) -> bool {
        self.cut.number() == Some(number) && !self.closed
    }

    /// Ends the hold or the cut with this number. False if another one or none is under way.
    pub fn end_cut(&mut self, number: u64) -> bool {
        let ends = self.cut.number() == Some(number);
        if ends {
            self.cut = CutStage::None;
        }
        ends
    }

    /// Records how long a checkpoint has held up a push.
    pub fn note_held_up(&mut self, held_up: Duration) {
        self.longest_held_up = self.longest_held_up.max(held_up);
    }

    /// The longest time that the last checkpoint has held up a push.
    pub fn longest_held_up(&self) -> Duration {
        self.longest_held_up
    }

    /// The side of the cut that a push is on.
    pub(super) fn side(&self, request: &Request) -> CutSide {
        match &self.cut {
            CutStage::Made { number, mark, .. } => {
                let kept = mark.pushes.get(&request.push.worker).copied().unwrap_or_default();
                CutSide { cut: *number, before: (request.push.incarnation, request.push.sequence) <= kept }
            }
            _ => CutSide { cut: 0, before: true },
        }
    }

    /// The side of the cut that the update of a round is on.
    pub fn round_side(&self) -> CutSide {
        match &self.cut {
            CutStage::Made { number, .. } => CutSide { cut: *number, before: false },
            _ => CutSide { cut: 0, before: true },
        }
    }

    pub(super) fn keep_note(&mut self, push: PushId, note: String) {
        if note.is_empty() {
            return;
        }
        let PushId { worker, incarnation, sequence } = push;
        if let CutStage::Made { mark, notes, .. } = &mut self.cut
            && mark.pushes.get(&worker) == Some(&(incarnation, sequence))
        {
            notes.insert(worker, note.clone());
        }
        self.notes.add(worker, (incarnation, sequence), note);
    }

    /// Keeps the learning rate of a push that belongs before the cut.
    pub(super) fn keep_rate(&mut self, request: &Request) {
        let before = self.side(request).before;
        if let CutStage::Made { learning_rate, .. } = &mut self.cut
            && before
        {
            learning_rate.adopt(request.learning_rate);
        }
    }
}
