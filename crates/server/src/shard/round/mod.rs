//! Synchronous rounds: gradients are collected, and applied as one update when the round is complete.

mod gradients;

use std::time::{Duration, Instant};

use windlass_core::admission::{Contribution, Gate};
use windlass_core::block::block_ranges;
use windlass_instruments::PushFate;
use windlass_wire::link::{Peer, ServeError};
use windlass_wire::stream::frame::{AnswerKind, Request};

use super::{ParameterShard, lock, lock_timed};
use gradients::sum_rows;
pub(super) use gradients::{Gradient, RoundGradients, RowGradients};

impl ParameterShard {
    /// Keeps a gradient for the open round, and applies the round if this completes it.
    pub(super) fn collect(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let mut gradient = Gradient { dense: lock(&self.round).buffer(self.elements), rows: Vec::new() };
        for range in block_ranges(self.elements) {
            let values = peer.receive(range.len())?;
            gradient.dense[range].copy_from_slice(values);
        }
        let mut allowance = self.allowance();
        for _ in 0..request.rows {
            gradient.rows.push(self.receive_rows(request, &mut allowance, peer)?);
        }
        let wanted = self.receive_all_wanted(request, peer)?;
        match self.contribute(request, gradient) {
            Contribution::Fenced => self.refuse(AnswerKind::Fenced, "", peer),
            Contribution::Late => self.wait_and_answer(request, AnswerKind::Stale, &wanted, peer),
            Contribution::Counted { .. } | Contribution::Again => {
                self.wait_and_answer(request, AnswerKind::Values, &wanted, peer)
            }
        }
    }

    fn contribute(&self, request: &Request, gradient: Gradient) -> Contribution {
        let mut round = lock(&self.round);
        let (mut gate, held_up) = self.await_release(lock(&self.gate));
        let arrival = gate.arrived(&request.into());
        drop(gate);
        self.counts.held_up(held_up);
        match arrival {
            Contribution::Counted { .. } => {
                self.counts.applied(0);
                if let Some(waited) = round.waited_for_next(Instant::now()) {
                    self.counts.round_waited(request.worker.0, waited);
                }
            }
            Contribution::Again => self.counts.pushed(PushFate::Repeated),
            Contribution::Late => self.counts.pushed(PushFate::Stale),
            Contribution::Fenced => self.counts.pushed(PushFate::Fenced),
        }
        if let Contribution::Counted { complete } = arrival {
            round.add(request.worker, gradient);
            if complete {
                self.apply_round(&mut round, held_up);
            }
        } else {
            round.recycle(gradient.dense);
        }
        arrival
    }

    /// Makes a change to who takes part, and applies the round if that completes it.
    pub(super) fn change_round(&self, change: impl FnOnce(&mut Gate) -> bool) {
        let mut round = lock(&self.round);
        let (mut gate, held_up) = self.await_release(lock(&self.gate));
        let complete = change(&mut gate);
        drop(gate);
        if complete {
            self.apply_round(&mut round, held_up);
        }
        self.changed.notify_all();
    }

    /// Applies the mean of the round's gradients, and opens the next round. `held_up` is how long a checkpoint has
    /// already held up the round.
    fn apply_round(&self, round: &mut RoundGradients, mut held_up: Duration) {
        let (sum, count) = round.take();
        let gate = lock(&self.gate);
        let (update, side) = (gate.round_update(count), gate.round_side());
        drop(gate);
        for (index, (block, range)) in self.blocks.iter().zip(block_ranges(self.elements)).enumerate() {
            let (mut block, waited) = lock_timed(block);
            held_up += side.held_up(waited) + self.apply_to_block(index, &mut block, side, &update, &sum.dense[range]);
        }
        for (index, rows) in self.rows.iter().enumerate().filter(|(_, rows)| !rows.is_constant) {
            let (numbers, gradients) = sum_rows(&sum.rows, index, rows.stripe.count, rows.width);
            let (mut table, waited) = lock_timed(&rows.table);
            let applied = table.apply(side, &self.run.optimizer, &update, &numbers, &gradients);
            held_up += side.held_up(waited) + applied.expect("rows were checked as they arrived");
        }
        round.recycle(sum.dense);
        let mut gate = lock(&self.gate);
        gate.note_held_up(held_up);
        gate.end_round(self.now());
        drop(gate);
        self.changed.notify_all();
    }
}
