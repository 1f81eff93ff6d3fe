//! Runs that are interrupted and resumed, by the same cluster or by another, with the same result.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, mpsc};

use rustix::process::Signal;
use serde_json::Value;

use crate::checkpoints::values;
use crate::cluster::{Launched, summary};
use crate::digits::DigitFiles;
use crate::fake_store::{FakeStore, Fate};
use crate::process::{Invocation, LIMIT, Told, windlass};

const STEPS: u64 = 15_000;

/// The same data for all runs, so that they can be compared.
static FILES: LazyLock<DigitFiles> = LazyLock::new(|| DigitFiles::new(400, 100));

/// Flags for every run. In sync mode, two gradients have the same sum in either order.
const FLAGS: &str = "mnist --mode sync --hidden 8 --min-shard-bytes 0 --batch-size 20 --threads 1 --evaluate end --log-every 10 \
                     --checkpoint-secs 0 --checkpoint-steps 200 --lr-schedule exponential:0.5:400 --format json --run-dir run";

/// The final values of a run without interruptions.
static UNDISTURBED: LazyLock<Vec<u8>> = LazyLock::new(|| values(&on(windlass, "launch", "--ps 2").run().succeeded()));

/// A run to the last step, by this command and with these additional flags.
fn on(windlass: impl FnOnce(&str) -> Invocation, command: &str, flags: &str) -> Invocation {
    windlass(&format!("{command} {FLAGS} --steps {STEPS} {flags} --data-dir")).with(FILES.path())
}

/// A run on two servers and two workers that was stopped midway.
fn stopped() -> Told {
    let run = Launched::by(on(windlass, "launch", "--ps 2"));
    run.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(STEPS / 10));
    run.0.signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    told
}

/// Asserts that a run resumed where another was stopped, and finished.
fn went_on(resumed: Told) -> Told {
    let resumed = resumed.succeeded();
    let summary = summary(&resumed);
    assert_eq!(summary["global_step"], STEPS);
    let from = summary["resumed_at"].as_u64().unwrap();
    assert!((1..STEPS).contains(&from), "it went on from {from}");
    resumed
}

#[test]
fn a_sync_run_whose_every_process_is_killed_and_resumed_ends_with_the_same_bits() {
    let run = Launched::by(on(windlass, "launch", "--ps 2"));
    run.logged("ps-0", "checkpoint of step ");
    let killed = run.0.killed();
    let resumed = went_on(on(|words| killed.windlass(words), "launch", "--ps 2").run());
    assert!(values(&resumed) == *UNDISTURBED, "the values differ");
}

#[test]
fn a_sync_run_that_loses_a_ps_ends_with_the_same_bits() {
    let run = Launched::by(on(windlass, "launch", "--ps 2 --restart 1"));
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 1).signal(Signal::KILL);
    assert!(values(&went_on(run.wait())) == *UNDISTURBED, "the values differ");
}

#[test]
fn a_sync_run_that_loses_the_coordinator_ends_with_the_same_bits() {
    let run = Launched::by(on(windlass, "launch", "--ps 2 --restart 1"));
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 0).signal(Signal::KILL);
    assert!(values(&went_on(run.wait())) == *UNDISTURBED, "the values differ");
}

#[test]
fn a_sync_run_told_to_stop_and_resumed_ends_with_the_same_bits() {
    let stopped = stopped();
    let resumed = went_on(on(|words| stopped.windlass(words), "launch", "--ps 2").run());
    assert!(values(&resumed) == *UNDISTURBED, "the values differ");
}

#[test]
fn another_number_of_ps_takes_a_run_up() {
    let stopped = stopped();
    let resumed = went_on(on(|words| stopped.windlass(words), "launch", "--ps 3").run());
    assert_eq!(summary(&resumed)["ps"], 3);
    assert!(values(&resumed) == *UNDISTURBED, "the values differ");
}

#[test]
fn another_number_of_workers_takes_a_run_up() {
    let stopped = stopped();
    let resumed = went_on(on(|words| stopped.windlass(words), "launch", "--ps 2 --workers 3").run());
    assert_eq!(summary(&resumed)["workers"], 3);
}

#[test]
fn one_process_takes_a_run_up() {
    let stopped = stopped();
    let resumed = went_on(on(|words| stopped.windlass(words), "train", "").run());
    assert_eq!(summary(&resumed)["ps"], 0);
}

#[test]
fn a_cluster_takes_up_what_one_process_began() {
    let run = on(windlass, "train", "").start();
    run.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(STEPS / 10));
    run.signal(Signal::TERM);
    let stopped = run.wait();
    assert_eq!(stopped.exit_code(), Some(143), "{stopped}");
    went_on(on(|words| stopped.windlass(words), "launch", "--ps 2").run());
}

#[test]
fn an_evaluator_that_was_started_before_its_run_has_the_model_and_data_of_the_run() {
    let evaluator = windlass("train mnist --job_name evaluator --run-dir run").start();
    evaluator.log("evaluator: scoring the checkpoints in");
    let launch = "launch mnist --hidden 20 --seed 7 --steps 100 --evaluate end --format json --run-dir run";
    let trained = evaluator.windlass(launch).run().succeeded();
    let accuracy = summary(&trained)["metrics"]["test_accuracy"].as_f64().unwrap();
    let scored = evaluator.wait().succeeded();
    let last = format!("evaluator  step 100: test accuracy {:.2}%", accuracy * 100.0);
    assert!(scored.stdout.contains(&last), "no {last:?} in {scored}");
}

#[test]
fn an_evaluator_scores_checkpoints_beside_a_run_and_ends_with_it() {
    let run = Launched::by(on(windlass, "launch", "--ps 2"));
    let evaluator = on(|words| run.0.windlass(words), "train", "--job_name evaluator").start();
    evaluator.log("evaluator: scoring the checkpoints in");
    let trained = run.wait().succeeded();
    let scored = evaluator.wait().succeeded();
    let last: Value = serde_json::from_str(scored.stdout.lines().last().unwrap_or_default()).unwrap();
    assert_eq!(last["global_step"], STEPS, "{scored}");
    assert_eq!(last["metrics"]["test_accuracy"], summary(&trained)["metrics"]["test_accuracy"], "{scored}");
    let curves = fs::read_dir(trained.directory().join("run/tensorboard/evaluator")).unwrap().count();
    assert!(curves > 0, "it writes curves of its own");
}

#[test]
fn an_evaluator_stays_with_a_finished_run_that_is_resumed() {
    let finished = windlass("launch linear --steps 100 --run-dir run").run().succeeded();
    // The newest checkpoint is that of the finished run until this run is told to stop.
    let more = "launch linear --steps 1000000000 --checkpoint-secs 0 --format json --run-dir run";
    let run = Launched::by(finished.windlass(more));
    run.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(100));
    let evaluator = run.0.windlass("train linear --job_name evaluator --format json --run-dir run").start();
    evaluator.event(|scored| scored["global_step"] == 100);
    run.0.signal(Signal::TERM);
    let stopped = run.wait();
    assert_eq!(stopped.exit_code(), Some(143), "{stopped}");
    let scored = evaluator.wait().succeeded();
    let last: Value = serde_json::from_str(scored.stdout.lines().last().unwrap_or_default()).unwrap();
    assert!(last["global_step"].as_u64() > Some(100), "{scored}");
    assert!(scored.stderr.contains("evaluator: the run has ended at step"), "{scored}");
}

#[test]
fn an_evaluator_waits_for_a_store_that_fails_for_a_while() {
    let (fails, (sender, receiver)) = (Arc::new(AtomicBool::new(true)), mpsc::channel());
    let store = FakeStore::with({
        let fails = fails.clone();
        move |_| match fails.load(Ordering::SeqCst) {
            true => Fate::Fails,
            false => {
                let _ = sender.send(());
                Fate::Answered
            }
        }
    });
    let evaluator = "train linear --job_name evaluator --checkpoint-dir s3://bucket/run";
    let evaluator = store.reaches(windlass(evaluator)).start();
    evaluator.log("; trying again");
    fails.store(false, Ordering::SeqCst);
    receiver.recv_timeout(LIMIT).expect("it asks again");
    evaluator.signal(Signal::TERM);
    let told = evaluator.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}
