//! Serves a request on a shard: checks that its sender is a worker, looks at what it asks for, and asks the gate.
//!
//! A push continues in `apply`, or in `round` if updates are rounds; both end in `answer`.

use std::sync::PoisonError;
use std::time::Duration;

use windlass_core::admission::{Gate, Skip, TooLate, Verdict};
use windlass_core::ledger::Acquaintance;
use windlass_instruments::PushFate;
use windlass_wire::link::{Peer, ServeError, Shard};
use windlass_wire::stream::frame::{Answer, AnswerKind, FrameError, Request, RequestKind};

use super::{ParameterShard, bad_rows, ended, lock, receive};

/// How long a request may wait for the coordinator's announcement of its process: the two arrive on different
/// connections. A real process that is still too early retries.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_secs(5);

impl Shard for ParameterShard {
    fn serve(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        if !self.workers.read().unwrap_or_else(PoisonError::into_inner).contains(&request.worker) {
            return Err(FrameError::Worker(request.worker).into());
        }
        let expected = if request.kind == RequestKind::Pull { 0 } else { self.elements as u64 };
        if request.dense != expected {
            return Err(FrameError::Length { expected, got: request.dense }.into());
        }
        let known = self.await_announcement(request)?;
        if matches!(known, Acquaintance::Living | Acquaintance::Left) {
            peer.is_known(request.worker);
        }
        match request.kind {
            RequestKind::Initialise => self.initialise(request, peer),
            RequestKind::Pull => self.pull(request, known, peer),
            RequestKind::Push => self.push(request, peer),
        }
    }
}

impl ParameterShard {
    /// Waits for the coordinator to announce the process that sends a request, and returns what is known about it.
    /// Nothing in the request itself is trusted: anybody can write a header.
    fn await_announcement(&self, request: &Request) -> Result<Acquaintance, ServeError> {
        let unannounced =
            |gate: &mut Gate| gate.acquaintance(&request.into()) == Acquaintance::Unannounced && !gate.is_closed();
        let waited = self.changed.wait_timeout_while(lock(&self.gate), ANNOUNCEMENT_WAIT, unannounced);
        let (gate, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match gate.acquaintance(&request.into()) {
            Acquaintance::Unannounced if gate.is_closed() => Err(ended()),
            Acquaintance::Unannounced => Err(ServeError::Unannounced(request.worker)),
            known => Ok(known),
        }
    }

    /// Sets the values piece by piece, each only if training has not begun: the rest of a delayed request may arrive
    /// after another attempt has been answered and the first push applied.
    fn initialise(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let refused = || lock(&self.gate).refuses_first_values(&request.into());
        for block in &self.blocks {
            let len = lock(block).get().values.len();
            let values = peer.receive(len)?;
            let mut block = lock(block);
            if refused().is_none() {
                block.get_mut().values.copy_from_slice(values);
            }
        }
        let mut allowance = self.allowance();
        for _ in 0..request.rows {
            let push = self.receive_rows(request, &mut allowance, peer)?;
            let mut table = lock(&self.rows[push.table].table);
            if refused().is_none() {
                table.get_mut().write(&push.rows, &push.gradients).map_err(bad_rows)?;
            }
        }
        if let Some(too_late) = refused() {
            let kind = match too_late {
                TooLate::Fenced => AnswerKind::Fenced,
                TooLate::Begun => AnswerKind::Refused,
            };
            return self.refuse(kind, "training has begun", peer);
        }
        let answer = Answer { dense: 0, rows: 0, ..self.answer(AnswerKind::Values, 0) };
        peer.answer(&answer, "")?;
        Ok(peer.flush()?)
    }

    fn pull(&self, request: &Request, known: Acquaintance, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let wanted = self.receive_all_wanted(request, peer)?;
        if known == Acquaintance::Former {
            return self.refuse(AnswerKind::Fenced, "", peer);
        }
        self.wait_and_answer(request, AnswerKind::Values, &wanted, peer)
    }

    fn push(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let note = receive::note(request, peer)?;
        let mut gate = lock(&self.gate);
        let mut held_up = Duration::ZERO;
        if !gate.has_rounds() {
            (gate, held_up) = self.await_release(gate);
        }
        let verdict = gate.admit(&request.into(), note, self.now());
        drop(gate);
        if matches!(verdict, Verdict::Skip(_)) {
            // The push is now in the ledger, which a cut may have been waiting for.
            self.changed.notify_all();
        }
        self.count(&verdict, held_up);
        match verdict {
            Verdict::Fenced => {
                self.discard(request, peer)?;
                self.refuse(AnswerKind::Fenced, "", peer)
            }
            Verdict::Refused(text) => {
                self.discard(request, peer)?;
                self.refuse(AnswerKind::Refused, &text, peer)
            }
            Verdict::Apply { update, .. } => self.apply_as_it_arrives(request, &update, held_up, peer),
            Verdict::Collect => self.collect(request, peer),
            Verdict::Skip(skip) => {
                let kind = match skip {
                    Skip::Counted => AnswerKind::Values,
                    Skip::Stale => AnswerKind::Stale,
                    Skip::Over => AnswerKind::Over,
                };
                let wanted = self.discard(request, peer)?;
                self.wait_and_answer(request, kind, &wanted, peer)
            }
        }
    }

    /// Counts a push, except a gradient for a round, which is counted once it has fully arrived.
    fn count(&self, verdict: &Verdict, held_up: Duration) {
        self.counts.held_up(held_up);
        match verdict {
            Verdict::Apply { staleness: Some(staleness), .. } => self.counts.applied(*staleness),
            Verdict::Apply { staleness: None, .. } | Verdict::Skip(Skip::Counted) => {
                self.counts.pushed(PushFate::Repeated);
            }
            Verdict::Skip(Skip::Stale) => self.counts.pushed(PushFate::Stale),
            Verdict::Skip(Skip::Over) => self.counts.pushed(PushFate::Over),
            Verdict::Fenced => self.counts.pushed(PushFate::Fenced),
            Verdict::Refused(_) => self.counts.pushed(PushFate::Refused),
            Verdict::Collect => {}
        }
    }
}

#[cfg(test)]
#[path = "announcement_tests.rs"]
mod announcement_tests;
