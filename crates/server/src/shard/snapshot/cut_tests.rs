//! Cuts through two shards while workers push to both: each cut contains exactly the pushes before it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::checkpoint::{Cycle, CycleRun, HOLD, Next, Policy};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec};
use windlass_core::plan::{ServerPlan, ShardPlan};
use windlass_core::run::RunSpec;
use windlass_wire::link::{Peer, Shard};
use windlass_wire::stream::frame::{Answer, Request, RequestKind};

use super::*;
use crate::fixtures;

const WORKERS: u32 = 2;
const INCARNATION: Incarnation = Incarnation(1);
/// The cuts that each test has to make. On a busy machine some marks are late, and those cuts are retried.
const CUTS: u64 = 60;

/// A worker's end of pushes to one shard. Each worker adds one to the elements that it owns.
struct Pushing {
    worker: WorkerId,
    gradient: Vec<f32>,
    sequence: u64,
    version: u64,
}

impl Pushing {
    fn new(worker: WorkerId) -> Self {
        let own = |index: usize| if index as u32 % WORKERS == worker.0 { -1.0 } else { 0.0 };
        Self { worker, gradient: (0..BLOCK_ELEMENTS).map(own).collect(), sequence: 0, version: 0 }
    }

    fn push(&mut self, shard: &ParameterShard, sequence: u64) {
        self.sequence = sequence;
        let request = Request {
            kind: RequestKind::Push,
            worker: self.worker,
            incarnation: INCARNATION,
            sequence,
            base: self.version,
            learning_rate: LearningRate { version: sequence, rate: 1.0 },
            note: 2,
            dense: shard.elements as u64,
            rows: 0,
            wanted: 0,
        };
        shard.serve(&request, self).unwrap();
    }
}

impl Peer for Pushing {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        Ok(&self.gradient[..len])
    }

    /// The note holds the number of the push.
    fn receive_bytes(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        bytes.copy_from_slice(format!("{:<1$}", self.sequence, bytes.len()).as_bytes());
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, _: &str) -> io::Result<()> {
        self.version = answer.version;
        Ok(())
    }

    fn stage(&mut self, _: &[f32]) {}

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shards(mode: Mode) -> Vec<ParameterShard> {
    // The size is even, so that the parity of an element's number gives its worker in all blocks and servers.
    let shape = vec![6 * BLOCK_ELEMENTS];
    let parameter =
        ParameterSpec { name: "weights".into(), shape, access: Access::Dense, kind: ParameterKind::Trained };
    let run = RunSpec { mode, ..fixtures::run(vec![parameter]) };
    let plan = ShardPlan::new(&run.parameters, 2, run.sharding);
    let workers: Vec<WorkerId> = (0..WORKERS).map(WorkerId).collect();
    let shard = |own: &ServerPlan| {
        let shard = ParameterShard::new(run.clone(), own, &workers);
        workers.iter().for_each(|worker| drop(shard.fence(*worker, INCARNATION)));
        shard
    };
    plan.servers.iter().map(shard).collect()
}

/// Makes a cut through all shards while they are pushed to; `None` if the marks were too late.
fn cut(shards: &[ParameterShard], cycle: &mut Cycle<()>) -> Option<Vec<Snapshot>> {
    cycle.begin(Default::default(), 0);
    let number = cycle.number();
    let marked = shards.iter().zip(0..).map(|(shard, index)| cycle.marked(number, ServerId(index), shard.mark(number)));
    let Some(Some(Next::Cut(cut))) = marked.last() else { panic!("no cut of all marks") };
    let made: Vec<bool> = shards.iter().map(|shard| shard.cut(number, &cut).is_ok()).collect();
    cycle.reset();
    if made.contains(&false) {
        shards.iter().for_each(|shard| shard.abandon(number));
        return None;
    }
    Some(shards.iter().map(|shard| shard.snapshot(number).unwrap()).collect())
}

/// Makes a cut after an earlier one was given up while all shards were still being read as of it.
fn cut_after_one_given_up(shards: &[ParameterShard], cycle: &mut Cycle<()>) -> Option<Vec<Snapshot>> {
    cycle.begin(Default::default(), 0);
    let number = cycle.number();
    let marked = shards.iter().zip(0..).map(|(shard, index)| cycle.marked(number, ServerId(index), shard.mark(number)));
    let Some(Some(Next::Cut(first))) = marked.last() else { panic!("no cut of all marks") };
    cycle.reset();
    if shards.iter().any(|shard| shard.cut(number, &first).is_err()) {
        shards.iter().for_each(|shard| shard.abandon(number));
        return None;
    }
    thread::scope(|scope| {
        let reading: Vec<_> = shards.iter().map(|shard| scope.spawn(move || shard.snapshot(number))).collect();
        shards.iter().for_each(|shard| shard.abandon(number));
        let snapshots = cut(shards, cycle);
        reading.into_iter().for_each(|reading| drop(reading.join().unwrap()));
        snapshots
    })
}

/// Trains, makes cuts meanwhile, and compares each worker's elements with what `expected` says for the cut.
fn assert_cuts(mode: Mode, expected: impl Fn(&CutPoint, WorkerId) -> f32) {
    assert_cuts_made_by(cut, mode, expected);
}

type MakeCut = fn(&[ParameterShard], &mut Cycle<()>) -> Option<Vec<Snapshot>>;

fn assert_cuts_made_by(make: MakeCut, mode: Mode, expected: impl Fn(&CutPoint, WorkerId) -> f32) {
    let (shards, over) = (shards(mode), AtomicBool::new(false));
    let policy = Policy { every: None, every_steps: None, keep: 1 };
    let mut cycle = Cycle::new(policy, Default::default(), 0);
    let servers = (0..shards.len() as u32).map(ServerId).collect();
    let run = CycleRun { servers, rounds: matches!(mode, Mode::Sync { .. }), ..CycleRun::default() };
    cycle.go_on_from(run, Default::default(), 0);
    thread::scope(|scope| {
        for worker in (0..WORKERS).map(WorkerId) {
            let (shards, over) = (&shards, &over);
            scope.spawn(move || {
                let mut pushing = [Pushing::new(worker), Pushing::new(worker)];
                for sequence in 1.. {
                    // As a client does: to all servers at once, and the next push when all have answered.
                    thread::scope(|scope| {
                        for (pushing, shard) in pushing.iter_mut().zip(shards) {
                            scope.spawn(move || pushing.push(shard, sequence));
                        }
                    });
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
                shards.iter().for_each(|shard| shard.leave(worker, INCARNATION));
            });
        }
        let _ends = SetOnDrop(&over);
        let mut made = 0;
        while made < CUTS {
            let Some(snapshots) = make(&shards, &mut cycle) else { continue };
            made += 1;
            assert_eq!(state(&snapshots[0].mark), state(&snapshots[1].mark));
            for (server, Snapshot { mark, notes, learning_rate, blocks, .. }) in snapshots.iter().enumerate() {
                let last = |(worker, push): (WorkerId, (Incarnation, u64))| (worker, push.1.to_string());
                let newest = mark.pushes.values().map(|(_, sequence)| *sequence).max().unwrap_or(0);
                assert_eq!(learning_rate.version, newest, "ps {server} at {mark:?}");
                assert_eq!(*notes, state(mark).pushes.into_iter().map(last).collect(), "ps {server} at {mark:?}");
                for (block, index) in blocks.iter().zip(0..) {
                    let expected: Vec<f32> = (0..WORKERS).map(|worker| expected(mark, WorkerId(worker))).collect();
                    let right = block.values.chunks(WORKERS as usize).all(|values| *values == expected);
                    assert!(right, "block {index} of ps {server} is not as of {mark:?}");
                }
            }
        }
    });
}

/// Returns the counted pushes of a mark. A worker of which no push counts yet is still listed by a server that has seen
/// its first.
fn state(mark: &CutPoint) -> CutPoint {
    let pushes = mark.pushes.iter().filter(|(_, (_, sequence))| *sequence > 0);
    CutPoint { version: mark.version, pushes: pushes.map(|(worker, push)| (*worker, *push)).collect() }
}

/// Ends the pushing however the test ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_cut_of_single_pushes_has_each_push_on_all_servers_or_on_none() {
    assert_cuts(Mode::Async, |mark, worker| mark.pushes.get(&worker).map_or(0.0, |(_, sequence)| *sequence as f32));
}

#[test]
fn a_cut_has_nothing_of_one_that_was_given_up_and_is_still_being_read() {
    let pushed = |mark: &CutPoint, worker| mark.pushes.get(&worker).map_or(0.0, |(_, sequence)| *sequence as f32);
    assert_cuts_made_by(cut_after_one_given_up, Mode::Async, pushed);
    let mode = Mode::Sync { replicas_to_aggregate: None };
    assert_cuts_made_by(cut_after_one_given_up, mode, |mark, _| mark.version as f32 / WORKERS as f32);
}

#[test]
fn a_cut_of_rounds_has_the_same_rounds_on_all_servers() {
    let mode = Mode::Sync { replicas_to_aggregate: None };
    assert_cuts(mode, |mark, _| mark.version as f32 / WORKERS as f32);
}

#[test]
fn a_mark_does_not_wait_for_the_round_that_is_being_applied_and_the_cut_is_after_it() {
    let shard = shards(Mode::Sync { replicas_to_aggregate: None }).remove(0);
    let shard = &shard;
    let (not_applied, (marked, mark)) = (lock(&shard.blocks[1]), mpsc::channel());
    thread::scope(|scope| {
        // The first block has changed, and the second cannot.
        for worker in (0..WORKERS).map(WorkerId) {
            scope.spawn(move || Pushing::new(worker).push(shard, 1));
        }
        scope.spawn(move || {
            while lock(&shard.blocks[0]).get().values[0] == 0.0 {
                thread::yield_now();
            }
            marked.send(shard.mark(1)).unwrap();
        });
        let mark = mark.recv_timeout(Duration::from_secs(20)).expect("a mark while the round is applied");
        assert_eq!(mark.version, 1);
        assert_eq!(shard.cut(1, &mark), Ok(()));
        drop(not_applied);
        let snapshot = shard.snapshot(1).unwrap();
        assert_eq!(snapshot.mark.version, 1);
        let whole = snapshot.blocks.iter().all(|block| block.values.iter().all(|value| *value == 0.5));
        assert!(whole, "a block is not as of the round");
    });
}

#[test]
fn a_cut_that_comes_late_is_made_if_nothing_new_has_come() {
    for mode in [Mode::Async, Mode::Sync { replicas_to_aggregate: None }] {
        let shard = shards(mode).remove(0);
        let mark = shard.mark(1);
        let released = shard.await_release(lock(&shard.gate)).1;
        assert!(released >= HOLD / 2, "it was held for {released:?}");
        assert_eq!(shard.cut(1, &mark), Ok(()));
        assert_eq!(shard.snapshot(1).unwrap().mark, mark);
    }
    let shard = shards(Mode::Async).remove(0);
    let mark = shard.mark(1);
    Pushing::new(WorkerId(0)).push(&shard, 1);
    assert_eq!(shard.cut(1, &mark), Err(CutError::Late), "the push was held back as long as that is allowed");
}
