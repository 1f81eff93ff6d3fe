//! Bounded staleness: the fast wait for the slow, and are told for whom.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::run::LearningRate;
use windlass_wire::frame::{Answer, AnswerKind, Request, RequestKind};
use windlass_wire::link::Peer;

use crate::cluster::{Cluster, LIMIT, Worker};
use crate::numbers::{constant, one_vector, run};

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

/// A worker that pushes zeros until it is told to wait, and keeps the text.
#[derive(Default)]
struct Impatient {
    zeros: Vec<f32>,
    told: Option<String>,
}

impl Peer for Impatient {
    fn receive(&mut self, len: usize) -> io::Result<&[f32]> {
        self.zeros.resize(len, 0.0);
        Ok(&self.zeros)
    }

    fn receive_words(&mut self, _words: &mut [u32]) -> io::Result<()> {
        Ok(())
    }

    fn receive_values(&mut self, _values: &mut [f32]) -> io::Result<()> {
        Ok(())
    }

    fn answer(&mut self, answer: &Answer, text: &str) -> io::Result<()> {
        if answer.kind == AnswerKind::Waiting {
            self.told = Some(text.to_owned());
            return Err(io::ErrorKind::Interrupted.into());
        }
        Ok(())
    }

    fn stage(&mut self, _values: &[f32]) {}

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_worker_that_has_to_wait_is_told_for_whom() {
    let run = run(Mode::Ssp { staleness: 1 }, one_vector());
    let cluster = Cluster::start(1, 3, run.clone());
    let shard = cluster.shard(0);
    let mut workers = [0, 1, 2].map(|index| cluster.worker(index));
    workers.iter_mut().for_each(Worker::start_training);
    workers[2].push(constant(&run, 0.0));
    let mut peer = Impatient::default();
    let mut request = Request {
        kind: RequestKind::Push,
        worker: WorkerId(0),
        incarnation: workers[0].incarnation,
        sequence: 0,
        base: 0,
        learning_rate: LearningRate::initial(1.0),
        dense: 5,
        rows: 0,
        wanted: 0,
    };
    for sequence in 1..=2 {
        request.sequence = sequence;
        let _ = shard.serve(&request, &mut peer);
    }
    assert_eq!(peer.told.as_deref(), Some("worker 1 in step 4"));
}
