//! Applies a push block by block as it arrives.

use std::time::{Duration, Instant};

use windlass_core::admission::{CopyOnCut, CutSide};
use windlass_core::block::Block;
use windlass_core::consistency::Mode;
use windlass_core::optimizer::Update;
use windlass_wire::link::{Peer, ServeError};
use windlass_wire::stream::frame::{AnswerKind, Request};

use super::{ParameterShard, bad_rows, lock, lock_timed};

impl ParameterShard {
    /// Applies a push piece by piece: its blocks, then its row sections. A piece is claimed and applied under one lock.
    /// If two connections bring the same push, each of them either applies a piece or finds it already applied. In
    /// async mode each block's new values are sent while the next block arrives, unless rows follow: an answer must not
    /// be complete before the push is. `held_up` is how long a checkpoint has already held up the push.
    pub(super) fn apply_as_it_arrives(
        &self,
        request: &Request,
        update: &Update,
        mut held_up: Duration,
        peer: &mut dyn Peer,
    ) -> Result<(), ServeError> {
        let only_blocks = request.rows == 0 && request.wanted == 0;
        let at_once = self.run.mode == Mode::Async && only_blocks;
        if at_once {
            peer.answer(&self.answer(AnswerKind::Values, 0), "")?;
        }
        for (piece, block) in self.blocks.iter().enumerate() {
            let len = lock(block).get().values.len();
            let gradient = peer.receive(len)?;
            let (mut block, waited) = lock_timed(block);
            let claimed = lock(&self.gate).claim(&request.into(), piece);
            if let Some(side) = claimed {
                let kept = self.apply_to_block(piece, &mut block, side, update, gradient);
                held_up += side.held_up(waited) + kept;
            }
            if at_once {
                peer.stage(&block.get().values);
                drop(block);
                peer.flush()?;
            }
        }
        let (pieces, mut allowance) = (self.blocks.len() + request.rows as usize, self.allowance());
        for piece in self.blocks.len()..pieces {
            let push = self.receive_rows(request, &mut allowance, peer)?;
            let (mut table, waited) = lock_timed(&self.rows[push.table].table);
            let claimed = lock(&self.gate).claim(&request.into(), piece);
            if let Some(side) = claimed {
                let kept = table.apply(side, &self.run.optimizer, update, &push.rows, &push.gradients);
                held_up += side.held_up(waited) + kept.map_err(bad_rows)?;
            }
        }
        let wanted = self.receive_all_wanted(request, peer)?;
        let mut gate = lock(&self.gate);
        gate.applied(&request.into(), pieces);
        gate.note_held_up(held_up);
        drop(gate);
        self.changed.notify_all();
        // Without blocks, nothing has been sent yet.
        if at_once { Ok(peer.flush()?) } else { self.wait_and_answer(request, AnswerKind::Values, &wanted, peer) }
    }

    /// Applies a gradient, or a round's sum, to one block. Returns how long a checkpoint has held it up.
    pub(super) fn apply_to_block(
        &self,
        index: usize,
        block: &mut CopyOnCut<Block>,
        side: CutSide,
        update: &Update,
        pushed: &[f32],
    ) -> Duration {
        let (optimizer, stretches) = (&self.run.optimizer, &self.stretches[index]);
        let mut held_up = Duration::ZERO;
        let copy = |block: &Block| {
            let since = Instant::now();
            let copy = self.spares.copy(block);
            held_up = since.elapsed();
            copy
        };
        block.change(side, copy, |block| block.apply_around(stretches, optimizer, update, pushed));
        held_up
    }
}
