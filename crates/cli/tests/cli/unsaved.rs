//! Checkpoints that cannot be written: the directory is gone, the disk is full, the store does not respond. Waiting
//! tasks are told, and a run that could not be saved never ends as if it had been.

use std::fs;
use std::path::Path;

use rustix::process::Signal;

use crate::cluster::{Hosts, Launched};
use crate::fake_store::FakeStore;
use crate::process::{Invocation, Process, Told, eventually, windlass};

/// A run that lasts a second or more, so that a test can interfere with its checkpoints.
const RUN: &str = "linear --steps 60000 --log-every 100 --checkpoint-secs 0 --format json --run-dir run";

/// Starts a run, and interferes with its directory while it trains.
fn disturbed(command: &str, disturb: impl FnOnce(&Path)) -> Process {
    let run = Launched::by(windlass(&format!("{command} {RUN}")));
    run.0.event(|event| event["event"] == "step");
    let mut tasks = run.tasks();
    if tasks.is_empty() {
        tasks.push(run.itself());
    }
    tasks.iter().for_each(|task| task.signal(Signal::STOP));
    disturb(run.0.directory());
    tasks.iter().for_each(|task| task.signal(Signal::CONT));
    run.0
}

fn remove_the_checkpoints(directory: &Path) {
    fs::remove_dir_all(directory.join("run/checkpoints")).unwrap();
}

fn put_a_file_in_their_place(directory: &Path) {
    remove_the_checkpoints(directory);
    fs::write(directory.join("run/checkpoints"), "not a directory").unwrap();
}

fn says_that_it_was_not_saved(told: &Told) {
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("the last checkpoint could not be written: "), "{told}");
    assert!(told.stderr.contains("run/checkpoints` has changed since this run started"), "{told}");
}

#[test]
fn a_run_whose_last_checkpoint_cannot_be_written_ends_with_4() {
    for command in ["train", "launch"] {
        for disturb in [remove_the_checkpoints, put_a_file_in_their_place] {
            let told = disturbed(command, disturb).wait();
            says_that_it_was_not_saved(&told);
            assert!(told.stderr.contains("WARN checkpoint failed: "), "the launcher passes it on: {told}");
            assert!(told.directory().join("run/summary.json").exists(), "it has ended all the same: {told}");
            let said = told.stderr.rfind("error: ").map_or("", |at| &told.stderr[at..]);
            assert!(said.lines().count() <= 2, "the summary is no part of the error: {told}");
        }
    }
}

/// Creates a directory in the place of the summary.
fn block_the_summary(directory: &Path) {
    fs::create_dir_all(directory.join("run/summary.json")).unwrap();
}

#[test]
fn a_summary_that_cannot_be_written_is_told_all_the_same_and_the_run_ends_with_1() {
    for command in ["train", "launch"] {
        let told = disturbed(command, block_the_summary).wait();
        assert_eq!(told.exit_code(), Some(1), "{told}");
        assert!(told.stdout.contains(r#""event":"summary""#), "{told}");
        assert!(told.stderr.contains("training has ended, but its summary cannot be written to "), "{told}");
        assert!(told.stderr.contains("run/summary.json: "), "{told}");
    }
}

#[test]
fn a_summary_that_cannot_be_written_does_not_hide_that_the_last_checkpoint_could_not_either() {
    let told = disturbed("train", |directory| {
        remove_the_checkpoints(directory);
        block_the_summary(directory);
    });
    let told = told.wait();
    says_that_it_was_not_saved(&told);
    assert!(told.stdout.contains(r#""event":"summary""#), "{told}");
    assert!(told.stderr.contains("its summary cannot be written to run/summary.json: "), "{told}");
}

#[test]
fn a_launched_run_whose_directory_was_removed_says_why_it_could_not_be_saved() {
    let told = disturbed("launch", |directory| {
        // Removing it may fail while tasks write to it.
        let run = directory.join("run");
        eventually("the directory is removed", || fs::remove_dir_all(&run).is_ok().then_some(()));
    })
    .wait();
    says_that_it_was_not_saved(&told);
}

#[test]
fn a_run_that_is_told_to_stop_and_cannot_be_saved_ends_with_4() {
    for (command, layout) in [("train", ""), ("launch", ""), ("launch", "--ps 2"), ("launch", "--colocate")] {
        let endless = RUN.replace("60000", "1000000000");
        let run = Launched::by(windlass(&format!("{command} {endless} {layout}")));
        run.0.event(|event| event["event"] == "step");
        put_a_file_in_their_place(run.0.directory());
        run.0.signal(Signal::INT);
        let told = run.wait();
        says_that_it_was_not_saved(&told);
        assert_eq!(
            told.after("checkpoint: "),
            "none (the last one could not be written)",
            "{command} {layout}: {told}"
        );
    }
}

/// `windlass` with file sizes limited to `blocks` blocks of 512 bytes, as on a disk that is nearly full.
fn on_a_small_disk(blocks: u32, words: &str) -> Invocation {
    // The signal would kill the process; a full disk causes an error.
    let limited = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let command = Invocation::new(Path::new("/bin/sh"), "-c").with(limited).with(env!("CARGO_BIN_EXE_windlass"));
    words.split_whitespace().fold(command, |command, word| command.with(word))
}

#[test]
fn checkpoints_that_do_not_fit_on_the_disk_leave_nothing_behind() {
    let words = "train autoencoder --hidden 64 --steps 60 --checkpoint-secs 0 --checkpoint-steps 5 --run-dir run";
    let told = on_a_small_disk(400, words).run();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("checkpoint failed: ps 0: "), "{told}");
    assert!(told.stderr.contains("the last checkpoint could not be written: "), "{told}");
    let left = fs::read_dir(told.directory().join("run/checkpoints")).unwrap();
    let left: Vec<String> = left.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(left, ["generations"], "{told}");
}

/// All tasks of a small cluster whose ps 0 cannot start: some start before ps 0, and one later.
fn all_are_refused(words: &str, exit_code: i32, reason: &str) {
    let hosts = Hosts::new(2, 2);
    let early = [("worker", 0), ("ps", 1)].map(|(job, index)| hosts.task(job, index, words).start());
    early.iter().for_each(|task| drop(task.log("waiting for ps 0")));
    let first = hosts.task("ps", 0, words).start();
    first.log(reason);
    let late = hosts.task("worker", 1, words).start();
    for task in early.into_iter().chain([late, first]) {
        let told = task.wait();
        assert_eq!(told.exit_code(), Some(exit_code), "{told}");
        assert!(told.stderr.lines().any(|line| line.starts_with("error: ") && line.contains(reason)), "{told}");
    }
}

#[test]
fn when_the_disk_of_ps_0_is_full_at_the_start_all_tasks_are_told_and_end() {
    let hosts = Hosts::new(1, 2);
    let words = "linear --run-dir run";
    let early = hosts.task("worker", 0, words).start();
    early.log("waiting for ps 0");
    let first = on_a_small_disk(0, &hosts.words("ps", 0, words)).start();
    let late = hosts.task("worker", 1, words).start();
    for task in [early, late, first] {
        let told = task.wait();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        assert!(told.stderr.contains("error: cannot write `generations/"), "{told}");
    }
}

#[test]
fn a_restarted_ps_0_that_cannot_open_the_checkpoints_says_so_on_the_screen() {
    let run =
        Launched::start("linear --steps 1000000000 --threads 1 --checkpoint-secs 0 --checkpoint-steps 200 --restart 1");
    run.logged("ps-0", "checkpoint of step ");
    let generations = run.0.directory().join("run/checkpoints/generations");
    let aside = generations.with_file_name("aside");
    fs::rename(&generations, &aside).unwrap();
    fs::write(&generations, "in the way").unwrap();
    run.task("ps", 0).signal(Signal::KILL);
    run.0.log("ps 0 cannot continue the run yet: ");
    run.0.signal(Signal::INT);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("the last checkpoint could not be written: ps 0 cannot continue"), "{told}");
}

#[test]
fn when_ps_0_cannot_keep_checkpoints_all_tasks_are_told_and_end() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("taken"), "a file").unwrap();
    let words = format!("linear --checkpoint-dir {}/taken", directory.path().display());
    all_are_refused(&words, 2, "taken`");
}

#[test]
fn when_ps_0_finds_only_damaged_checkpoints_all_tasks_are_told_and_end() {
    let directory = tempfile::tempdir().unwrap();
    let words = format!("linear --steps 50 --checkpoint-dir {}", directory.path().display());
    windlass(&format!("train {words}")).run().succeeded();
    let manifests = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut manifests: Vec<_> = manifests.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    fs::write(manifests.pop().unwrap(), "{").unwrap();
    all_are_refused(&words, 4, "the only checkpoint in `");
}

#[test]
fn a_store_that_does_not_take_a_part_is_named_within_seconds_and_given_up() {
    let store = FakeStore::start(|request| request.contains("uploads"));
    let words = "train linear --steps 100 --checkpoint-stall-secs 5 --checkpoint-dir s3://bucket/run";
    let run = store.reaches(windlass(words)).start();
    run.log("the checkpoint is waiting for ps 0 to write: no progress for 3 s");
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("could not be written: ps 0 made no progress writing for 5 s"), "{told}");
}

#[test]
fn a_store_that_does_not_answer_at_all_is_named_to_those_who_wait_for_ps_0() {
    let store = FakeStore::start(|_| true);
    let hosts = Hosts::new(1, 1);
    let words = "linear --checkpoint-dir s3://bucket/run";
    let ps = store.reaches(hosts.task("ps", 0, words)).start();
    let worker = hosts.task("worker", 0, words).start();
    worker.log("ps 0 is still opening the checkpoints in `s3://bucket/run`");
    ps.log("ps 0 is still opening the checkpoints in `s3://bucket/run`");
    ps.signal(Signal::TERM);
    assert_eq!(ps.wait().exit_code(), Some(143));
    worker.kill();
}

#[test]
fn tasks_are_let_in_while_the_checkpoint_to_begin_from_is_looked_for() {
    let store = FakeStore::start(|_| true);
    let hosts = Hosts::new(1, 1);
    let directory = tempfile::tempdir().unwrap();
    let words = format!("linear --resume s3://bucket/other --checkpoint-dir {}", directory.path().display());
    let task = |job| store.reaches(hosts.task(job, 0, &words));
    let (ps, worker) = (task("ps").start(), task("worker").start());
    ps.log("worker 0 joined");
    worker.log("looking for a whole checkpoint in s3://bucket/other");
    worker.signal(Signal::TERM);
    assert_eq!(worker.wait().exit_code(), Some(143));
    assert_eq!(ps.wait().exit_code(), Some(143), "without a worker there is nothing to wait for");
}

#[test]
fn a_process_that_is_restoring_can_be_told_to_stop() {
    let first = windlass("train linear --steps 50 --run-dir run").run().succeeded();
    let checkpoints = first.directory().join("run/checkpoints");
    let files = fs::read_dir(&checkpoints).unwrap().map(|entry| entry.unwrap().path());
    let manifest = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "json")).unwrap();
    // Reading it blocks forever.
    let part = manifest.with_extension("").join("ps-0-of-1.safetensors");
    fs::remove_file(&part).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&part).status().unwrap().success());
    let words = "train linear --steps 100 --run-dir other --resume";
    let run = first.windlass(words).with(&manifest).env("RUST_LOG", "info").start();
    run.log("resuming from the checkpoint of step 50");
    run.signal(Signal::TERM);
    let told = run.wait();
    assert_eq!(told.exit_code(), Some(143), "{told}");
}
