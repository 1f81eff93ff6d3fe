//! Bounded staleness: fast workers wait for slow ones, and are told which.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use windlass_core::consistency::Mode;
use windlass_wire::stream::frame::AnswerKind;

use crate::cluster::{Cluster, LIMIT};
use crate::numbers::{constant, one_vector, run};
use crate::streams::{Scripted, push_header};
use crate::worker::Worker;

#[test]
fn a_fast_worker_is_never_more_than_the_bound_ahead() {
    const STALENESS: u64 = 2;
    const STEPS: u64 = 20;
    for servers in [1, 3] {
        let run = run(Mode::Ssp { staleness: STALENESS }, one_vector());
        let cluster = Cluster::start(servers, 2, run.clone());
        let (answered, answers) = mpsc::channel();
        let count = Arc::new(AtomicU64::new(0));
        let (fast_run, fast_count) = (run.clone(), count.clone());
        let fast = cluster.spawn(0, move |worker| {
            worker.pull();
            for _ in 0..STEPS {
                worker.push(constant(&fast_run, 1.0));
                fast_count.fetch_add(1, Ordering::SeqCst);
                answered.send(()).unwrap();
            }
        });
        let slow = cluster.spawn(1, move |worker| {
            worker.pull();
            (0..STALENESS).for_each(|_| answers.recv_timeout(LIMIT).unwrap());
            for slow_steps in 0..STEPS - STALENESS {
                worker.pull();
                assert_eq!(count.load(Ordering::SeqCst), slow_steps + STALENESS);
                worker.push(constant(&run, 1.0));
                answers.recv_timeout(LIMIT).unwrap();
            }
        });
        fast.join();
        slow.join();
        cluster.assert_ends_well();
    }
}

#[test]
fn a_worker_that_has_to_wait_is_told_for_whom() {
    let run = run(Mode::Ssp { staleness: 1 }, one_vector());
    let cluster = Cluster::start(1, 3, run.clone());
    let mut workers = [0, 1, 2].map(|index| cluster.worker(index));
    workers.iter_mut().for_each(Worker::start_training);
    workers[2].push(constant(&run, 0.0));
    let mut peer = Scripted::new(|_| ());
    for sequence in 1..=2 {
        let _ = cluster.shard(0).serve(&push_header(&workers[0], sequence, 5), &mut peer);
    }
    let answers = [(AnswerKind::Values, String::new()), (AnswerKind::Waiting, "worker 1 in step 4".to_owned())];
    assert_eq!(peer.answers, answers);
}
