//! Those who have the live page of a real server open.

use std::io::{BufRead, BufReader, Read, Write};

use windlass_core::run::RunSpec;

use crate::cluster::Cluster;
use crate::numbers::{SYNC, constant, run, several_blocks};
use crate::streams::connect;

#[test]
fn an_open_page_is_sent_how_the_run_ended_before_the_server_ends() {
    let run = RunSpec { steps: Some(3), ..run(SYNC, several_blocks()) };
    let cluster = Cluster::start(1, 1, run.clone());
    let mut viewer = connect(cluster.address(0));
    viewer.write_all(b"GET /events HTTP/1.1\r\nhost: ps\r\n\r\n").unwrap();
    let mut viewer = BufReader::new(viewer);
    // From then on it is to pause for longer than this run takes.
    let whole = (&mut viewer).lines().map(Result::unwrap).find(|line| line.contains("$set")).unwrap();
    assert!(whole.contains("gathering"), "{whole}");
    cluster.train(move |worker| {
        let mut pulled = worker.pull();
        while !pulled.over {
            pulled = worker.push(constant(&run, 1.0));
        }
    });
    let mut rest = String::new();
    viewer.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(r#""word":"over""#), "{rest}");
    assert!(rest.ends_with("\r\n0\r\n\r\n"), "the stream has an end: {rest}");
}
