//! A worker that is loading its data: it reports that it is alive, and ends when it is told to.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc;

use rustix::process::Signal;

use crate::cluster::free_port;
use crate::fake_store::FakeStore;
use crate::instruments::answers;
use crate::process::{Invocation, Process, eventually, windlass};

/// A command that trains on text read from a pipe.
const WORDS: &str = "seq2seq --size 8 --layers 1 --steps 10 --train-from from --train-to to";

/// Starts a process that reads its text from a pipe without content: it waits while the pipe is open.
fn waiting_for_text(invocation: Invocation) -> (Process, File) {
    let pipes = ["from", "to"].map(|name| invocation.directory().join(name));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    pipes.iter().for_each(|pipe| rustix::fs::mkfifoat(rustix::fs::CWD, pipe, mode).unwrap());
    let process = invocation.start();
    let open = || {
        let mut options = OpenOptions::new();
        // Opening fails until there is a reader.
        options.write(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(&pipes[0]).ok()
    };
    let pipe = eventually("it reads its text", open);
    (process, pipe)
}

#[test]
fn whoever_is_told_to_stop_while_it_loads_does_not_wait_for_its_data() {
    let hosts = format!("127.0.0.1:{}", free_port());
    let ps = format!("127.0.0.1:{}", free_port());
    let worker = format!("train {WORDS} --job_name worker --task_index 0 --worker_hosts {hosts} --ps_hosts {ps}");
    for words in [format!("train {WORDS} --run-dir run"), worker] {
        let (process, _pipe) = waiting_for_text(windlass(&words));
        process.signal(Signal::TERM);
        let told = process.wait();
        assert_eq!(told.exit_code(), Some(143), "{told}");
        assert!(told.stderr.contains("stopped: SIGTERM"), "{told}");
    }
}

#[test]
fn a_colocated_worker_says_that_it_lives_while_it_loads() {
    let address = format!("127.0.0.1:{}", free_port());
    let words = format!("train {WORDS} --colocate --job_name worker --task_index 0 --worker_hosts {address}");
    let (process, _pipe) = waiting_for_text(windlass(&words));
    for (path, status) in [("/livez", 200), ("/startupz", 503), ("/readyz", 503)] {
        answers(&address, path, status);
    }
    process.signal(Signal::TERM);
    assert_eq!(process.wait().exit_code(), Some(143));
}

/// In one process the worker is told to stop, while the server waits for the store.
#[test]
fn whoever_is_told_to_stop_while_the_store_is_opened_does_not_wait_for_it() {
    let (sender, asked) = mpsc::channel();
    // The request that claims the checkpoints gets no response.
    let store = FakeStore::start(move |request| request.starts_with("PUT ") && sender.send(()).is_ok());
    let process = store.reaches(windlass("train linear --checkpoint-dir s3://bucket/run")).start();
    asked.recv().unwrap();
    process.signal(Signal::TERM);
    let told = process.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}
