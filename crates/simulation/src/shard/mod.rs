//! A simulated shard. The production gate decides what may be done with a request. This file has the blocks and the
//! open round; `serving` has the connections' threads, `cut` reads cuts, and `frame` has the messages. Everything is
//! done in pieces that other work can interleave with.
//!
//! The shard checks nothing: whatever is to be checked leaves it as an effect.

mod cut;
mod frame;
mod serving;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use windlass_core::admission::{CopyOnCut, CutSide, Gate};
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::ledger::Incarnation;
use windlass_core::run::RunSpec;

use cut::Reader;
pub use cut::ShardAtCut;
pub use frame::{Answer, AnswerKind, Asked, Frame, Pushed, Values};
use serving::Thread;

/// An effect that the shard's owner has to carry out.
#[derive(Debug)]
pub enum ShardEffect {
    /// Answer on a connection.
    Answer(usize, Asked, Answer),
    /// Close a connection.
    Close(usize),
    /// Poll the shard again at this time.
    Poll(Duration),
    /// Apply the next block of the complete round in a moment.
    RoundPiece,
    /// Read the next block of this cut in a moment.
    ReadPiece(u64),
    /// A process of a worker has joined at this clock.
    Joined(WorkerId, Incarnation, u64),
    /// A process of a worker is no longer waited for.
    Left(WorkerId, Incarnation),
    /// A push was applied to a block, or counted in a round; true for the last of its blocks.
    Applied(Asked, bool),
    /// A cut has been read, or cannot be.
    Read(u64, Option<ShardAtCut>),
}

/// One server's share of the parameters.
#[derive(Debug)]
pub struct Shard {
    /// Makes the decisions.
    pub gate: Gate,
    blocks: Vec<CopyOnCut<Values>>,
    is_async: bool,
    threads: BTreeMap<usize, Thread>,
    open_round: Values,
    /// The round that is being applied, its side of the cut, and the number of blocks that have it.
    applying: Option<(Values, CutSide, usize)>,
    leaving: VecDeque<(WorkerId, Incarnation)>,
    readers: Vec<Reader>,
    effects: Vec<ShardEffect>,
    /// The processes announced to the gate since the shard was prepared.
    announced: BTreeSet<(WorkerId, Incarnation)>,
}

impl Shard {
    /// A shard of these blocks.
    pub fn new(run: &RunSpec, workers: &[WorkerId], blocks: Vec<Values>) -> Self {
        Self {
            gate: Gate::new(run, workers),
            blocks: blocks.into_iter().map(CopyOnCut::new).collect(),
            is_async: run.mode == Mode::Async,
            threads: BTreeMap::new(),
            open_round: Vec::new(),
            applying: None,
            leaving: VecDeque::new(),
            readers: Vec::new(),
            effects: Vec::new(),
            announced: BTreeSet::new(),
        }
    }

    /// Takes the effects to carry out, in order.
    pub fn take_effects(&mut self) -> Vec<ShardEffect> {
        std::mem::take(&mut self.effects)
    }

    /// The current blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Values> {
        self.blocks.iter().map(CopyOnCut::get)
    }

    /// Accepts pushes of a process from now on.
    pub fn join(&mut self, worker: WorkerId, incarnation: Incarnation, clock: u64, now: Duration) -> Standing {
        let standing = self.announce(worker, incarnation, clock);
        self.poll(now);
        standing
    }

    /// Announces a process to the gate that is present from the first step.
    pub fn announce_living(&mut self, worker: WorkerId, incarnation: Incarnation) {
        self.announced.insert((worker, incarnation));
        self.gate.fence(worker, incarnation);
    }

    /// Announces a process to the gate. Waiting threads are polled later.
    pub fn announce(&mut self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Standing {
        let is_new = self.announced.insert((worker, incarnation));
        if is_new {
            self.effects.push(ShardEffect::Joined(worker, incarnation, clock));
        }
        self.gate.join(worker, incarnation, clock)
    }

    /// Stops waiting for a process.
    pub fn leave(&mut self, worker: WorkerId, incarnation: Incarnation, now: Duration) {
        self.leaving.push_back((worker, incarnation));
        self.poll(now);
    }

    /// True while a worker waits to leave a round that is being applied or held.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Applies the complete round to the next block.
    pub fn round_piece(&mut self, now: Duration) {
        let Some((round, side, done)) = &mut self.applying else { return };
        if let Some(block) = self.blocks.get_mut(*done) {
            block.change(*side, Clone::clone, |block| block.extend_from_slice(round));
            *done += 1;
            return self.effects.push(ShardEffect::RoundPiece);
        }
        self.applying = None;
        self.gate.end_round(now);
        self.poll(now);
    }

    /// Polls everything that waits.
    pub fn poll(&mut self, now: Duration) {
        self.change_rounds(now);
        for connection in self.threads.keys().copied().collect::<Vec<_>>() {
            self.poll_thread(connection, now);
        }
        self.poll_readers();
    }

    /// Lets workers leave once no round is being applied and no push is held back.
    fn change_rounds(&mut self, now: Duration) {
        while !self.leaving.is_empty() && self.is_free(now) {
            let Some((worker, incarnation)) = self.leaving.pop_front() else { return };
            self.effects.push(ShardEffect::Left(worker, incarnation));
            if self.gate.leave(worker, incarnation) {
                self.begin_round();
            }
        }
    }

    /// True if the open round may change now. If pushes are held back, schedules another poll.
    fn is_free(&mut self, now: Duration) -> bool {
        if self.applying.is_some() {
            return false;
        }
        let held = self.gate.held_for(now);
        held.iter().for_each(|left| self.effects.push(ShardEffect::Poll(now + *left)));
        held.is_none()
    }

    fn begin_round(&mut self) {
        let side = self.gate.round_side();
        self.applying = Some((std::mem::take(&mut self.open_round), side, 0));
        self.effects.push(ShardEffect::RoundPiece);
    }
}
