//! The numbers that come out are those of a straight loop in a single process.

use std::sync::{Arc, Barrier, Condvar, Mutex};

use windlass_core::consistency::Mode;
use windlass_core::optimizer::Optimizer;
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_wire::client::Push;

use crate::cluster::{Cluster, LIMIT, Options, Via};
use crate::numbers::{
    SYNC, assert_close, assert_same_bits, constant, gradient, one_vector, run, several_blocks, straight_loop,
};

const STEPS: u64 = 3;

/// The values after some steps of every worker with the gradients of [`gradient`].
fn train(servers: u32, workers: u32, run: &RunSpec, via: Via) -> Vec<Vec<f32>> {
    let options = Options { via, first_values: Some(gradient(run, 0, 0)), ..Options::default() };
    let cluster = Cluster::start_with(servers, workers, run.clone(), options);
    let run = run.clone();
    let trained = cluster.train(move |worker| {
        let mut pulled = worker.pull();
        for step in 1..=STEPS {
            pulled = worker.push(gradient(&run, step, worker.id.0));
        }
        assert_eq!(pulled.step, STEPS);
        pulled.dense
    });
    for values in &trained.results {
        assert_same_bits(values, &trained.last.dense, "a worker's last values and the chief's");
    }
    trained.last.dense
}

fn assert_equals_straight_loop(mode: Mode, workers: u32, optimizer: Optimizer) {
    for servers in [1, 3] {
        for sharding in [Sharding::BALANCED, Sharding::RoundRobin] {
            let run = RunSpec { optimizer, sharding, learning_rate: 0.1, ..run(mode, several_blocks()) };
            let expected = straight_loop(&run, &gradient(&run, 0, 0), STEPS, workers);
            let what = format!("{optimizer}, {workers} workers, {servers} ps, {sharding}");
            assert_close(&train(servers, workers, &run, Via::Unix), &expected, &what);
        }
    }
}

#[test]
fn synchronous_rounds_of_one_worker_equal_a_straight_loop() {
    Optimizer::all().into_iter().for_each(|optimizer| assert_equals_straight_loop(SYNC, 1, optimizer));
}

#[test]
fn synchronous_rounds_of_two_workers_equal_a_straight_loop_over_their_mean() {
    Optimizer::all().into_iter().for_each(|optimizer| assert_equals_straight_loop(SYNC, 2, optimizer));
}

#[test]
fn synchronous_rounds_of_four_workers_equal_a_straight_loop_over_their_mean() {
    Optimizer::all().into_iter().for_each(|optimizer| assert_equals_straight_loop(SYNC, 4, optimizer));
}

#[test]
fn one_asynchronous_worker_equals_a_straight_loop() {
    Optimizer::all().into_iter().for_each(|optimizer| assert_equals_straight_loop(Mode::Async, 1, optimizer));
}

#[test]
fn a_server_that_holds_nothing_answers_too() {
    // One vector is on the second of three servers; the first counts the steps nevertheless.
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 1 }] {
        let run = RunSpec { learning_rate: 0.1, ..run(mode, one_vector()) };
        let expected = straight_loop(&run, &gradient(&run, 0, 0), STEPS, 1);
        assert_close(&train(3, 1, &run, Via::Tcp), &expected, mode.name());
    }
}

#[test]
fn the_way_to_the_servers_does_not_change_a_bit() {
    let adam = Optimizer::named("adam").unwrap();
    for (mode, workers, servers) in [(Mode::Async, 1, 1), (SYNC, 2, 3), (Mode::Ssp { staleness: 1 }, 1, 3)] {
        let run = RunSpec { optimizer: adam, ..run(mode, several_blocks()) };
        let unix = train(servers, workers, &run, Via::Unix);
        assert_same_bits(&train(servers, workers, &run, Via::Tcp), &unix, "TCP and Unix");
        assert_same_bits(&train(servers, workers, &run, Via::Process), &unix, "in-process and Unix");
    }
}

#[test]
fn two_synchronous_workers_give_the_same_bits_again() {
    let run = RunSpec { optimizer: Optimizer::named("adam").unwrap(), ..run(SYNC, several_blocks()) };
    assert_same_bits(&train(3, 2, &run, Via::Tcp), &train(3, 2, &run, Via::Tcp), "two runs");
}

#[test]
fn a_deterministic_run_does_not_depend_on_the_order_of_pushes() {
    let values = |orders: [[u64; 4]; 3]| {
        let run = RunSpec { deterministic: true, ..run(SYNC, several_blocks()) };
        let cluster = Cluster::start(2, 4, run.clone());
        let turns = Turns::default();
        let trained = cluster.train(move |worker| {
            worker.pull();
            for (round, order) in (0..).zip(orders) {
                let place = order[worker.id.0 as usize];
                turns.take(round * 4 + place, || {
                    let dense = gradient(&run, round, worker.id.0);
                    worker.client().push(Push { dense, ..Push::default() }).unwrap();
                });
                worker.client().wait().unwrap();
            }
        });
        trained.last.dense
    };
    let expected = values([[0, 1, 2, 3]; 3]);
    assert_same_bits(&values([[3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 1, 0]]), &expected, "two orders");
}

#[test]
fn the_rate_of_a_push_is_divided_by_its_staleness_if_that_is_wanted() {
    let value = |mode, staleness_scaling, servers| {
        let run = RunSpec { staleness_scaling, ..run(mode, several_blocks()) };
        let cluster = Cluster::start(servers, 4, run.clone());
        let (pulled, turns) = (Arc::new(Barrier::new(4)), Turns::default());
        let trained = cluster.train(move |worker| {
            worker.pull();
            pulled.wait();
            // All have computed on the first values: the pushes are 0, 1, 2 and 3 updates old.
            turns.take(worker.id.0.into(), || {
                worker.push(constant(&run, -1.0));
            });
        });
        trained.last.dense[0][0]
    };
    for mode in [Mode::Async, Mode::Ssp { staleness: 1 }] {
        for servers in [1, 2] {
            assert_eq!(value(mode, false, servers), 4.0, "{mode:?}, {servers} ps");
            let scaled = value(mode, true, servers);
            assert!((scaled - (1.0 + 1.0 + 1.0 / 2.0 + 1.0 / 3.0)).abs() < 1e-6, "{mode:?}, {servers} ps: {scaled}");
        }
    }
}

/// Lets threads act one after the other.
#[derive(Clone, Default)]
struct Turns(Arc<(Mutex<u64>, Condvar)>);

impl Turns {
    fn take(&self, turn: u64, act: impl FnOnce()) {
        let (now, changed) = &*self.0;
        let waited = changed.wait_timeout_while(now.lock().unwrap(), LIMIT, |now| *now != turn).unwrap();
        assert!(!waited.1.timed_out(), "turn {turn} comes");
        drop(waited);
        act();
        *now.lock().unwrap() += 1;
        changed.notify_all();
    }
}
