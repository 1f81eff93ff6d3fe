//! Parameters accessed by row: only the rows that are named are sent, and the numbers are those of a dense table.

use std::io::Write;

use windlass_core::block::Block;
use windlass_core::consistency::Mode;
use windlass_core::optimizer::{Optimizer, Update};
use windlass_core::parameter::ParameterId;
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_wire::client::{Push, RowGradient, RowRequest};
use windlass_wire::stream::frame::Request;

use crate::cluster::{Cluster, Options, Via};
use crate::numbers::{Random, SYNC, assert_close, by_rows, constant, dense, one_vector, run};
use crate::streams::{assert_closed, open_stream, push_header};

const STEPS: u64 = 4;
/// The parameters that are accessed by row, with their numbers of rows and their widths.
const TABLES: [(u32, usize, usize); 2] = [(1, 50, 8), (2, 7, 3)];

fn rows_run(mode: Mode, sharding: Sharding) -> RunSpec {
    let parameters = vec![dense("w", &[100]), by_rows("embedding", &[50, 8]), by_rows("output", &[7, 3])];
    // Like a row table, Adagrad leaves rows without a gradient alone. And it is not linear in the gradient: the same
    // row twice in one push differs from once in each of two.
    RunSpec { optimizer: Optimizer::named("adagrad").unwrap(), sharding, ..run(mode, parameters) }
}

/// Rows with repetitions, and their gradients.
fn row_gradients(step: u64, worker: u32) -> Vec<RowGradient> {
    let mut random = Random::new(step << 8 | u64::from(worker));
    let gradient = |(parameter, rows, width): (u32, usize, usize)| {
        let rows: Vec<u32> = (0..20).map(|_| random.below(rows as u64) as u32).collect();
        let values = (0..rows.len() * width).map(|_| random.unit()).collect();
        RowGradient { parameter: ParameterId(parameter), rows, values }
    };
    TABLES.map(gradient).into()
}

fn all_rows() -> Vec<RowRequest> {
    TABLES.map(|(parameter, rows, _)| RowRequest { parameter: ParameterId(parameter), rows: every(rows) }).into()
}

fn every(rows: usize) -> Vec<u32> {
    (0..rows as u32).collect()
}

/// Computes dense tables from the sums of the same gradients.
fn dense_oracle(run: &RunSpec, workers: u32) -> Vec<Vec<f32>> {
    let mut tables = TABLES.map(|(_, rows, width)| Block::new(rows * width, &run.optimizer));
    for step in 1..=STEPS {
        let mut sums = TABLES.map(|(_, rows, width)| vec![0.0; rows * width]);
        for worker in 0..workers {
            for ((gradient, sum), (_, _, width)) in row_gradients(step, worker).iter().zip(&mut sums).zip(TABLES) {
                for (row, values) in gradient.rows.iter().zip(gradient.values.chunks(width)) {
                    let sum = &mut sum[*row as usize * width..][..width];
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
                }
            }
        }
        let update = Update { learning_rate: run.learning_rate, step, scale: 1.0 / workers as f32 };
        for (table, sum) in tables.iter_mut().zip(&sums) {
            table.apply(&run.optimizer, &update, sum);
        }
    }
    tables.map(|table| table.values).into()
}

fn assert_equals_dense_oracle(mode: Mode, workers: u32, via: Via) {
    for servers in [1, 3] {
        for sharding in [Sharding::BALANCED, Sharding::RoundRobin] {
            let run = rows_run(mode, sharding);
            let options = Options { via, last_rows: all_rows(), ..Options::default() };
            let cluster = Cluster::start_with(servers, workers, run.clone(), options);
            let expected = dense_oracle(&run, workers);
            let trained = cluster.train(move |worker| {
                worker.pull();
                let mut pulled = Vec::new();
                for step in 1..=STEPS {
                    let rows = row_gradients(step, worker.id.0);
                    let push = Push { dense: constant(&run, 1.0), rows, wanted: all_rows(), ..Push::default() };
                    pulled = worker.try_push(push).unwrap().rows;
                }
                pulled
            });
            assert_close(&trained.last.rows, &expected, "the last rows");
            for rows in trained.results {
                assert_close(&rows, &expected, "the rows in the answer to the last push");
            }
        }
    }
}

#[test]
fn rows_pushed_by_one_asynchronous_worker_equal_a_dense_table() {
    assert_equals_dense_oracle(Mode::Async, 1, Via::Unix);
}

#[test]
fn rows_pushed_in_synchronous_rounds_equal_a_dense_table() {
    assert_equals_dense_oracle(SYNC, 2, Via::Tcp);
}

#[test]
fn rows_pushed_within_the_process_equal_a_dense_table() {
    assert_equals_dense_oracle(Mode::Async, 1, Via::Process);
    assert_equals_dense_oracle(SYNC, 2, Via::Process);
}

#[test]
fn wanted_rows_come_in_the_order_they_were_asked_for_as_often_as_they_were() {
    for servers in [1, 3] {
        let run = rows_run(Mode::Async, Sharding::BALANCED);
        let values = (0..50 * 8).map(|index| index as f32).collect();
        let first_rows = vec![RowGradient { parameter: ParameterId(1), rows: every(50), values }];
        let wanted = vec![RowRequest { parameter: ParameterId(1), rows: vec![7, 0, 49, 7] }];
        let options = Options { first_rows, last_rows: wanted, ..Options::default() };
        let trained = Cluster::start_with(servers, 1, run, options).train(|_| ());
        let first_of_each: Vec<f32> = trained.last.rows[0].iter().copied().step_by(8).collect();
        assert_eq!(first_of_each, [56.0, 0.0, 392.0, 56.0]);
    }
}

#[test]
fn rows_that_the_table_does_not_have_close_the_connection_and_harm_nobody() {
    for mode in [Mode::Async, SYNC] {
        let run = rows_run(mode, Sharding::BALANCED);
        let cluster = Cluster::start(1, 2, run.clone());
        let address = cluster.address(0).to_owned();
        let trained = cluster.train(move |worker| {
            worker.pull();
            if worker.id.0 == 1 {
                for (parameter, row) in [(1, 50), (2, u32::MAX), (0, 0), (9, 0)] {
                    let mut stream = open_stream(&address);
                    let header = Request { rows: 1, ..push_header(worker, 1, 100) };
                    stream.write_all(&header.encode()).unwrap();
                    let section: Vec<u8> = [parameter, 1, row].iter().flat_map(|word| word.to_le_bytes()).collect();
                    let _ = stream.write_all(&[[0; 400].as_slice(), &section, &[0; 32]].concat());
                    assert_closed(stream);
                }
                return 0;
            }
            let push = || Push {
                dense: constant(&run, 1.0),
                rows: row_gradients(1, 0),
                wanted: all_rows(),
                ..Push::default()
            };
            (0..3).map(|_| worker.try_push(push()).unwrap().step).last().unwrap()
        });
        assert!(trained.results[0] >= 3);
    }
}

#[test]
#[should_panic = "row 50 of"]
fn a_client_does_not_lose_a_row_that_the_table_does_not_have() {
    let cluster = Cluster::start(1, 1, rows_run(Mode::Async, Sharding::BALANCED));
    let mut worker = cluster.worker(0);
    worker.start_training();
    let _ = worker.client().pull(vec![RowRequest { parameter: ParameterId(1), rows: vec![50] }]);
}

#[test]
#[should_panic = "one buffer a parameter"]
fn a_client_does_not_send_a_gradient_of_another_shape() {
    let cluster = Cluster::start(1, 1, run(Mode::Async, one_vector()));
    let mut worker = cluster.worker(0);
    worker.start_training();
    worker.push(vec![vec![1.0; 4]]);
}
