//! Clusters on IPv6, unreachable hosts, and what a task logs while it waits for one.

use std::net::{IpAddr, SocketAddr, TcpListener};

use rustix::process::Signal;
use serde_json::json;

use crate::cluster::{Hosts, free_port, summary};
use crate::process::{Process, windlass};

/// Tasks at IPv6 addresses of this machine.
fn hosts(ip: &str, ps: usize, workers: usize) -> Hosts {
    let addresses = |count| (0..count).map(|_| format!("[{ip}]:{}", free_port())).collect();
    Hosts { ps: addresses(ps), workers: addresses(workers) }
}

fn all_succeed(tasks: impl IntoIterator<Item = Process>) {
    tasks.into_iter().for_each(|task| drop(task.wait().succeeded()));
}

#[test]
fn a_cluster_of_ipv6_addresses_trains() {
    let hosts = hosts("::1", 2, 2);
    let words = "linear --mode sync --epochs 1 --min-shard-bytes 0";
    let others = [hosts.task("ps", 1, words).start(), hosts.task("worker", 1, words).start()];
    let ps = hosts.task("ps", 0, &format!("{words} --run-dir run")).start();
    ps.log(&format!("ps 0 listens on {}", hosts.ps[0]));
    let chief = hosts.task("worker", 0, &format!("{words} --run-dir run")).start().wait().succeeded();
    assert!(chief.stdout.contains("parameters via shared memory + shared memory"), "{chief}");
    assert!(chief.stderr.contains(&format!("job ps -> {{0 -> {}, 1 -> {}}}", hosts.ps[0], hosts.ps[1])), "{chief}");
    assert_eq!(summary(&chief)["workers"], 2);
    all_succeed(others.into_iter().chain([ps]));
}

#[test]
fn tensors_go_by_ipv6_where_there_is_no_shared_memory() {
    let hosts = hosts("::1", 1, 1);
    let ps = hosts.task("ps", 0, "linear").env("WINDLASS_NO_UNIX", "1").start();
    let worker = hosts.task("worker", 0, "linear").run().succeeded();
    assert!(worker.stdout.contains("parameters via tcp"), "{worker}");
    all_succeed([ps]);
}

/// An address of this machine that is not loopback, if it has one.
fn own_ipv6() -> Option<String> {
    let addresses = std::fs::read_to_string("/proc/net/if_inet6").ok()?;
    let global = addresses.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The scope of addresses that are valid beyond one link.
        (fields[3] == "00").then(|| std::net::Ipv6Addr::from(u128::from_str_radix(fields[0], 16).unwrap()))
    });
    let mut usable = global.filter(|ip| TcpListener::bind(SocketAddr::new(IpAddr::from(*ip), 0)).is_ok());
    usable.next().map(|ip| ip.to_string())
}

#[test]
fn tasks_listen_on_the_ipv6_addresses_of_their_machines() {
    let Some(ip) = own_ipv6() else { return println!("skipped: this machine has no IPv6 address but loopback") };
    let hosts = hosts(&ip, 1, 1);
    let tasks = [("ps", 0), ("worker", 0)].map(|(job, index)| hosts.task(job, index, "linear").start());
    all_succeed(tasks);
}

#[test]
fn ipv6_addresses_are_understood_in_a_cluster_file_and_in_tf_config() {
    let hosts = hosts("::1", 1, 1);
    let file = format!("[cluster]\nps = [\"{}\"]\nworker = [\"{}\"]\n", hosts.ps[0], hosts.workers[0]);
    let ps =
        windlass("train linear --cluster cluster.toml --job-name ps --task-index 0").with_file("cluster.toml", &file);
    let ps = ps.start();
    let tf_config =
        json!({"cluster": {"ps": hosts.ps, "worker": hosts.workers}, "task": {"type": "worker", "index": 0}});
    let worker = windlass("train linear").env("TF_CONFIG", &tf_config.to_string()).start();
    all_succeed([worker, ps]);
}

#[test]
fn colocated_workers_find_each_other_by_ipv6() {
    let hosts = hosts("::1", 0, 2);
    let place = format!("--colocate --job_name worker --worker_hosts {}", hosts.workers.join(","));
    all_succeed([0, 1].map(|index| windlass(&format!("train linear {place} --task_index {index}")).start()));
}

#[test]
fn an_unknown_host_is_waited_for_by_name() {
    let hosts = Hosts { ps: vec!["no-such-host.invalid:2222".to_owned()], workers: Hosts::new(0, 1).workers };
    let worker = hosts.task("worker", 0, "linear").start();
    let line = worker.log("waiting for ps 0 at no-such-host.invalid:2222");
    assert!(line.contains("cannot resolve host \"no-such-host.invalid\": "), "{line}");
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().exit_code(), Some(143));
    let told = hosts.task("worker", 0, "linear --peer-timeout 0.1").run();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("gave up waiting for ps 0 at no-such-host.invalid:2222"), "{told}");
    assert!(told.stderr.contains("cannot resolve host \"no-such-host.invalid\": "), "{told}");
}

#[test]
fn a_host_where_nothing_listens_yet_is_told_in_words() {
    let told = Hosts::new(1, 1).task("worker", 0, "linear --peer-timeout 0.1").run();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("connection refused: nothing is listening there yet"), "{told}");
    assert!(!told.stderr.contains("transport error"), "{told}");
}

/// Starts a worker whose ps 0 has this address, and expects it to log that it is waiting.
fn waits_for(address: &str) {
    let own = format!("127.0.0.1:{}", free_port());
    let words = format!("train linear --job_name worker --task_index 0 --ps_hosts {address} --worker_hosts {own}");
    let worker = windlass(&words).start();
    worker.log(&format!("waiting for ps 0 at {address}"));
    worker.kill();
}

#[test]
fn a_task_whose_ps_0_is_a_stranger_that_does_not_answer_says_so() {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    waits_for(&address.to_string());
}

#[test]
fn a_task_whose_ps_0_is_a_web_server_says_so() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in server.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut &connection, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    waits_for(&address.to_string());
}
