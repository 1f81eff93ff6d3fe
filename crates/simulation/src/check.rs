//! The invariants of a run whatever goes wrong, checked from outside by its messages and effects.

use std::collections::{BTreeMap, BTreeSet};

use windlass_checkpoint::{CheckpointId, Manifest};
use windlass_core::checkpoint::Pushes;
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::ledger::Incarnation;

use crate::shard::{Asked, Pushed, Values};
use crate::store::Store;

/// Everything observed of a run.
#[derive(Debug, Default)]
pub struct Watch {
    /// For each server, the pushes that it has acknowledged since its parameters were last prepared.
    acknowledged: BTreeMap<u32, BTreeSet<Pushed>>,
    /// For each server, the pushes that were in its parameters when they were last prepared.
    restored_with: BTreeMap<u32, BTreeSet<Pushed>>,
    /// By server and worker, the latest process of the worker whose push the server has applied.
    applied: BTreeMap<(u32, u32), Incarnation>,
    /// By server and worker, the latest process of the worker that the server knows to be dead, gone or replaced.
    gone: BTreeMap<(u32, u32), Incarnation>,
    /// The clocks of bounded staleness by server and worker.
    clocks: BTreeMap<u32, BTreeMap<u32, u64>>,
    /// The checkpoint published last.
    newest: Option<CheckpointId>,
    /// True if a batch must not be in the parameters twice.
    batches_count_once: bool,
    /// The first violation.
    pub wrong: Option<String>,
    /// How many checkpoints were published.
    pub published: u64,
    /// How many times a server was restored.
    pub restored: u64,
    /// How many times values held a batch twice: once from a process whose death went unnoticed, and once from its
    /// successor.
    pub repeated: u64,
}

impl Watch {
    /// A watch that has not seen anything yet.
    pub fn new(batches_count_once: bool) -> Self {
        Self { batches_count_once, ..Self::default() }
    }

    /// Records a violation, if it is the first.
    pub fn fail(&mut self, wrong: impl FnOnce() -> String) {
        self.wrong.get_or_insert_with(wrong);
    }

    /// Checks a server's new parameters, which hold the pushes of this checkpoint, or none. It must be the newest one:
    /// any other would lose acknowledged pushes that could have been kept. There is no excuse, since nothing is
    /// published during the lookup of a checkpoint, and a failed lookup is retried.
    pub fn prepared(
        &mut self,
        server: u32,
        restored: Option<CheckpointId>,
        blocks: &[Values],
        living: impl Iterator<Item = u32>,
    ) {
        if restored != self.newest {
            let named = |id: Option<CheckpointId>| id.map_or("none".to_owned(), |id| id.to_string());
            let (restored, newest) = (named(restored), named(self.newest));
            self.fail(|| format!("ps {server} restored checkpoint {restored}, but the newest is {newest}"));
        }
        let had: BTreeSet<Pushed> = blocks.iter().flatten().copied().collect();
        let acknowledged = self.acknowledged.entry(server).or_default();
        acknowledged.retain(|pushed| had.contains(pushed));
        self.restored_with.insert(server, had);
        self.clocks.insert(server, living.map(|worker| (worker, 0)).collect());
    }

    /// Records and checks that a server has acknowledged a push as applied.
    pub fn acknowledge(&mut self, server: u32, asked: &Asked, mode: Mode, over: bool) {
        let worker = asked.request.push.worker.0;
        self.acknowledged.entry(server).or_default().insert(asked.pushed());
        let clocks = self.clocks.entry(server).or_default();
        if let (Mode::Ssp { staleness }, Some(own), false) = (mode, clocks.get(&worker).copied(), over) {
            let slowest = clocks.values().copied().min().unwrap_or(own);
            if own - slowest > staleness {
                self.fail(|| format!("worker {worker} went on {} steps ahead on ps {server}", own - slowest));
            }
        }
    }

    /// Checks that a server may apply a push of this process, or its first piece.
    pub fn apply(&mut self, server: u32, asked: &Asked) {
        let push = asked.request.push;
        let gone = self.gone.get(&(server, push.worker.0)).copied().unwrap_or_default();
        if push.incarnation <= gone {
            self.fail(|| format!("{} of {:?} changed ps {server}, which knows it gone", push.worker, push.incarnation));
        }
        let latest = self.applied.entry((server, push.worker.0)).or_default();
        if *latest > push.incarnation {
            let latest = *latest;
            self.fail(|| format!("{} of {:?} changed ps {server} after {latest:?}", push.worker, push.incarnation));
        } else {
            *latest = push.incarnation;
        }
    }

    /// Records that a server knows a worker's process to be dead or gone: that process must not change anything any
    /// more.
    pub fn gone(&mut self, server: u32, worker: u32, incarnation: Incarnation) {
        let gone = self.gone.entry((server, worker)).or_default();
        *gone = (*gone).max(incarnation);
    }

    /// Records that a process of a worker has joined at this clock: the others wait for it from now on, and its
    /// predecessors are gone.
    pub fn join(&mut self, server: u32, (worker, incarnation): (u32, Incarnation), clock: u64) {
        self.gone(server, worker, Incarnation(incarnation.0.saturating_sub(1)));
        self.clocks.entry(server).or_default().insert(worker, clock);
    }

    /// Records that a worker's push has been applied completely, for bounded staleness.
    pub fn advance(&mut self, server: u32, worker: u32) {
        if let Some(clock) = self.clocks.entry(server).or_default().get_mut(&worker) {
            *clock += 1;
        }
    }

    /// Records that the others no longer wait for a worker.
    pub fn leave(&mut self, server: u32, worker: u32) {
        self.clocks.entry(server).or_default().remove(&worker);
    }

    /// Checks a server's values as of a cut: they have every acknowledged push up to the cut, no push twice, and none
    /// after the cut.
    pub fn check_cut(&mut self, server: u32, cut: &Pushes, blocks: &[Values]) {
        let place = format!("the cut of ps {server}");
        let had = self.restored_with.get(&server).cloned().unwrap_or_default();
        let is_before = |pushed: &Pushed| {
            had.contains(pushed) || cut.get(&WorkerId(pushed.worker)).is_some_and(|last| pushed.push <= *last)
        };
        let acknowledged = self.acknowledged.get(&server).cloned().unwrap_or_default();
        for block in blocks {
            self.check_block(block, &place);
            if let Some(after) = block.iter().find(|pushed| !is_before(pushed)) {
                return self.fail(|| format!("{place} has {after:?}, which comes after {cut:?}"));
            }
            if let Some(lost) = acknowledged.iter().find(|pushed| is_before(pushed) && !block.contains(pushed)) {
                return self.fail(|| format!("{place} lacks {lost:?}, which was acknowledged"));
            }
        }
    }

    /// Checks a published checkpoint: all its parts exist, and are of one step if all processes live.
    pub fn check_published(&mut self, manifest: &Manifest, store: &Store, all_live: bool) {
        self.published += 1;
        self.newest = Some(manifest.id);
        for (part, state) in manifest.parts.iter().zip(&manifest.servers) {
            // A push of a worker that died may have reached only some servers.
            let whole = store.part(&part.object).is_some() && (state.version == manifest.id.step || !all_live);
            if !whole {
                self.fail(|| {
                    format!("checkpoint {} has a part of ps {} at {}", manifest.id, part.server, state.version)
                });
            }
        }
    }

    /// Checks that no push is in a block twice.
    fn check_block(&mut self, block: &Values, place: &str) {
        let mut sorted = block.clone();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            self.fail(|| format!("{place} has {:?} twice", twice[0]));
        }
        sorted.sort_unstable_by_key(|pushed| (pushed.worker, pushed.batch));
        let is_same = |pair: &&[Pushed]| (pair[0].worker, pair[0].batch) == (pair[1].worker, pair[1].batch);
        self.repeated += sorted.windows(2).filter(is_same).count() as u64;
        if let Some(pair) = sorted.windows(2).find(is_same).filter(|_| self.batches_count_once) {
            self.fail(|| format!("{place} has a batch twice: {pair:?}"));
        }
    }

    /// Checks a server's parameters after a successful run: exactly this many updates, and every acknowledged push
    /// once.
    pub fn check_end(&mut self, server: u32, blocks: &[Values], (version, steps): (u64, u64)) {
        if version != steps {
            self.fail(|| format!("ps {server} ended at step {version} of {steps}"));
        }
        let acknowledged = self.acknowledged.get(&server).cloned().unwrap_or_default();
        for block in blocks {
            self.check_block(block, &format!("ps {server}"));
            if let Some(lost) = acknowledged.iter().find(|pushed| !block.contains(pushed)) {
                self.fail(|| format!("ps {server} lacks {lost:?}, which was acknowledged"));
            }
        }
    }

    /// Checks the synchronous rounds of a run that has lost no process: round n has the nth batch of every worker.
    pub fn check_rounds(&mut self, server: u32, block: &Values, workers: u32) {
        for (round, batches) in (1..).zip(block.chunks(workers as usize)) {
            let mut sorted: Vec<(u32, u64)> = batches.iter().map(|pushed| (pushed.worker, pushed.batch)).collect();
            sorted.sort_unstable();
            let expected: Vec<(u32, u64)> = (0..workers).map(|worker| (worker, round)).collect();
            if sorted != expected {
                return self.fail(|| format!("round {round} of ps {server} has {sorted:?}"));
            }
        }
    }
}
