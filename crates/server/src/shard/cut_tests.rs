//! Cuts through two shards while workers push to both: each shows what was pushed before it, and nothing else.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::checkpoint::{Cycle, Next, Policy};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::ledger::Incarnation;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec, ParameterTable};
use windlass_core::plan::{ServerPlan, ShardPlan, Sharding};
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;
use windlass_wire::frame::{Answer, Request, RequestKind};
use windlass_wire::link::{Peer, Shard};

use super::*;

const WORKERS: u32 = 2;
const INCARNATION: Incarnation = Incarnation(1);
/// Cuts that have to be made in each test. Some marks are late when the machine is busy, and are tried again.
const CUTS: u64 = 60;

/// A worker's end of a push to one shard. Each worker adds one to the elements that are its own.
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

    /// The note: which push this is.
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
    // Of an even size, so that elements of all blocks and servers belong to a worker by their number.
    let shape = vec![6 * BLOCK_ELEMENTS];
    let parameter =
        ParameterSpec { name: "weights".into(), shape, access: Access::Dense, kind: ParameterKind::Trained };
    let run = RunSpec {
        model: "synthetic".into(),
        mode,
        optimizer: Optimizer::Sgd,
        learning_rate: 1.0,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: None,
        deterministic: false,
        staleness_scaling: false,
        parameters: ParameterTable::new(vec![parameter]).unwrap(),
        identity: Identity::default(),
        data: None,
    };
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
    let marked = shards.iter().zip(0..).map(|(shard, index)| cycle.marked(number, ServerId(index), shard.mark()));
    let Some(Some(Next::Cut(cut))) = marked.last() else { panic!("no cut of all marks") };
    let made: Vec<bool> = shards.iter().map(|shard| shard.cut(number, &cut).is_ok()).collect();
    cycle.reset();
    if made.contains(&false) {
        shards.iter().for_each(ParameterShard::abandon);
        return None;
    }
    Some(shards.iter().map(|shard| shard.snapshot(number).unwrap()).collect())
}

/// Trains, makes cuts meanwhile, and lets `expected` say what a worker's elements are at a cut.
fn assert_cuts(mode: Mode, expected: impl Fn(&Mark, WorkerId) -> f32) {
    let (shards, over) = (shards(mode), AtomicBool::new(false));
    let policy = Policy { every: None, every_steps: None, keep: 1 };
    let mut cycle = Cycle::new(policy, shards.len(), Default::default(), 0);
    cycle.set_rounds(matches!(mode, Mode::Sync { .. }));
    thread::scope(|scope| {
        for worker in (0..WORKERS).map(WorkerId) {
            let (shards, over) = (&shards, &over);
            scope.spawn(move || {
                let mut pushing = [Pushing::new(worker), Pushing::new(worker)];
                for sequence in 1.. {
                    // As a client does: to all servers at once, and on when all have answered.
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
            let Some(snapshots) = cut(&shards, &mut cycle) else { continue };
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

/// What a mark says. A worker of whose pushes none counts yet is named by a server that has seen the first of them.
fn state(mark: &Mark) -> Mark {
    let pushes = mark.pushes.iter().filter(|(_, (_, sequence))| *sequence > 0);
    Mark { version: mark.version, pushes: pushes.map(|(worker, push)| (*worker, *push)).collect() }
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
fn a_cut_of_rounds_has_the_same_rounds_on_all_servers() {
    let mode = Mode::Sync { replicas_to_aggregate: None };
    assert_cuts(mode, |mark, _| mark.version as f32 / WORKERS as f32);
}
