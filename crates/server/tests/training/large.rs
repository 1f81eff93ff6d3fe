//! Pushes that are larger than any buffer between worker and server.

use windlass_core::consistency::Mode;

use crate::cluster::{Cluster, Options, Via};
use crate::numbers::{SYNC, dense, run};

fn assert_twenty_million_values_arrive(mode: Mode, workers: u32, via: Via) {
    let run = run(mode, vec![dense("w", &[5_000, 4_000])]);
    let cluster = Cluster::start_with(2, workers, run.clone(), Options { via, ..Options::default() });
    let trained = cluster.train(move |worker| {
        let mut values = worker.pull().dense;
        for _ in 0..2 {
            values[0].fill(1.0);
            values = worker.push(values).dense;
        }
    });
    assert_eq!(trained.summary.global_step, 2);
    assert!(trained.last.dense[0].iter().all(|value| *value == -2.0));
}

#[test]
fn twenty_million_values_are_pushed_asynchronously() {
    assert_twenty_million_values_arrive(Mode::Async, 1, Via::Unix);
}

#[test]
fn twenty_million_values_are_pushed_in_a_synchronous_round() {
    assert_twenty_million_values_arrive(SYNC, 2, Via::Tcp);
}
