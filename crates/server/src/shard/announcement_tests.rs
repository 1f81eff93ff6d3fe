//! A request may arrive before the coordinator has announced that its process plays the worker. It waits for the
//! announcement, and has no effect until then.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use windlass_core::cluster::WorkerId;
use windlass_core::ledger::Incarnation;
use windlass_core::parameter::{Access, ParameterKind, ParameterSpec};
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;

use super::*;
use crate::fixtures;

const WORKER: WorkerId = WorkerId(0);
const FIRST: Incarnation = Incarnation(7);
const SECOND: Incarnation = Incarnation(8);

/// The worker's end of a stream, with gradients of one. It records the answers.
#[derive(Default)]
struct Told(Vec<AnswerKind>);

impl Peer for Told {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        Ok(&[1.0; 4][..len])
    }

    fn receive_bytes(&mut self, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    fn answer(&mut self, answer: &Answer, _: &str) -> io::Result<()> {
        self.0.push(answer.kind);
        Ok(())
    }

    fn stage(&mut self, _: &[f32]) {}

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shard() -> ParameterShard {
    let parameter =
        ParameterSpec { name: "weights".into(), shape: vec![4], access: Access::Dense, kind: ParameterKind::Trained };
    let run = fixtures::run(vec![parameter]);
    let plan = ShardPlan::new(&run.parameters, 1, run.sharding);
    ParameterShard::new(run, &plan.servers[0], &[WORKER])
}

fn request(kind: RequestKind, incarnation: Incarnation, sequence: u64) -> Request {
    Request {
        kind,
        worker: WORKER,
        incarnation,
        sequence,
        base: 0,
        learning_rate: LearningRate::initial(1.0),
        note: 0,
        dense: if kind == RequestKind::Pull { 0 } else { 4 },
        rows: 0,
        wanted: 0,
    }
}

fn serve(shard: &ParameterShard, request: &Request) -> Vec<AnswerKind> {
    let mut told = Told::default();
    shard.serve(request, &mut told).unwrap();
    told.0
}

#[test]
fn a_push_that_comes_before_its_process_is_announced_waits_for_that() {
    let shard = &shard();
    shard.fence(WORKER, FIRST);
    thread::scope(|scope| {
        let (begun, has_begun) = mpsc::channel();
        let early = scope.spawn(move || {
            begun.send(()).unwrap();
            serve(shard, &request(RequestKind::Push, SECOND, 1))
        });
        has_begun.recv().unwrap();
        // Its predecessor plays the worker until the coordinator says otherwise.
        assert_eq!(serve(shard, &request(RequestKind::Push, FIRST, 1)), [AnswerKind::Values]);
        shard.fence(WORKER, SECOND);
        assert_eq!(early.join().unwrap(), [AnswerKind::Values]);
    });
    assert_eq!(serve(shard, &request(RequestKind::Push, FIRST, 2)), [AnswerKind::Fenced]);
    assert_eq!(shard.statistics(Instant::now()).steps, 2);
}

#[test]
fn whoever_has_finished_may_still_pull_until_another_takes_its_place() {
    let shard = shard();
    shard.fence(WORKER, FIRST);
    shard.leave(WORKER, FIRST);
    assert_eq!(serve(&shard, &request(RequestKind::Pull, FIRST, 0)), [AnswerKind::Values]);
    assert_eq!(serve(&shard, &request(RequestKind::Push, FIRST, 1)), [AnswerKind::Fenced]);
    shard.fence(WORKER, SECOND);
    assert_eq!(serve(&shard, &request(RequestKind::Pull, FIRST, 0)), [AnswerKind::Fenced]);
}

#[test]
fn a_shard_that_closes_waits_for_no_announcement() {
    let shard = shard();
    shard.close();
    let error = shard.serve(&request(RequestKind::Pull, FIRST, 0), &mut Told::default()).unwrap_err();
    assert!(matches!(error, ServeError::Io(error) if error.kind() == io::ErrorKind::ConnectionAborted));
}
