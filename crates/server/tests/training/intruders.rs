//! A connection that does not belong on a server's port is closed, and disturbs nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::ledger::Incarnation;
use windlass_core::run::LearningRate;
use windlass_wire::stream::frame::{HEADER_BYTES, Request, RequestKind};

use crate::cluster::{Cluster, Options, Via};
use crate::numbers::{Random, SYNC, constant, one_vector, run};
use crate::streams::{assert_closed, connect, open_stream, push_header};
use crate::worker::Worker;

/// Lets `intrude` attack a server repeatedly while a worker trains there.
pub fn beside_training(mode: Mode, intrude: impl Fn(&str, &Worker) + Clone + Send + 'static) {
    let run = run(mode, one_vector());
    let cluster = Cluster::start_with(1, 1, run.clone(), Options { via: Via::Tcp, ..Options::default() });
    let address = cluster.address(0).to_owned();
    let trained = cluster.train(move |worker| {
        worker.pull();
        for _ in 0..5 {
            intrude(&address, worker);
            worker.push(constant(&run, 1.0));
        }
    });
    assert_eq!(trained.last.dense, [[-5.0; 5]]);
    assert_eq!(trained.summary.global_step, 5);
}

/// Sends bytes on a tensor stream, and no more.
fn send(address: &str, bytes: &[u8]) -> TcpStream {
    let mut stream = open_stream(address);
    let _ = stream.write_all(bytes);
    stream
}

#[test]
fn random_bytes() {
    beside_training(SYNC, |address, _| {
        for seed in 0..10 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let bytes: Vec<u8> = (0..random.below(5000) + 4).map(|_| random.next() as u8).collect();
            let mut stream = connect(address);
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            assert_closed(stream);
            let stream = send(address, &bytes);
            let _ = stream.shutdown(Shutdown::Write);
            assert_closed(stream);
        }
    });
}

#[test]
fn a_health_check_is_answered() {
    beside_training(Mode::Async, |address, _| {
        let mut stream = connect(address);
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: ps\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
    });
}

#[test]
fn a_stream_of_another_version() {
    beside_training(SYNC, |address, _| {
        let mut stream = connect(address);
        stream.write_all(b"WNDL\x63\0\0\0").unwrap();
        assert!(assert_closed(stream).is_empty());
    });
}

#[test]
fn a_frame_of_an_unknown_kind() {
    beside_training(SYNC, |address, _| {
        assert_closed(send(address, &[0xee; HEADER_BYTES]));
    });
}

#[test]
fn a_push_of_another_length() {
    beside_training(SYNC, |address, worker| {
        for dense in [0, 4, 6, u64::MAX] {
            assert_closed(send(address, &push_header(worker, 1, dense).encode()));
        }
    });
}

#[test]
fn a_push_that_is_cut_short() {
    for mode in [Mode::Async, SYNC] {
        beside_training(mode, |address, worker| {
            // Not the number that the worker itself will use next.
            let header = push_header(worker, 1_000, 5).encode();
            for length in [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 19] {
                let bytes = [header.as_slice(), &[0; 20]].concat();
                let stream = send(address, &bytes[..length]);
                stream.shutdown(Shutdown::Write).unwrap();
                assert_closed(stream);
            }
        });
    }
}

#[test]
fn a_push_of_a_worker_that_is_not_in_the_cluster() {
    beside_training(SYNC, |address, worker| {
        let header = Request { worker: WorkerId(7), ..push_header(worker, 1, 5) };
        assert_closed(send(address, &[header.encode().as_slice(), &[0; 20]].concat()));
    });
}

#[test]
fn the_first_values_once_training_has_begun() {
    beside_training(Mode::Async, |address, worker| {
        if worker.steps() == 0 {
            return;
        }
        let header = Request { kind: RequestKind::Initialise, ..push_header(worker, 0, 5) };
        let mut stream = send(address, &[header.encode().as_slice(), &[1; 20]].concat());
        let mut answer = [0; HEADER_BYTES + "training has begun".len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer[HEADER_BYTES..], b"training has begun");
    });
}

#[test]
fn numbers_at_the_edge_of_what_can_be_written() {
    for mode in [Mode::Async, SYNC, Mode::Ssp { staleness: 0 }] {
        beside_training(mode, |address, worker| {
            for sequence in [0, u64::MAX] {
                let header = Request { base: u64::MAX, ..push_header(worker, sequence, 5) };
                let mut stream = send(address, &[header.encode().as_slice(), &[0; 20]].concat());
                // The push is refused or fenced explicitly.
                let mut answer = [0; HEADER_BYTES];
                stream.read_exact(&mut answer).unwrap();
            }
        });
    }
}

#[test]
fn sections_of_more_rows_than_memory_has() {
    beside_training(SYNC, |address, worker| {
        let header = Request { rows: 1, ..push_header(worker, 1_000, 5) };
        let section: Vec<u8> = [0u32, u32::MAX].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_closed(send(address, &[header.encode().as_slice(), &[0; 20], &section].concat()));
        let header = Request { rows: u32::MAX, ..push_header(worker, 1_000, 5) };
        assert_closed(send(address, &header.encode()));
    });
}

const MODES: [Mode; 3] = [Mode::Async, SYNC, Mode::Ssp { staleness: 0 }];

/// An incarnation that no process has.
const NOBODY: Incarnation = Incarnation(u64::MAX);

#[test]
fn a_push_header_of_a_process_that_was_never_announced() {
    for mode in MODES {
        beside_training(mode, |address, worker| {
            let header = Request { incarnation: NOBODY, ..push_header(worker, 1, 5) };
            let stream = send(address, &header.encode());
            if worker.steps() == 0 {
                assert!(assert_closed(stream).is_empty());
            }
        });
    }
}

#[test]
fn first_values_of_a_process_that_was_never_announced() {
    beside_training(Mode::Async, |address, worker| {
        if worker.steps() == 0 {
            let header = Request { kind: RequestKind::Initialise, incarnation: NOBODY, ..push_header(worker, 0, 5) };
            let stream = send(address, &[header.encode().as_slice(), &[1; 20]].concat());
            assert!(assert_closed(stream).is_empty());
        }
    });
}

#[test]
fn a_pull_of_a_version_that_never_comes() {
    beside_training(SYNC, |address, worker| {
        let header = push_header(worker, 0, 0);
        let pull = Request { kind: RequestKind::Pull, incarnation: NOBODY, base: u64::MAX, ..header };
        let stream = send(address, &pull.encode());
        if worker.steps() == 0 {
            assert!(assert_closed(stream).is_empty());
        }
    });
}

#[test]
fn a_learning_rate_that_is_not_a_number() {
    for mode in MODES {
        beside_training(mode, |address, worker| {
            for rate in [f32::NAN, f32::INFINITY, -1.0] {
                let learning_rate = LearningRate { version: 1, rate };
                let header = Request { learning_rate, ..push_header(worker, worker.steps() + 1, 5) };
                assert!(assert_closed(send(address, &header.encode())).is_empty());
            }
        });
    }
}

/// Sends a push that would be the worker's next, were it not for what is wrong with it, and expects a refusal.
fn assert_refused(address: &str, header: Request, words: &str) {
    let mut stream = send(address, &[header.encode().as_slice(), &[0; 20]].concat());
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let text = String::from_utf8_lossy(answer.get(HEADER_BYTES..).unwrap_or_default());
    assert!(text.contains(words), "{text:?} says {words:?}");
}

#[test]
fn a_learning_rate_of_a_version_that_would_keep_out_all_others() {
    for mode in MODES {
        beside_training(mode, |address, worker| {
            let learning_rate = LearningRate { version: u64::MAX, rate: 0.0 };
            let header = Request { learning_rate, ..push_header(worker, worker.steps() + 1, 5) };
            assert_refused(address, header, "far beyond any step");
        });
    }
}

#[test]
fn a_push_computed_from_a_version_that_there_is_not() {
    for mode in MODES {
        beside_training(mode, |address, worker| {
            let header = Request { base: u64::MAX, ..push_header(worker, worker.steps() + 1, 5) };
            assert_refused(address, header, "where the newest is");
        });
    }
}
