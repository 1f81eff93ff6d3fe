//! Tasks that die together, and tasks that are suspended while the others continue without them: with the flags that
//! users give, except for a shorter `--worker-timeout`, so that a death is noticed soon.

use std::cell::RefCell;
use std::fs;

use rustix::process::Signal;

use crate::cluster::{Hosts, Launched, Task, summary};
use crate::digits::DigitFiles;
use crate::process::{Process, Told, windlass};

const NETWORK: &str = "mnist --hidden 8 --batch-size 20 --evaluate end --log-every 10 --format json";
const SOON: &str = "--worker-timeout 1";

/// A cluster whose tasks are started one by one, and restarted only by the test.
struct ByHand {
    hosts: Hosts,
    words: String,
    files: DigitFiles,
    directory: tempfile::TempDir,
}

impl ByHand {
    fn new((ps, workers): (usize, usize), flags: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let words = format!("{NETWORK} {flags} --run-dir {}", directory.path().join("run").display());
        Self { hosts: Hosts::new(ps, workers), words, files: DigitFiles::new(400, 100), directory }
    }

    fn start(&self, job: &str, index: usize) -> Process {
        self.start_with(job, index, "")
    }

    fn start_with(&self, job: &str, index: usize, flags: &str) -> Process {
        let words = format!("{} {flags}", self.words);
        self.hosts.task(job, index, &words).with("--data-dir").with(self.files.path()).start()
    }

    fn summary(&self) -> serde_json::Value {
        let text = fs::read_to_string(self.directory.path().join("run/summary.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

fn steps(process: &Process) {
    process.event(|event| event["event"] == "step");
}

/// Kills a ps and the chief, restarts only the ps, and expects the other worker to complete the run.
fn ps_and_chief_die_together(flags: &str, ready: impl Fn(&Process, &Process)) {
    let cluster = ByHand::new((1, 2), &format!("{SOON} --steps 3000 {flags}"));
    let [ps, chief, worker] = [cluster.start("ps", 0), cluster.start("worker", 0), cluster.start("worker", 1)];
    steps(&chief);
    steps(&worker);
    ready(&ps, &worker);
    chief.signal(Signal::STOP);
    ps.kill();
    chief.kill();
    let ps = cluster.start("ps", 0);
    worker.wait().succeeded();
    ps.wait().succeeded();
    assert_eq!(cluster.summary()["global_step"], 3000);
}

#[test]
fn when_ps_and_chief_die_together_the_other_worker_goes_on_from_the_checkpoint_and_ends_the_run() {
    ps_and_chief_die_together("--checkpoint-steps 50", |ps, _| {
        ps.log("checkpoint of step ");
    });
}

#[test]
fn when_ps_and_chief_die_together_before_a_checkpoint_the_other_worker_begins_anew_and_ends_the_run() {
    ps_and_chief_die_together("", |_, _| {});
}

/// A launched cluster whose tasks are restarted when they are killed.
struct Launching {
    cluster: Launched,
    steps: u64,
    _files: DigitFiles,
    asleep: RefCell<Vec<Task>>,
}

impl Launching {
    fn start(steps: u64, flags: &str) -> Self {
        let files = DigitFiles::new(400, 100);
        let words = format!(
            "launch {NETWORK} {SOON} --restart 9 --steps {steps} --checkpoint-secs 0 --checkpoint-steps 500 --run-dir run {flags} \
             --data-dir"
        );
        let cluster = Launched::by(windlass(&words).with(files.path()));
        Self { cluster, steps, _files: files, asleep: RefCell::default() }
    }

    fn put_to_sleep(&self, job: &str, index: u32) {
        let task = self.cluster.task(job, index);
        task.signal(Signal::STOP);
        self.asleep.borrow_mut().push(task);
    }

    fn wake(&self) {
        self.asleep.borrow_mut().drain(..).for_each(|task| task.signal(Signal::CONT));
    }

    fn ends_well(self) -> Told {
        let told = self.cluster.wait().succeeded();
        assert_eq!(summary(&told)["global_step"], self.steps);
        assert_eq!(Task::all_in(told.directory()), []);
        told
    }
}

/// A worker is suspended while a ps is killed and restarted and all tasks roll back to a checkpoint.
fn a_worker_sleeps_across_a_rollback(sleeper: u32, flags: &str) {
    // Enough steps that the other worker is still training when the suspended one is back, even on a busy machine.
    let run = Launching::start(60_000, flags);
    run.cluster.event("step", 0);
    run.cluster.event("step", 1);
    run.cluster.logged("ps-0", "checkpoint of step ");
    run.put_to_sleep("worker", sleeper);
    run.cluster.task("ps", 0).signal(Signal::KILL);
    run.cluster.event("started", 1 - sleeper);
    run.cluster.event("step", 1 - sleeper);
    run.wake();
    run.cluster.event("started", sleeper);
    run.ends_well();
}

#[test]
fn a_worker_that_slept_across_a_rollback_takes_part_again() {
    a_worker_sleeps_across_a_rollback(1, "");
}

#[test]
fn a_chief_that_slept_across_a_rollback_takes_part_again() {
    a_worker_sleeps_across_a_rollback(0, "");
}

#[test]
fn a_worker_that_slept_across_a_rollback_takes_part_in_the_rounds_again() {
    a_worker_sleeps_across_a_rollback(1, "--mode sync");
}

/// Suspends a task with a shard for longer than its timeout.
fn a_server_sleeps(job: &str, flags: &str) {
    let run = Launching::start(20_000, flags);
    run.cluster.event("step", 0);
    let coordinator = format!("{job}-0");
    run.cluster.logged(&coordinator, "checkpoint of step ");
    run.put_to_sleep(job, 1);
    run.cluster.logged(&coordinator, "lost ps 1: no sign of life for");
    run.wake();
    run.cluster.logged(&coordinator, "rolling back to the checkpoint of step ");
    run.ends_well();
}

#[test]
fn a_ps_that_slept_for_longer_than_its_timeout_comes_back() {
    a_server_sleeps("ps", "--ps 2 --min-shard-bytes 0");
}

#[test]
fn a_colocated_shard_that_slept_for_longer_than_its_timeout_comes_back() {
    a_server_sleeps("worker", "--colocate --min-shard-bytes 0");
}

#[test]
fn a_launched_run_ends_without_a_worker_that_never_wakes() {
    let run = Launching::start(20_000, "");
    run.cluster.event("step", 1);
    run.put_to_sleep("worker", 1);
    let told = run.ends_well();
    assert!(told.stderr.contains("killed worker 1, which did not end in time"), "{told}");
}

#[test]
fn a_worker_whose_host_vanished_is_replaced_by_one_that_is_started_elsewhere() {
    // With the default timeout: a worker that claims the place does not have to wait for it.
    let cluster = ByHand::new((1, 2), "--steps 1000000");
    let [ps, _chief, vanished] = [cluster.start("ps", 0), cluster.start("worker", 0), cluster.start("worker", 1)];
    steps(&vanished);
    vanished.signal(Signal::STOP);
    // The suspended process holds the port, but only at its own address.
    let successor = cluster.start_with("worker", 1, "--bind 127.0.0.2");
    successor.log("another process already runs as worker 1; waiting to see whether it is still alive");
    steps(&successor);
    // The suspended worker continues, and finds that a live one has taken its place.
    vanished.signal(Signal::CONT);
    let told = vanished.wait();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("worker 1 is already running"), "{told}");
    ps.signal(Signal::TERM);
    let told = successor.wait();
    assert_eq!(told.exit_code(), Some(143), "it was there to the end: {told}");
}

/// A cluster that has finished except for worker 1, which is suspended.
fn ended_without_worker_1(flags: &str) -> (ByHand, Process) {
    let cluster = ByHand::new((1, 2), &format!("{SOON} {flags}"));
    let [ps, chief, asleep] = [cluster.start("ps", 0), cluster.start("worker", 0), cluster.start("worker", 1)];
    steps(&asleep);
    asleep.signal(Signal::STOP);
    ps.wait().succeeded();
    chief.wait().succeeded();
    (cluster, asleep)
}

#[test]
fn a_worker_that_wakes_after_the_end_learns_of_it_and_ends_well() {
    let (_cluster, asleep) = ended_without_worker_1("--steps 20000");
    asleep.signal(Signal::CONT);
    let told = asleep.wait().succeeded();
    assert!(told.stderr.contains("the run ended at step 20000 while this task was away"), "{told}");
}

#[test]
fn a_worker_that_starts_after_the_end_learns_of_it_and_ends_well() {
    for (limit, told) in [("--steps 20000", "has ended at step 20000"), ("--epochs 500", "has ended at step ")] {
        let (cluster, asleep) = ended_without_worker_1(limit);
        asleep.kill();
        let late = cluster.start("worker", 1).wait().succeeded();
        assert!(late.stderr.contains(told), "{limit}: {late}");
    }
}

#[test]
fn a_ps_that_is_started_again_after_a_crash_at_the_end_ends_well() {
    let (cluster, asleep) = ended_without_worker_1("--steps 3000");
    asleep.kill();
    // As if ps 0 had died before it could record the end of the run.
    let claims = cluster.directory.path().join("run/checkpoints/generations");
    let claim = fs::read_dir(claims).unwrap().next().unwrap().unwrap().path();
    let text = fs::read_to_string(&claim).unwrap();
    assert!(text.contains(r#""released":true"#), "{text}");
    fs::write(&claim, text.replace(r#""released":true"#, r#""released":false"#)).unwrap();
    cluster.start("ps", 0).wait().succeeded();
}

#[test]
fn an_evaluator_ends_when_its_run_is_told_to_stop() {
    let cluster = ByHand::new((1, 1), "--steps 1000000");
    let [ps, worker] = [cluster.start("ps", 0), cluster.start("worker", 0)];
    let words = cluster.words.replace("--format json", "");
    let evaluator =
        windlass(&format!("train {words} --job_name evaluator --data-dir")).with(cluster.files.path()).start();
    evaluator.log("evaluator: scoring the checkpoints in");
    steps(&worker);
    ps.signal(Signal::TERM);
    assert_eq!(ps.wait().exit_code(), Some(143));
    let told = evaluator.wait().succeeded();
    assert!(told.stdout.contains("evaluator  step ") && told.stderr.contains("the run has ended at step "), "{told}");
}
