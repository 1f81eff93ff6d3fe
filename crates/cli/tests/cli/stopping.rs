//! Runs that are told to stop: their exit codes, what they leave behind, and what they report.

use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Hosts, Launched, Task, all_end, summary};
use crate::process::{Invocation, Process, Told, eventually, windlass};

/// Longer than any of these tests.
const ENDLESS: &str = "--steps 1000000000 --log-every 10 --threads 1";

const SIGNALS: [(Signal, &str, i32); 3] =
    [(Signal::HUP, "SIGHUP", 129), (Signal::INT, "SIGINT", 130), (Signal::TERM, "SIGTERM", 143)];

/// Starts with no signal ignored, whatever signals the tests ignore.
fn heeding(words: &str) -> Invocation {
    let program = env!("CARGO_BIN_EXE_windlass");
    Invocation::new(Path::new("env"), &format!("--default-signal=HUP,INT,TERM {program} {words}"))
}

/// Starts a run, and waits until it is training.
fn training(invocation: Invocation) -> Process {
    let process = invocation.start();
    process.event(|event| event["event"] == "step");
    process
}

fn stopped(process: Process, signal: Signal) -> Told {
    process.signal(signal);
    process.wait()
}

/// The step of the checkpoint that the output names.
fn checkpointed(told: &Told) -> u64 {
    let checkpoint = told.after("checkpoint: step ");
    checkpoint.split(',').next().unwrap().parse().unwrap_or_else(|_| panic!("{told}"))
}

/// Asserts that the command in the output of a stopped run resumes from the checkpoint named there.
fn resumes(told: &Told, to: &str) -> Told {
    let step = checkpointed(told);
    let command = told.after("resume: ").replace("--steps 1000000000", &format!("--steps {}", step + 100));
    let resumed = told.shell(&format!("{command} {to}")).run().succeeded();
    assert_eq!(resumed.event("started")["from"], step, "{resumed}");
    resumed
}

#[test]
fn every_signal_that_means_stop_writes_a_checkpoint_and_has_one_exit_code() {
    for command in ["train", "launch"] {
        for (signal, name, exit_code) in SIGNALS {
            let run = training(heeding(&format!("{command} linear {ENDLESS} --format json --run-dir run")));
            let told = stopped(run, signal);
            assert_eq!(told.exit_code(), Some(exit_code), "{told}");
            let step = checkpointed(&told);
            assert!(told.stderr.contains(&format!("\nstopped: {name} at step {step} of 1000000000\n")), "{told}");
            let listed = told.windlass("checkpoint list run").run().succeeded();
            assert!(listed.stdout.contains(&format!(" {step} ")), "{listed}");
        }
    }
}

#[test]
fn a_run_that_is_to_outlive_its_terminal_does() {
    let program = env!("CARGO_BIN_EXE_windlass");
    for command in ["train", "launch"] {
        let words = format!("--ignore-signal=HUP {program} {command} linear {ENDLESS} --format json --run-dir run");
        let run = training(Invocation::new(Path::new("env"), &words));
        run.signal(Signal::HUP);
        let seen = run.event(|event| event["event"] == "step")["global_step"].as_u64();
        run.event(|event| event["event"] == "step" && event["global_step"].as_u64() > seen);
        let told = stopped(run, Signal::TERM);
        assert_eq!(told.exit_code(), Some(143), "{told}");
    }
}

#[test]
fn a_stopped_run_names_the_command_that_resumes_it() {
    let words = format!("train linear {ENDLESS} --format json --resume never --run-dir");
    let told = stopped(training(windlass(&words).with("my runs/it's 1")), Signal::INT);
    assert!(told.after("checkpoint: step ").ends_with(", in my runs/it's 1/checkpoints"), "{told}");
    resumes(&told, "");
}

#[test]
fn a_launched_run_whose_directory_was_chosen_for_it_names_that() {
    let told = stopped(training(windlass(&format!("launch linear {ENDLESS} --format json"))), Signal::INT);
    let (_, run_dir) = told.after("resume: ").rsplit_once(" --run-dir ").unwrap_or_else(|| panic!("{told}"));
    assert!(told.after("checkpoint: ").ends_with(&format!(", in {run_dir}/checkpoints")), "{told}");
    resumes(&told, "--ps 2");
}

#[test]
fn a_stopped_run_without_a_place_for_checkpoints_says_that_there_is_none() {
    let told = stopped(training(windlass(&format!("train linear {ENDLESS} --format json"))), Signal::INT);
    assert_eq!(told.exit_code(), Some(130), "{told}");
    assert_eq!(
        told.after("checkpoint: "),
        "none: pass --run-dir DIR or --checkpoint-dir WHERE to keep checkpoints",
        "{told}"
    );
    assert!(!told.stderr.contains("resume: "), "{told}");
}

#[test]
fn a_run_stopped_before_it_has_begun_says_that_there_is_no_checkpoint() {
    let ps = Hosts::new(1, 1).task("ps", 0, "linear --run-dir run").start();
    ps.log("waiting for worker 0");
    let told = stopped(ps, Signal::TERM);
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert_eq!(told.after("stopped: "), "SIGTERM", "{told}");
    assert_eq!(told.after("checkpoint: "), "none was written", "{told}");
}

#[test]
fn a_run_that_could_not_write_its_last_checkpoint_does_not_say_that_it_has() {
    let run = training(windlass(&format!("train linear {ENDLESS} --format json --run-dir run")));
    let checkpoints = run.directory().join("run/checkpoints");
    std::fs::remove_dir_all(&checkpoints).unwrap();
    std::fs::write(&checkpoints, "in the way").unwrap();
    let told = stopped(run, Signal::INT);
    assert_eq!(told.after("checkpoint: "), "none (the last one could not be written)", "{told}");
}

#[test]
fn a_worker_of_a_launched_run_told_to_stop_leaves_the_others_training() {
    for (worker, (signal, name, _)) in [1, 0, 1].into_iter().zip(SIGNALS) {
        let run = Launched::by(heeding("launch mnist --steps 2000 --log-every 10 --format json --run-dir run"));
        run.event("step", 0);
        run.event("step", 1);
        run.task("worker", worker).signal(signal);
        let told = run.wait().succeeded();
        let says = format!("worker {worker} was told to stop by {name}; the others continue");
        assert!(told.stderr.contains(&says), "{told}");
        let summary = summary(&told);
        assert_eq!(summary["global_step"], 2000);
        assert_eq!(summary["per_worker"][worker as usize]["left"], "told to stop");
        assert_eq!(summary["per_worker"][1 - worker as usize]["left"], serde_json::Value::Null);
    }
}

#[test]
fn a_launched_run_whose_every_worker_is_told_to_stop_is_stopped() {
    let run = Launched::start(&format!("linear {ENDLESS}"));
    run.event("step", 0);
    run.event("step", 1);
    run.task("worker", 0).signal(Signal::TERM);
    run.task("worker", 1).signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(checkpointed(&told) > 0);
}

#[test]
fn a_launched_run_whose_ps_is_told_to_stop_says_so() {
    for (flags, job, index) in [("", "ps", 0), ("--ps 2 --min-shard-bytes 0", "ps", 1), ("--colocate", "worker", 1)] {
        let run = Launched::start(&format!("linear {ENDLESS} {flags}"));
        run.event("step", 0);
        run.event("step", 1);
        run.task(job, index).signal(Signal::TERM);
        let told = run.wait();
        assert_eq!(told.exit_code(), Some(143), "{flags}: {told}");
        let (step, who) = (checkpointed(&told), format!("{job} {index} was told to stop by SIGTERM"));
        assert_eq!(told.after("stopped: "), format!("{who} at step {step} of 1000000000"), "{flags}");
        let first = if flags == "--colocate" { "worker-0" } else { "ps-0" };
        let log = std::fs::read_to_string(told.directory().join(format!("run/{first}.log"))).unwrap();
        assert_eq!(log.matches("checkpoint of step ").count(), 1, "{flags}: {log}");
    }
}

#[test]
fn a_launched_run_that_is_told_to_stop_ends_without_a_ps_that_never_wakes() {
    let run = Launched::start(&format!(
        "linear {ENDLESS} --ps 2 --min-shard-bytes 0 --worker-timeout 1 --checkpoint-secs 0 --checkpoint-steps 200 \
         --restart 6"
    ));
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 1).signal(Signal::STOP);
    run.0.signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("killed ps 1, which did not end in time"), "{told}");
    assert!(told.after("error: SIGTERM ").contains("the last checkpoint could not be written: lost ps 1"), "{told}");
    assert!(told.after("checkpoint: step ").contains("the last one could not be written"), "{told}");
}

#[test]
fn a_launched_run_that_is_told_to_stop_does_not_wait_for_ever_for_a_suspended_ps_0() {
    let run = Launched::start(&format!("linear {ENDLESS} --checkpoint-secs 0 --checkpoint-steps 200"));
    run.logged("ps-0", "checkpoint of step ");
    run.task("ps", 0).signal(Signal::STOP);
    run.0.signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("killed ps 0, which did not end in time"), "{told}");
    let status = told.windlass("status run --json").run().succeeded();
    let why = "it was told to stop by SIGTERM, and the last checkpoint could not be written: ps 0 did not end in time";
    assert!(status.stdout.contains(why), "{status}");
}

#[test]
fn a_launched_run_that_nobody_trains_any_more_is_saved_and_ends() {
    for (last, exit_code) in [(Signal::TERM, 143), (Signal::KILL, 1)] {
        let run = Launched::start(&format!("linear {ENDLESS}"));
        run.event("step", 0);
        run.event("step", 1);
        let first = if last == Signal::TERM { Signal::KILL } else { Signal::TERM };
        run.task("worker", 0).signal(first);
        run.0.log("; the others continue");
        run.task("worker", 1).signal(last);
        let told = run.wait();
        assert_eq!(told.exit_code(), Some(exit_code), "{told}");
        assert!(told.stderr.contains("no worker is left; the ps save the run and stop"), "{told}");
        assert!(checkpointed(&told) > 0, "{told}");
    }
}

#[test]
fn a_task_started_by_hand_names_its_own_command() {
    let hosts = Hosts::new(1, 2);
    let words = format!("linear {ENDLESS} --format json");
    let _ps = hosts.task("ps", 0, &words).start();
    let (_stays, leaves) = (hosts.task("worker", 0, &words).start(), training(hosts.task("worker", 1, &words)));
    let told = stopped(leaves, Signal::TERM);
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(told.after("resume this task: ").contains(" --job_name=worker --task_index=1 "), "{told}");
    assert!(!told.stderr.contains("checkpoint: "), "that is for ps 0 to say: {told}");
}

/// Repeats a signal until it has ended all processes: a repetition that comes too soon counts as the same signal.
fn insist(process: &Process, signal: Signal, tasks: &[Task]) {
    eventually("a second signal ends it", || {
        process.signal(signal);
        tasks.iter().all(|task| !task.is_alive()).then_some(())
    });
}

#[test]
fn a_second_ctrl_c_ends_a_launched_run_at_once() {
    let run = Launched::start(&format!("linear {ENDLESS}"));
    run.event("step", 0);
    let tasks = run.tasks();
    // Otherwise the run would wait for its last checkpoint.
    run.task("ps", 0).signal(Signal::STOP);
    run.0.signal(Signal::INT);
    run.0.log("stopping on SIGINT; a second signal stops at once");
    insist(&run.0, Signal::INT, &tasks);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(130), "{told}");
    assert_eq!(told.after("checkpoint: "), "none (the run did not wait for the last one)", "{told}");
}

/// Nobody reads the output, and the pipe is full.
#[test]
fn a_launcher_whose_output_is_blocked_still_hears_of_signals() {
    let (_unread, writer) = std::io::pipe().unwrap();
    let mut invocation =
        windlass("launch linear --steps 1000000000 --log-every 1 --threads 1 --format json --run-dir run");
    invocation.command().stdout(writer);
    let run = Launched::by(invocation);
    let log = run.log("worker-0");
    let is_long = || std::fs::metadata(&log).is_ok_and(|log| log.len() > 1 << 20).then_some(());
    eventually("more than a pipe holds", is_long);
    let (launcher, tasks) = (run.itself(), run.tasks());
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    run.0.signal(Signal::TERM);
    all_end(&tasks);
    insist(&run.0, Signal::TERM, &[launcher]);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    let listed = told.windlass("checkpoint list run").run().succeeded();
    assert!(listed.stdout.lines().count() > 1, "the tasks have saved the run: {listed}");
}

#[test]
fn a_second_signal_ends_a_task_at_once() {
    let hosts = Hosts::new(2, 1);
    let words = format!("linear {ENDLESS} --format json --min-shard-bytes 0 --run-dir run");
    let (ps, other) = (hosts.task("ps", 0, &words).start(), hosts.task("ps", 1, &words).start());
    let _worker = training(hosts.task("worker", 0, &words));
    other.signal(Signal::STOP);
    ps.signal(Signal::TERM);
    ps.log("stopping on SIGTERM; a second signal stops at once");
    insist(&ps, Signal::TERM, &Task::all_in(ps.directory()));
    let told = ps.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert_eq!(told.after("stopped immediately "), "by a second SIGTERM", "{told}");
}
