//! Parameters that are not trained: state is set to what workers push instead of a gradient, and frozen parameters
//! accept nothing.

use std::io::Write;

use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::consistency::Mode;
use windlass_core::optimizer::{AdamW, Optimizer};
use windlass_core::parameter::{ParameterId, ParameterKind, ParameterSpec};
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_wire::client::{RowGradient, RowRequest};
use windlass_wire::stream::frame::Request;

use crate::cluster::{Cluster, Options, Via};
use crate::numbers::{SYNC, assert_close, by_rows, constant, dense, gradient, run, straight_loop};
use crate::proxy::Disconnection;
use crate::streams::{assert_closed, open_stream, push_header};

const STEPS: u64 = 3;
/// Which parameters are state.
const STATE: [usize; 2] = [1, 3];
const FROZEN: ParameterId = ParameterId(4);

/// Trained and not trained in turn; one of each is longer than a block.
fn every_kind(mode: Mode, sharding: Sharding) -> RunSpec {
    let parameters = vec![
        dense("weight", &[BLOCK_ELEMENTS + 100]),
        ParameterSpec { kind: ParameterKind::State, ..dense("mean", &[BLOCK_ELEMENTS + 5000]) },
        dense("bias", &[300]),
        ParameterSpec { kind: ParameterKind::State, ..dense("variance", &[7]) },
        ParameterSpec { kind: ParameterKind::Constant, ..by_rows("frozen", &[9]) },
    ];
    let optimizer = Optimizer::AdamW(AdamW { weight_decay: 0.5, ..AdamW::default() });
    RunSpec { optimizer, sharding, learning_rate: 0.1, ..run(mode, parameters) }
}

fn frozen_rows() -> RowGradient {
    RowGradient { parameter: FROZEN, rows: (0..9).collect(), values: (0..9).map(|row| row as f32 + 0.5).collect() }
}

fn options(run: &RunSpec, via: Via) -> Options {
    let last_rows = vec![RowRequest { parameter: FROZEN, rows: frozen_rows().rows }];
    let first_values = Some(gradient(run, 0, 0));
    Options { via, first_values, first_rows: vec![frozen_rows()], last_rows, ..Options::default() }
}

/// Asserts that state is the mean of the last pushes, and that trained parameters equal a straight loop over all steps.
fn assert_followed(run: &RunSpec, got: &[Vec<f32>], workers: u32, what: &str) {
    let mut expected = straight_loop(run, &gradient(run, 0, 0), STEPS, workers);
    for index in STATE {
        let pushed = (0..workers).map(|worker| gradient(run, STEPS, worker).swap_remove(index));
        let sums = pushed.reduce(|sum, other| sum.iter().zip(&other).map(|(sum, other)| sum + other).collect());
        expected[index] = sums.unwrap().into_iter().map(|sum| sum / workers as f32).collect();
    }
    assert_close(got, &expected, what);
}

fn assert_state_follows(mode: Mode, workers: u32, options_of: impl Fn(&RunSpec) -> Options) {
    for servers in [1, 3] {
        for sharding in [Sharding::BALANCED, Sharding::RoundRobin] {
            let run = every_kind(mode, sharding);
            let cluster = Cluster::start_with(servers, workers, run.clone(), options_of(&run));
            let pushed = run.clone();
            let trained = cluster.train(move |worker| {
                worker.pull();
                (1..=STEPS).map(|step| worker.push(gradient(&pushed, step, worker.id.0))).last().unwrap().dense
            });
            let what = format!("{}, {workers} workers, {servers} ps, {sharding}", mode.name());
            assert_followed(&run, &trained.last.dense, workers, &what);
            trained.results.iter().for_each(|values| assert_followed(&run, values, workers, &what));
            assert_eq!(trained.last.rows, [frozen_rows().values], "{what}");
        }
    }
}

#[test]
fn state_is_what_one_worker_pushes_and_the_optimizer_sees_none_of_it() {
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 1 }] {
        assert_state_follows(mode, 1, |run| options(run, Via::Unix));
    }
}

#[test]
fn state_is_the_mean_of_a_round() {
    assert_state_follows(SYNC, 2, |run| options(run, Via::Unix));
    assert_state_follows(SYNC, 3, |run| options(run, Via::Process));
}

#[test]
fn state_that_comes_twice_over_a_connection_that_breaks_is_taken_once() {
    for mode in [Mode::Async, SYNC] {
        let cut = Disconnection::Randomly { seed: 7, bytes: 600_000, connections: 8 };
        let cut = |run: &RunSpec| Options { cut_streams: Some(cut), ..options(run, Via::Tcp) };
        assert_state_follows(mode, 1, cut);
    }
}

#[test]
fn state_of_an_asynchronous_run_is_that_of_some_workers_last_push() {
    let run = every_kind(Mode::Async, Sharding::BALANCED);
    let cluster = Cluster::start_with(1, 3, run.clone(), options(&run, Via::Tcp));
    let pushed = run.clone();
    let trained = cluster.train(move |worker| {
        for _ in 0..20 {
            worker.push(constant(&pushed, worker.id.0 as f32 + 1.0));
        }
    });
    for index in STATE {
        let values = &trained.last.dense[index];
        assert!(values.iter().all(|value| [1.0, 2.0, 3.0].contains(value)), "{values:?}");
    }
}

#[test]
fn a_gradient_of_what_is_frozen_closes_the_connection_and_changes_nothing() {
    for mode in [Mode::Async, SYNC] {
        let run = every_kind(mode, Sharding::BALANCED);
        let cluster = Cluster::start_with(1, 1, run.clone(), options(&run, Via::Tcp));
        let address = cluster.address(0).to_owned();
        let elements: usize = constant(&run, 0.0).iter().map(Vec::len).sum();
        let trained = cluster.train(move |worker| {
            worker.pull();
            let mut stream = open_stream(&address);
            let header = Request { rows: 1, ..push_header(worker, 1, elements as u64) };
            let section: Vec<u8> = [FROZEN.0, 1, 2].iter().flat_map(|word: &u32| word.to_le_bytes()).collect();
            let _ = stream.write_all(&[&header.encode()[..], &vec![0; 4 * elements], &section, &[0; 4]].concat());
            assert_closed(stream);
        });
        assert_eq!(trained.last.rows, [frozen_rows().values]);
    }
}
