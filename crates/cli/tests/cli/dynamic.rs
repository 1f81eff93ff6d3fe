//! Kubeflow's dynamic workers: a ps knows only its own address, a worker knows all ps and itself, and no task knows the
//! number of workers.

use rustix::process::Signal;
use serde_json::{Map, Value, json};

use crate::cluster::Hosts;
use crate::process::{Invocation, Process, windlass};

const NETWORK: &str = "train linear --min-shard-bytes 0 --log-every 50 --format json";

fn ps(hosts: &Hosts, index: usize, words: &str) -> Invocation {
    let told = json!({"worker": {}, "ps": [hosts.ps[index]]});
    task(&told, "ps", index, words)
}

fn worker(hosts: &Hosts, index: usize, words: &str) -> Invocation {
    let own = Map::from_iter([(index.to_string(), Value::from(hosts.workers[index].as_str()))]);
    let told = json!({"worker": own, "ps": hosts.ps});
    task(&told, "worker", index, words)
}

fn task(told: &Value, job: &str, index: usize, words: &str) -> Invocation {
    let config = json!({"sparseCluster": told, "task": {"type": job, "index": index}});
    windlass(&format!("{NETWORK} {words}")).env("TF_CONFIG", &config.to_string())
}

fn all_succeed(tasks: impl IntoIterator<Item = Process>) {
    for task in tasks {
        task.wait().succeeded();
    }
}

#[test]
fn tasks_that_were_told_little_find_each_other_and_whoever_comes_later_trains_too() {
    for mode in ["--mode async", "--mode sync", "--mode ssp --staleness 3"] {
        let hosts = Hosts::new(2, 4);
        let words = format!("{mode} --epochs 60");
        let servers = [1, 0].map(|index| ps(&hosts, index, &words).start());
        let first = worker(&hosts, 0, &words).start();
        first.event(|event| event["event"] == "step");
        // Suspended so that the run does not end before the other worker joins.
        first.signal(Signal::STOP);
        let late = worker(&hosts, 3, &words).start();
        late.event(|event| event["event"] == "started");
        first.signal(Signal::CONT);
        late.wait().succeeded();
        let told = first.wait().succeeded();
        let summary = told.event("summary");
        assert_eq!((&summary["ps"], &summary["workers"]), (&json!(2), &json!(2)), "{told}");
        let trained: Vec<&Value> = summary["per_worker"].as_array().unwrap().iter().map(|one| &one["worker"]).collect();
        assert_eq!(trained, [&json!(0), &json!(3)], "{told}");
        all_succeed(servers);
    }
}

#[test]
fn a_ps_that_is_started_again_is_told_of_the_others_again() {
    for lost in [0, 1] {
        let hosts = Hosts::new(2, 1);
        let directory = tempfile::tempdir().unwrap();
        let flags = "--steps 30000 --checkpoint-secs 0 --checkpoint-steps 500 --checkpoint-dir";
        let words = format!("{flags} {}", directory.path().join("saved").display());
        let kept = ps(&hosts, 1 - lost, &words).start();
        let first = ps(&hosts, lost, &words).start();
        let chief = worker(&hosts, 0, &words).start();
        chief.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(1000));
        // Suspended so that the run does not end before the ps is restarted.
        chief.signal(Signal::STOP);
        first.kill();
        chief.signal(Signal::CONT);
        let second = ps(&hosts, lost, &words).start();
        let told = chief.wait().succeeded();
        assert_eq!(told.event("summary")["global_step"], 30000, "{told}");
        all_succeed([kept, second]);
    }
}

#[test]
fn what_needs_the_number_of_workers_is_refused_without_it() {
    let hosts = Hosts::new(1, 1);
    for flag in ["--shard-data", "--mode sync --deterministic"] {
        let told = worker(&hosts, 0, flag).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains("needs the number of workers"), "{told}");
    }
}

#[test]
fn a_ps_that_nobody_tells_of_the_others_says_so_and_gives_up() {
    let hosts = Hosts::new(1, 1);
    let told = ps(&hosts, 0, "--peer-timeout 4").run();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("waiting for a worker to send the addresses of the other ps"), "{told}");
    assert!(told.stderr.contains("gave up waiting for a worker"), "{told}");
}

#[test]
fn a_ps_that_the_workers_know_elsewhere_is_refused() {
    let hosts = Hosts::new(1, 1);
    let elsewhere = Hosts { ps: vec![hosts.ps[0].replace("127.0.0.1", "localhost")], ..Hosts::new(0, 1) };
    let server = ps(&hosts, 0, "").start();
    let worker = worker(&elsewhere, 0, "").start();
    let told = server.wait();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("but the workers' cluster has it at"), "{told}");
    worker.kill();
}
