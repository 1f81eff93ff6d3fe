//! A run's reports about its own learning: a warning if it does not learn, and nothing otherwise.

use serde_json::Value;

use crate::cluster::summary;
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

/// A learning rate that is far too large: losses exceed that of guessing within a few steps, but stay finite.
const DIVERGING: &str =
    "mnist --variant sigmoid --hidden 10 --learning-rate 100 --steps 300 --evaluate end --run-dir run";

fn warnings(told: &Told) -> Vec<Value> {
    let events = told.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == "warning").collect()
}

#[test]
fn a_run_that_diverges_says_so_and_what_to_try_and_ends_well() {
    let told = windlass(&format!("train {DIVERGING} --threads 1")).run().succeeded();
    let said: Vec<&str> = told.stdout.lines().filter(|line| line.contains("training diverges")).collect();
    assert_eq!(said.len(), 2, "while it happens and in the table: {told}");
    assert!(said[0].starts_with("warning: training diverges: at step 20 the loss is "), "{told}");
    assert!(said[0].contains("chance is 2.30"), "{told}");
    assert!(said[1].trim_start().starts_with("warning "), "{told}");
    let hint = "hint: the learning rate may be too large: try --learning-rate 10";
    assert!(told.stdout.lines().any(|line| line == hint), "{told}");
    let warning = &summary(&told)["warning"];
    assert_eq!((&warning["trouble"], &warning["global_step"]), (&"diverging".into(), &300.into()), "{warning}");
    assert!(warning["loss"].as_f64() > warning["chance"].as_f64(), "{warning}");
}

#[test]
fn a_launched_run_that_diverges_tells_it_as_an_event_and_in_the_chiefs_log() {
    let told = windlass(&format!("launch {DIVERGING} --workers 2 --format json")).run().succeeded();
    let warnings = warnings(&told);
    assert_eq!(warnings.len(), 1, "{told}");
    assert_eq!((&warnings[0]["worker"], &warnings[0]["trouble"]), (&0.into(), &"diverging".into()), "{told}");
    let hint = warnings[0]["hint"].as_str().unwrap();
    assert!(hint.contains("try --mode sync, --staleness-scaling, or --learning-rate 50"), "{hint}");
    let log = std::fs::read_to_string(told.directory().join("run/worker-0.log")).unwrap();
    assert!(log.contains(warnings[0]["message"].as_str().unwrap()), "{log}");
    assert_eq!(summary(&told)["warning"]["trouble"], "diverging");
}

/// Uses the model's own learning rate: it is the number of workers that keeps them from learning. Each makes enough
/// steps to notice that, however its first steps went.
#[test]
fn sixteen_async_workers_are_warned_of_with_what_to_try() {
    let files = DigitFiles::new(400, 100);
    let words =
        "launch mnist --workers 16 --threads 1 --steps 8000 --evaluate end --format json --run-dir run --data-dir";
    let told = windlass(words).with(files.path()).run().succeeded();
    let warnings = warnings(&told);
    assert!(!warnings.is_empty(), "{told}");
    let hint = warnings[0]["hint"].as_str().unwrap();
    let advice = "16 workers compute on old parameters: try --mode sync, --staleness-scaling, or --learning-rate ";
    assert!(hint.starts_with(advice), "{hint}");
    assert!(warnings[0]["mean_staleness"].as_f64() > Some(4.0), "{}", warnings[0]);
}

#[test]
fn a_run_that_learns_nothing_says_so() {
    let words = "train mnist --learning-rate 0 --steps 450 --evaluate end --threads 1 --format json --run-dir run";
    let told = windlass(words).run().succeeded();
    let warnings = warnings(&told);
    assert_eq!(warnings.len(), 1, "{told}");
    assert_eq!((&warnings[0]["trouble"], &warnings[0]["global_step"]), (&"not_learning".into(), &400.into()), "{told}");
    assert!(warnings[0]["hint"].as_str().unwrap().starts_with("the learning rate is 0"), "{told}");
    assert_eq!(summary(&told)["warning"]["trouble"], "not_learning");
}

#[test]
fn healthy_runs_are_not_warned_of() {
    for words in ["train linear", "train mnist --steps 600 --evaluate end", "launch mnist --steps 900 --evaluate end"] {
        let told = windlass(&format!("{words} --format json --run-dir run")).run().succeeded();
        assert_eq!(warnings(&told), Vec::<Value>::new(), "{words}");
        assert_eq!(summary(&told)["warning"], Value::Null, "{words}");
    }
}

#[test]
fn a_summed_loss_is_shown_per_sample() {
    // An untrained network is as good as guessing, whichever way a variant sums its loss: the loss is the logarithm of
    // ten.
    let told =
        windlass("train mnist --learning-rate 0 --steps 20 --log-every 5 --threads 1 --format json --run-dir run")
            .run()
            .succeeded();
    let near = |loss: &Value| assert!((loss.as_f64().unwrap() - 10f64.ln()).abs() < 0.5, "{told}");
    near(&told.event("step")["loss"]);
    near(&summary(&told)["loss"]);
    near(&summary(&told)["metrics"]["validation_cross_entropy"]);
}
