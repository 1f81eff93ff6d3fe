//! `--in-graph`: one client with the data and the training loop, and joined workers that know neither.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;
use windlass_core::parameter::ParameterTable;
use windlass_wire::compute::{self, Limits};
use windlass_worker::joined::protocol::{Answer, Ask, Assignment, read, written};

use crate::cluster::{Launched, free_port, summary};
use crate::instruments::exceeds;
use crate::layers::{after, layers, tensors};
use crate::process::{LIMIT, Process, Told, windlass};

const MNIST: &str = "mnist --hidden 16 --batch-size 50 --steps 60 --seed 3 --evaluate end";

/// A joined worker that waits for a client.
struct Joined {
    process: Process,
    address: String,
}

impl Joined {
    fn start(flags: &str) -> Self {
        Self::at(&format!("127.0.0.1:{}", free_port()), flags)
    }

    fn at(address: &str, flags: &str) -> Self {
        let process = windlass(&format!("join --listen {address} --threads 1 {flags}")).start();
        process.log("listening on ");
        Self { process, address: address.to_owned() }
    }
}

fn hosts(workers: &[Joined]) -> String {
    workers.iter().map(|worker| worker.address.as_str()).collect::<Vec<_>>().join(",")
}

/// An in-graph run with `count` joined workers, each started with these flags.
fn in_graph(words: &str, count: usize, flags: &str) -> Told {
    let workers: Vec<Joined> = (0..count).map(|_| Joined::start(flags)).collect();
    let words = format!("train {words} --in-graph --worker_hosts {} --run-dir run", hosts(&workers));
    windlass(&words).run().succeeded()
}

fn loss(told: &Told) -> f64 {
    summary(told)["loss"].as_f64().unwrap()
}

fn assert_same(told: &Told, expected: f64) {
    let got = loss(told);
    assert!((got - expected).abs() < 2e-3 * expected, "{got} instead of {expected}: {told}");
}

#[test]
fn joined_workers_learn_what_one_process_does() {
    let alone = loss(&windlass(&format!("train {MNIST} --run-dir run")).run().succeeded());
    for count in 1..=3 {
        assert_same(&in_graph(&format!("{MNIST} --mode sync"), count, ""), alone);
    }
    let halves = MNIST.replace("--batch-size 50", "--batch-size 25 --accumulate 2");
    assert_same(&in_graph(&format!("{halves} --mode sync"), 2, ""), alone);
    assert_same(&in_graph(&format!("{MNIST} --mode sync --balance"), 2, ""), alone);
}

#[test]
fn a_joined_worker_needs_no_flags() {
    let address = format!("127.0.0.1:{}", free_port());
    let worker = windlass("join --config windlass.toml").with_file("windlass.toml", "[join]\nonce = true\n");
    let worker = worker.env("WINDLASS_LISTEN", &address).env("WINDLASS_THREADS", "1").start();
    worker.log("listening on ");
    let client = format!("train linear --mode sync --steps 5 --in-graph --worker_hosts {address}");
    windlass(&client).run().succeeded();
    worker.wait().succeeded();
}

#[test]
fn joined_workers_compute_the_bits_of_as_many_towers() {
    // 50 samples cannot be divided into four equal shares.
    let towers = windlass(&format!("train {MNIST} --towers 4 --run-dir run")).run().succeeded();
    let workers = in_graph(&format!("{MNIST} --mode sync"), 4, "");
    assert_eq!(tensors(&workers), tensors(&towers));
    // Each worker first adds up its own towers.
    assert_same(&in_graph(&format!("{MNIST} --mode sync"), 2, "--towers 2"), loss(&towers));
    let halves = MNIST.replace("--batch-size 50", "--batch-size 25 --accumulate 2");
    assert_same(&in_graph(&format!("{halves} --mode sync"), 2, "--towers 2"), loss(&towers));
}

#[test]
fn joined_workers_find_the_same_line_as_workers_with_data_of_their_own() {
    let line = |told: Told| {
        let metrics = summary(&told)["metrics"].clone();
        ["w", "b"].map(|name| metrics[name].as_f64().unwrap())
    };
    let words = "linear --mode sync --epochs 10 --evaluate end";
    for workers in [2, 4] {
        let batch_size = 20 / workers;
        let between =
            format!("launch {words} --workers {workers} --shard-data --batch-size {batch_size} --run-dir run");
        let between = line(windlass(&between).run().succeeded());
        let within = line(in_graph(&format!("{words} --batch-size 20"), workers, ""));
        let is_close = |(one, other): (&f64, &f64)| (one - other).abs() < 1e-4;
        assert!(within.iter().zip(&between).all(is_close), "{workers} workers: {within:?} and {between:?}");
    }
}

#[test]
fn joined_workers_translate_with_the_rows_of_their_own_sentences() {
    let words = "seq2seq --size 16 --layers 1 --steps 20 --seed 3 --batch-size 9";
    let towers = loss(&windlass(&format!("train {words} --towers 3 --run-dir run")).run().succeeded());
    assert_eq!(loss(&in_graph(&format!("{words} --mode sync"), 3, "")), towers);
    let four = windlass(&format!("train {words} --towers 4 --run-dir run")).run().succeeded();
    assert_same(&in_graph(&format!("{words} --mode sync"), 2, "--towers 2"), loss(&four));
}

#[test]
fn running_statistics_and_frozen_layers_are_as_in_towers() {
    let words = "layers --seed 3 --mode sync";
    let first = format!("{words} --steps 80");
    let towers = loss(&layers(&format!("train {first} --towers 2 --run-dir run")).run().succeeded());
    let told = layers(&format!("launch {first} --in-graph --workers 2 --run-dir run")).run().succeeded();
    assert_eq!(loss(&told), towers);
    // The frozen layer starts with other values elsewhere, so a joined worker must get them from the checkpoint.
    let resumed = after(&told, &format!("launch {words} --in-graph --workers 2 --run-dir run --steps 120"));
    assert_eq!(summary(&resumed.run().succeeded())["global_step"], 120);
}

#[test]
fn running_statistics_do_not_depend_on_who_computes_a_share() {
    let words = "layers --seed 3 --steps 3000 --log-every 10 --evaluate end --format json --run-dir run";
    let towers = layers(&format!("train {words} --towers 2")).run().succeeded();
    let mut addresses: Vec<String> = (0..2).map(|_| format!("127.0.0.1:{}", free_port())).collect();
    let start = |address: &String| layers(&format!("join --listen {address} --threads 1")).start();
    let mut workers: Vec<Process> = addresses.iter().map(start).collect();
    let hosts = addresses.join(",");
    let client = layers(&format!("train {words} --in-graph --mode sync --worker_hosts {hosts}")).start();
    client.event(|event| event["event"] == "step" && event["local_step"].as_u64() >= Some(50));
    workers.remove(0).kill();
    client.log(&format!("lost worker 0 at {}", addresses.remove(0)));
    let told = client.wait().succeeded();
    assert!(summary(&told)["joined"][1]["steps"].as_u64() > Some(3000), "it has computed both shares: {told}");
    assert_eq!(summary(&told)["metrics"], summary(&towers)["metrics"]);
    assert_eq!(tensors(&told), tensors(&towers));
}

#[test]
fn the_parameters_may_be_on_servers() {
    let alone = loss(&windlass(&format!("train {MNIST} --run-dir run")).run().succeeded());
    for mode in ["sync", "async"] {
        let workers = [Joined::start(""), Joined::start("")];
        let (ps, words) = (format!("127.0.0.1:{}", free_port()), format!("{MNIST} --in-graph --mode {mode}"));
        let cluster = format!("--ps_hosts {ps} --worker_hosts {}", hosts(&workers));
        let server = windlass(&format!("train {words} {cluster} --job_name ps --task_index 0")).start();
        let told = windlass(&format!("train {words} {cluster} --run-dir run")).run().succeeded();
        server.wait().succeeded();
        assert_eq!(summary(&told)["global_step"], 60);
        if mode == "sync" {
            assert_same(&told, alone);
        }
    }
}

#[test]
fn in_async_mode_every_worker_computes_at_its_own_pace() {
    let told = in_graph("mnist --hidden 16 --steps 600 --evaluate end --mode async", 2, "");
    let summary = summary(&told);
    let workers = summary["per_worker"].as_array().unwrap();
    assert_eq!((workers.len(), summary["global_step"].as_u64()), (2, Some(600)));
    assert!(workers.iter().all(|worker| worker["steps"].as_u64() > Some(0)), "{summary:#}");
    assert!(summary["metrics"]["test_accuracy"].as_f64() > Some(0.5), "{summary:#}");
}

/// A client of two workers, which trains until it is told to stop.
fn endless(workers: &[Joined], flags: &str) -> Process {
    let words = "train mnist --hidden 256 --steps 100000000 --log-every 10 --evaluate end --format json --in-graph";
    let client = windlass(&format!("{words} --worker_hosts {} {flags}", hosts(workers))).start();
    steps(&client);
    client
}

/// Waits for a step that is made from now on.
fn steps(client: &Process) {
    let is_step = |event: &Value| event["event"] == "step";
    let reached = client.event(is_step)["global_step"].as_u64();
    client.event(|event| is_step(event) && event["global_step"].as_u64() > reached.map(|step| step + 50));
}

fn stop(client: Process) {
    client.signal(Signal::TERM);
    assert_eq!(client.wait().exit_code(), Some(143));
}

#[test]
fn a_worker_that_is_killed_is_replaced_by_the_others_and_used_again_when_it_is_back() {
    for mode in ["--mode sync", "--mode async"] {
        let mut workers = vec![Joined::start(""), Joined::start("")];
        let client = endless(&workers, mode);
        let Joined { process, address } = workers.remove(0);
        process.kill();
        client.log(&format!("lost worker 0 at {address}"));
        steps(&client);
        let again = Joined::at(&address, "");
        client.log(&format!("worker 0 at {address} rejoined"));
        again.process.log("computing mnist for");
        steps(&client);
        stop(client);
        workers.remove(0).process.log("ended (told to stop)");
    }
}

#[test]
fn a_worker_that_is_suspended_is_replaced_by_the_others_and_used_again_when_it_wakes_up() {
    let workers = [Joined::start(""), Joined::start("")];
    let client = endless(&workers, "--mode sync --worker-timeout 2");
    workers[1].process.signal(Signal::STOP);
    client.log(&format!("lost worker 1 at {}: silent for", workers[1].address));
    steps(&client);
    workers[1].process.signal(Signal::CONT);
    client.log(&format!("worker 1 at {} rejoined", workers[1].address));
    steps(&client);
    stop(client);
}

#[test]
fn a_worker_of_one_run_does_not_give_up_on_a_client_that_has_come_back() {
    let patience = Duration::from_secs(4);
    let flags = format!("--once --peer-timeout {}", patience.as_secs());
    let workers = [Joined::start(&flags), Joined::start(&flags)];
    let client = endless(&workers, "--mode sync --worker-timeout 2");
    workers[1].process.signal(Signal::STOP);
    client.log(&format!("lost worker 1 at {}: silent for", workers[1].address));
    workers[1].process.signal(Signal::CONT);
    client.log(&format!("worker 1 at {} rejoined", workers[1].address));
    let back = Instant::now();
    while back.elapsed() < patience + Duration::from_secs(1) {
        steps(&client);
    }
    stop(client);
    // The workers end with the run.
    for worker in workers {
        let told = worker.process.wait();
        assert_eq!(told.exit_code(), Some(143), "{told}");
        assert!(told.stderr.contains("ended (told to stop)"), "{told}");
    }
}

#[test]
fn a_run_whose_numbers_are_not_finite_names_the_worker_and_ends_those_of_one_run_with_its_exit_code() {
    let worker = Joined::start("--once");
    let words = "train linear --optimizer sgd --learning-rate 1e30 --in-graph --mode sync --worker_hosts";
    let told = windlass(&format!("{words} {}", worker.address)).run();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    let error = format!("worker 0 at {}: its loss is inf at step 2 (global step 2)", worker.address);
    assert!(told.stderr.contains(&error), "{told}");
    let told = worker.process.wait();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    assert!(told.stderr.contains(&error), "{told}");
}

#[test]
fn a_worker_of_one_run_gives_up_on_a_client_that_is_suspended() {
    let workers = [Joined::start("--once --peer-timeout 1")];
    let client = endless(&workers, "--mode sync");
    client.signal(Signal::STOP);
    let [worker] = workers;
    let told = worker.process.wait();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains("gave up waiting for its client to come back"), "{told}");
    client.kill();
}

#[test]
fn without_workers_the_client_gives_up_and_names_them() {
    let mut workers = vec![Joined::start("")];
    let client = endless(&workers, "--mode sync --peer-timeout 2");
    let Joined { process, address } = workers.remove(0);
    process.kill();
    let told = client.wait();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains(&format!("gave up waiting for worker 0 at {address}")), "{told}");
    let never =
        windlass(&format!("train mnist --in-graph --mode sync --peer-timeout 1 --worker_hosts {address}")).run();
    assert_eq!(never.exit_code(), Some(5), "{never}");
    assert!(never.stderr.contains("nothing is listening there yet"), "{never}");
}

#[test]
fn a_second_client_hears_who_the_first_is_and_a_third_is_served_when_that_has_left() {
    let workers = [Joined::start("")];
    let first = endless(&workers, "--mode sync");
    let words = format!("train {MNIST} --mode sync --in-graph --worker_hosts {}", hosts(&workers));
    let second = windlass(&format!("{words} --peer-timeout 1")).run();
    assert_eq!(second.exit_code(), Some(5), "{second}");
    assert!(second.stderr.contains("it computes for the mnist run of process"), "{second}");
    stop(first);
    windlass(&words).run().succeeded();
    workers[0].process.signal(Signal::TERM);
    let [worker] = workers;
    assert_eq!(worker.process.wait().exit_code(), Some(143));
}

#[test]
fn a_joined_worker_that_is_told_to_stop_has_not_lost_its_client() {
    let worker = Joined::start("");
    let client = endless(std::slice::from_ref(&worker), "--mode sync");
    worker.process.signal(Signal::TERM);
    let told = worker.process.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
    assert!(!told.stderr.contains("lost "), "{told}");
    stop(client);
}

#[test]
fn one_worker_under_two_names_is_refused() {
    let worker = Joined::start("");
    let other = worker.address.replace("127.0.0.1", "localhost");
    let hosts = format!("{},{other}", worker.address);
    let told = windlass(&format!("train {MNIST} --mode sync --in-graph --worker_hosts {hosts}")).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("of this run already, under another name"), "{told}");
}

#[test]
fn hostile_bytes_leave_a_joined_worker_as_it_was() {
    let worker = Joined::start("--once");
    let connect = || TcpStream::connect(&worker.address).unwrap();
    let preface = [&b"WNDL"[..], &3_u32.to_le_bytes()].concat();
    let header = |numbers: [u32; 3]| [&b"WCMP"[..], &numbers.map(u32::to_le_bytes).concat()].concat();
    let hostile = [
        vec![0xff; 4096],
        b"WNDL\xff\xff\xff\xff".to_vec(),
        [&preface[..], &[0xee; 64]].concat(),
        [preface.clone(), header([u32::MAX, 0, 0])].concat(),
        [preface.clone(), header([9, 0, 0]), b"{\"ask\":9}".to_vec()].concat(),
        [preface.clone(), header([15, 0, 0]), b"{\"ask\": \"leave\"".to_vec()].concat(),
    ];
    for bytes in hostile {
        let mut stream = connect();
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // The worker may react in any way, as long as it closes the connection.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut probe = connect();
    probe.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    probe.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    windlass(&format!("train {MNIST} --mode sync --in-graph --worker_hosts {}", worker.address)).run().succeeded();
    worker.process.wait().succeeded();
}

/// Sends an assignment to a joined worker, and returns its answer, if any.
fn assign(worker: &Joined, client: &str, model: &str) -> Option<Answer> {
    let assignment = Assignment {
        client: client.to_owned(),
        run: 1,
        worker: 0,
        model: model.to_owned(),
        flags: BTreeMap::new(),
        seed: 1,
        accumulate: 1,
        files: Vec::new(),
        parameters: ParameterTable::new(Vec::new()).unwrap(),
        placed: None,
    };
    let mut connection = compute::connect(&worker.address).unwrap();
    let asked = written(&Ask::Assign(Box::new(assignment)));
    connection.send(&asked, &[], LIMIT, &|| false).unwrap();
    let limits = Limits { head: 1 << 20, sections: 0, bytes: 0 };
    let answer = connection.receive(&limits, LIMIT, &|| false).ok()?;
    Some(read(&answer.head).unwrap())
}

#[test]
fn what_a_stranger_calls_itself_is_short_and_on_one_line_of_the_log() {
    let worker = Joined::start("");
    assert_eq!(assign(&worker, &"x".repeat(201), "linear"), None);
    assert_eq!(assign(&worker, "a stranger", &"x".repeat(1 << 20)), None);
    let refused = worker.process.log("refused a connection");
    assert!(refused.ends_with("the name of a client or a model is longer than 200 bytes"), "{refused}");
    let answer = assign(&worker, "a \u{1b}[31mstranger\nINFO", "none");
    assert!(matches!(answer, Some(Answer::Refused { is_busy: false, .. })), "{answer:?}");
    worker.process.log("cannot compute none for a [31mstrangerINFO: this program has no model none");
}

#[test]
fn a_joined_worker_listens_where_it_is_told_to_and_counts_what_it_uses() {
    let port = free_port();
    let flags = format!("join --listen 0.0.0.0:{port} --bind 127.0.0.1 --threads 1 --towers 2 --device /task:1/cpu:0");
    let process = windlass(&flags).start();
    process.log(&format!("listening on 127.0.0.1:{port}; waiting for a client"));
    let address = format!("127.0.0.1:{port}");
    exceeds(&address, "windlass_worker_replicas{device=\"cpu:0\"}", 1.0);
    exceeds(&address, "windlass_process_resident_memory_bytes", 0.0);
}

#[test]
fn a_device_of_a_joined_worker_is_its_own_whatever_its_number_is() {
    for (device, refused) in [("cpu:5", "device cpu:5 is not on this machine"), ("/job:ps/cpu:0", "does not belong to")]
    {
        let told = windlass(&format!("join --listen 127.0.0.1:{} --device {device}", free_port())).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains(refused), "{told}");
    }
}

#[test]
fn the_devices_of_joined_workers_are_printed() {
    let words = "mnist --hidden 16 --steps 20 --evaluate end --in-graph --workers 2 --towers 2 --mode sync";
    let told = windlass(&format!("launch {words} --log-placement --run-dir run")).run().succeeded();
    let device = |task: usize| format!("/job:worker/task:{task}/cpu:0");
    let devices = [device(0), device(0), device(1), device(1)].join(", ");
    assert!(told.stdout.contains(&format!(" computes on {devices}")), "{told}");
}

#[test]
fn a_worker_that_does_not_know_the_model_says_so() {
    let worker = Joined::start("");
    let told = layers(&format!("train layers --in-graph --worker_hosts {}", worker.address)).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("this program has no model layers (it has linear, mnist"), "{told}");
    assert!(told.stderr.ends_with("; start the worker with the same program as the client\n"), "{told}");
}

#[test]
fn launch_starts_joined_workers_and_their_client() {
    let words = "mnist --hidden 16 --steps 200 --evaluate end";
    for flags in ["--mode sync", "--mode sync --ps 1 --towers 2", "--mode async"] {
        let run = Launched::start(&format!("{words} --in-graph --workers 2 {flags}"));
        run.logged("worker-1", "computing mnist for");
        let told = run.wait().succeeded();
        let summary = summary(&told);
        assert_eq!(summary["global_step"], 200, "{flags}");
        let joined = summary["joined"].as_array().unwrap();
        assert!(joined.len() == 2 && joined.iter().all(|worker| worker["steps"].as_u64() > Some(0)), "{summary:#}");
        let log = fs::read_to_string(told.directory().join("run/worker-0.log")).unwrap();
        assert!(log.contains("ended (done)"), "{log}");
        let status = fs::read_to_string(told.directory().join("run/status.json")).unwrap();
        let status: Value = serde_json::from_str::<Value>(&status).unwrap()["status"].clone();
        let layout =
            if flags.contains("--ps") { "1 ps, a client, 2 joined workers" } else { "a client, 2 joined workers" };
        assert_eq!(status["layout"], layout);
        assert!(status["client"]["step"].as_u64() >= Some(200), "{status:#}");
        let addresses: Vec<&str> =
            status["workers"].as_array().unwrap().iter().filter_map(|worker| worker["address"].as_str()).collect();
        assert!(
            addresses.len() == 2 && addresses[0].starts_with("127.0.0.1:"),
            "the page shows who computes: {status:#}"
        );
        assert!(joined.iter().all(|worker| worker["sent_bytes"].as_u64() > Some(10_000)), "{summary:#}");
    }
}

#[test]
fn the_page_of_a_client_tells_of_workers_that_are_missing_and_of_one_that_hangs() {
    let (first, missing) = (Joined::start(""), format!("127.0.0.1:{}", free_port()));
    let words = "train mnist --hidden 256 --steps 100000 --evaluate end --mode sync --in-graph --run-dir run";
    let client = windlass(&format!("{words} --worker_hosts {},{missing}", first.address)).start();
    let log = client.log("live page at http://");
    let page = log.rsplit("http://").next().unwrap().trim_end_matches('/').to_owned();
    client.log(&format!("waiting for worker 1 at {missing}"));
    let told = client.windlass(&format!("status {page}")).run().succeeded();
    assert!(told.stdout.contains("Gathering: waiting for worker 1"), "{told}");
    assert!(told.stdout.contains("a client, 2 joined workers"), "{told}");
    // A container's health check succeeds, too.
    assert!(client.windlass(&format!("health {page}")).run().succeeded().stdout.contains("alive"));
    let second = Joined::at(&missing, "");
    let is_training = |told: &str| told.contains("Training: step ");
    status_until(&client, &page, is_training);
    second.process.signal(Signal::STOP);
    let told = status_until(&client, &page, |told| told.contains("the client has waited"));
    assert!(told.contains("for worker 1"), "{told}");
    second.process.signal(Signal::CONT);
    let told = status_until(&client, &page, is_training);
    assert!(!told.contains("worker 0 (chief)"), "{told}");
    client.signal(Signal::TERM);
    assert_eq!(client.wait().exit_code(), Some(143));
}

/// Returns the output of `windlass status` as soon as it satisfies a condition.
fn status_until(client: &Process, page: &str, is_it: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let told = client.windlass(&format!("status {page}")).run();
        if is_it(&told.stdout) {
            return told.stdout;
        }
        assert!(Instant::now() < deadline, "{told}");
    }
}

#[test]
fn an_in_graph_run_is_resumed_where_it_was() {
    let told = in_graph(&format!("{MNIST} --mode sync"), 2, "");
    let workers = [Joined::start("")];
    let words = format!("train {} --mode sync --in-graph --run-dir run", MNIST.replace("--steps 60", "--steps 90"));
    let resumed = told.windlass(&format!("{words} --worker_hosts {}", hosts(&workers))).run().succeeded();
    let whole = loss(&windlass(&format!("train {} --run-dir run", MNIST.replace("60", "90"))).run().succeeded());
    assert_same(&resumed, whole);
}

#[test]
fn a_resumed_run_whose_workers_never_come_leaves_the_record_as_it_was_and_gives_its_claim_back() {
    let told = in_graph(&format!("{MNIST} --mode sync"), 1, "");
    let nobody = format!("127.0.0.1:{}", free_port());
    let words = format!("train {} --mode sync --in-graph --run-dir run", MNIST.replace("--steps 60", "--steps 90"));
    let alone = told.windlass(&format!("{words} --worker_hosts {nobody} --peer-timeout 1")).run();
    assert_eq!(alone.exit_code(), Some(5), "{alone}");
    let status = alone.windlass("status run").run();
    assert!(status.stdout.contains("Over: step 60 reached"), "{status}");
    let claims: Vec<_> = fs::read_dir(alone.directory().join("run/checkpoints/generations")).unwrap().collect();
    assert!(!claims.is_empty());
    for claim in claims {
        let text = fs::read_to_string(claim.unwrap().path()).unwrap();
        assert!(text.contains(r#""released":true"#), "{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    assert_snapshot!(windlass("train mnist --in-graph").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --in-graph needs the addresses of joined workers
    hint: pass --worker_hosts a:2222,b:2222, with `join --listen` running on each
    "#);
    assert_snapshot!(windlass("train mnist --in-graph --worker_hosts a:1 --mode ssp --staleness 2").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --mode ssp cannot be combined with --in-graph
    hint: use --mode sync or --mode async
    "#);
    assert_snapshot!(windlass("train mnist --in-graph --worker_hosts a:1,a:1").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: worker 0 and worker 1 have the same address a:1
    hint: give each joined worker a port of its own
    "#);
    assert_snapshot!(windlass("train mnist --in-graph --worker_hosts a").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --worker_hosts: "a": no port, expected host:port
    hint: add a port, as in a:2222
    "#);
    assert_snapshot!(windlass("train mnist --balance").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --balance needs --in-graph
    hint: only an in-graph client splits batches among workers
    "#);
    assert_snapshot!(windlass("train mnist --in-graph --worker_hosts a:1 --balance").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --balance needs --mode sync
    hint: in async mode each worker computes at its own pace, on batches of its own
    "#);
    assert_snapshot!(windlass("train mnist --in-graph --worker_hosts a:1 --towers 2").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --towers, --device and --devices apply to joined workers, not to their client
    hint: pass them to `join`
    "#);
    assert_snapshot!(
        windlass("train mnist --in-graph --ps_hosts b:1 --worker_hosts a:1 --job_name worker --task_index 0").run(),
        @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --job_name worker cannot be used with --in-graph: a joined worker gets its model from the client
    hint: start each with `join --listen HOST:PORT`
    "#
    );
    assert_snapshot!(windlass("launch mnist --in-graph --colocate").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --colocate cannot be combined with --in-graph: joined workers hold no parameters
    hint: omit it: without --ps, the client holds them
    "#);
    assert_snapshot!(windlass("launch mnist --in-graph --workers 0").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --in-graph needs at least one worker
    "#);
    assert_snapshot!(windlass("join").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: the following required arguments were not provided:
      --listen <HOST:PORT>

    Usage: windlass join --listen <HOST:PORT>

    For more information, try '--help'.
    "#);
    assert_snapshot!(windlass("join --listen nowhere").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --listen "nowhere": no port, expected host:port
    hint: for example --listen 0.0.0.0:2222
    "#);
    let worker = Joined::start("");
    let told = windlass(&format!("join --listen {}", worker.address)).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("is in use\nhint: another task may still be running"), "{told}");
}
