//! `windlass runs`: listing, showing, comparing and removing run directories.

use std::collections::BTreeMap;
use std::fs;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Hosts, Launched, free_port};
use crate::process::{Told, eventually, windlass};
use crate::screen::Screen;

/// Trains until it is told to stop.
const FOREVER: &str = "linear --steps 1000000000 --evaluate end";

fn json(told: &Told) -> Value {
    serde_json::from_str(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told}"))
}

/// The entry of `runs list` for the run in `run`.
fn listed(launched: &Launched) -> Value {
    json(&launched.0.windlass("runs list . --json").run().succeeded())[0].clone()
}

/// Waits until the run has made steps, according to its directory.
fn trains(launched: &Launched) {
    let path = launched.0.directory().join("run/status.json");
    eventually("a step in status.json", || {
        let value: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        (value["status"]["phase"]["name"] == "training").then_some(())
    });
}

#[test]
fn without_runs_the_list_is_empty() {
    assert_snapshot!(windlass("runs list").run(), @"
    exit code 0
    --- stdout
    no runs in runs
    --- stderr
    ");
    assert_eq!(json(&windlass("runs list --json").run().succeeded()), Value::Array(Vec::new()));
}

#[test]
fn a_directory_that_is_not_there_or_not_of_a_run_is_refused() {
    let dir = "x/notes.txt";
    assert_snapshot!(windlass("runs list nowhere").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: there is no directory nowhere
    hint: `runs list DIR` shows the run directories below a directory
    ");
    for words in ["runs show x", "runs compare x x", "runs rm --yes x"] {
        let told = windlass(words).with_file(dir, "mine").run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.starts_with("error: x is not a run directory: it has no run.toml, "), "{told}");
        assert!(told.directory().join(dir).exists());
    }
    assert_snapshot!(windlass("runs show x/notes.txt").with_file(dir, "mine").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: x/notes.txt is not a directory
    ");
    assert_eq!(windlass("runs compare x").with_file(dir, "").run().exit_code(), Some(2));
    assert_eq!(windlass("runs rm").run().exit_code(), Some(2));
    assert_eq!(windlass("runs").run().exit_code(), Some(2));
}

#[test]
fn an_empty_directory_is_no_run() {
    let invocation = windlass("runs show empty");
    fs::create_dir(invocation.directory().join("empty")).unwrap();
    assert_snapshot!(invocation.run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: empty is not a run directory: it is empty
    hint: `runs list DIR` shows the run directories below a directory
    ");
}

#[test]
fn a_damaged_run_is_shown_as_far_as_it_can_be_read() {
    let damaged = |words: &str| {
        let whole = "# All settings of this run, and where each comes from.\nmodel-name = \"mnist\"\n[train";
        windlass(words).with_file("runs/a/run.toml", whole).with_file("runs/a/summary.json", "{\"model\":")
    };
    let list = damaged("runs list").run().succeeded();
    assert!(list.stdout.contains("runs/a  not begun (damaged)"), "{list}");
    let show = damaged("runs show a").run().succeeded();
    let told: Vec<&str> = show.stdout.lines().filter(|line| line.starts_with(" damaged: ")).collect();
    assert!(told.len() == 2 && told[0].contains("run.toml") && told[1].contains("summary.json"), "{show}");
    let gone = damaged("runs rm a --yes").run().succeeded();
    assert!(!gone.directory().join("runs/a").exists());
}

#[test]
fn runs_that_ended_are_listed_shown_compared_and_removed() {
    let words = "linear --steps 60 --evaluate end --run-dir";
    let first = windlass(&format!("train {words} runs/single")).run().succeeded();
    first.windlass(&format!("launch {words} runs/cluster --mode sync --learning-rate 0.02")).run().succeeded();

    let list = json(&first.windlass("runs list --json").run().succeeded());
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|run| run["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["runs/cluster", "runs/single"], "the newest first: {list}");
    let (cluster, single) = (&list[0], &list[1]);
    assert_eq!((&cluster["ending"]["how"], &cluster["step"]), (&Value::from("finished"), &Value::from(60)), "{list}");
    assert_eq!(single["layout"], serde_json::json!({"ps": 0, "workers": 1, "colocated": false, "joined": false}));
    assert!(cluster["loss"].is_number() && cluster["bytes"].as_u64() > Some(0), "{list}");
    let table = first.windlass("runs list").run().succeeded();
    let row = table.stdout.lines().find(|line| line.contains("runs/cluster")).unwrap_or_else(|| panic!("{table}"));
    assert!(row.contains("finished  linear  1 ps, 2 workers  sync"), "{table}");

    let show = first.windlass("runs show cluster").run().succeeded();
    for text in ["linear, 1 ps, 2 workers, sync", "finished", "60 of 60", "--learning-rate", "step 60", "joined"] {
        assert!(show.stdout.contains(text), "{text:?} is missing: {show}");
    }
    let all = json(&first.windlass("runs show runs/cluster --json").run().succeeded());
    assert_eq!((&all["summary"]["global_step"], &all["last_status"]["exit_code"]), (&60.into(), &0.into()));

    let compare = first.windlass("runs compare cluster single").run().succeeded();
    let row = |name: &str| compare.stdout.lines().find(|line| line.trim_start().starts_with(name));
    let words = |name: &str| row(name).map(|line| line.split_whitespace().collect::<Vec<_>>()).unwrap_or_default();
    assert_eq!(words("mode"), ["mode", "sync", "async"], "{compare}");
    assert_eq!(words("learning-rate")[1], "0.02", "{compare}");
    assert!(row("seed").is_none() && row("run-dir").is_none(), "{compare}");
    let compared = json(&first.windlass("runs compare cluster single --json").run().succeeded());
    assert_eq!(compared["runs"], serde_json::json!(["runs/cluster", "runs/single"]));

    let asks_nobody = first.windlass("runs rm single cluster").run();
    assert_eq!(asks_nobody.exit_code(), Some(2), "{asks_nobody}");
    assert!(asks_nobody.stderr.contains("pass --yes"), "{asks_nobody}");
    first.windlass("runs rm single cluster --yes").run().succeeded();
    assert_eq!(json(&first.windlass("runs list --json").run().succeeded()), Value::Array(Vec::new()));
}

#[test]
fn in_graph_and_placed_runs_are_listed_shown_and_removed_as_what_they_are() {
    let words = "mnist --hidden 8 --steps 40 --evaluate end";
    let first = windlass(&format!("launch {words} --in-graph --mode sync --workers 2 --run-dir runs/launched"));
    let first = first.run().succeeded();
    let place = "--place hidden=/task:0,output=/task:1 --workers 2";
    first.windlass(&format!("launch {words} {place} --run-dir runs/placed")).run().succeeded();
    first.windlass(&format!("train {words} --place hidden=cpu:0,output=cpu:1 --run-dir runs/stages")).run().succeeded();
    let address = format!("127.0.0.1:{}", free_port());
    let worker = first.windlass(&format!("join --listen {address} --once")).start();
    worker.log("listening on ");
    let by_hand = format!("train {words} --in-graph --worker_hosts {address} --run-dir runs/by-hand");
    first.windlass(&by_hand).run().succeeded();
    worker.wait().succeeded();

    let list = json(&first.windlass("runs list --json").run().succeeded());
    let layouts: BTreeMap<&str, &Value> =
        list.as_array().unwrap().iter().map(|run| (run["path"].as_str().unwrap(), &run["layout"])).collect();
    let joined = |workers: u32| serde_json::json!({"ps": 0, "workers": workers, "colocated": false, "joined": true});
    assert_eq!(layouts["runs/launched"], &joined(2), "{list}");
    assert_eq!(layouts["runs/placed"], &joined(2), "{list}");
    assert_eq!(layouts["runs/by-hand"], &joined(1), "{list}");
    assert_eq!(layouts["runs/stages"]["joined"], false, "{list}");
    for (run, says) in [("launched", "mnist, 2 joined workers"), ("by-hand", "mnist, 1 joined worker,")] {
        let show = first.windlass(&format!("runs show {run}")).run().succeeded();
        assert!(show.stdout.contains(says) && show.stdout.contains("test accuracy "), "{show}");
        let status = first.windlass(&format!("status runs/{run}")).run().succeeded();
        assert!(status.stdout.starts_with("The run has finished. "), "{status}");
        assert!(status.stdout.contains("%") && status.stdout.contains("✓ Over: step 40 reached"), "{status}");
    }
    first.windlass("runs rm launched placed stages by-hand --yes").run().succeeded();
    assert_eq!(json(&first.windlass("runs list --json").run().succeeded()), Value::Array(Vec::new()));
}

#[test]
fn an_active_run_is_told_by_its_lock_and_is_not_removed_until_it_was_stopped() {
    let launched = Launched::start(FOREVER);
    trains(&launched);
    assert_eq!(listed(&launched)["ending"]["how"], "running");
    let refused = launched.0.windlass("runs rm run --yes").run();
    assert_eq!(refused.exit_code(), Some(4), "{refused}");
    assert!(refused.stderr.starts_with("error: the run in run is active: "), "{refused}");
    let page = launched.0.windlass("runs show run").run().succeeded();
    assert!(page.stdout.contains("active, live page at http://127.0.0.1:"), "{page}");
    launched.0.signal(Signal::TERM);
    let told = launched.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    let stopped = json(&told.windlass("runs list . --json").run().succeeded())[0].clone();
    assert_eq!(stopped["ending"]["how"], "stopped", "{stopped}");
    told.windlass("runs rm run --yes").run().succeeded();
    assert!(!told.directory().join("run").exists());
}

#[test]
fn a_run_that_was_killed_is_told_from_one_that_failed() {
    let launched = Launched::start(FOREVER);
    trains(&launched);
    let killed = launched.0.killed();
    let run = eventually("the end of the tasks", || {
        let run = json(&killed.windlass("runs list . --json").run().succeeded())[0].clone();
        (run["ending"]["how"] != "running").then_some(run)
    });
    assert_eq!(run["ending"]["how"], "died", "{run}");
    let failed = windlass("train linear --steps 1000 --learning-rate 1e30 --run-dir run").run();
    assert_eq!(failed.exit_code(), Some(3), "{failed}");
    let run = json(&failed.windlass("runs list . --json").run().succeeded())[0].clone();
    assert_eq!(run["ending"]["how"], "failed", "{run}");
    assert!(run["ending"]["why"].as_str().unwrap().contains("the loss is"), "{run}");
}

#[test]
fn a_cluster_whose_tasks_were_started_one_by_one_is_active_too() {
    let hosts = Hosts::new(1, 1);
    let start = |job| hosts.task(job, 0, &format!("{FOREVER} --run-dir run")).start();
    let (ps, worker) = (start("ps"), start("worker"));
    let list = || json(&ps.windlass("runs list . --json").run().succeeded())[0].clone();
    let run = eventually("a step", || Some(list()).filter(|run| run["last_heard"].is_u64()));
    assert_eq!(run["ending"]["how"], "running", "{run}");
    ps.signal(Signal::TERM);
    let (told, _) = (ps.wait(), worker.wait());
    let run = json(&told.windlass("runs list . --json").run().succeeded())[0].clone();
    assert_eq!(run["ending"]["how"], "stopped", "{run}");
}

#[test]
fn on_a_terminal_removing_asks_first() {
    for (answer, is_removed) in [("n\r", false), ("\r", false), ("y\r", true)] {
        let run = windlass("runs rm run").with_file("run/run.toml", "model-name = \"mnist\"\n");
        let path = run.directory().join("run");
        let mut screen = Screen::start(run, 24, 80);
        screen.shows("Remove it with all checkpoints? [y/N]", 1);
        screen.type_keys(answer);
        let (status, lines) = screen.wait_keeping(|| assert_eq!(path.exists(), !is_removed));
        assert!(status.success(), "{lines:#?}");
    }
}
