//! How tasks are observed from outside: probes, metrics, the record of utilisation, and termination messages.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Hosts, Launched};
use crate::process::{LIMIT, eventually, windlass};

/// Trains until it is told to stop.
const FOREVER: &str = "mnist --hidden 8 --batch-size 10 --steps 100000000 --threads 1";

/// The status and body of a response; `None` while nobody responds.
fn get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: task\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// Waits until a task responds with this status.
pub fn answers(address: &str, path: &str, status: u16) {
    let look = || get(address, path).filter(|(answered, _)| *answered == status);
    eventually(&format!("{status} for {path} of {address}"), look);
}

/// Waits until a metric of a task, with these labels if any, exceeds a value.
pub fn exceeds(address: &str, name: &str, least: f64) {
    let look = || {
        let (_, text) = get(address, "/metrics")?;
        let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok().filter(|value| *value > least)
    };
    eventually(&format!("more than {least} of {name} at {address}"), look);
}

#[test]
fn a_task_is_alive_from_the_start_and_ready_once_it_takes_part() {
    let hosts = Hosts::new(1, 2);
    let (ps_at, worker_at) = (&*hosts.ps[0], &*hosts.workers[0]);
    let ps = hosts.task("ps", 0, FOREVER).start();
    for (path, status) in [("/livez", 200), ("/healthz", 200), ("/startupz", 200), ("/readyz", 503)] {
        answers(ps_at, path, status);
    }
    let first = hosts.task("worker", 0, FOREVER).start();
    for (path, status) in [("/livez", 200), ("/startupz", 200), ("/readyz", 503), ("/no-such-path", 404)] {
        answers(worker_at, path, status);
    }
    answers(ps_at, "/no-such-path", 404);
    // The run cannot begin without the second worker, and reports how long it has waited.
    exceeds(ps_at, "windlass_run_awaited_seconds{role=\"worker\",task=\"1\"}", 0.0);
    answers(ps_at, "/readyz", 503);
    let second = hosts.task("worker", 1, FOREVER).start();
    answers(ps_at, "/readyz", 200);
    answers(worker_at, "/readyz", 200);
    ps.signal(Signal::TERM);
    for task in [ps, first, second] {
        assert_eq!(task.wait().exit_code(), Some(143));
    }
}

#[test]
fn tasks_count_what_they_do() {
    let hosts = Hosts::new(1, 2);
    let start = |job, index, words: &str| hosts.task(job, index, &format!("{FOREVER} {words}")).start();
    let words = "--mode sync --run-dir run --checkpoint-steps 20";
    let tasks = [start("ps", 0, words), start("worker", 0, "--mode sync"), start("worker", 1, "--mode sync")];
    let (ps, worker) = (&*hosts.ps[0], &*hosts.workers[1]);
    for name in [
        "windlass_ps_pushes_total{fate=\"applied\"}",
        "windlass_ps_push_staleness_updates_count",
        "windlass_ps_parameter_bytes",
        "windlass_run_global_step",
        "windlass_run_phase{phase=\"training\"}",
        "windlass_run_task_present{role=\"worker\",task=\"1\"}",
        "windlass_checkpoints_total",
        "windlass_checkpoint_bytes",
        "windlass_process_resident_memory_bytes",
        "windlass_node_memory_bytes",
    ] {
        exceeds(ps, name, 0.0);
    }
    for name in ["step_seconds_count", "compute_seconds_total", "samples_total", "sent_bytes_total", "loss"] {
        exceeds(worker, &format!("windlass_worker_{name}"), 0.0);
    }
    exceeds(worker, "windlass_worker_replicas{device=\"cpu:0\"}", 0.0);
    let (_, text) = get(ps, "/metrics").unwrap();
    assert!(text.contains("windlass_build_info{commit="), "{text}");
    assert!(text.contains("windlass_ps_round_wait_seconds_total{worker="), "{text}");
    tasks.iter().for_each(|task| task.signal(Signal::TERM));
    tasks.into_iter().for_each(|task| assert_eq!(task.wait().exit_code(), Some(143)));
}

#[test]
fn a_restarted_worker_is_counted() {
    let hosts = Hosts::new(1, 2);
    let start = |job, index| hosts.task(job, index, FOREVER).start();
    let (ps, first, second) = (start("ps", 0), start("worker", 0), start("worker", 1));
    exceeds(&hosts.ps[0], "windlass_run_global_step", 0.0);
    second.kill();
    let again = start("worker", 1);
    exceeds(&hosts.ps[0], "windlass_run_task_restarts_total{role=\"worker\",task=\"1\"}", 0.0);
    ps.signal(Signal::TERM);
    [ps, first, again].into_iter().for_each(|task| assert_eq!(task.wait().exit_code(), Some(143)));
}

#[test]
fn the_run_directory_records_what_every_task_uses() {
    let run = Launched::start(FOREVER);
    let path = run.0.directory().join("run/utilization.jsonl");
    let line = eventually("a line with all tasks", || {
        let text = fs::read_to_string(&path).ok()?;
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.into_iter().find(|line| line["nodes"][0]["tasks"].as_array().is_some_and(|tasks| tasks.len() == 3))
    });
    let node = &line["nodes"][0];
    let names: Vec<&str> = node["tasks"].as_array().unwrap().iter().filter_map(|task| task["task"].as_str()).collect();
    assert_eq!(names, ["ps 0", "worker 0", "worker 1"], "{line}");
    assert!(node["memory_bytes"].as_u64() > node["tasks"][1]["memory_bytes"].as_u64(), "{line}");
    run.0.signal(Signal::INT);
    assert_eq!(run.wait().exit_code(), Some(130));
}

#[test]
fn sigusr1_saves_and_ends_the_run_so_that_it_can_be_queued_again() {
    let words = format!("train {FOREVER} --run-dir run --format json --log-every 1");
    let run = windlass(&words).start();
    run.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(5));
    run.signal(Signal::USR1);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(138), "{told}");
    assert!(told.stderr.contains("SIGUSR1 at step "), "{told}");
    let resumed = told.windlass(&words.replace("--steps 100000000", "--steps 1")).run();
    assert_eq!(resumed.exit_code(), Some(0), "{resumed}");
    assert!(resumed.stdout.contains("finished"), "{resumed}");
}

#[test]
fn a_supervisor_that_wants_a_last_word_gets_it() {
    let bad = || windlass("train mnist --data-dir nowhere").env("WINDLASS_TERMINATION_LOG", "word");
    let told = bad().with_file("word", "an earlier word, which is longer than the path of anything here").run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    let word = fs::read_to_string(told.directory().join("word")).unwrap();
    assert!(word.contains("nowhere") && told.stderr.contains(word.lines().next().unwrap()), "{word:?}\n{told}");
    let told = bad().run();
    assert!(!told.directory().join("word").exists(), "{told}");
}

#[test]
fn the_coordinator_serves_a_live_page_and_its_status() {
    let hosts = Hosts::new(1, 2);
    let start = |job, index| hosts.task(job, index, FOREVER).start();
    let (ps, first, second) = (start("ps", 0), start("worker", 0), start("worker", 1));
    ps.log(&format!("live page at http://{}/", hosts.ps[0]));
    let status = |flags: &str| windlass(&format!("status {} {flags}", hosts.ps[0])).run();
    let told = eventually("a status of a run that trains", || {
        let told = status("");
        told.stdout.contains("Training: step ").then_some(told)
    });
    assert!(told.stdout.contains("1 ps, 2 workers") && told.stdout.contains("0 chief"), "{told}");
    let json: Value = serde_json::from_str(&status("--json").stdout).unwrap();
    assert_eq!((&json["model"], &json["layout"]), (&"mnist".into(), &"1 ps, 2 workers".into()), "{json}");
    let (code, page) = get(&hosts.ps[0], "/").unwrap();
    assert!(code == 200 && page.contains("Training: step "), "{page}");
    let elsewhere = windlass(&format!("status {}", hosts.workers[0])).run();
    assert_eq!(elsewhere.exit_code(), Some(2), "{elsewhere}");
    assert!(elsewhere.stderr.contains("is not the coordinator of a run"), "{elsewhere}");
    second.kill();
    eventually("the page shows that worker 1 is dead", || {
        let json: Value = serde_json::from_str(&status("--json").stdout).ok()?;
        (json["workers"][1]["state"] == "dead").then_some(())
    });
    ps.signal(Signal::TERM);
    [ps, first].into_iter().for_each(|task| assert_eq!(task.wait().exit_code(), Some(143)));
    let gone = status("");
    assert_eq!(gone.exit_code(), Some(1), "{gone}");
    assert!(gone.stderr.contains("cannot reach a run at"), "{gone}");
}

#[test]
fn a_run_that_hangs_leaves_a_report_of_who_waits_for_whom() {
    let run = Launched::start(&format!("{FOREVER} --mode sync --worker-timeout 600"));
    run.event("step", 1);
    let sleeper = run.task("worker", 1);
    sleeper.signal(Signal::STOP);
    let path = run.0.directory().join("run/hang-report.txt");
    let report = eventually("a report of the hang", || fs::read_to_string(&path).ok().filter(|text| !text.is_empty()));
    assert!(report.contains("- worker 0 has waited ") && report.contains(" for worker 1 at step "), "{report}");
    assert!(report.contains("look at: worker 1"), "{report}");
    sleeper.go_on();
    run.0.signal(Signal::INT);
    assert_eq!(run.wait().exit_code(), Some(130));
}

#[test]
fn for_programs_health_is_json() {
    let hosts = Hosts::new(1, 1);
    let health = |address: &str| {
        let told = windlass(&format!("health {address} --json")).run();
        (told.exit_code(), serde_json::from_str::<Value>(&told.stdout).unwrap())
    };
    let (exit_code, answer) = health("127.0.0.1:1");
    assert_eq!((exit_code, &answer[0]["alive"]), (Some(1), &false.into()), "{answer}");
    assert!(answer[0]["error"].as_str().is_some_and(|error| error.contains("does not answer")), "{answer}");
    let ps = hosts.task("ps", 0, FOREVER).start();
    answers(&hosts.ps[0], "/livez", 200);
    assert_eq!(health(&hosts.ps[0]), (Some(0), serde_json::json!([{"address": hosts.ps[0], "alive": true}])));
    ps.kill();
}
