//! What the gate decides about cuts: where this shard stands, whether it can be cut there, and on which side of the cut
//! a push is.

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
    /// Nothing new is applied until then, or until it is known where the cut is. Nothing new has been if the version
    /// is, or is about to be, still this one.
    Held { number: u64, until: Duration, at: u64 },
    /// The cut is after a round that is still to come.
    Coming { number: u64, version: u64 },
    /// This is the state that is kept.
    Made { number: u64, mark: CutPoint, notes: Notes, learning_rate: LearningRate },
}

impl CutStage {
    /// The number of the checkpoint that is under way.
    fn number(&self) -> Option<u64> {
        match self {
            CutStage::None => None,
            CutStage::Held { number, .. } | CutStage::Coming { number, .. } | CutStage::Made { number, .. } => {
                Some(*number)
            }
        }
    }
}

/// Why a shard is not cut.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CutError {
    /// Updates were applied before the cut was known: the hold had ended.
    #[error("the cut came more than {} ms after the mark", HOLD.as_millis())]
    Late,
    /// The cut cannot be made from where this shard stands.
    #[error("this server is at step {at}, and the cut at {cut}")]
    Passed {
        /// Where it stands.
        at: u64,
        /// Where the cut is.
        cut: u64,
    },
    /// It was given up, or the run has ended.
    #[error("the checkpoint was abandoned")]
    GivenUp,
}

impl Gate {
    /// Holds back what is new from now on, and says which state that leaves: after the round that is being applied, if
    /// one is. Callers do not have to wait for that.
    pub fn hold(&mut self, number: u64, now: Duration) -> CutPoint {
        let at = self.comes_to();
        self.cut = CutStage::Held { number, until: now + HOLD, at };
        self.longest_held_up = Duration::ZERO;
        CutPoint { version: at, pushes: self.pushes() }
    }

    /// The version that the parameters have, or are about to have.
    fn comes_to(&self) -> u64 {
        self.version() + u64::from(self.applying)
    }

    /// For how long what is new is still to be held back.
    pub fn held_for(&self, now: Duration) -> Option<Duration> {
        let CutStage::Held { until, .. } = self.cut else { return None };
        let left = until.saturating_sub(now);
        (!left.is_zero() && !self.closed).then_some(left)
    }

    /// Cuts where all servers do. After the hold that is possible too, if nothing new has come.
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

    /// Cuts here, or where the last of these pushes will have come; their notes are kept as they come.
    fn make_cut(&mut self, number: u64, mark: CutPoint) {
        let notes = self.notes.of(&mark.pushes);
        self.cut = CutStage::Made { number, mark, notes, learning_rate: self.learning_rate };
    }

    /// Cuts after the round that has just ended, if that is where the cut is.
    pub(super) fn cut_after_round(&mut self) {
        if let CutStage::Coming { number, version } = self.cut
            && version == self.version()
        {
            self.make_cut(number, CutPoint { version, pushes: self.pushes() });
        }
    }

    /// The state that is kept, once all of it is there.
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

    /// True while this cut is wanted.
    pub fn is_cutting(&self, number: u64) -> bool {
        self.cut.number() == Some(number) && !self.closed
    }

    /// Ends the hold or the cut of this number. False if another is under way, or none.
    pub fn end_cut(&mut self, number: u64) -> bool {
        let ends = self.cut.number() == Some(number);
        if ends {
            self.cut = CutStage::None;
        }
        ends
    }

    /// Notes for how long a checkpoint has held up a push.
    pub fn note_held_up(&mut self, held_up: Duration) {
        self.longest_held_up = self.longest_held_up.max(held_up);
    }

    /// For how long at the most the last checkpoint has held up a push.
    pub fn longest_held_up(&self) -> Duration {
        self.longest_held_up
    }

    /// On which side of the cut a push is.
    pub(super) fn side(&self, request: &Request) -> CutSide {
        match &self.cut {
            CutStage::Made { number, mark, .. } => {
                let kept = mark.pushes.get(&request.push.worker).copied().unwrap_or_default();
                CutSide { cut: *number, before: (request.push.incarnation, request.push.sequence) <= kept }
            }
            _ => CutSide { cut: 0, before: true },
        }
    }

    /// On which side of the cut the update of a round is.
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

    /// A push that belongs before the cut brings its rate along, too.
    pub(super) fn keep_rate(&mut self, request: &Request) {
        let before = self.side(request).before;
        if let CutStage::Made { learning_rate, .. } = &mut self.cut
            && before
        {
            learning_rate.adopt(request.learning_rate);
        }
    }
}
