//! `windlass status` for a run that responds, for its directory, and for anything else.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Hosts, Launched};
use crate::process::{Told, eventually, windlass};

/// Trains until it is told to stop.
const FOREVER: &str = "linear --steps 1000000000 --evaluate end";

fn json(told: &Told) -> Value {
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told}"))
}

#[test]
fn a_run_is_asked_by_its_address_and_by_its_directory() {
    let run = Launched::start(FOREVER);
    let path = run.0.directory().join("run/status.json");
    let record = eventually("a run that trains", || {
        let record: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        (record["status"]["phase"]["name"] == "training").then_some(record)
    });
    let address = record["address"].as_str().unwrap();
    for place in [address.to_owned(), format!("http://{address}/"), "run".to_owned()] {
        let text = run.0.windlass(&format!("status {place}")).run().succeeded();
        assert!(text.stdout.contains("● Training: step "), "{text}");
        let all = json(&run.0.windlass(&format!("status {place} --json")).run().succeeded());
        assert_eq!((&all["model"], all["workers"].as_array().map(Vec::len)), (&"linear".into(), Some(2)), "{all}");
    }
    let live = run.0.windlass("status run").run().succeeded();
    assert!(live.stdout.starts_with("The run is active. ") && live.stdout.contains("; live at"), "{live}");
    run.0.signal(Signal::TERM);
    let told = run.wait();
    let after = told.windlass("status run").run().succeeded();
    assert!(after.stdout.starts_with("The run was stopped: "), "{after}");
    assert!(after.stdout.contains("\n■ Stopped at step ") && after.stdout.contains(" of 1,000,000,000:"), "{after}");
    assert!(after.stdout.contains("■ ended") && !after.stdout.contains("alive"), "{after}");
    let gone = told.windlass(&format!("status {address}")).run();
    assert_eq!(gone.exit_code(), Some(1), "{gone}");
    assert!(
        gone.stderr.starts_with(&format!("error: cannot reach a run at {address}: connection refused: nothing")),
        "{gone}"
    );
    assert!(gone.stderr.contains("\nhint: "), "{gone}");
}

#[test]
fn the_directory_of_a_run_that_is_over_tells_its_last_figures() {
    let told = windlass("launch linear --steps 300 --evaluate end --run-dir run").run().succeeded();
    let status = json(&told.windlass("status run --json").run().succeeded());
    assert_eq!((&status["phase"]["name"], &status["step"]), (&"over".into(), &300.into()), "{status}");
    let workers = status["workers"].as_array().unwrap();
    let steps: u64 = workers.iter().filter_map(|worker| worker["step"].as_u64()).sum();
    assert!(steps >= 300 && status["servers"][0]["applied"].as_u64() >= Some(300), "{status}");
    assert!(workers.iter().all(|worker| worker["state"] == "done"), "{status}");
    assert!(!status["scores"].as_array().unwrap().is_empty(), "{status}");
}

#[test]
fn the_directory_of_a_run_that_died_tells_of_the_past() {
    let run = Launched::start(FOREVER);
    let path = run.0.directory().join("run/status.json");
    let (mut record, told) = {
        let record = eventually("a run that trains", || {
            let record: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            (record["status"]["phase"]["name"] == "training").then_some(record)
        });
        run.0.signal(Signal::TERM);
        (record, run.wait())
    };
    // As if the run had been killed at that moment.
    record["status"]["step"] = 40.into();
    fs::write(told.directory().join("run/status.json"), record.to_string()).unwrap();
    let after = told.windlass("status run").run().succeeded();
    assert!(after.stdout.starts_with("The run died: "), "{after}");
    assert!(after.stdout.contains("\n✕ Died at step 40 of 1,000,000,000\n"), "{after}");
    assert!(!after.stdout.contains("alive") && !after.stdout.contains("done in"), "{after}");
}

#[test]
fn a_run_answers_while_a_worker_is_missing_and_when_one_has_died() {
    let hosts = Hosts::new(1, 2);
    let (_ps, _first) = (hosts.task("ps", 0, FOREVER).start(), hosts.task("worker", 0, FOREVER).start());
    let place = &hosts.ps[0];
    let state = |wanted: &str| {
        eventually(&format!("worker 1 to be {wanted}"), || {
            let told = windlass(&format!("status {place} --json")).run();
            let worker = (told.exit_code() == Some(0)).then(|| json(&told)["workers"][1].clone())?;
            (worker["state"] == wanted).then_some(())
        });
        windlass(&format!("status {place}")).run().succeeded().stdout
    };
    let missing = state("missing");
    assert!(missing.contains("Gathering: waiting for worker 1"), "{missing}");
    let second = hosts.task("worker", 1, FOREVER).start();
    state("alive");
    second.kill();
    let dead = state("dead");
    assert!(dead.contains("Training: step ") && dead.contains("worker 1 is dead"), "{dead}");
}

#[test]
fn what_is_neither_an_address_nor_a_directory_is_refused() {
    assert_snapshot!(windlass("status nowhere").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: "nowhere" is neither HOST:PORT nor a directory
    hint: give a host and a port, such as 127.0.0.1:2222
    "#);
    for place in [":2222", "a:port", "a:99999", "a:0"] {
        assert_eq!(windlass(&format!("status {place}")).run().exit_code(), Some(2), "{place}");
    }
    for command in ["status", "top"] {
        let told = windlass(&format!("{command} ::1:2222")).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains("hint: write an IPv6 address and its port as [::1]:2222"), "{told}");
    }
}

#[test]
fn a_host_that_never_answers_is_given_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let told = windlass(&format!("status {address}")).run();
    assert_eq!(told.exit_code(), Some(1), "{told}");
    let says = format!("error: cannot reach a run at {address}: no answer within 10 s\nhint: ");
    assert!(told.stderr.starts_with(&says), "{told}");
}

#[test]
fn an_answer_that_is_no_status_is_refused_and_no_proxy_is_asked() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut connection, _) = server.accept().unwrap();
        let mut request = [0; 4096];
        let length = connection.read(&mut request).unwrap();
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    // Nobody listens there.
    let mut asking = windlass(&format!("status {address}"));
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        asking = asking.env(name, "http://127.0.0.1:9");
    }
    let told = asking.run();
    assert!(answering.join().unwrap().starts_with("GET /status.json HTTP/1.1\r\n"), "asked as its own server is");
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.starts_with(&format!("error: {address} does not answer like a run: ")), "{told}");
}

#[test]
fn a_run_that_never_trained_is_told_of_as_past() {
    let status = r#"{"written": 12, "status": {"phase": {"name": "gathering"}, "step": 0, "workers": [{"state": "missing"}],
        "servers": [{"state": "alive", "silent_secs": 0.1}], "awaited": {"on": [{"job": "worker", "index": 0}], "secs": 4.0}}}"#;
    let told = windlass("status run").with_file("run/status.json", status).run().succeeded();
    assert!(told.stdout.starts_with("The run never began to train. "), "{told}");
    assert!(told.stdout.contains("\n✕ Died before the first step\n"), "{told}");
    assert!(!told.stdout.contains("alive") && !told.stdout.contains("waiting for"), "{told}");
}

#[test]
fn a_directory_that_is_empty_of_no_run_or_damaged_says_so() {
    let empty = windlass("status empty");
    fs::create_dir(empty.directory().join("empty")).unwrap();
    assert_snapshot!(empty.run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: empty is not a run directory: it is empty
    hint: `runs list DIR` shows the run directories below a directory
    ");
    let other = windlass("status x").with_file("x/notes.txt", "mine").run();
    assert_eq!(other.exit_code(), Some(2), "{other}");
    let unheard = windlass("status a").with_file("runs/a/run.toml", "model-name = \"mnist\"\n").run();
    assert_snapshot!(unheard, @"
    exit code 2
    --- stdout
    --- stderr
    error: runs/a has no status.json
    hint: `runs show runs/a` tells what else is known
    ");
    let damaged = windlass("status a").with_file("a/run.toml", "model-name = \"mnist\"\n");
    let damaged = damaged.with_file("a/status.json", "{\"written\": 12, \"sta").run();
    assert_eq!(damaged.exit_code(), Some(2), "{damaged}");
    assert!(damaged.stderr.starts_with("error: a has a damaged status.json: "), "{damaged}");
}
