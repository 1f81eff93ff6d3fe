//! `windlass status`: of a run that answers, of its directory, and of what is neither.

use std::fs;

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
    assert!(live.stdout.starts_with("The run is active. ") && live.stdout.contains("; live at "), "{live}");
    run.0.signal(Signal::TERM);
    let told = run.wait();
    let after = told.windlass("status run").run().succeeded();
    assert!(after.stdout.starts_with("The run is stopped"), "{after}");
    let gone = told.windlass(&format!("status {address}")).run();
    assert_eq!(gone.exit_code(), Some(1), "{gone}");
    assert!(
        gone.stderr.starts_with(&format!("error: cannot reach a run at {address}: connection refused: nothing")),
        "{gone}"
    );
    assert!(gone.stderr.contains("\nhint: "), "{gone}");
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
    for place in [":2222", "a:port", "a:99999"] {
        assert_eq!(windlass(&format!("status {place}")).run().exit_code(), Some(2), "{place}");
    }
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
