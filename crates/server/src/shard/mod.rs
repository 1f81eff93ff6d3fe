//! One server's share of the parameters, and how a request on it is served.
//!
//! Values are kept in blocks, each behind its own lock: a push is applied block by block as it arrives, and
//! pushes of different workers pass through each other. What may be applied, and when a worker may go on, is
//! decided behind one small lock, the [`Gate`]. No lock is held while bytes are sent or awaited.

mod cut;
mod receiving;
mod round;
mod rows_copy_on_cut;
mod spares;
mod statistics;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use windlass_checkpoint::ShardImage;
use windlass_core::admission::{Arrival, CopyOnCut, CutSide, Gate, Skip, TooLate, Turn, Verdict};
use windlass_core::block::{Block, Stretch, block_ranges, stretches_by_block};
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::{Acquaintance, Incarnation};
use windlass_core::optimizer::Update;
use windlass_core::parameter::ParameterKind;
use windlass_core::plan::{RowStripe, ServerPlan};
use windlass_core::rows::{RowError, RowTable};
use windlass_core::run::RunSpec;
use windlass_wire::frame::{Answer, AnswerKind, FrameError, Request, RequestKind};
use windlass_wire::link::{Peer, ServeError, Shard};

use crate::checkpoint::Resumption;

pub use cut::Snapshot;
use receiving::Wanted;
use round::{Gradient, Round};
use rows_copy_on_cut::RowsCopyOnCut;
use spares::Spares;
pub use statistics::ShardStatistics;
pub use windlass_core::admission::CutError;

/// How long a request may be ahead of the coordinator's word that its process plays the worker: the word and the request
/// come by different connections. A process that is real and still too early asks again.
const ANNOUNCEMENT_WAIT: Duration = Duration::from_secs(5);

/// How often a worker that has to wait is told for whom.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// One server's share of the parameters.
pub struct ParameterShard {
    run: RunSpec,
    /// What the gate's times count from.
    origin: Instant,
    /// Who may ask; with dynamic workers more come later.
    workers: RwLock<BTreeSet<WorkerId>>,
    elements: usize,
    blocks: Vec<Mutex<CopyOnCut<Block>>>,
    /// Where in each block values lie that are not simply trained since the first step.
    stretches: Vec<Vec<Stretch>>,
    spares: Arc<Spares>,
    rows: Vec<Rows>,
    gate: Mutex<Gate>,
    /// Signalled when a waiting worker may be able to go on.
    changed: Condvar,
    /// The gradients of the open synchronous round. Taken before the gate where both are needed.
    round: Mutex<Round>,
}

struct Rows {
    stripe: RowStripe,
    width: usize,
    is_constant: bool,
    table: Mutex<RowsCopyOnCut>,
}

impl ParameterShard {
    /// Allocates the share of the parameters that `plan` gives to this server, all zero.
    pub fn new(run: RunSpec, plan: &ServerPlan, workers: &[WorkerId]) -> Self {
        let elements = plan.dense_elements();
        let blocks = block_ranges(elements).map(|range| Block::new(range.len(), &run.optimizer)).collect();
        let table = |stripe: &RowStripe| match &run.parameters[stripe.parameter] {
            spec if spec.kind == ParameterKind::Constant => RowTable::constant(stripe.count, spec.width()),
            spec => RowTable::new(stripe.count, spec.width(), &run.optimizer),
        };
        let tables = plan.stripes.iter().map(table).collect();
        Self::with_values(run, plan, workers, blocks, tables)
    }

    /// The share of the parameters as of a checkpoint.
    pub(crate) fn restored(
        run: RunSpec,
        plan: &ServerPlan,
        workers: &[WorkerId],
        image: ShardImage,
        resumption: &Resumption,
    ) -> Self {
        let (blocks, tables) = image.into_blocks();
        let stretches = plan.stretches(&run.parameters, &resumption.trained_since);
        let mut shard = Self::with_values(run, plan, workers, blocks, tables);
        shard.stretches = stretches_by_block(&stretches, shard.elements);
        lock(&shard.gate).resume_at(resumption.version, resumption.learning_rate);
        shard
    }

    fn with_values(
        run: RunSpec,
        plan: &ServerPlan,
        workers: &[WorkerId],
        blocks: Vec<Block>,
        tables: Vec<RowTable>,
    ) -> Self {
        let kept = |(stripe, table): (&RowStripe, RowTable)| Rows {
            stripe: *stripe,
            width: table.width(),
            is_constant: run.parameters[stripe.parameter].kind == ParameterKind::Constant,
            table: Mutex::new(RowsCopyOnCut::new(table)),
        };
        Self {
            origin: Instant::now(),
            workers: RwLock::new(workers.iter().copied().collect()),
            elements: plan.dense_elements(),
            spares: Arc::new(Spares::new(plan.dense_elements(), run.optimizer.slots())),
            blocks: blocks.into_iter().map(|block| Mutex::new(CopyOnCut::new(block))).collect(),
            stretches: stretches_by_block(&plan.stretches(&run.parameters, &BTreeMap::new()), plan.dense_elements()),
            gate: Mutex::new(Gate::new(&run, workers)),
            changed: Condvar::new(),
            round: Mutex::new(Round::new(run.deterministic)),
            rows: plan.stripes.iter().zip(tables).map(kept).collect(),
            run,
        }
    }

    /// Refuses every process up to this incarnation, of whichever worker, that is not announced.
    pub fn fence_up_to(&self, latest: Incarnation) {
        lock(&self.gate).fence_up_to(latest);
    }

    /// Takes pushes of this process of a worker, refuses those of the ones before it, and says how far the workers were.
    pub fn fence(&self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        self.workers.write().unwrap_or_else(PoisonError::into_inner).insert(worker);
        let standing = lock(&self.gate).fence(worker, incarnation);
        self.changed.notify_all();
        standing
    }

    /// As [`ParameterShard::fence`], for a worker that joins in the middle of a run, at this clock.
    pub fn join(&self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Standing {
        self.workers.write().unwrap_or_else(PoisonError::into_inner).insert(worker);
        let standing = lock(&self.gate).join(worker, incarnation, clock);
        self.changed.notify_all();
        standing
    }

    /// The clock at which a worker that joins now is to start, on all servers.
    pub fn clock(&self) -> u64 {
        lock(&self.gate).clock()
    }

    /// Refuses pushes of a worker's process that has left, and says how far the workers are. Others may still wait for
    /// that worker until [`ParameterShard::leave`].
    pub fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        lock(&self.gate).retire(worker, incarnation)
    }

    /// Stops waiting for a worker whose process has finished or died, unless another has taken its place.
    pub fn leave(&self, worker: WorkerId, incarnation: Incarnation) {
        self.change_round(|gate| gate.leave(worker, incarnation));
    }

    /// Ends every wait: the run is over.
    pub fn close(&self) {
        lock(&self.gate).close();
        self.changed.notify_all();
    }

    /// Counts and times so far.
    pub fn statistics(&self) -> ShardStatistics {
        ShardStatistics::new(lock(&self.gate).statistics(), self.origin)
    }

    /// The time, as the gate counts it.
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Sets the values piece by piece, each only if training has not begun: what is left of a request that was held
    /// up on its way may come after another has been answered and the first push applied.
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

    /// Waits for the coordinator to announce the process that sends a request, and says what is known of it. Nothing in
    /// the request itself is believed: anybody can write a header.
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

    fn pull(&self, request: &Request, known: Acquaintance, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let wanted = self.receive_all_wanted(request, peer)?;
        if known == Acquaintance::Former {
            return self.refuse(AnswerKind::Fenced, "", peer);
        }
        self.wait_and_answer(request, AnswerKind::Values, &wanted, peer)
    }

    fn push(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let note = receiving::note(request, peer)?;
        let mut gate = lock(&self.gate);
        let mut held_up = Duration::ZERO;
        if !gate.has_rounds() {
            (gate, held_up) = self.await_release(gate);
        }
        let verdict = gate.admit(&request.into(), note, self.now());
        drop(gate);
        match verdict {
            Verdict::Fenced => {
                self.discard(request, peer)?;
                self.refuse(AnswerKind::Fenced, "", peer)
            }
            Verdict::Refused(text) => {
                self.discard(request, peer)?;
                self.refuse(AnswerKind::Refused, &text, peer)
            }
            Verdict::Apply(update) => self.apply_as_it_arrives(request, &update, held_up, peer),
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

    /// Applies a push piece by piece: its blocks, then its row sections. A piece is claimed and applied under one
    /// lock, so that of two connections that bring the same push either finds it done or does it. Without a bound
    /// on staleness each block's new values leave while the next is on its way, unless rows follow: an answer must
    /// not be whole before the push is. A checkpoint has held up the push for that long already.
    fn apply_as_it_arrives(
        &self,
        request: &Request,
        update: &Update,
        mut held_up: Duration,
        peer: &mut dyn Peer,
    ) -> Result<(), ServeError> {
        let only_blocks = request.rows == 0 && request.wanted == 0;
        let at_once = self.run.mode == windlass_core::consistency::Mode::Async && only_blocks;
        if at_once {
            peer.answer(&self.answer(AnswerKind::Values, 0), "")?;
        }
        for (piece, block) in self.blocks.iter().enumerate() {
            let len = lock(block).get().values.len();
            let gradient = peer.receive(len)?;
            let (mut block, waited) = lock_timed(block);
            let claimed = lock(&self.gate).claim(&request.into(), piece);
            if let Some(side) = claimed {
                let kept = self.apply(piece, &mut block, side, update, gradient);
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
        // A server without blocks has not sent anything yet.
        if at_once { Ok(peer.flush()?) } else { self.wait_and_answer(request, AnswerKind::Values, &wanted, peer) }
    }

    /// Returns how long a checkpoint has held it up.
    fn apply(
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

    /// Keeps a gradient for the open round, and applies the round if this completes it.
    fn collect(&self, request: &Request, peer: &mut dyn Peer) -> Result<(), ServeError> {
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
            Arrival::Fenced => self.refuse(AnswerKind::Fenced, "", peer),
            Arrival::Late => self.wait_and_answer(request, AnswerKind::Stale, &wanted, peer),
            Arrival::Counted { .. } | Arrival::Again => {
                self.wait_and_answer(request, AnswerKind::Values, &wanted, peer)
            }
        }
    }

    fn contribute(&self, request: &Request, gradient: Gradient) -> Arrival {
        let mut round = lock(&self.round);
        let (mut gate, held_up) = self.await_release(lock(&self.gate));
        let arrival = gate.arrived(&request.into());
        drop(gate);
        if let Arrival::Counted { complete } = arrival {
            round.add(request.worker, gradient);
            if complete {
                self.apply_round(&mut round, held_up);
            }
        } else {
            round.recycle(gradient.dense);
        }
        arrival
    }

    /// Applies the round if a change in who takes part completes it.
    fn change_round(&self, change: impl FnOnce(&mut Gate) -> bool) {
        let mut round = lock(&self.round);
        let (mut gate, held_up) = self.await_release(lock(&self.gate));
        let complete = change(&mut gate);
        drop(gate);
        if complete {
            self.apply_round(&mut round, held_up);
        }
        self.changed.notify_all();
    }

    /// Applies the mean of the round's gradients, which a checkpoint has held up for that long already, and opens the
    /// next round.
    fn apply_round(&self, round: &mut Round, mut held_up: Duration) {
        let (sum, count) = round.take();
        let gate = lock(&self.gate);
        let (update, side) = (gate.round_update(count), gate.round_side());
        drop(gate);
        for (index, (block, range)) in self.blocks.iter().zip(block_ranges(self.elements)).enumerate() {
            let (mut block, waited) = lock_timed(block);
            held_up += side.held_up(waited) + self.apply(index, &mut block, side, &update, &sum.dense[range]);
        }
        for (index, rows) in self.rows.iter().enumerate().filter(|(_, rows)| !rows.is_constant) {
            let (numbers, gradients) = round::sum_rows(&sum.rows, index, rows.stripe.count, rows.width);
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

    /// Waits until the worker may go on, telling it for whom, and sends it the values. Whoever asks for a version that is
    /// to come takes no part in the rounds until then, once it is known to be the living process.
    fn wait_and_answer(
        &self,
        request: &Request,
        kind: AnswerKind,
        wanted: &[Wanted],
        peer: &mut dyn Peer,
    ) -> Result<(), ServeError> {
        let asked = request.into();
        let mut gate = lock(&self.gate);
        let mut told = Instant::now();
        let mut may_skip = request.kind == RequestKind::Pull;
        loop {
            let missing = match gate.turn(&asked, may_skip) {
                Turn::Answer => break,
                Turn::Closed => return Err(ended()),
                Turn::Fenced => {
                    drop(gate);
                    return self.refuse(AnswerKind::Fenced, "", peer);
                }
                Turn::SkipRound => {
                    may_skip = false;
                    drop(gate);
                    self.change_round(|gate| gate.skip_to(&asked));
                    gate = lock(&self.gate);
                    continue;
                }
                Turn::Wait(missing) => missing,
            };
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let text = gate.describe_wait(&missing);
                let header = Answer { text: text.len() as u32, ..self.answer_of(&gate, AnswerKind::Waiting, 0) };
                drop(gate);
                peer.answer(&Answer { dense: 0, rows: 0, ..header }, &text)?;
                peer.flush()?;
                gate = lock(&self.gate);
                continue;
            }
            let waited = self.changed.wait_timeout(gate, TELL_EVERY).unwrap_or_else(PoisonError::into_inner);
            gate = waited.0;
        }
        drop(gate);
        self.send_values(kind, wanted, peer)
    }

    fn send_values(&self, kind: AnswerKind, wanted: &[Wanted], peer: &mut dyn Peer) -> Result<(), ServeError> {
        let row_values: usize = wanted.iter().map(|(table, rows)| rows.len() * self.rows[*table].width).sum();
        peer.answer(&self.answer(kind, row_values), "")?;
        for block in &self.blocks {
            peer.stage(&lock(block).get().values);
            peer.flush()?;
        }
        for (index, numbers) in wanted {
            let rows = &self.rows[*index];
            let mut values = vec![0.0; numbers.len() * rows.width];
            lock(&rows.table).get().read(numbers, &mut values).map_err(bad_rows)?;
            peer.stage(&values);
        }
        Ok(peer.flush()?)
    }

    /// Answers a request whose payload has been read, so that the answer is not lost with the connection.
    fn refuse(&self, kind: AnswerKind, text: &str, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let header = Answer { dense: 0, rows: 0, text: text.len() as u32, ..self.answer(kind, 0) };
        peer.answer(&header, text)?;
        Ok(peer.flush()?)
    }

    fn answer(&self, kind: AnswerKind, row_values: usize) -> Answer {
        self.answer_of(&lock(&self.gate), kind, row_values)
    }

    fn answer_of(&self, gate: &Gate, kind: AnswerKind, row_values: usize) -> Answer {
        Answer {
            kind,
            over: gate.is_over(),
            rounds: gate.has_rounds(),
            version: gate.version(),
            learning_rate: gate.learning_rate(),
            dense: self.elements as u64,
            rows: row_values as u64,
            text: 0,
        }
    }
}

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

fn ended() -> ServeError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the run has ended").into()
}

fn bad_rows(error: RowError) -> ServeError {
    FrameError::Section(error.to_string()).into()
}

/// A thread that panicked with a lock leaves numbers behind, which are still numbers.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, and how long that took if another had it.
fn lock_timed<T>(mutex: &Mutex<T>) -> (MutexGuard<'_, T>, Duration) {
    match mutex.try_lock() {
        Ok(guard) => (guard, Duration::ZERO),
        Err(TryLockError::Poisoned(error)) => (error.into_inner(), Duration::ZERO),
        Err(TryLockError::WouldBlock) => {
            let since = Instant::now();
            (lock(mutex), since.elapsed())
        }
    }
}

#[cfg(test)]
#[path = "announcement_tests.rs"]
mod announcement_tests;
