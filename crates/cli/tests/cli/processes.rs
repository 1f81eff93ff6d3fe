//! Runs that `launch` starts, and what becomes of them when processes die, stall or are told to stop.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Launched, Task, all_end, samples_an_update, summary};
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

/// A run that is long enough for a test to intervene in the middle.
struct LongRun {
    cluster: Launched,
    _files: DigitFiles,
}

impl LongRun {
    /// Returns when both workers are training.
    fn start(flags: &str) -> Self {
        let files = DigitFiles::new(2400, 100);
        let words = format!("launch mnist --log-every 10 --peer-timeout 30 --format json --run-dir run {flags}");
        let cluster = Launched::by(windlass(&format!("{words} --data-dir")).with(files.path()));
        cluster.event("step", 0);
        cluster.event("step", 1);
        Self { cluster, _files: files }
    }

    /// All its processes except the launcher.
    fn tasks(&self) -> [Task; 3] {
        [self.cluster.task("ps", 0), self.cluster.task("worker", 0), self.cluster.task("worker", 1)]
    }

    fn kill(&self, job: &str, index: u32) {
        self.cluster.task(job, index).signal(Signal::KILL);
    }

    /// Waits until the run ends, and keeps its directory.
    fn wait(self) -> Told {
        self.cluster.wait()
    }
}

/// Why a worker left early, according to the summary.
fn why_left(summary: &Value, worker: usize) -> &str {
    summary["per_worker"][worker]["left"].as_str().unwrap_or_else(|| panic!("worker {worker} stayed: {summary:#}"))
}

#[test]
fn a_run_ends_by_itself_and_leaves_no_process() {
    let run = LongRun::start("--steps 300");
    let tasks = run.tasks();
    run.wait().succeeded();
    assert!(tasks.iter().all(|task| !task.is_alive()), "{tasks:?}");
}

#[test]
fn of_several_ps_on_one_host_a_small_model_is_given_to_as_many_as_it_is_worth() {
    // There are 795 values of 4 bytes for each hidden unit.
    for (hidden, held) in [(80, [63_610, 0]), (2700, [1_073_248, 1_073_262])] {
        for flags in ["", "--in-graph", "--place output=/task:0"] {
            let words = format!("mnist --hidden {hidden} --ps 2 --workers 1 --steps 10 --evaluate end {flags}");
            let told = Launched::start(&words).wait().succeeded();
            for (ps, held) in held.iter().enumerate() {
                let log = std::fs::read_to_string(told.directory().join(format!("run/ps-{ps}.log"))).unwrap();
                assert!(log.contains(&format!("holds {held} of ")), "{flags}: {log}");
                assert_eq!(log.contains("too small to need another ps on this host"), *held == 0, "{flags}: {log}");
            }
        }
    }
}

#[test]
fn every_task_has_a_log_in_words() {
    let told = Launched::start("linear --ps 2 --min-shard-bytes 0 --epochs 1").wait().succeeded();
    let log = |task: &str| std::fs::read_to_string(told.directory().join(format!("run/{task}.log"))).unwrap();
    for (task, text) in [
        ("ps-0", "ps 0 listens on 127.0.0.1:"),
        ("ps-1", "holds 1 of 2 parameter values"),
        ("worker-0", "worker 0 finished: 101 steps of its own"),
        ("worker-1", "epoch 1 ended: mean loss"),
    ] {
        assert!(log(task).contains(text), "no {text:?} in the log of {task}:\n{}", log(task));
    }
}

#[test]
fn what_a_run_that_crashed_has_logged_is_there_when_it_is_launched_again() {
    let crashed = windlass("launch linear --optimizer sgd --learning-rate 1e30 --run-dir run").run();
    let log = || std::fs::read_to_string(crashed.directory().join("run/worker-0.log")).unwrap();
    let before = log();
    assert!(before.contains("the loss is inf"), "{before}");
    crashed.windlass("launch linear --steps 10 --run-dir run").run().succeeded();
    let after = log();
    assert!(after.starts_with(&before), "{after}");
    assert_eq!(after.lines().filter(|line| line.starts_with("==== worker 0 at 2")).count(), 2, "{after}");
}

#[test]
fn two_launches_in_one_second_have_a_directory_each() {
    let first = windlass("launch linear --steps 10");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // Whatever the time is when the launcher chooses a name, another run already has it.
    let taken = (now..now + 100).map(|second| format!("runs/linear-{second}/summary.json"));
    let told = taken.fold(first, |first, name| first.with_file(&name, "another's")).run().succeeded();
    let directory = told.stdout.lines().next().and_then(|line| line.split_once("logs in ")).unwrap().1.to_owned();
    assert!(directory.starts_with("runs/linear-") && directory.ends_with("-2"), "{told}");
    assert_ne!(std::fs::read(told.directory().join(directory).join("summary.json")).unwrap(), b"another's");
}

#[test]
fn no_step_is_told_twice() {
    // Of two workers' last pushes, one comes after the last update.
    let told = windlass("launch linear --steps 501 --log-every 1 --format json").run().succeeded();
    let events = told.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    for worker in [0, 1] {
        let of_worker = events.clone().filter(|event| event["event"] == "step" && event["worker"] == worker);
        let steps: Vec<u64> = of_worker.map(|event| event["local_step"].as_u64().unwrap()).collect();
        assert!(steps.iter().copied().eq(1..=steps.len() as u64), "worker {worker}: {steps:?}");
    }
}

#[test]
fn an_async_run_goes_on_without_a_killed_worker() {
    let run = LongRun::start("--mode async --steps 3000");
    run.kill("worker", 1);
    let told = run.wait().succeeded();
    let summary = summary(&told);
    assert_eq!(summary["global_step"], 3000);
    assert_eq!(why_left(&summary, 1), "its connection broke and it did not come back");
    assert!(told.stderr.contains("worker 1 was killed by signal 9; the others continue"), "{}", told.stderr);
    assert_eq!(samples_an_update(&summary), summary["batch_size"].as_f64().unwrap(), "{summary:#}");
}

#[test]
fn a_sync_run_goes_on_without_a_killed_worker() {
    let run = LongRun::start("--mode sync --steps 1500");
    run.kill("worker", 1);
    let told = run.wait().succeeded();
    let summary = summary(&told);
    assert_eq!(summary["global_step"], 1500);
    assert_eq!(why_left(&summary, 1), "its connection broke and it did not come back");
}

#[test]
fn an_ssp_run_goes_on_without_a_killed_worker() {
    let run = LongRun::start("--mode ssp --staleness 1 --steps 3000");
    run.kill("worker", 1);
    let told = run.wait().succeeded();
    assert_eq!(why_left(&summary(&told), 1), "its connection broke and it did not come back");
}

#[test]
fn when_the_chief_is_killed_another_worker_ends_the_run() {
    let run = LongRun::start("--mode sync --steps 1500");
    run.kill("worker", 0);
    let told = run.wait().succeeded();
    assert_eq!(why_left(&summary(&told), 0), "its connection broke and it did not come back");
}

#[test]
fn a_stalled_worker_is_left_out_and_joins_again_when_it_wakes() {
    let run = LongRun::start("--mode sync --worker-timeout 1 --steps 6000");
    let stalled = run.cluster.task("worker", 1);
    stalled.signal(Signal::STOP);
    run.cluster.logged("ps-0", "worker 1 is gone: no sign of life for");
    let before = run.cluster.event("step", 0)["global_step"].as_u64();
    run.cluster.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > before);
    stalled.signal(Signal::CONT);
    run.cluster.logged("worker-1", "rejoining");
    run.cluster.event("started", 1);
    run.cluster.event("step", 1);
    let told = run.wait().succeeded();
    assert_eq!(summary(&told)["per_worker"][1]["left"], Value::Null, "it was there at the end");
}

#[test]
fn a_stalled_chief_is_replaced_and_comes_back_as_a_worker() {
    let run = LongRun::start("--mode sync --worker-timeout 1 --steps 6000");
    let stalled = run.cluster.task("worker", 0);
    stalled.signal(Signal::STOP);
    run.cluster.logged("worker-1", "this worker is now the chief");
    stalled.signal(Signal::CONT);
    assert_eq!(run.cluster.event("started", 0)["chief"], false);
    let told = run.wait().succeeded();
    assert_eq!(summary(&told)["per_worker"][0]["left"], Value::Null, "it was there at the end");
}

#[test]
fn a_killed_launcher_takes_its_tasks_along() {
    let run = LongRun::start("--steps 1000000");
    let tasks = run.tasks();
    run.cluster.0.kill();
    all_end(&tasks);
}

#[test]
fn an_interrupted_launcher_ends_its_tasks() {
    let run = LongRun::start("--steps 1000000");
    let tasks = run.tasks();
    run.cluster.0.signal(Signal::INT);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(130), "{told}");
    assert!(tasks.iter().all(|task| !task.is_alive()), "{tasks:?}");
}

#[test]
fn a_terminated_launcher_ends_its_tasks() {
    let run = LongRun::start("--steps 1000000");
    let tasks = run.tasks();
    run.cluster.0.signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(tasks.iter().all(|task| !task.is_alive()), "{tasks:?}");
}

#[test]
fn a_run_whose_ps_is_killed_fails_with_the_end_of_its_log() {
    let run = LongRun::start("--steps 1000000");
    let tasks = run.tasks();
    run.kill("ps", 0);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(1), "{told}");
    assert!(told.stderr.contains("error: ps 0 was killed by signal 9; the end of run/ps-0.log:"), "{told}");
    assert!(told.stderr.contains("all tasks have joined: 1 ps and 2 workers"), "{told}");
    assert!(told.stderr.contains("\nhint: --restart N starts killed tasks again, up to N times"), "{told}");
    assert!(tasks.iter().all(|task| !task.is_alive()), "{tasks:?}");
}

#[test]
fn a_run_whose_every_worker_is_killed_fails() {
    let run = LongRun::start("--steps 1000000");
    run.kill("worker", 0);
    run.kill("worker", 1);
    let told = run.wait();
    assert!(told.exit_code() > Some(0), "{told}");
}

#[test]
fn a_colocated_run_cannot_go_on_without_the_parameters_of_a_killed_worker() {
    let run = LongRun::start("--colocate --steps 1000000");
    run.kill("worker", 1);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(1), "{told}");
    assert!(told.stderr.contains("error: worker 1 was killed by signal 9"), "{told}");
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_with_the_worker_and_the_step() {
    let told = windlass("launch linear --optimizer sgd --learning-rate 1e30 --run-dir run").run();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    let tells = |line: &str| line.contains("error: worker ") && line.contains(": the loss is inf at step ");
    assert!(told.stderr.lines().any(tells), "{told}");
    assert!(told.stderr.ends_with("hint: try a smaller --learning-rate, or --clip-norm 1\n"), "{told}");
}

#[test]
fn a_loss_that_is_no_number_ends_a_single_process_too() {
    let told = windlass("train linear --optimizer sgd --learning-rate 1e30").run();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    let error = "error: worker 0: the loss is inf at step 2 (global step 2)\n";
    assert!(
        told.stderr.ends_with(&format!("{error}hint: try a smaller --learning-rate, or --clip-norm 1\n")),
        "{told}"
    );
    assert_eq!(told.stderr.matches("the loss is inf").count(), 1, "it is said once: {told}");
}

#[test]
fn a_task_that_cannot_start_ends_the_run_with_its_error() {
    let told = windlass("launch linear --batch-size 102 --run-dir run").run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    let error = "error: --batch-size 102 is more than this worker's 101 samples";
    assert!(told.stderr.contains(error), "{told}");
}
