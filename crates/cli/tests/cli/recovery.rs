//! Tasks that are killed in the middle of a run with checkpoints, and are restarted by `launch` or not at all.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Hosts, Launched, Task, samples_an_update, summary};
use crate::digits::DigitFiles;
use crate::process::{Told, eventually, windlass};

/// The number of steps of a run: high enough that no run ends before its tasks are killed, and that they are killed
/// between two checkpoints.
const STEPS: u64 = 20_000;
const INTERVAL: u64 = 1000;

/// Flags for every run: a network that is small but still distributed over all servers.
const NETWORK: &str = "mnist --hidden 8 --min-shard-bytes 0 --batch-size 20 --evaluate end --log-every 10";

fn digits() -> DigitFiles {
    DigitFiles::new(400, 100)
}

/// A run on two servers and two workers that are restarted.
struct Recovering {
    cluster: Launched,
    steps: u64,
    /// Samples per update: in sync mode the batches of both workers.
    samples: f64,
    _files: DigitFiles,
}

impl Recovering {
    fn start(flags: &str) -> Self {
        Self::start_to(STEPS, flags)
    }

    fn start_to(steps: u64, flags: &str) -> Self {
        let files = digits();
        let words = format!(
            "launch {NETWORK} --ps 2 --workers 2 --restart 9 --steps {steps} --checkpoint-secs 0 \
             --checkpoint-steps {INTERVAL} --format json --run-dir run {flags} --data-dir"
        );
        let samples = if flags.contains("--mode sync") { 40.0 } else { 20.0 };
        Self { cluster: Launched::by(windlass(&words).with(files.path())), steps, samples, _files: files }
    }

    /// Returns when there is a checkpoint, and later updates that would be lost with a server. All tasks are suspended.
    fn start_beyond_a_checkpoint(flags: &str) -> (Self, u64) {
        let run = Self::start(flags);
        let log = run.cluster.log("ps-0");
        let saved = eventually("a checkpoint", || saved(&fs::read_to_string(&log).unwrap_or_default()));
        run.cluster.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(saved));
        run.freeze();
        (run, saved)
    }

    /// Suspends all tasks, so that the run does not end before one is killed.
    fn freeze(&self) {
        self.cluster.tasks().iter().for_each(|task| task.signal(Signal::STOP));
    }

    /// Kills tasks, and continues the others.
    fn kill(&self, tasks: &[(&str, u32)]) {
        self.freeze();
        // All tasks are found before the first one is killed.
        let killed: Vec<Task> = tasks.iter().map(|(job, index)| self.cluster.task(job, *index)).collect();
        let (killed, others): (Vec<_>, Vec<_>) =
            self.cluster.tasks().into_iter().partition(|task| killed.contains(task));
        killed.iter().for_each(|task| task.signal(Signal::KILL));
        others.iter().for_each(|task| task.signal(Signal::CONT));
    }

    /// Runs to the end, and checks that the run is complete as if nothing had happened: every step, an undamaged last
    /// checkpoint, no process left.
    fn ends_well(self) -> Told {
        let told = self.cluster.wait().succeeded();
        let summary = summary(&told);
        assert_eq!(summary["global_step"], self.steps);
        // A sync round without a worker that has not rejoined yet has fewer samples.
        let samples = samples_an_update(&summary);
        assert!((20.0..=self.samples).contains(&samples), "whatever was undone or has died: {summary:#}");
        let verified = told.windlass("checkpoint verify run/checkpoints").run().succeeded();
        assert!(verified.stdout.starts_with(&format!("{:012}-", self.steps)), "{verified}");
        assert_eq!(Task::all_in(told.directory()), []);
        told
    }
}

/// The step of the first checkpoint in the log of ps 0.
fn saved(log: &str) -> Option<u64> {
    log.split_once("checkpoint of step ")?.1.split_once(" is in ")?.0.parse().ok()
}

/// The step to which the run rolled back, and the number of updates lost, according to the log of ps 0.
fn lost(told: &Told) -> (u64, u64) {
    let log = fs::read_to_string(told.directory().join("run/ps-0.log")).unwrap();
    let line = log.lines().find(|line| line.contains("rolling back to the checkpoint of step "));
    let numbers = line.and_then(|line| {
        let (step, rest) = line.split_once("rolling back to the checkpoint of step ")?.1.split_once(" in ")?;
        let (_, lost) = rest.strip_suffix(" updates are lost")?.rsplit_once(": ")?;
        Some((step.parse().ok()?, lost.parse().ok()?))
    });
    numbers.unwrap_or_else(|| panic!("no word of what was lost in\n{log}"))
}

/// Asserts that the run rolled back once: to the checkpoint of this step, or to one that was being written.
fn went_back(told: &Told, saved: u64) {
    let (step, lost) = lost(told);
    assert!((saved..STEPS).contains(&step), "it went back to step {step}, not to {saved}");
    assert!((1..=STEPS - step).contains(&lost), "{lost} updates were lost after step {step}");
    assert_eq!(summary(told)["resumed_at"], step);
}

/// Waits until `status.json` satisfies a condition, and returns its contents.
fn recorded(directory: &Path, wanted: impl Fn(&Value) -> bool) -> Value {
    let path = directory.join("run/status.json");
    eventually("a status", || {
        let record: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        wanted(&record).then_some(record)
    })
}

#[test]
fn the_figures_of_a_run_go_on_when_ps_0_is_replaced() {
    let run = Recovering::start_to(2 * STEPS, "");
    let log = run.cluster.log("ps-0");
    eventually("a checkpoint", || saved(&fs::read_to_string(&log).unwrap_or_default()));
    let before = recorded(run.cluster.0.directory(), |record| record["status"]["phase"]["name"] == "training");
    run.kill(&[("ps", 0)]);
    let told = run.ends_well();
    let after = recorded(told.directory(), |record| record["exit_code"] == 0);
    assert_eq!(after["began"], before["began"], "{after:#}");
    let (status, before) = (&after["status"], &before["status"]);
    let number = |status: &Value, name: &str| status[name].as_f64().unwrap_or_else(|| panic!("{name} in {status:#}"));
    assert!(number(status, "elapsed_secs") > number(before, "elapsed_secs"), "{status:#}");
    assert!(number(status, "goodput") > 0.0 && number(status, "goodput") <= 1.0, "{status:#}");
    assert_eq!((&status["rollbacks"], &status["start"]), (&1.into(), &0.into()), "{status:#}");
    assert_eq!(status["updates_lost"], lost(&told).1, "{status:#}");
    let events: Vec<&str> =
        status["timeline"]["events"].as_array().unwrap().iter().map(|event| event["what"].as_str().unwrap()).collect();
    let again = events.iter().position(|what| *what == "ps 0 was restarted").unwrap_or_else(|| panic!("{events:?}"));
    assert!(events[..again].contains(&"worker 0 joined"), "{events:?}");
    assert!(events[again..].iter().any(|what| what.starts_with("rolled back from step ")), "{events:?}");
}

fn says_started_again(told: &Told, task: &str) {
    let says = format!("{task} was killed by signal 9; restarted it");
    assert!(told.stderr.contains(&says), "no {says:?} in {}", told.stderr);
}

#[test]
fn a_killed_worker_goes_on_in_its_data_where_it_was() {
    let run = Recovering::start("");
    run.cluster.event("step", 0);
    let before = run.cluster.event("step", 1)["local_step"].as_u64();
    run.kill(&[("worker", 1)]);
    run.cluster.event("started", 1);
    let after = run.cluster.event("step", 1)["local_step"].as_u64();
    assert!(after > before, "{after:?} steps of its own, after {before:?}");
    let told = run.ends_well();
    says_started_again(&told, "worker 1");
    let summary = summary(&told);
    assert_eq!(summary["resumed_at"], 0, "nothing is lost with a worker");
    assert_eq!(summary["per_worker"][1]["left"], Value::Null, "it was there at the end");
    let steps = |worker: usize| summary["per_worker"][worker]["steps"].as_u64().unwrap();
    assert_eq!(steps(0) + steps(1), STEPS, "every update is some worker's step: {summary:#}");
}

#[test]
fn a_killed_chief_comes_back_as_a_worker() {
    let run = Recovering::start("");
    run.cluster.event("step", 0);
    run.cluster.event("step", 1);
    run.kill(&[("worker", 0)]);
    run.cluster.event("started", 0);
    let told = run.ends_well();
    says_started_again(&told, "worker 0");
    assert_eq!(summary(&told)["per_worker"][0]["left"], Value::Null, "it was there at the end");
}

#[test]
fn when_a_ps_is_killed_all_go_back_to_the_checkpoint() {
    let (run, step) = Recovering::start_beyond_a_checkpoint("");
    run.kill(&[("ps", 1)]);
    let told = run.ends_well();
    says_started_again(&told, "ps 1");
    went_back(&told, step);
}

#[test]
fn when_the_coordinator_is_killed_all_go_back_to_the_checkpoint() {
    let (run, step) = Recovering::start_beyond_a_checkpoint("");
    run.kill(&[("ps", 0)]);
    let told = run.ends_well();
    says_started_again(&told, "ps 0");
    went_back(&told, step);
}

#[test]
fn when_all_tasks_are_killed_at_once_all_go_on_from_the_checkpoint() {
    let (run, step) = Recovering::start_beyond_a_checkpoint("");
    run.kill(&[("worker", 0), ("ps", 1), ("worker", 1), ("ps", 0)]);
    let told = run.ends_well();
    ["ps 0", "ps 1", "worker 0", "worker 1"].iter().for_each(|task| says_started_again(&told, task));
    assert!(summary(&told)["resumed_at"].as_u64() >= Some(step), "{:#}", summary(&told));
}

#[test]
fn a_ps_killed_before_the_first_checkpoint_costs_all_updates() {
    let run = Recovering::start("");
    run.cluster.event("step", 0);
    run.kill(&[("ps", 1)]);
    run.cluster.logged("ps-0", "no checkpoint exists yet: all ");
    let told = run.ends_well();
    assert_eq!(summary(&told)["resumed_at"], 0);
}

#[test]
fn a_run_that_began_from_another_runs_checkpoint_goes_back_there_however_often_a_ps_is_lost() {
    let files = digits();
    let words = format!("train {NETWORK} --steps 200 --run-dir first --data-dir");
    let first = windlass(&words).with(files.path()).run().succeeded();
    let words = format!(
        "launch {NETWORK} --ps 2 --workers 2 --restart 9 --steps {STEPS} --checkpoint-secs 0 --resume first \
         --format json --run-dir run --data-dir"
    );
    let cluster = Launched::by(first.windlass(&words).with(files.path()));
    let run = Recovering { cluster, steps: STEPS, samples: 20.0, _files: files };
    for times in 1..=3 {
        run.cluster.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(200));
        run.kill(&[("ps", times % 2)]);
        run.cluster
            .logged("ps-0", &format!("rolling back to the checkpoint of step 200 in {}", first.directory().display()));
        run.cluster.0.event(|event| event["event"] == "started" && event["from"] == 200);
    }
    assert_eq!(summary(&run.ends_well())["resumed_at"], 200);
}

#[test]
fn when_a_ps_and_the_chief_are_killed_together_all_go_back_to_the_checkpoint() {
    for mode in ["--mode sync", "--mode async", "--mode ssp --staleness 2"] {
        let (run, step) = Recovering::start_beyond_a_checkpoint(mode);
        run.kill(&[("ps", 1), ("worker", 0)]);
        let told = run.ends_well();
        ["ps 1", "worker 0"].iter().for_each(|task| says_started_again(&told, task));
        went_back(&told, step);
    }
}

#[test]
fn a_colocated_run_goes_back_to_the_checkpoint_when_a_worker_is_killed() {
    let files = digits();
    let words = format!(
        "launch {NETWORK} --colocate --workers 2 --restart 1 --steps {STEPS} --checkpoint-secs 0 \
         --checkpoint-steps {INTERVAL} --format json --run-dir run --data-dir"
    );
    let run = Recovering {
        cluster: Launched::by(windlass(&words).with(files.path())),
        steps: STEPS,
        samples: 20.0,
        _files: files,
    };
    run.cluster.logged("worker-0", "checkpoint of step ");
    run.kill(&[("worker", 1)]);
    says_started_again(&run.ends_well(), "worker 1");
}

#[test]
fn a_worker_that_slept_through_its_death_comes_in_again_and_repeats_nothing() {
    // Enough steps that the other worker is not done before this one is declared dead.
    let steps = 2 * STEPS;
    let run = Recovering::start_to(steps, "--worker-timeout 1");
    run.cluster.event("step", 1);
    let asleep = run.cluster.task("worker", 1);
    asleep.signal(Signal::STOP);
    run.cluster.logged("ps-0", "worker 1 is gone: no sign of life for");
    asleep.signal(Signal::CONT);
    run.cluster.event("started", 1);
    let told = run.ends_well();
    let summary = summary(&told);
    assert_eq!(summary["per_worker"][1]["left"], Value::Null, "it was there at the end");
    let own = |worker: usize| summary["per_worker"][worker]["steps"].as_u64().unwrap();
    assert_eq!(own(0) + own(1), steps, "every update is some worker's step: {summary:#}");
}

#[test]
fn without_anyone_to_start_it_again_a_lost_ps_is_waited_for_by_name() {
    let (hosts, files) = (Hosts::new(2, 1), digits());
    let words = format!("{NETWORK} --steps 1000000 --run-dir run --format json --peer-timeout 3");
    let start = |job, index| hosts.task(job, index, &words).with("--data-dir").with(files.path()).start();
    let [first, lost, worker] = [start("ps", 0), start("ps", 1), start("worker", 0)];
    worker.event(|event| event["event"] == "step");
    lost.kill();
    worker.log("waiting for ps 1");
    first.log("waiting for ps 1");
    for task in [first, worker] {
        let told = task.wait();
        assert_eq!(told.exit_code(), Some(5), "{told}");
        let named = |line: &str| line.contains("gave up") && line.contains("ps 1 ");
        assert!(told.stderr.lines().any(named), "{told}");
    }
}

#[test]
fn a_run_that_slept_while_another_took_over_its_checkpoints_ends_without_adding_to_them() {
    let files = digits();
    let words = |command: &str, run: &str, steps: u64| {
        format!(
            "{command} {NETWORK} --steps {steps} --checkpoint-dir kept --checkpoint-secs 0 --checkpoint-steps {INTERVAL} \
             --format json --run-dir {run} --data-dir"
        )
    };
    let endless = windlass(&words("launch", "run", 1_000_000)).with(files.path());
    let overtaken = Launched::by(endless);
    overtaken.logged("ps-0", "checkpoint of step ");
    overtaken.tasks().iter().for_each(|task| task.signal(Signal::STOP));
    let second = format!("{} --take-over --data-dir", words("train", "other", STEPS).trim_end_matches(" --data-dir"));
    overtaken.0.windlass(&second).with(files.path()).run().succeeded();
    overtaken.tasks().iter().for_each(|task| task.signal(Signal::CONT));
    let told = overtaken.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("generation 2 has taken over from generation 1"), "{told}");
    let verified = told.windlass("checkpoint verify kept").run().succeeded();
    assert!(verified.stdout.starts_with(&format!("{STEPS:012}-g000002-")), "{verified}");
}
