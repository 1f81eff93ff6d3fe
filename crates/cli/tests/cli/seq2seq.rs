//! Translation with the real binary: the self-test in every mode, reports, text from files, and invalid flags.

use insta::assert_snapshot;
use serde_json::Value;

use crate::cluster::summary;
use crate::process::{Invocation, Told, windlass};

/// Small enough to train in a moment.
const SMALL: &str = "--layers 1 --size 8 --batch-size 2 --buckets 4,6 9,9 --report-every 3 --steps 6 --threads 1";
const ENGLISH: &str = "one two\nthree\ntwo one\nfour\none three\nthree two\n";
const FRENCH: &str = "un deux\ntrois\ndeux un\nquatre\nun trois\ntrois deux\n";

fn metric(summary: &Value, name: &str) -> f64 {
    summary["metrics"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {summary:#}"))
}

fn reports(told: &Told) -> Vec<Value> {
    let events = told.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "report").collect()
}

fn from_files(words: &str) -> Invocation {
    windlass(&format!("train seq2seq --train-from en --train-to fr {words}"))
        .with_file("en", ENGLISH)
        .with_file("fr", FRENCH)
}

/// Adds a development set of one sentence, which is in the first bucket.
fn with_dev_text(words: &str) -> Invocation {
    from_files(&format!("{words} --dev-from dev.en --dev-to dev.fr"))
        .with_file("dev.en", "two\n")
        .with_file("dev.fr", "deux\n")
}

#[test]
fn the_self_test_learns_all_its_sentences() {
    let told = windlass("train seq2seq --self-test --threads 1 --format json --run-dir run").run().succeeded();
    let summary = summary(&told);
    assert!(metric(&summary, "exact_match") > 0.95, "{summary:#}");
    assert!(metric(&summary, "bleu") > 90.0 && metric(&summary, "dev_perplexity") < 1.5, "{summary:#}");
    let reports = reports(&told);
    assert_eq!(reports.len(), 6);
    for report in &reports {
        let names: Vec<&Value> = report["held_out"].as_array().unwrap().iter().map(|part| &part["name"]).collect();
        assert_eq!(names, ["bucket 0", "bucket 1"]);
        assert!(report["samples_per_second"].as_f64() > Some(0.0) && report["step_ms"].as_f64() > Some(0.0));
    }
    assert!(reports[5]["loss"].as_f64() < reports[0]["loss"].as_f64(), "{reports:?}");
}

fn learns_with(flags: &str) {
    let words = format!("launch seq2seq --self-test --steps 400 {flags} --format json --run-dir run");
    let summary = summary(&windlass(&words).run().succeeded());
    assert_eq!(summary["global_step"], 400);
    assert!(metric(&summary, "exact_match") > 0.8, "{summary:#}");
}

#[test]
fn asynchronous_workers_learn_to_translate() {
    learns_with("--mode async --ps 2 --min-shard-bytes 0");
}

#[test]
fn workers_in_step_learn_to_translate() {
    learns_with("--mode sync --ps 1");
}

#[test]
fn workers_with_a_bound_learn_to_translate() {
    learns_with("--mode ssp --staleness 2 --colocate");
}

#[test]
fn moving_only_the_rows_that_a_batch_needs_changes_nothing_but_the_bytes() {
    let train = |flags: &str| {
        let words = "train seq2seq --self-test --threads 1 --optimizer sgd --learning-rate 0.3 --steps 40";
        summary(&windlass(&format!("{words} --run-dir run {flags}")).run().succeeded())
    };
    let (rows, dense) = (train(""), train("--dense-tables"));
    let close = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-3, "{one} {other}");
    close(rows["loss"].as_f64().unwrap(), dense["loss"].as_f64().unwrap());
    close(metric(&rows, "dev_perplexity"), metric(&dense, "dev_perplexity"));
    let received = |summary: &Value| summary["bytes_per_step"]["received"].as_f64().unwrap();
    assert!(received(&rows) < received(&dense), "{} {}", received(&rows), received(&dense));
}

#[test]
fn the_same_seed_trains_the_same_network_bit_for_bit() {
    let loss = |seed: u32| {
        let words = "train seq2seq --self-test --threads 1 --steps 30 --run-dir run";
        let summary = summary(&windlass(&format!("{words} --seed {seed}")).run().succeeded());
        (summary["loss"].clone(), summary["metrics"].clone())
    };
    assert_eq!(loss(7), loss(7));
    assert_ne!(loss(7), loss(8));
}

#[test]
fn a_report_tells_of_every_bucket_and_of_those_that_are_empty() {
    let told = with_dev_text(SMALL).run().succeeded();
    let numbers = without_numbers(&told.stdout);
    let report: Vec<&str> = numbers.lines().skip_while(|line| !line.contains("current step")).take(3).collect();
    assert_snapshot!(report.join("\n"), @"
    worker 0  current step 3 (global 3)  learning rate [N]  step-time [N] s  [N] samples/s  perplexity [N]
      eval: bucket 0 perplexity [N]
      eval: bucket 1 is empty
    ");
}

#[test]
fn a_perplexity_among_a_sample_of_the_words_is_called_so() {
    let told = with_dev_text(&format!("{SMALL} --samples 3 --run-dir run")).run().succeeded();
    let report: Vec<&str> = told.stdout.lines().filter(|line| line.contains("perplexity")).collect();
    assert!(report[0].contains("current step 3") && report[0].contains("  sampled perplexity "), "{told}");
    assert!(report[1].starts_with("  eval: bucket 0 sampled perplexity "), "{told}");
    // The final scores use the full vocabulary.
    let summary = summary(&told);
    assert!(metric(&summary, "dev_perplexity") > 1.0, "{summary:#}");
    let scores = told.stdout.lines().find(|line| line.trim_start().starts_with("scores")).unwrap();
    assert!(!scores.contains("sampled"), "{told}");
}

/// Masks measured and computed numbers.
fn without_numbers(text: &str) -> String {
    let word = |word: &str| match word.parse::<f64>() {
        Ok(_) if word.contains('.') => "[N]".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &str| {
        let mut hidden: Vec<String> = line.split(' ').map(word).collect();
        for at in 1..hidden.len() {
            if hidden[at] == "samples/s" {
                hidden[at - 1] = "[N]".to_owned();
            }
        }
        hidden.join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn text_that_has_been_read_is_kept_as_numbers() {
    let cache = tempfile::tempdir().unwrap();
    let train = || from_files(SMALL).with("--text-cache").with(cache.path()).run().succeeded();
    let first = train();
    assert!(first.stderr.contains("cached the text in"), "{first}");
    assert!(first.stderr.contains("6 pairs: 6 in (4,6), 0 in (9,9)"), "{first}");
    let second = train();
    assert!(second.stderr.contains("read the text from the cache"), "{second}");
}

fn refused(words: &str) -> Told {
    let told = windlass(&format!("train seq2seq {words}")).run().without_log();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    told
}

#[test]
fn sizes_that_make_no_network_are_refused() {
    assert_snapshot!(refused("--layers 0").stderr, @"error: --layers must be at least 1");
    assert_snapshot!(refused("--to-vocabulary 4").stderr, @"error: --to-vocabulary is 4, but must be at least 5: 4 entries are reserved");
    assert_snapshot!(refused("--clip-norm -1").stderr, @"error: --clip-norm is -1, but must be a positive number, or 0 for no clipping");
    assert_snapshot!(refused("--learning-rate-decay 1.5").stderr, @"error: --learning-rate-decay is 1.5, but must be above 0 and at most 1");
    assert_snapshot!(refused("--report-every 0").stderr, @"error: --report-every must be at least 1");
}

#[test]
fn buckets_that_are_none_or_not_in_order_are_refused() {
    assert_snapshot!(refused("--buckets 5;10").stderr, @"
    error: invalid value '5;10' for '--buckets <FROM,TO>...': a bucket is FROM,TO, such as 5,10, with FROM at least 2 and TO at least 3

    For more information, try '--help'.
    ");
    assert_snapshot!(refused("--buckets 10,15 5,10").stderr, @"error: --buckets go from short to long, but (5,10) comes after (10,15)");
}

#[test]
fn text_that_cannot_be_read_is_refused_by_name() {
    assert_snapshot!(refused("--train-from en --train-to fr").stderr, @"error: read the text: there is no file en");
    let told = from_files("--dev-from en --dev-to short").with_file("short", "un\n").run().without_log();
    assert_snapshot!(told, @"
    exit code 2
    --- stdout
    --- stderr
    error: read the text: en has 6 lines but short has 1, expected the same number
    hint: line N of one must be the translation of line N of the other
    ");
    assert_snapshot!(refused("--data-dir here").stderr, @"
    error: seq2seq does not use --data-dir here
    hint: name the files with --train-from and --train-to
    ");
}

#[test]
fn text_without_its_translation_is_refused() {
    assert_snapshot!(refused("--train-from en").stderr, @"
    error: the following required arguments were not provided:
      --train-to <FILE>

    Usage: windlass train seq2seq --train-from <FILE> --train-to <FILE>

    For more information, try '--help'.
    ");
    let told = refused("--self-test --train-from en --train-to fr");
    assert!(told.stderr.contains("cannot be used with"), "{told}");
}

#[test]
fn text_that_fits_no_bucket_is_refused() {
    let told = from_files("--buckets 2,3").with_file("en", "a b c\n").with_file("fr", "d e f\n").run().without_log();
    assert_snapshot!(told.stderr, @"
    error: none of the pairs to train on fits a bucket
    hint: the longest is (2,3); give longer ones with --buckets
    ");
}
