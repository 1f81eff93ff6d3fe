//! Runs that are started again after they have ended, or in the middle: what they report about the earlier steps.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoints::{manifests, values};
use crate::cluster::{Hosts, Launched, summary};
use crate::process::{Told, windlass};

/// All files of a directory, with their contents and modification times.
fn files(directory: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            let written = entry.metadata().unwrap().modified().unwrap();
            found.insert(entry.path(), (written, std::fs::read(entry.path()).unwrap()));
        }
    }
    found
}

/// Asserts that the command reported a finished run in these words.
fn says(told: &Told, reached: &str, flag: &str) {
    let says = format!("the run is finished: {reached}, in ");
    let line = told.stdout.lines().find(|line| line.contains(&says)).unwrap_or_else(|| panic!("no {says:?} in {told}"));
    assert!(line.contains(&format!("run/checkpoints; a larger {flag} trains on from there")), "{told}");
    assert!(!told.stdout.contains("loss"), "{told}");
}

#[test]
fn a_finished_run_that_is_started_again_says_so_and_changes_nothing() {
    for command in ["train", "launch"] {
        for (limit, reached, flag) in [
            ("--steps 150", "step 150 of 150", "--steps"),
            (
                "--epochs 2",
                if command == "train" { "epoch 2 of 2, step 202" } else { "epoch 2 of 2, step 404" },
                "--epochs",
            ),
        ] {
            let words = format!("{command} linear {limit} --threads 1 --run-dir run");
            let first = windlass(&words).run().succeeded();
            let before = files(&first.directory().join("run"));
            for format in ["", "--format json"] {
                let again = first.windlass(&format!("{words} {format}")).run().succeeded();
                says(&again, reached, flag);
                assert!(files(&again.directory().join("run")) == before, "something was changed: {again}");
            }
        }
    }
}

#[test]
fn a_finished_run_that_is_asked_for_more_goes_on() {
    let first = windlass("train linear --epochs 2 --run-dir run").run().succeeded();
    let more = first.windlass("train linear --epochs 3 --format json --run-dir run").run().succeeded();
    assert_eq!((&more.event("started")["from"], &summary(&more)["global_step"]), (&202.into(), &303.into()));
    let other = more.windlass("train linear --epochs 3 --run-dir run --resume never --format json").run().succeeded();
    assert_eq!(other.event("started")["from"], 0);
}

#[test]
fn a_finished_run_whose_epochs_have_another_length_now_is_finished_all_the_same() {
    let first = windlass("launch linear --epochs 2 --run-dir run").run().succeeded();
    let before = (manifests(&first), summary(&first));
    // An epoch has 50 batches instead of 101, which only the workers know. The same number of samples is the same
    // number of epochs.
    let again = first.windlass("launch linear --epochs 2 --batch-size 2 --run-dir run").run().succeeded();
    says(&again, "epoch 2 of 2, step 404", "--epochs");
    assert_eq!(again.stdout.matches("the run is finished").count(), 1, "{again}");
    assert_eq!((manifests(&again), summary(&again)), before);
}

#[test]
fn a_run_that_ended_without_one_of_its_workers_is_finished_when_it_is_started_again() {
    let words = "linear --epochs 300 --log-every 10 --checkpoint-secs 0";
    let run = Launched::start(words);
    run.event("step", 1);
    run.task("worker", 1).signal(Signal::KILL);
    let first = run.wait().succeeded();
    assert!(!summary(&first)["per_worker"][1]["left"].is_null(), "{first}");
    let (before, step) = (manifests(&first), summary(&first)["global_step"].clone());
    let reached = format!("epoch 300 of 300, step {step}");
    says(&first.windlass(&format!("launch {words} --run-dir run")).run().succeeded(), &reached, "--epochs");
    let hosts = Hosts::new(1, 2);
    let place = format!("--run-dir {}", first.directory().join("run").display());
    let tasks = [("ps", 0), ("worker", 0), ("worker", 1)];
    let tasks = tasks.map(|(job, index)| hosts.task(job, index, &format!("{words} {place}")).start());
    for task in tasks {
        says(&task.wait().succeeded(), &reached, "--epochs");
    }
    assert_eq!(manifests(&first), before);
}

#[test]
fn a_worker_that_has_had_its_epochs_says_at_which_step_the_run_is() {
    let first = windlass("train linear --epochs 2 --run-dir run").run().succeeded();
    let joined = first.windlass("launch linear --workers 2 --epochs 2 --format json --run-dir run").run().succeeded();
    let mut events = joined.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let finished = events.find(|event| event["event"] == "finished" && event["worker"] == 0).unwrap();
    assert_eq!(finished["steps_this_run"], 0, "{finished}");
    assert!(finished["global_step"].as_u64() >= Some(202), "{finished}");
}

#[test]
fn every_task_of_a_finished_cluster_is_told() {
    let first = windlass("train linear --steps 150 --run-dir run").run().succeeded();
    let before = (manifests(&first), summary(&first));
    let hosts = Hosts::new(2, 2);
    let place = format!("--run-dir {}", first.directory().join("run").display());
    let tasks = [("worker", 0), ("ps", 1), ("worker", 1), ("ps", 0)].map(|(job, index)| {
        // Only ps 0 and the chief know the location of the checkpoints.
        let place = if index == 0 { &*place } else { "" };
        hosts.task(job, index, &format!("linear --steps 150 {place}")).start()
    });
    for task in tasks {
        says(&task.wait().succeeded(), "step 150 of 150", "--steps");
    }
    assert_eq!((manifests(&first), summary(&first)), before);
}

#[test]
fn a_resumed_run_tells_its_own_steps_from_those_before() {
    for command in ["train", "launch"] {
        let words = |steps| format!("{command} linear --steps {steps} --threads 1 --run-dir run");
        let first = windlass(&words(150)).run().succeeded();
        assert_eq!(summary(&first)["steps_this_run"], 150);
        assert!(first.stdout.contains("150 in "), "{first}");
        let resumed = first.windlass(&words(400)).run().succeeded();
        let whole = resumed.stdout.lines().find(|line| line.trim_start().starts_with("steps ")).unwrap();
        assert!(whole.contains(" 400, 250 of them in "), "{resumed}");
        let summary = summary(&resumed);
        assert_eq!((&summary["global_step"], &summary["steps_this_run"]), (&400.into(), &250.into()), "{summary:#}");
        let own = |worker: &Value| worker["steps_this_run"].as_u64().unwrap();
        let workers = summary["per_worker"].as_array().unwrap();
        assert_eq!(workers.iter().map(own).sum::<u64>(), 250, "{summary:#}");
        let again = resumed.windlass(&format!("{} --format json", words(450))).run().succeeded();
        let finished = again.event("finished");
        assert!(finished["steps"].as_u64() > finished["steps_this_run"].as_u64(), "{finished}");
    }
}

#[test]
fn a_run_that_loses_a_server_still_counts_all_of_its_steps() {
    let run =
        Launched::start("linear --steps 20000 --log-every 10 --checkpoint-secs 0 --checkpoint-steps 500 --restart 2");
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 0).signal(Signal::KILL);
    let told = run.wait().succeeded();
    let summary = summary(&told);
    assert!(summary["resumed_at"].as_u64() > Some(0), "{summary:#}");
    assert_eq!(summary["steps_this_run"], 20000, "{summary:#}");
    assert!(!told.stdout.contains("first step"), "{told}");
}

#[test]
fn a_run_that_only_scores_keeps_the_measurements_in_the_summary() {
    let measured = summary(&windlass("train linear --steps 150 --run-dir run").run().succeeded());
    let run = windlass("train linear --steps 1000000000 --log-every 10 --format json --run-dir run").start();
    run.event(|event| event["event"] == "step");
    run.signal(Signal::INT);
    let stopped = run.wait();
    let list = stopped.windlass("checkpoint list run").run().succeeded();
    let step: u64 = list.stdout.lines().nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
    let path = stopped.directory().join("run/summary.json");
    let earlier = |global_step: u64| {
        let mut earlier = measured.clone();
        earlier["global_step"] = global_step.into();
        std::fs::write(&path, earlier.to_string()).unwrap();
    };
    earlier(step);
    let told = stopped.windlass("train linear --steps 5 --run-dir run").run().succeeded();
    assert!(told.stdout.contains(", none of them in this run"), "{told}");
    let kept = summary(&told);
    for name in ["wall_seconds", "steps_per_second", "step_ms", "per_worker", "steps_this_run"] {
        assert_eq!(kept[name], measured[name], "{name}");
    }
    assert_ne!(kept["metrics"], measured["metrics"], "the scores are new");
}

#[test]
fn a_run_that_finds_itself_past_its_end_makes_up_no_numbers() {
    let run = windlass("train linear --steps 1000000000 --log-every 10 --format json --run-dir run").start();
    run.event(|event| event["event"] == "step");
    run.signal(Signal::INT);
    let stopped = run.wait();
    let before = values(&stopped);
    // The final scores are still missing, so this differs from a run that has ended.
    let told = stopped.windlass("train linear --steps 5 --run-dir run").run().succeeded();
    assert!(told.stdout.contains(", none of them in this run"), "{told}");
    assert!(!told.stdout.contains("loss ") && !told.stdout.contains("steps/s"), "{told}");
    assert!(told.stdout.contains("mean squared error "), "{told}");
    assert_eq!(summary(&told)["loss"], Value::Null);
    assert!(values(&told) == before, "nothing was trained");
}
