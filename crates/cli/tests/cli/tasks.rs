//! Tasks started one by one, in any order, as in the terminals of several machines.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::cluster::{Hosts, free_port, summary};
use crate::process::{Process, Told, windlass};

/// Waits for all tasks, and asserts that they succeed.
fn all_succeed(tasks: impl IntoIterator<Item = Process>) -> Vec<Told> {
    tasks.into_iter().map(|task| task.wait().succeeded()).collect()
}

/// The number of steps that a worker reported last.
fn steps(process: &Process) -> Value {
    process.event(|event| event["event"] == "step")
}

#[test]
fn a_worker_may_come_before_the_ps_and_says_whom_it_waits_for() {
    let hosts = Hosts::new(1, 1);
    let worker = hosts.task("worker", 0, "linear").start();
    worker.log(&format!("waiting for ps 0 at {}", hosts.ps[0]));
    let ps = hosts.task("ps", 0, "linear").start();
    all_succeed([worker, ps]);
}

#[test]
fn a_ps_may_come_first_and_says_whom_it_waits_for() {
    let hosts = Hosts::new(1, 2);
    let ps = hosts.task("ps", 0, "linear").start();
    ps.log("waiting for worker 0, worker 1");
    let last = hosts.task("worker", 1, "linear").start();
    last.log("waiting for worker 0");
    let first = hosts.task("worker", 0, "linear").start();
    all_succeed([ps, last, first]);
}

#[test]
fn the_second_ps_may_come_last() {
    let hosts = Hosts::new(2, 1);
    let first = hosts.task("ps", 0, "linear").start();
    let worker = hosts.task("worker", 0, "linear --run-dir run").start();
    worker.log("waiting for ps 1");
    let second = hosts.task("ps", 1, "linear").start();
    let told = all_succeed([worker, first, second]);
    assert_eq!(summary(&told[0])["ps"], 2);
}

#[test]
fn tf_config_with_a_chief_makes_it_worker_0() {
    let hosts = Hosts::new(1, 2);
    let task = |kind: &str, index: u32| {
        let cluster = json!({"chief": [hosts.workers[0]], "worker": [hosts.workers[1]], "ps": hosts.ps});
        let tf_config = json!({"cluster": cluster, "task": {"type": kind, "index": index}});
        windlass("train linear --run-dir run").env("TF_CONFIG", &tf_config.to_string()).start()
    };
    let told = all_succeed([task("worker", 0), task("chief", 0), task("ps", 0)]);
    assert_eq!(summary(&told[1])["workers"], 2);
    assert!(told[0].stdout.contains("worker 1 finished"), "{}", told[0]);
}

#[test]
fn tf_config_may_make_this_process_an_evaluator() {
    let tf_config = r#"{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "evaluator", "index": 0}}"#;
    let told = windlass("train linear").env("TF_CONFIG", tf_config).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("an evaluator needs to know where the checkpoints are"), "{told}");
}

#[test]
fn tasks_of_a_cluster_file_train_together() {
    let hosts = Hosts::new(1, 1);
    let file = format!("[cluster]\nps = [\"{}\"]\nworker = [\"{}\"]\n", hosts.ps[0], hosts.workers[0]);
    let task = |job: &str| {
        let words = format!("train linear --cluster cluster.toml --job-name {job} --task-index 0");
        windlass(&words).with_file("cluster.toml", &file).start()
    };
    all_succeed([task("ps"), task("worker")]);
}

/// A worker with a shard of the parameters in its process.
fn colocated(hosts: &Hosts, index: usize, words: &str) -> Process {
    let place = format!("--colocate --job_name worker --task_index {index} --worker_hosts {}", hosts.workers.join(","));
    windlass(&format!("train linear {words} {place}")).start()
}

#[test]
fn colocated_tasks_need_no_ps() {
    let hosts = Hosts::new(0, 2);
    let told = all_succeed([1, 0].map(|index| colocated(&hosts, index, "--run-dir run")));
    assert_eq!(summary(&told[1])["colocated"], true);
}

#[test]
fn a_colocated_worker_that_is_refused_tells_the_others_why_they_end() {
    let hosts = Hosts::new(0, 2);
    let tasks = [colocated(&hosts, 0, ""), colocated(&hosts, 1, "--optimizer adam")];
    for told in tasks.map(Process::wait) {
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains("was started with --optimizer"), "{told}");
        assert!(!told.stderr.contains("told to stop"), "{told}");
    }
}

#[test]
fn a_colocated_worker_0_that_is_refused_stays_to_tell_the_tasks_that_are_still_to_come() {
    let hosts = Hosts::new(0, 3);
    let first = colocated(&hosts, 1, "--optimizer adam");
    first.log("waiting for ps 0");
    let refused = colocated(&hosts, 0, "");
    let told = first.wait();
    let late = colocated(&hosts, 2, "").wait();
    for told in [told, late, refused.wait()] {
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains("was started with --optimizer"), "{told}");
    }
}

#[test]
fn a_second_process_of_a_task_finds_its_port_taken() {
    let hosts = Hosts::new(1, 2);
    let first = hosts.task("worker", 0, "linear").start();
    first.log("worker 0 listens on");
    let second = hosts.task("worker", 0, "linear").run();
    assert_eq!(second.exit_code(), Some(2), "{second}");
    assert!(second.stderr.contains("is in use\nhint: another task may still be running"), "{second}");
}

#[test]
fn a_second_process_of_a_task_is_refused_even_at_another_address() {
    let hosts = Hosts::new(1, 2);
    let ps = hosts.task("ps", 0, "linear").start();
    let first = hosts.task("worker", 0, "linear").start();
    ps.log("worker 0 joined");
    let elsewhere = format!("127.0.0.1:{}", free_port());
    let moved = Hosts { ps: hosts.ps.clone(), workers: vec![elsewhere, hosts.workers[1].clone()] };
    let second = moved.task("worker", 0, "linear").run();
    assert_eq!(second.exit_code(), Some(2), "{second}");
    let error = "error: worker 0 is already running: two processes were started with the same --task_index";
    assert!(second.stderr.contains(error), "{second}");
    all_succeed([hosts.task("worker", 1, "linear").start(), first, ps]);
}

#[test]
fn a_worker_of_another_run_is_refused_with_the_difference() {
    let hosts = Hosts::new(1, 2);
    let _ps = hosts.task("ps", 0, "linear").start();
    let first = hosts.task("worker", 0, "linear").start();
    first.log("waiting for worker 1");
    let second = hosts.task("worker", 1, "linear --optimizer adam").run();
    assert_eq!(second.exit_code(), Some(2), "{second}");
    let difference = "error: worker 1 was started with --optimizer adam, the other workers with --optimizer sgd";
    assert!(second.stderr.contains(difference), "{second}");
}

#[test]
fn a_killed_worker_that_is_started_again_joins_the_run() {
    let hosts = Hosts::new(1, 2);
    let words = "linear --mode sync --steps 60000 --log-every 100 --format json --run-dir run";
    let (ps, stays) = (hosts.task("ps", 0, words).start(), hosts.task("worker", 0, words).start());
    let killed = hosts.task("worker", 1, words).start();
    steps(&killed);
    killed.kill();
    ps.log("worker 1 is gone: its connection broke and it did not come back; training continues without it");
    let again = hosts.task("worker", 1, words).start();
    let joined = steps(&again);
    assert!(joined["global_step"].as_u64() > joined["local_step"].as_u64(), "it goes on from the others: {joined}");
    let told = all_succeed([stays, again, ps]);
    assert_eq!(summary(&told[0])["per_worker"][1]["left"], Value::Null);
}

#[test]
fn a_worker_started_again_at_once_is_let_in() {
    let hosts = Hosts::new(1, 2);
    let words = "linear --mode sync --steps 60000 --log-every 100 --format json";
    let (ps, stays) = (hosts.task("ps", 0, words).start(), hosts.task("worker", 0, words).start());
    let killed = hosts.task("worker", 1, words).start();
    steps(&killed);
    killed.kill();
    let again = hosts.task("worker", 1, words).start();
    all_succeed([again, stays, ps]);
}

#[test]
fn a_worker_told_to_stop_leaves_the_others_training() {
    let hosts = Hosts::new(1, 2);
    let words = "linear --mode sync --steps 30000 --log-every 100 --format json --run-dir run";
    let (ps, stays) = (hosts.task("ps", 0, words).start(), hosts.task("worker", 0, words).start());
    let stopped = hosts.task("worker", 1, words).start();
    steps(&stopped);
    stopped.signal(Signal::TERM);
    let told = stopped.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    let told = all_succeed([stays, ps]);
    assert_eq!(summary(&told[0])["per_worker"][1]["left"], "told to stop");
}

#[test]
fn a_worker_that_waits_can_be_told_to_stop() {
    let hosts = Hosts::new(1, 1);
    let worker = hosts.task("worker", 0, "linear").start();
    worker.log("waiting for ps 0");
    worker.signal(Signal::TERM);
    let told = worker.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}

#[test]
fn a_worker_that_waits_for_others_can_be_told_to_stop() {
    let hosts = Hosts::new(1, 2);
    let _ps = hosts.task("ps", 0, "linear").start();
    let worker = hosts.task("worker", 0, "linear").start();
    worker.log("waiting for worker 1");
    worker.signal(Signal::TERM);
    let told = worker.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}

#[test]
fn a_colocated_worker_that_waits_can_be_told_to_stop() {
    let worker = colocated(&Hosts::new(0, 2), 0, "");
    worker.log("waiting for ps 1, worker 1");
    worker.signal(Signal::TERM);
    let told = worker.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}

#[test]
fn a_colocated_worker_told_to_stop_ends_the_run_that_needs_its_parameters() {
    let hosts = Hosts::new(0, 2);
    let words = "--steps 100000000 --log-every 100 --format json";
    let [stays, stopped] = [0, 1].map(|index| colocated(&hosts, index, words));
    steps(&stopped);
    stopped.signal(Signal::TERM);
    assert_eq!(stopped.wait().exit_code(), Some(143));
    let told = stays.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(told.after("stopped: ").starts_with("ps 1 was told to stop at step "), "{told}");
}

#[test]
fn a_ps_that_waits_can_be_told_to_stop() {
    let ps = Hosts::new(1, 1).task("ps", 0, "linear").start();
    ps.log("waiting for worker 0");
    ps.signal(Signal::TERM);
    let told = ps.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}

#[test]
fn a_ps_told_to_stop_ends_the_run() {
    let hosts = Hosts::new(1, 1);
    let ps = hosts.task("ps", 0, "linear").start();
    let worker = hosts.task("worker", 0, "linear --steps 100000000 --log-every 100 --format json").start();
    steps(&worker);
    ps.signal(Signal::TERM);
    assert_eq!(ps.wait().exit_code(), Some(143));
    let told = worker.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(told.after("stopped: ").starts_with("ps 0 was told to stop at step "), "{told}");
}

#[test]
fn a_single_process_told_to_stop_ends() {
    let process = windlass("train linear --steps 100000000 --log-every 100 --format json").start();
    steps(&process);
    process.signal(Signal::TERM);
    let told = process.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}

#[test]
fn a_worker_gives_up_when_the_ps_does_not_come() {
    let told = Hosts::new(1, 1).task("worker", 0, "linear --peer-timeout 0.5").run();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("error: gave up waiting for ps 0 at 127.0.0.1:"), "{told}");
}

#[test]
fn a_ps_gives_up_when_a_worker_does_not_come() {
    let told = Hosts::new(1, 2).task("ps", 0, "linear --peer-timeout 0.5").run();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("error: gave up waiting for worker 0, worker 1 after"), "{told}");
}
