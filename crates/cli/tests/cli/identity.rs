//! The identity of a run beyond the shapes of its parameters: the model's flags, its files and its data. Checkpoints
//! record it, and workers agree on it.

use std::fs;

use serde_json::Value;

use crate::cluster::{Hosts, summary};
use crate::digits::DigitFiles;
use crate::process::{Invocation, Told, windlass};

/// A network in `run`, trained on these digits.
fn mnist(windlass: impl FnOnce(&str) -> Invocation, command: &str, files: &DigitFiles) -> Told {
    windlass(&format!("{command} --run-dir run --data-dir")).with(files.path()).run()
}

fn refused(told: Told, exit_code: i32, words: &str) {
    assert_eq!(told.exit_code(), Some(exit_code), "{told}");
    assert!(told.stderr.contains(words), "no {words:?} in {told}");
}

#[test]
fn eval_with_a_model_flag_that_contradicts_the_checkpoint_is_refused() {
    let files = DigitFiles::new(300, 100);
    let trained = mnist(windlass, "train mnist --batch-size 20 --steps 20", &files).succeeded();
    let eval = "eval mnist --variant sigmoid --checkpoint run/checkpoints --data-dir";
    let told = trained.windlass(eval).with(files.path()).run();
    refused(told, 4, "this evaluation was started with --variant sigmoid, checkpoint 000000000020-g000001-");
}

#[test]
fn eval_takes_model_flags_and_data_from_the_checkpoint() {
    let files = DigitFiles::new(600, 200);
    let train = "train mnist --variant sigmoid --hidden 8,9 --seed 3 --batch-size 20 --steps 100";
    let trained = mnist(windlass, train, &files).succeeded();
    let told = trained.windlass("eval mnist --checkpoint run --format json").run().succeeded();
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["metrics"], summary(&trained)["metrics"]);
}

#[test]
fn eval_on_other_data_than_the_training_says_so() {
    let (files, others) = (DigitFiles::new(300, 100), DigitFiles::new(200, 100));
    let trained = mnist(windlass, "train mnist --batch-size 20 --steps 5", &files).succeeded();
    let told = trained.windlass("eval mnist --checkpoint run --data-dir").with(others.path()).run().succeeded();
    assert!(told.stderr.contains("this evaluation reads different data from checkpoint "), "{told}");
    drop(files);
    let told = trained.windlass("eval mnist --checkpoint run").run();
    refused(told, 2, "which does not exist here\nhint: pass its location with --data-dir");
}

#[test]
fn a_resumed_run_has_the_model_flags_of_its_checkpoint() {
    let files = DigitFiles::new(300, 100);
    let train = "train mnist --variant sigmoid --hidden 8 --batch-size 20 --steps 5";
    let first = mnist(windlass, train, &files).succeeded();
    for (command, steps) in [("train", 10), ("launch", 15)] {
        let again = format!("{command} mnist --batch-size 20 --steps {steps}");
        let told = mnist(|words| first.windlass(words), &again, &files).succeeded();
        let summary = summary(&told);
        assert_eq!((&summary["resumed_at"], &summary["optimizer"]), (&(steps - 5).into(), &"sgd".into()), "{told}");
    }
    for command in ["train", "launch"] {
        let other = format!("{command} mnist --variant relu --optimizer sgd --batch-size 20 --steps 20");
        let told = mnist(|words| first.windlass(words), &other, &files);
        refused(told, 4, "this run was started with --variant relu, checkpoint 000000000015-g000003-");
    }
    let anew = "train mnist --variant relu --batch-size 20 --steps 20 --resume never";
    mnist(|words| first.windlass(words), anew, &files).succeeded();
}

const TEXT: &str = "seq2seq --train-from en --train-to fr --layers 1 --size 8 --batch-size 2 --buckets 4,6 --threads 1";

fn translator(windlass: impl FnOnce(&str) -> Invocation, steps: u64, english: &str) -> Told {
    windlass(&format!("train {TEXT} --steps {steps} --run-dir run"))
        .with_file("en", english)
        .with_file("fr", "un deux\ntrois\ndeux un\nquatre\nun trois\ntrois deux\n")
        .run()
}

#[test]
fn a_changed_text_with_as_many_words_is_refused_and_the_old_words_stay() {
    let english = "one two\nthree\ntwo one\nfour\none three\nthree two\n";
    let first = translator(windlass, 200, english).succeeded();
    let decode =
        || first.windlass("decode --checkpoint run/checkpoints").with_input("one two\n").run().succeeded().stdout;
    let said = decode();
    // Words swap their places: the vocabulary keeps its size, but the numbers mean other words.
    let permuted = english.replace("one", "x").replace("four", "one").replace('x', "four");
    let told = translator(|words| first.windlass(words), 210, &permuted);
    refused(told, 4, "translator.json of this run differs from that of checkpoint 000000000200-g000001-");
    assert_eq!(decode(), said);
}

#[test]
fn checkpoints_alone_are_enough_to_decode() {
    let train = "train seq2seq --self-test --threads 1 --steps 300 --run-dir run --checkpoint-dir store";
    let trained = windlass(train).run().succeeded();
    fs::remove_dir_all(trained.directory().join("run")).unwrap();
    fs::rename(trained.directory().join("store"), trained.directory().join("moved")).unwrap();
    let told = trained.windlass("decode --checkpoint moved").with_input("la\n").run().succeeded();
    assert_eq!(told.stdout, "la\n", "{told}");
    let files = trained.directory().join("moved/files");
    let file = fs::read_dir(files).unwrap().next().unwrap().unwrap().path();
    fs::write(file, "{}").unwrap();
    refused(trained.windlass("decode --checkpoint moved").run(), 4, "was changed after it was written");
}

#[test]
fn a_run_directory_is_taken_for_its_checkpoints() {
    let trained = windlass("train linear --steps 50 --threads 1 --run-dir run").run().succeeded();
    for command in ["list run", "verify run", "inspect run", "export run", "prune run"] {
        trained.windlass(&format!("checkpoint {command}")).run().succeeded();
    }
    let resumed = "train linear --steps 60 --format json --run-dir other --resume run";
    assert_eq!(trained.windlass(resumed).run().succeeded().event("started")["from"], 50);
}

/// The flags for the tasks of a cluster.
const SMALL: &str = "mnist --hidden 8 --steps 100 --evaluate end";

/// Asserts that a second worker with different flags is refused, and that the tasks that wait for it are told why.
fn is_refused(first: (&str, &DigitFiles), second: (&str, &DigitFiles), why: &str) {
    let hosts = Hosts::new(1, 2);
    let ps = hosts.task("ps", 0, SMALL).start();
    let worker = |index, (flags, files): (&str, &DigitFiles)| {
        hosts.task("worker", index, &format!("{SMALL} {flags}")).with("--data-dir").with(files.path())
    };
    let waiting = worker(0, first).start();
    waiting.log("waiting for worker 1");
    refused(worker(1, second).run(), 2, why);
    ps.log(&format!("refused worker 1: {why}"));
    waiting.log(&format!("worker 1 was refused: {why}"));
    ps.log(&format!("worker 1 was refused: {why}"));
    // Another worker in its place may have the right flags.
    let again = worker(1, first).start();
    again.wait().succeeded();
    waiting.wait().succeeded();
    ps.wait().succeeded();
}

#[test]
fn a_worker_that_reads_other_data_is_refused_and_those_who_wait_are_told_why() {
    let (files, others) = (DigitFiles::new(300, 100), DigitFiles::new(200, 100));
    is_refused(("", &files), ("", &others), "worker 1 reads different data from the other workers (");
}

#[test]
fn a_worker_with_as_many_samples_of_other_content_is_refused() {
    let (files, others) = (DigitFiles::new(300, 100), DigitFiles::new(300, 100));
    others.damage(&others.images("train"), |bytes| *bytes.last_mut().unwrap() ^= 1);
    // The last images of the file may be held out, so the first one is changed, too.
    others.damage(&others.images("train"), |bytes| bytes[16 + 400] ^= 255);
    is_refused(("", &files), ("", &others), "worker 1 reads different data from the other workers (");
}

#[test]
fn workers_may_read_the_same_data_from_different_places() {
    let (files, copy) = (DigitFiles::new(300, 100), DigitFiles::new(300, 100));
    let hosts = Hosts::new(1, 2);
    let ps = hosts.task("ps", 0, SMALL).start();
    let worker =
        |index, files: &DigitFiles| hosts.task("worker", index, SMALL).with("--data-dir").with(files.path()).start();
    let workers = [worker(0, &files), worker(1, &copy)];
    workers.into_iter().for_each(|worker| drop(worker.wait().succeeded()));
    ps.wait().succeeded();
}

#[test]
fn a_worker_with_another_seed_or_other_shards_is_refused_by_the_flag() {
    let files = DigitFiles::new(300, 100);
    let why = "worker 1 was started with --seed 2, the other workers with --seed 1";
    is_refused(("", &files), ("--seed 2", &files), why);
    let why = "worker 1 was started with --shard-data, the other workers without --shard-data";
    is_refused(("", &files), ("--shard-data", &files), why);
    let why = "worker 1 was started with --variant sigmoid, the other workers with --variant relu";
    is_refused(("", &files), ("--variant sigmoid", &files), why);
}

#[test]
fn batches_of_another_size_are_refused_in_sync_and_told_of_in_async() {
    let files = DigitFiles::new(300, 100);
    let why = "worker 1 was started with 10 samples per step, the other workers with 100 samples per step";
    is_refused(("--mode sync", &files), ("--mode sync --batch-size 10", &files), why);
    let hosts = Hosts::new(1, 2);
    let ps = hosts.task("ps", 0, SMALL).start();
    let worker = |index, flags: &str| {
        hosts.task("worker", index, &format!("{SMALL} {flags}")).with("--data-dir").with(files.path()).start()
    };
    let first = worker(0, "");
    first.log("waiting for worker 1");
    let second = worker(1, "--batch-size 10");
    ps.log(why);
    first.log(why);
    [first, second, ps].into_iter().for_each(|task| drop(task.wait().succeeded()));
}
