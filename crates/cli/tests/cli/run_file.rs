//! `run.toml`: the settings of a run, which its tasks read and from which another run can start.

use std::fs;

use rustix::process::Signal;

use crate::cluster::{Hosts, Launched, summary};
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

fn run_file(told: &Told, run_dir: &str) -> String {
    fs::read_to_string(told.directory().join(run_dir).join("run.toml"))
        .unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// The settings in the file, without comments.
fn settings(text: &str) -> toml::Table {
    text.parse().unwrap()
}

/// The values of the newest checkpoint of a run.
fn values(told: &Told, run_dir: &str) -> Vec<u8> {
    told.windlass(&format!("checkpoint export {run_dir} --output {run_dir}.safetensors")).run().succeeded();
    let file = fs::read(told.directory().join(format!("{run_dir}.safetensors"))).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    rest[u64::from_le_bytes(*length) as usize..].to_vec()
}

#[test]
fn a_sync_run_that_is_started_again_from_its_file_ends_with_the_same_bits() {
    let files = DigitFiles::new(200, 50);
    let words = "launch mnist --mode sync --ps 2 --min-shard-bytes 0 --variant sigmoid --hidden 8 --batch-size 20 \
                 --lr 0.1 --steps 40 --threads 1 --seed 5 --evaluate end --run-dir run --data-dir";
    let first = windlass(words).with(files.path()).run().succeeded();
    let again = first.windlass("launch mnist --config run/run.toml --run-dir again").run().succeeded();
    assert!(values(&again, "again") == values(&again, "run"), "the values differ");
    let [run, other] = ["run", "again"].map(|run_dir| settings(&run_file(&again, run_dir)));
    assert_eq!(run["launch"], other["launch"]);
    assert_eq!(run["model"], other["model"]);
    // From another directory, and in one process.
    let alone = windlass("train mnist --print-config --config").with(again.directory().join("run/run.toml")).run();
    assert_eq!(settings(&alone.succeeded().stdout)["train"]["data-dir"].as_str(), files.path().to_str());
}

#[test]
fn flags_override_the_file_of_the_run_that_is_started_again() {
    let first = windlass("launch linear --steps 50 --threads 1 --run-dir run").run().succeeded();
    let told = first.windlass("launch linear --config run/run.toml").run().succeeded();
    assert!(told.stdout.contains("finished"), "the same directory is the same run: {told}");
    let told = first.windlass("launch linear --config run/run.toml --run-dir other --steps 70").run().succeeded();
    assert_eq!(settings(&run_file(&told, "other"))["train"]["steps"].as_integer(), Some(70));
    assert_eq!(settings(&run_file(&told, "run"))["train"]["steps"].as_integer(), Some(50));
    let told = first.windlass("launch linear --config run/run.toml --steps 80").run().succeeded();
    assert_eq!(summary(&told)["global_step"], 80, "it trains on: {told}");
    assert_eq!(settings(&run_file(&told, "run"))["train"]["steps"].as_integer(), Some(80));
    let told = first.windlass("launch linear --config run/run.toml --run-dir third --epochs 1").run().succeeded();
    assert!(settings(&run_file(&told, "third"))["train"].get("steps").is_none(), "{told}");
}

#[test]
fn a_directory_that_was_chosen_by_default_is_not_that_of_the_next_run() {
    let first = windlass("launch linear --steps 20 --threads 1").run().succeeded();
    let runs = || fs::read_dir(first.directory().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let run = runs().next().unwrap();
    first.windlass("launch linear --config").with(run.join("run.toml")).run().succeeded();
    assert_eq!(runs().count(), 2);
}

#[test]
fn tasks_read_the_file_and_nothing_else_of_what_the_user_has_set() {
    let file = "[launch]\nworkers = 1\n[train]\nsteps = 1000000000\nlog-every = 7\n[model]\nnoise = 0.5\n";
    let launched = windlass("launch linear --config windlass.toml --seed 4 --format json --run-dir run")
        .with_file("windlass.toml", file)
        .env("WINDLASS_BATCH_SIZE", "3")
        .env("WINDLASS_PS_HOSTS", "nowhere:1")
        .env("WINDLASS_CLUSTER", "nowhere.toml");
    let run = Launched::by(launched);
    assert_eq!(run.event("started", 0)["batch_size"], 3);
    assert_eq!(run.event("step", 0)["local_step"], 7);
    for (job, index) in [("ps", 0), ("worker", 0)] {
        let task = run.task(job, index);
        let command_line = task.command_line();
        assert!(command_line.contains("\0--config\0run/run.toml\0"), "{command_line:?}");
        for flag in ["seed", "noise", "batch-size", "windlass.toml", "steps"] {
            assert!(!command_line.contains(flag), "{flag} in {command_line:?}");
        }
        let environment = task.environment();
        assert!(environment.contains("WINDLASS_LAUNCHED_AS=windlass launch linear --config windlass.toml"));
        assert!(!environment.contains("BATCH_SIZE") && !environment.contains("WINDLASS_PS_HOSTS"), "{environment:?}");
    }
    run.0.signal(Signal::TERM);
    let told = run.wait();
    let settings = settings(&run_file(&told, "run"));
    assert_eq!(settings["train"]["seed"].as_integer(), Some(4));
    assert_eq!(settings["train"]["batch-size"].as_integer(), Some(3));
    assert_eq!(settings["model"]["noise"].as_float(), Some(0.5));
}

#[test]
fn a_task_that_is_started_again_reads_what_the_others_have_read() {
    let run = Launched::start("linear --steps 1000000000 --threads 1 --restart 1 --batch-size 3");
    run.event("step", 1);
    let path = run.0.directory().join("run/run.toml");
    let before = fs::read_to_string(&path).unwrap();
    fs::write(&path, "[train]\nbatch-size = 5\n").unwrap();
    run.task("worker", 1).signal(Signal::KILL);
    let started = run.event("started", 1);
    assert_eq!(started["batch_size"], 3);
    assert_eq!(fs::read_to_string(&path).unwrap(), before);
    run.0.signal(Signal::TERM);
    run.wait();
}

#[test]
fn a_run_that_is_refused_leaves_the_file_of_the_one_that_lives() {
    for verb in ["train", "launch"] {
        let words = |steps| format!("{verb} linear --steps {steps} --threads 1 --format json --run-dir run");
        let first = windlass(&words(1_000_000_000)).start();
        first.event(|event| event["event"] == "step");
        let path = first.directory().join("run/run.toml");
        let before = fs::read_to_string(&path).unwrap();
        let second = first.windlass(&words(77)).run();
        assert_eq!(second.exit_code(), Some(4), "{second}");
        assert_eq!(fs::read_to_string(&path).unwrap(), before);
        first.signal(Signal::TERM);
        first.wait();
    }
}

#[test]
fn a_run_in_one_process_writes_it_and_a_task_of_a_cluster_does_not() {
    let told = windlass("train linear --epochs 1 --run-dir run").run().succeeded();
    assert!(run_file(&told, "run").starts_with("# windlass train linear --epochs 1 --run-dir run\n"));
    told.windlass("train linear --config run/run.toml --run-dir again").run().succeeded();
    told.windlass("launch linear --config run/run.toml --run-dir launched").run().succeeded();
    told.windlass("train linear --config launched/run.toml --run-dir alone").run().succeeded();
    let hosts = Hosts::new(1, 1);
    let ps = hosts.task("ps", 0, "linear --epochs 1 --run-dir run").start();
    ps.windlass(&hosts.words("worker", 0, "linear --epochs 1 --run-dir run")).run().succeeded();
    let told = ps.wait().succeeded();
    assert!(!told.directory().join("run/run.toml").exists());
}

#[test]
fn the_command_that_resumes_a_run_has_what_was_set_elsewhere() {
    let launched = windlass("launch linear --config windlass.toml --format json --run-dir run")
        .with_file("windlass.toml", "[train]\nsteps = 1000000000\nresume = \"never\"\n")
        .env("WINDLASS_BATCH_SIZE", "3")
        .start();
    launched.event(|event| event["event"] == "step");
    launched.signal(Signal::TERM);
    let told = launched.wait();
    let command = told.after("resume: ").to_owned();
    assert!(command.starts_with("WINDLASS_BATCH_SIZE=3 "), "{command}");
    assert!(command.ends_with(" --run-dir run --resume auto"), "{command}");
    let steps = told.shell(&format!("{command} --print-config")).run().succeeded();
    assert!(steps.stdout.contains("batch-size = 3"), "{steps}");
    assert!(steps.stdout.contains("resume = \"auto\""), "{steps}");
}
