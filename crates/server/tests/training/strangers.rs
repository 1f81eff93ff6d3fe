//! Connections that occupy a server's port and never identify themselves.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tokio_stream::wrappers::ReceiverStream;
use windlass_core::consistency::Mode;
use windlass_wire::control::proto::TaskMessage;
use windlass_wire::control::proto::coordinator_client::CoordinatorClient;
use windlass_wire::lobby::CROWD;
use windlass_wire::stream::frame::MAGIC;

use crate::cluster::{LIMIT, new_runtime};
use crate::intruders::beside_training;
use crate::numbers::SYNC;
use crate::streams::{assert_closed, connect};

fn say(address: &str, words: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(words).unwrap();
    stream
}

#[test]
fn whoever_says_too_little_is_closed_in_time() {
    beside_training(SYNC, |address, worker| {
        if worker.steps() > 0 {
            return;
        }
        let beginnings: [&[u8]; 5] = [b"", &MAGIC, b"WNDL\x02\0\0\0", b"PRI ", b"GET /healthz HTTP/1.1\r\nhost: "];
        let streams: Vec<TcpStream> = beginnings.map(|beginning| say(address, beginning)).into();
        streams.into_iter().for_each(|stream| drop(assert_closed(stream)));
    });
}

#[test]
fn a_session_without_a_hello_is_closed_in_time() {
    beside_training(Mode::Async, |address, worker| {
        if worker.steps() > 0 {
            return;
        }
        let runtime = new_runtime();
        let ended = runtime.block_on(async {
            let mut client = CoordinatorClient::connect(format!("http://{address}")).await.unwrap();
            let (_silent, messages) = tokio::sync::mpsc::channel::<TaskMessage>(1);
            let session = async {
                let mut answers = client.session(ReceiverStream::new(messages)).await?.into_inner();
                answers.message().await
            };
            tokio::time::timeout(LIMIT, session).await.expect("the server closes the session")
        });
        assert!(!matches!(ended, Ok(Some(_))), "nothing is said to a stranger: {ended:?}");
    });
}

#[test]
fn a_crowd_of_silent_connections_is_thinned_out_and_a_worker_still_gets_in() {
    for word in [MAGIC.as_slice(), b""] {
        beside_training(Mode::Async, move |address, worker| {
            if worker.steps() > 0 {
                return;
            }
            let mut crowd: Vec<TcpStream> = (0..3 * CROWD).map(|_| say(address, word)).collect();
            let stayed = crowd.split_off(2 * CROWD);
            crowd.into_iter().for_each(|stream| drop(assert_closed(stream)));
            // Among those that stayed, a health check is answered, and this worker's push is taken.
            let mut check = say(address, b"GET /healthz HTTP/1.1\r\nhost: ps\r\n\r\n");
            let mut answer = String::new();
            check.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("ok\n"), "{answer}");
            drop(stayed);
        });
    }
}

#[test]
fn a_request_with_a_head_without_end_is_refused() {
    beside_training(Mode::Async, |address, _| {
        let mut stream = say(address, b"GET /healthz HTTP/1.1\r\nhost: ps\r\n");
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let line = [b"x-filler: ".as_slice(), &[b'x'; 4000], b"\r\n"].concat();
        // It is refused long before all of this, and the rest is not read.
        for _ in 0..100 {
            if stream.write_all(&line).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    });
}
