//! The last step is the last on every server.

use windlass_core::consistency::Mode;
use windlass_core::run::RunSpec;

use crate::cluster::{Cluster, Options, Via};
use crate::numbers::{SYNC, constant, run, several_blocks};
use crate::proxy::Disconnection;

fn assert_applied_exactly(steps: u64, mode: Mode, workers: u32, options: Options) {
    let run = RunSpec { steps: Some(steps), ..run(mode, several_blocks()) };
    let expected = constant(&run, -(steps as f32));
    let cluster = Cluster::start_with(3, workers, run.clone(), options);
    let trained = cluster.train(move |worker| {
        let mut pulled = worker.pull();
        while !pulled.over {
            pulled = worker.push(constant(&run, 1.0));
        }
    });
    assert_eq!(trained.summary.global_step, steps);
    assert!(trained.last.dense == expected, "every value is {}", -(steps as f32));
}

#[test]
fn racing_asynchronous_workers_apply_exactly_the_steps_of_the_run_on_every_server() {
    assert_applied_exactly(100, Mode::Async, 3, Options::default());
}

#[test]
fn workers_of_bounded_staleness_apply_exactly_the_steps_of_the_run_on_every_server() {
    assert_applied_exactly(100, Mode::Ssp { staleness: 1 }, 3, Options::default());
}

#[test]
fn synchronous_workers_apply_exactly_the_steps_of_the_run_on_every_server() {
    assert_applied_exactly(30, SYNC, 3, Options::default());
}

#[test]
fn a_push_after_the_last_step_is_not_applied_when_it_is_sent_again() {
    for seed in 0..8 {
        println!("seed {seed}");
        let cut = Disconnection::Randomly { seed, bytes: 400_000, connections: 30 };
        let options = Options { via: Via::Tcp, cut_streams: Some(cut), ..Options::default() };
        assert_applied_exactly(5, Mode::Async, 3, options);
    }
}
