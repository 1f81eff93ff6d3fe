//! One server's share of the parameters.
//!
//! Values are kept in blocks, each behind its own lock: a push is applied block by block as it arrives, and pushes of
//! different workers interleave. What may be applied, and when a worker may continue, is decided behind one small lock,
//! the [`Gate`]. No lock is held while bytes are sent or awaited.
//!
//! A push goes through the files in this order: `serve` asks the gate, `apply` or `round` changes the values as
//! `receive` reads the rest of the request, and `answer` sends the new ones. `snapshot` reads the values as of a cut.

mod answer;
mod apply;
mod receive;
mod round;
mod serve;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use windlass_checkpoint::ShardImage;
use windlass_core::admission::{CopyOnCut, Gate, ShardStatistics};
use windlass_core::block::{Block, Stretch, block_ranges, stretches_by_block};
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::ParameterKind;
use windlass_core::plan::{RowStripe, ServerPlan};
use windlass_core::rows::{RowError, RowTable};
use windlass_core::run::RunSpec;
use windlass_instruments::PsInstruments;
use windlass_wire::link::ServeError;
use windlass_wire::stream::frame::FrameError;

use crate::checkpoint::ResumePoint;

use round::RoundGradients;
pub use snapshot::Snapshot;
use snapshot::{RowsCopyOnCut, Spares};
pub use windlass_core::admission::CutError;

/// One server's share of the parameters.
pub struct ParameterShard {
    run: RunSpec,
    /// The origin of the gate's clock.
    origin: Instant,
    /// The known workers; with dynamic workers more are added later.
    workers: RwLock<BTreeSet<WorkerId>>,
    elements: usize,
    blocks: Vec<Mutex<CopyOnCut<Block>>>,
    /// For each block, the stretches of values that have not simply been trained since the first step.
    stretches: Vec<Vec<Stretch>>,
    spares: Arc<Spares>,
    rows: Vec<ServedTable>,
    gate: Mutex<Gate>,
    /// Signalled when a waiting worker may be able to continue.
    changed: Condvar,
    /// The gradients of the open synchronous round. Locked before the gate where both are needed.
    round: Mutex<RoundGradients>,
    /// The metrics of this shard.
    counts: PsInstruments,
}

struct ServedTable {
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
        resumption: &ResumePoint,
    ) -> Self {
        let (blocks, tables) = image.into_blocks();
        let stretches = plan.stretches(&run.parameters, &resumption.trained_since);
        let mut shard = Self::with_values(run, plan, workers, blocks, tables);
        shard.stretches = stretches_by_block(&stretches, shard.elements);
        lock(&shard.gate).resume_at(resumption.version, resumption.learning_rate);
        shard
    }

    /// Makes these instruments count the shard's activity.
    pub(crate) fn counted_by(self, counts: PsInstruments) -> Self {
        let rows: usize = self.rows.iter().map(|rows| rows.stripe.count * rows.width).sum();
        counts.holds((self.elements + rows) * size_of::<f32>());
        Self { counts, ..self }
    }

    fn with_values(
        run: RunSpec,
        plan: &ServerPlan,
        workers: &[WorkerId],
        blocks: Vec<Block>,
        tables: Vec<RowTable>,
    ) -> Self {
        let kept = |(stripe, table): (&RowStripe, RowTable)| ServedTable {
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
            round: Mutex::new(RoundGradients::new(run.deterministic)),
            rows: plan.stripes.iter().zip(tables).map(kept).collect(),
            counts: PsInstruments::default(),
            run,
        }
    }

    /// Refuses every process up to this incarnation that is not announced, whichever worker it plays.
    pub fn fence_up_to(&self, latest: Incarnation) {
        lock(&self.gate).fence_up_to(latest);
    }

    /// Accepts pushes of this process of a worker, and refuses those of earlier processes. Returns how far the workers
    /// had got.
    pub fn fence(&self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        self.workers.write().unwrap_or_else(PoisonError::into_inner).insert(worker);
        let standing = lock(&self.gate).fence(worker, incarnation);
        self.changed.notify_all();
        standing
    }

    /// Like [`ParameterShard::fence`], for a worker that joins in the middle of a run, at this clock.
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

    /// Refuses pushes of a worker's process that has left. Returns how far the workers have got. Others may still wait
    /// for that worker until [`ParameterShard::leave`].
    pub fn retire(&self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = lock(&self.gate).retire(worker, incarnation);
        self.changed.notify_all();
        standing
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

    /// Returns the counts and times so far. Times are relative to `started`.
    pub fn statistics(&self, started: Instant) -> ShardStatistics {
        let counted = lock(&self.gate).statistics();
        let since_started = |time: Duration| (self.origin + time).saturating_duration_since(started);
        ShardStatistics {
            first_step: counted.first_step.map(since_started),
            last_step: counted.last_step.map(since_started),
            ..counted
        }
    }

    /// Returns the time on the gate's clock.
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }
}

fn ended() -> ServeError {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the run has ended").into()
}

fn bad_rows(error: RowError) -> ServeError {
    FrameError::Section(error.to_string()).into()
}

/// Ignores poisoning: what a thread that panicked leaves behind are still numbers.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Like `lock`, but also returns how long that took if another thread held it.
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
