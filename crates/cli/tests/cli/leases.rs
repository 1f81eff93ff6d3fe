//! Two runs with the same checkpoints: the second is refused while the first is alive, unless it takes over.

use std::fs;

use rustix::process::Signal;

use crate::cluster::{Launched, Task, summary};
use crate::digits::DigitFiles;
use crate::process::{Process, Told, windlass};

/// A run in one process that is training and does not end by itself.
fn endless() -> Process {
    let run = windlass("train linear --steps 1000000000 --threads 1 --format json --run-dir run").start();
    run.event(|event| event["event"] == "step");
    run
}

const SECOND: &str =
    "train linear --steps 100 --threads 1 --format json --checkpoint-dir run/checkpoints --run-dir other";

/// Asserts that a run was refused with the name of the run that holds its checkpoints.
fn refused(told: &Told, holder: &str) {
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains(&format!("is in use by another run: {holder} on ")), "{told}");
    assert!(told.stderr.contains(" has held it since 2"), "{told}");
    assert!(told.stderr.contains("--take-over"), "{told}");
}

#[test]
fn a_second_run_on_the_checkpoints_of_a_living_one_is_refused_and_the_first_goes_on() {
    let first = endless();
    let holder = format!("process {}", first.pid().as_raw_nonzero());
    refused(&first.windlass(SECOND).run(), &holder);
    refused(&first.windlass(&SECOND.replace("train", "launch")).run(), &holder);
    first.signal(Signal::TERM);
    let told = first.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    let listed = told.windlass("checkpoint list run").run().succeeded();
    assert!(listed.stdout.contains("-g000001-"), "its last checkpoint was written: {listed}");
    // A run that has ended holds nothing.
    let resumed = told.windlass(&SECOND.replace("--steps 100", "--steps 2000000000 --epochs 1")).run().succeeded();
    assert!(resumed.event("started")["from"].as_u64() > Some(0), "{resumed}");
}

#[test]
fn a_second_run_that_insists_takes_the_checkpoints_over_and_the_first_ends() {
    let first = endless();
    first.windlass(&format!("{SECOND} --take-over")).run().succeeded();
    let told = first.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("generation 2 has taken over from generation 1"), "{told}");
}

/// Otherwise the tasks of one would read the settings of the other.
#[test]
fn a_second_run_in_the_directory_of_a_living_one_is_refused_wherever_its_checkpoints_are() {
    let first = endless();
    let settings = || fs::read_to_string(first.directory().join("run/run.toml")).unwrap();
    let before = settings();
    for command in ["train", "launch"] {
        let words = format!("{command} linear --steps 100 --checkpoint-dir elsewhere --run-dir run");
        let told = first.windlass(&words).run();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        assert!(told.stderr.contains("error: run is in use by another run on this machine"), "{told}");
    }
    assert_eq!(settings(), before);
    let killed = first.killed();
    killed.windlass("launch linear --steps 100 --checkpoint-dir elsewhere --run-dir run").run().succeeded();
}

#[test]
fn a_run_that_was_killed_holds_nothing() {
    let killed = endless().killed();
    killed.windlass(SECOND).run().succeeded();
}

#[test]
fn a_ps_that_is_started_again_before_its_first_checkpoint_begins_as_its_run_did() {
    let files = DigitFiles::new(400, 100);
    let words = |command: &str, steps: u64| {
        format!(
            "{command} mnist --hidden 8 --batch-size 20 --steps {steps} --evaluate end --log-every 10 --run-dir run"
        )
    };
    let earlier = windlass(&format!("{} --data-dir", words("train", 50))).with(files.path()).run().succeeded();
    let words = format!("{} --resume never --restart 1 --format json --data-dir", words("launch", 3000));
    let run = Launched::by(earlier.windlass(&words).with(files.path()));
    run.event("step", 0);
    run.tasks().iter().for_each(|task| task.signal(Signal::STOP));
    let ps: Task = run.task("ps", 0);
    ps.signal(Signal::KILL);
    run.tasks().iter().filter(|task| **task != ps).for_each(|task| task.signal(Signal::CONT));
    let told = run.wait().succeeded();
    let log = fs::read_to_string(told.directory().join("run/ps-0.log")).unwrap();
    assert_eq!(summary(&told)["resumed_at"], 0, "{log}");
}
