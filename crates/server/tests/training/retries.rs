//! Exactly once, whatever breaks: connections are cut after a random number of bytes in either direction, and the
//! final values are those of every push counted once.

use windlass_core::consistency::Mode;
use windlass_core::parameter::ParameterId;
use windlass_wire::client::{ClientError, Push, RowGradient, RowRequest};
use windlass_wire::stream::frame::{AnswerKind, Request, RequestKind};

use crate::cluster::{Cluster, Options, Via, Working};
use crate::numbers::{SYNC, by_rows, constant, dense, run, seeds};
use crate::proxy::Disconnection;
use crate::streams::{Scripted, push_header};

const STEPS: u64 = 5;
const WORKERS: u32 = 2;

/// Checks that every value ends at minus the number of updates: all gradients are one, and so is the learning rate.
fn assert_every_push_counts_once(mode: Mode, servers: u32, options: Options) {
    let parameters =
        vec![dense("w", &[70_000]), by_rows("first", &[40, 50]), dense("b", &[10]), by_rows("second", &[30, 20])];
    let run = run(mode, parameters);
    let rows = [1, 3].map(|parameter| RowRequest { parameter: ParameterId(parameter), rows: (0..30).collect() });
    let options = Options { last_rows: rows.to_vec(), ..options };
    let cluster = Cluster::start_with(servers, WORKERS, run.clone(), options);
    let ones = constant(&run, 1.0);
    let row_ones = rows.clone().map(|RowRequest { parameter, rows }| {
        let values = vec![1.0; rows.len() * run.parameters[parameter].width()];
        RowGradient { parameter, rows, values }
    });
    let trained = cluster.train(move |worker| {
        worker.pull();
        for _ in 0..STEPS {
            let push = Push { dense: ones.clone(), rows: row_ones.to_vec(), wanted: rows.to_vec(), ..Push::default() };
            assert!(worker.try_push(push).unwrap().applied);
        }
    });
    let updates = if mode == SYNC { STEPS } else { STEPS * u64::from(WORKERS) };
    let all = [trained.last.dense, trained.last.rows].concat().concat();
    let wrong: Vec<_> = all.iter().enumerate().filter(|(_, value)| **value != -(updates as f32)).take(3).collect();
    assert!(wrong.is_empty(), "{updates} updates, but {wrong:?}");
}

fn cut_streams(seed: u64) -> Options {
    let cut = Disconnection::Randomly { seed, bytes: 600_000, connections: 40 };
    Options { via: Via::Tcp, cut_streams: Some(cut), ..Options::default() }
}

fn cut_sessions(seed: u64) -> Options {
    Options {
        cut_sessions: Some(Disconnection::Randomly { seed, bytes: 3_000, connections: 12 }),
        ..Options::default()
    }
}

#[test]
fn asynchronous_pushes_over_streams_that_break_count_once() {
    for seed in seeds(8) {
        assert_every_push_counts_once(Mode::Async, [1, 3][seed as usize % 2], cut_streams(seed));
    }
}

#[test]
fn synchronous_pushes_over_streams_that_break_count_once() {
    for seed in seeds(8) {
        assert_every_push_counts_once(SYNC, [1, 3][seed as usize % 2], cut_streams(seed));
    }
}

#[test]
fn pushes_of_bounded_staleness_over_streams_that_break_count_once() {
    for seed in seeds(8) {
        let mode = Mode::Ssp { staleness: seed % 3 };
        assert_every_push_counts_once(mode, [1, 3][seed as usize % 2], cut_streams(seed));
    }
}

#[test]
fn a_run_whose_sessions_break_loses_no_message() {
    for seed in seeds(12) {
        let mode = [Mode::Async, SYNC][seed as usize % 2];
        assert_every_push_counts_once(mode, [1, 3][seed as usize / 2 % 2], cut_sessions(seed));
    }
}

#[test]
fn a_push_that_arrives_on_two_connections_at_once_counts_once() {
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 0 }] {
        let run = run(mode, vec![dense("w", &[200_000])]);
        let cluster = Cluster::start(1, 1, run.clone());
        let mut worker = cluster.worker(0);
        worker.start_training();
        let (shard, header) = (cluster.shard(0), push_header(&worker, 1, 200_000));
        // In the middle of the first attempt, the second comes and goes.
        let mut second = Scripted::new(|_| ());
        let mut first = Scripted::new(|block| {
            if block == 2 {
                shard.serve(&header, &mut second).unwrap();
            }
        });
        shard.serve(&header, &mut first).unwrap();
        for answers in [first.answers, second.answers] {
            assert_eq!(answers, [(AnswerKind::Values, String::new())]);
        }
        let pulled = worker.pull();
        assert_eq!(pulled.step, 1);
        assert!(pulled.dense == constant(&run, -1.0), "{mode:?}");
    }
}

#[test]
fn first_values_that_are_held_up_until_training_has_begun_change_nothing() {
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 0 }] {
        let run = run(mode, vec![dense("w", &[200_000])]);
        let cluster = Cluster::start(1, 1, run.clone());
        let mut worker = cluster.worker(0);
        worker.start_training();
        let (shard, header) = (cluster.shard(0), push_header(&worker, 1, 200_000));
        let first_values = Request { kind: RequestKind::Initialise, sequence: 0, ..header };
        // The first attempt broke off after its header; the rest arrives after the first push.
        let mut push = Scripted::new(|_| ());
        let mut late = Scripted::new(|block| {
            if block == 0 {
                shard.serve(&header, &mut push).unwrap();
            }
        });
        shard.serve(&first_values, &mut late).unwrap();
        assert_eq!(late.answers, [(AnswerKind::Refused, "training has begun".to_owned())]);
        assert!(worker.pull().dense == constant(&run, -1.0), "{mode:?}");
    }
}

#[test]
fn a_push_whose_rows_are_lost_on_their_way_is_not_answered() {
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 0 }] {
        let cluster = Cluster::start(1, 1, run(mode, vec![dense("w", &[10]), by_rows("rows", &[4, 2])]));
        let mut worker = cluster.worker(0);
        worker.start_training();
        let header = Request { rows: 1, ..push_header(&worker, 1, 10) };
        let mut cut_short = Scripted::new(|_| ());
        cluster.shard(0).serve(&header, &mut cut_short).unwrap_err();
        assert_eq!(cut_short.answers, [], "{mode:?}");
    }
}

/// Returns a worker that trains over a connection that leads nowhere although neither end has closed it. TCP itself
/// takes longer than this test to detect that.
fn stranded() -> (Cluster, crate::worker::Worker, Push) {
    let run = run(Mode::Async, vec![dense("w", &[64])]);
    let peer_timeout = 10 * crate::cluster::LIMIT;
    let options =
        Options { via: Via::Tcp, cut_streams: Some(Disconnection::Never), peer_timeout, ..Options::default() };
    let cluster = Cluster::start_with(1, 1, run.clone(), options);
    let mut worker = cluster.worker(0);
    worker.start_training();
    worker.pull();
    cluster.site().streams[0].strand();
    (cluster, worker, Push { dense: constant(&run, 1.0), ..Push::default() })
}

#[test]
fn when_the_session_is_made_anew_a_push_on_a_dead_connection_is_sent_again_on_a_new_one() {
    let (_cluster, mut worker, push) = stranded();
    let (interrupt, incarnation, mut client) = (worker.interrupt(), worker.incarnation, worker.take_client());
    client.push(push).unwrap();
    let waiting = Working::start("a push", move || client.wait().unwrap());
    interrupt.welcomed(incarnation);
    let pulled = waiting.join();
    assert_eq!((pulled.step, pulled.dense[0][0]), (1, -1.0));
}

#[test]
fn a_worker_that_has_joined_again_no_longer_waits_as_the_process_it_was() {
    let (_cluster, mut worker, push) = stranded();
    let (interrupt, incarnation, mut client) = (worker.interrupt(), worker.incarnation, worker.take_client());
    client.push(push).unwrap();
    let waiting = Working::start("a push", move || client.wait().unwrap_err());
    interrupt.welcomed(windlass_core::ledger::Incarnation(incarnation.0 + 1));
    assert!(matches!(waiting.join(), ClientError::Rejoined));
}
