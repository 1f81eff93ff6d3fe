//! `--place`: one model in stages, on devices of one process and on joined workers, learns the same as an undivided
//! one.

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{free_port, summary};
use crate::process::{Process, Told, windlass};

const MNIST: &str = "mnist --hidden 16 --batch-size 50 --steps 60 --seed 3 --evaluate end";

fn loss(told: &Told) -> f64 {
    summary(told)["loss"].as_f64().unwrap()
}

fn trained(words: &str) -> Told {
    windlass(&format!("{words} --run-dir run")).run().succeeded()
}

fn assert_same(told: &Told, expected: f64) {
    let got = loss(told);
    assert!((got - expected).abs() < 2e-3 * expected, "{got} instead of {expected}: {told}");
}

/// A joined worker that waits for a client.
fn joined(address: &str) -> Process {
    let process = windlass(&format!("join --listen {address} --threads 1")).start();
    process.log("listening on ");
    process
}

fn address() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[test]
fn stages_on_lanes_of_a_process_learn_what_one_piece_does() {
    for variant in ["relu", "sigmoid --optimizer adam"] {
        let words = format!("train {MNIST} --variant {variant}");
        let whole = loss(&trained(&words));
        // 50 samples cannot be divided into three or four equal parts.
        for micro_batches in [1, 2, 3, 4] {
            let flags = format!("--place hidden=cpu:0,output=cpu:1 --microbatches {micro_batches}");
            assert_same(&trained(&format!("{words} {flags}")), whole);
        }
    }
}

#[test]
fn places_may_be_written_with_spaces() {
    let invocation =
        windlass(&format!("train {MNIST} --run-dir run --place")).with("hidden = cpu:1 , output = cpu:0 + cpu:2");
    let told = invocation.run().succeeded();
    assert_eq!(summary(&told)["devices"].as_array().unwrap().len(), 3, "{told}");
}

#[test]
fn every_layer_of_a_deeper_network_is_a_stage() {
    let words = format!("train {} --hidden 16,12", MNIST.replace("--hidden 16 ", ""));
    let told = trained(&format!("{words} --place hidden0=cpu:1,hidden1=cpu:2 --microbatches 2"));
    assert_same(&told, loss(&trained(&words)));
    let devices = summary(&told)["devices"].clone();
    let stages: Vec<(&str, &Value)> =
        devices.as_array().unwrap().iter().map(|lane| (lane["device"].as_str().unwrap(), &lane["stages"])).collect();
    let named = |stage: &str| Value::from(vec![stage]);
    assert_eq!(stages, [("cpu:1", &named("hidden0")), ("cpu:2", &named("hidden1")), ("cpu:0", &named("output"))]);
    assert!(devices.as_array().unwrap().iter().all(|lane| lane["busy"].as_f64() > Some(0.0)), "{devices}");
    assert!(told.stdout.contains(" busy ") && told.stdout.contains("% (hidden0)"), "{told}");
}

/// Each part of a batch draws its own negative samples, wherever it is computed.
#[test]
fn a_translator_in_stages_gets_the_rows_of_each_stage_and_samples_as_in_one_piece() {
    for cell in ["gru", "lstm"] {
        let words = format!("train seq2seq --size 16 --layers 2 --cell {cell} --samples 8 --steps 15 --seed 3");
        let flags = "--place encoder=cpu:1,decoder=cpu:2,output=cpu:3";
        let whole = loss(&trained(&format!("{words} --batch-size 9")));
        assert_same(&trained(&format!("{words} --batch-size 9 {flags}")), whole);
        let parts = loss(&trained(&format!("{words} --batch-size 3 --accumulate 3")));
        assert_same(&trained(&format!("{words} --batch-size 9 {flags} --microbatches 3")), parts);
    }
}

#[test]
fn joined_workers_compute_stages_and_the_client_what_is_not_named() {
    let whole = loss(&trained(&format!("train {MNIST}")));
    let (first, second) = (address(), address());
    let workers = [joined(&first), joined(&second)];
    for (place, micro_batches) in [
        ("hidden=/job:worker/task:0,output=/job:worker/task:1", 1),
        ("hidden=/job:worker/task:0,output=/job:worker/task:1/cpu:0", 4),
        ("output=/task:1", 2),
        ("hidden=/task:1,output=/task:1", 3),
    ] {
        let flags = format!("--worker_hosts {first},{second} --place {place} --microbatches {micro_batches}");
        let told = trained(&format!("train {MNIST} {flags}"));
        assert_same(&told, whole);
        assert_eq!(summary(&told)["joined"][1]["steps"], 60, "{told}");
        let ended = workers[1].log("steps for it");
        assert!(ended.ends_with("ended (done); computed 60 steps for it"), "{ended}");
    }
}

#[test]
fn several_devices_of_a_stage_learn_what_one_does() {
    let whole = loss(&trained(&format!("train {MNIST}")));
    for flags in ["", "--microbatches 5 --log-placement"] {
        let told = trained(&format!("train {MNIST} --place hidden=cpu:0+cpu:1,output=cpu:2 {flags}"));
        assert_same(&told, whole);
        let stages: Vec<Value> =
            summary(&told)["devices"].as_array().unwrap().iter().map(|lane| lane["stages"].clone()).collect();
        assert_eq!(stages, [vec!["hidden"].into(), vec!["hidden"].into(), Value::from(vec!["output"])]);
        assert_eq!(told.stdout.contains(" hidden  cpu:0+cpu:1"), flags.contains("log"), "{told}");
    }
    // On joined workers, one of which computes two stages.
    let place = "--workers 2 --place hidden=/task:0+/task:1,output=/task:1";
    let told = trained(&format!("launch {MNIST} {place}"));
    assert_same(&told, whole);
    let joined = summary(&told)["joined"].clone();
    assert!(joined.as_array().unwrap().iter().all(|worker| worker["steps"] == 60), "{joined}");
    let words = "train seq2seq --size 16 --layers 2 --samples 8 --steps 15 --seed 3";
    let parts = loss(&trained(&format!("{words} --batch-size 3 --accumulate 3")));
    let flags = "--place encoder=cpu:1+cpu:3,decoder=cpu:2,output=cpu:3+cpu:1+cpu:2";
    assert_same(&trained(&format!("{words} --batch-size 9 {flags}")), parts);
}

#[test]
fn a_run_begins_without_a_worker_that_has_no_stage() {
    let whole = loss(&trained(&format!("train {MNIST}")));
    let (missing, there) = (address(), address());
    let _worker = joined(&there);
    let flags = format!("--worker_hosts {missing},{there} --place output=/task:1");
    assert_same(&trained(&format!("train {MNIST} {flags}")), whole);
}

#[test]
fn a_worker_with_towers_says_that_a_stage_has_one() {
    let worker = address();
    let process = windlass(&format!("join --listen {worker} --threads 1 --towers 2")).start();
    trained(&format!("train {MNIST} --worker_hosts {worker} --place output=/task:0"));
    process.log("a stage is computed on one device: of 2 towers, only the first is used");
}

#[test]
fn a_placed_run_whose_loss_is_not_finite_blames_no_worker() {
    let worker = address();
    let _process = joined(&worker);
    let words = "train mnist --hidden 16 --optimizer sgd --learning-rate 1e30 --place hidden=/task:0 --worker_hosts";
    let told = windlass(&format!("{words} {worker}")).run();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    let is_it = |line: &str| line.contains("the loss is") && line.contains("at step 2 (global step 2)");
    assert!(told.stderr.lines().any(is_it) && !told.stderr.contains("its gradient"), "{told}");
}

#[test]
fn the_parameters_of_a_placed_model_may_be_on_servers() {
    let whole = loss(&trained(&format!("train {MNIST}")));
    let (ps, worker) = (address(), address());
    let _worker = joined(&worker);
    let words = format!("train {MNIST} --ps_hosts {ps} --worker_hosts {worker} --place output=/task:0");
    let server = windlass(&format!("{words} --job_name ps --task_index 0")).start();
    let told = trained(&words);
    server.wait().succeeded();
    assert_same(&told, whole);
    let place = "--place hidden=/task:0,output=/task:1 --workers 2 --ps 2 --min-shard-bytes 0";
    assert_same(&trained(&format!("launch {MNIST} {place}")), whole);
    let place = "--place hidden=cpu:0,output=cpu:1 --workers 1 --ps 2 --min-shard-bytes 0";
    assert_same(&trained(&format!("launch {MNIST} {place}")), whole);
}

/// The gradients of the whole model, in each of its towers, would need 32 GB.
#[test]
fn a_worker_of_one_stage_needs_memory_for_that_alone() {
    let worker = address();
    let process = windlass(&format!("join --listen {worker} --threads 1 --towers 256")).start();
    process.log("listening on ");
    let words = "train mnist --hidden 40000 --batch-size 2 --steps 1 --evaluate end";
    windlass(&format!("{words} --worker_hosts {worker} --place output=/task:0")).run().succeeded();
}

#[test]
fn a_placed_run_is_launched_with_one_command() {
    let words = "mnist --steps 60 --seed 3 --evaluate end";
    let place = "--workers 2 --place hidden=/job:worker/task:0,output=/job:worker/task:1 --microbatches 2";
    let told = trained(&format!("launch {words} {place} --log-placement"));
    assert_same(&told, loss(&trained(&format!("train {words}"))));
    assert!(told.stdout.contains(" output  /job:worker/task:1/cpu:0"), "{told}");
    assert!(told.stdout.contains("mnist on 2 joined workers, in stages"), "{told}");
    assert!(told.stdout.contains(" to joined workers ") && told.stdout.contains(" received per step"), "{told}");
    assert!(told.stdout.contains("client  epoch ") || told.stdout.contains("client finished: 60 steps"), "{told}");
    let translated = "seq2seq --size 16 --layers 1 --samples 8 --steps 10 --seed 3 --batch-size 8";
    let place = "--workers 2 --place encoder=/task:0,output=/task:1";
    let told = trained(&format!("launch {translated} {place}"));
    assert_same(&told, loss(&trained(&format!("train {translated}"))));
}

#[test]
fn the_first_steps_are_traced_with_an_event_for_every_piece() {
    let told = trained(&format!("train {MNIST} --place output=cpu:1 --microbatches 3 --trace trace.json"));
    assert!(told.stdout.contains("wrote trace.json"), "{told}");
    let text = std::fs::read_to_string(told.directory().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let complete = events.iter().filter(|event| event["ph"] == "X").count();
    // Two stages, each with its values, three micro-batches in both directions, and its gradients.
    assert_eq!(complete, 20 * 2 * (1 + 2 * 3 + 1));
    let names: Vec<&str> = events.iter().filter_map(|event| event["args"]["name"].as_str()).collect();
    assert_eq!(names, ["cpu:0", "cpu:1"]);
}

#[test]
fn every_worker_of_a_cluster_writes_a_trace_of_its_own() {
    let place = "--mode sync --workers 2 --place hidden=cpu:0,output=cpu:1 --trace trace.json";
    let told = trained(&format!("launch {MNIST} {place}"));
    for name in ["trace.json", "trace-worker-1.json"] {
        let text = std::fs::read_to_string(told.directory().join(name)).unwrap();
        assert!(serde_json::from_str::<Value>(&text).unwrap()["traceEvents"].is_array(), "{name}");
    }
}

/// A client whose output layer is computed by a joined worker; it has made some steps.
fn client(worker: &str, flags: &str) -> Process {
    let words = "train mnist --hidden 256 --batch-size 50 --steps 3000 --seed 3 --evaluate end --log-every 10";
    let flags = format!("--place output=/task:0 --worker_hosts {worker} --format json --run-dir run {flags}");
    let client = windlass(&format!("{words} {flags}")).start();
    client.event(|event| event["event"] == "step" && event["local_step"].as_u64() >= Some(50));
    client
}

fn whole() -> f64 {
    loss(&trained("train mnist --hidden 256 --batch-size 50 --steps 3000 --seed 3 --evaluate end"))
}

#[test]
fn a_step_is_repeated_when_a_worker_that_was_killed_is_back() {
    let worker = address();
    let first = joined(&worker);
    let client = client(&worker, "");
    first.kill();
    client.log(&format!("lost worker 0 at {worker} (stage output)"));
    client.log(&format!("waiting for worker 0 at {worker} (stage output)"));
    let _second = joined(&worker);
    client.log("repeating the step");
    let told = client.wait().succeeded();
    assert_eq!(summary(&told)["joined"][0]["joined"], 2);
    assert_same(&told, whole());
}

#[test]
fn a_step_is_repeated_when_a_worker_that_was_suspended_goes_on() {
    let worker = address();
    let process = joined(&worker);
    let client = client(&worker, "--worker-timeout 1");
    process.signal(Signal::STOP);
    client.log(&format!("lost worker 0 at {worker} (stage output): silent for"));
    process.signal(Signal::CONT);
    client.log("repeating the step");
    assert_same(&client.wait().succeeded(), whole());
}

#[test]
fn a_worker_that_does_not_come_back_is_named_with_its_stage_and_given_up() {
    let worker = address();
    let process = joined(&worker);
    let client = client(&worker, "--peer-timeout 6");
    process.kill();
    let told = client.wait();
    assert_eq!(told.exit_code(), Some(5), "{told}");
    assert!(told.stderr.contains(&format!("gave up waiting for worker 0 at {worker} (stage output)")), "{told}");
}

#[test]
fn places_that_cannot_be_are_refused_before_anything_starts() {
    assert_snapshot!(windlass("train mnist --place hiddn=cpu:1 -q").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --place: mnist has no stage "hiddn"
    hint: its stages are hidden, output
    "#);
    let told = windlass("launch mnist --place hiddn=/task:0").run();
    assert!(!told.directory().join("runs").exists(), "nothing is left behind");
    assert_snapshot!(told, @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --place: mnist has no stage "hiddn"
    hint: its stages are hidden, output
    "#);
    assert_snapshot!(windlass("launch linear --place hidden=cpu:1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place: the model linear declares no stages, so it cannot be divided
    hint: --towers and a cluster divide batches instead of models; see docs/placement.md for how a model declares stages
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1,output=cpu:0,hidden=cpu:2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden both on cpu:1 and on cpu:2
    hint: to have both compute it, write hidden=cpu:1+cpu:2
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1+cpu:0+cpu:1 -q").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on cpu:1 twice
    ");
    for place in ["hidden=cpu:0+cpu:0", "hidden=/task:0/gpu:0+/task:0/gpu:1 --worker_hosts a:1"] {
        let told = windlass(&format!("train mnist --soft-placement on --place {place} -q")).run();
        assert!(told.exit_code() == Some(2) && told.stderr.contains(" twice"), "{told}");
    }
    assert_snapshot!(windlass("launch mnist --place hidden=/task:0/gpu:0+/task:0/gpu:1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on /job:worker/task:0 twice
    hint: a joined worker computes a stage on one of its devices
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1+cpu:0+cpu:2 --microbatches 2 -q").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on 3 devices, but a batch goes through in only 2 parts
    hint: devices of a stage take micro-batches in turn: use --microbatches 3
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1+cpu:0 --batch-size 1 -q").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts a stage on 2 devices, but a batch has only 1 sample
    hint: raise --batch-size, or use fewer devices
    ");
    assert_snapshot!(windlass("train mnist --place hidden").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --place: "hidden" names no device
    hint: write it as in --place hidden=cpu:0,output=/job:worker/task:1
    "#);
    assert_snapshot!(windlass("train mnist --place hidden=tpu:0").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: --place: "tpu" in the device name "tpu:0" is not a kind of device
    hint: name one such as gpu:0 or /job:worker/task:1/device:GPU:0; the kinds are cpu, gpu, cuda, rocm, vulkan, metal, wgpu
    "#);
    assert_snapshot!(windlass("train mnist --place hidden=cpu:256 -q").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place: cpu:256 is one too many: 256 is the most that a process has
    ");
    assert_snapshot!(windlass("train mnist --microbatches 2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --microbatches needs --place
    hint: such as --place hidden=cpu:0,output=cpu:1
    ");
    assert_snapshot!(windlass("train mnist --trace trace.json").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --trace needs --place
    hint: such as --place hidden=cpu:0,output=cpu:1
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1 --microbatches 0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --microbatches is 0, but must be at least 1
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1 --microbatches 9 --batch-size 8").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --microbatches is 9, but a batch has only 8 samples
    hint: raise --batch-size, or use fewer micro-batches
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1 --towers 2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place cannot be combined with --towers or --devices: it divides the model; they divide batches
    hint: --place STAGE=cpu:0+cpu:1 has several devices compute a stage
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1 --accumulate 2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place cannot be combined with --accumulate
    hint: --microbatches splits each batch, and adds up the gradients of its parts
    ");
    assert_snapshot!(windlass("train mnist --place hidden=cpu:1 --in-graph --worker_hosts a:1").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place cannot be combined with --in-graph: it divides the model; that divides batches
    hint: joined workers compute stages without it
    ");
}

#[test]
fn places_with_tasks_that_there_are_not_are_refused_too() {
    assert_snapshot!(windlass("train mnist --place hidden=/task:0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place on other tasks needs the addresses of joined workers
    hint: pass --worker_hosts a:2222,b:2222, with `join --listen` running on each
    ");
    assert_snapshot!(windlass("train mnist --place hidden=/task:2 --worker_hosts a:1,b:1 -q").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on /task:2, but there is no such worker
    hint: there are workers 0 and 1
    ");
    assert_snapshot!(windlass("launch mnist --workers 2 --place hidden=/task:2").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on /task:2, but there is no such worker
    hint: there are workers 0 and 1
    ");
    assert_snapshot!(windlass("launch mnist --workers 1 --place hidden=/job:ps/task:0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on /job:ps/task:0, but only workers compute stages
    hint: there is worker 0 alone
    ");
    assert_snapshot!(windlass("launch mnist --workers 1 --place hidden=/job:worker").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --place puts hidden on /job:worker, which does not say which task
    hint: there is worker 0 alone
    ");
    assert_snapshot!(windlass("launch mnist --colocate --place hidden=/task:0").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --colocate cannot be combined with --place on other tasks: joined workers hold no parameters
    hint: omit it: without --ps, the client holds them
    ");
}

#[test]
fn a_device_that_does_not_exist_is_refused_unless_another_may_be_taken() {
    let told = windlass("train mnist --place hidden=rocm:0 -q").run();
    assert_eq!(told.exit_code(), Some(2));
    assert!(told.stderr.starts_with("error: --place: device rocm:0 is not on this machine"), "{told}");
    for place in ["hidden=rocm:0", "hidden=rocm:0+rocm:1"] {
        let told = trained(&format!("train {MNIST} --place {place} --soft-placement on"));
        assert!(told.stderr.contains("computing on cpu:0 instead"), "{told}");
    }
}

#[test]
fn a_joined_worker_refuses_a_device_that_it_does_not_have_unless_another_may_be_taken() {
    let at = address();
    let worker = joined(&at);
    let fifth = windlass(&format!("train {MNIST} --place output=/task:0/cpu:5 --worker_hosts {at}")).run();
    assert_eq!(fifth.exit_code(), Some(2), "{fifth}");
    assert!(
        fifth.stderr.contains("stage output: device cpu:5 is not on this machine: the only cpu is cpu:0"),
        "{fifth}"
    );
    let words = format!("train {MNIST} --place output=/task:0/rocm:0 --worker_hosts {at}");
    let told = windlass(&words).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    let refused =
        format!("worker 0 at {at} (stage output) refuses: stage output: device rocm:0 is not on this machine: ");
    assert!(told.stderr.contains(&refused), "{told}");
    assert!(told.stderr.contains("--soft-placement on computes on a device that exists"), "{told}");
    assert!(!told.stderr.contains("hint: "), "it is no question of the program: {told}");
    trained(&format!("{words} --soft-placement on"));
    let taken = worker.log("WARN stage output: device rocm:0 is not on this machine");
    assert!(taken.ends_with("computing on cpu:0 instead"), "{taken}");
}
