//! Every mode, with any number of servers, trains every model, and the summary of each run is consistent.

use std::path::Path;

use serde_json::Value;

use crate::cluster::{Launched, summary};
use crate::digits::DigitFiles;
use crate::process::{Invocation, windlass};

macro_rules! every_model_learns {
    ($($layout:ident: $flags:literal,)*) => {
        $(mod $layout {
            #[test]
            fn linear_finds_the_line() {
                super::linear_finds_the_line($flags);
            }

            #[test]
            fn mnist_learns_to_read() {
                super::mnist_learns_to_read($flags);
            }

            #[test]
            fn a_model_of_ones_own_learns() {
                super::a_model_of_ones_own_learns($flags);
            }
        })*
    };
}

every_model_learns! {
    async_on_one_ps: "--mode async --ps 1",
    async_on_two_ps: "--mode async --ps 2 --min-shard-bytes 0",
    async_colocated: "--mode async --colocate",
    sync_on_one_ps: "--mode sync --ps 1",
    sync_on_two_ps: "--mode sync --ps 2 --min-shard-bytes 0",
    sync_colocated: "--mode sync --colocate",
    ssp_on_one_ps: "--mode ssp --staleness 2 --ps 1",
    ssp_on_two_ps: "--mode ssp --staleness 2 --ps 2 --min-shard-bytes 0",
    ssp_colocated: "--mode ssp --staleness 2 --colocate",
}

fn linear_finds_the_line(flags: &str) {
    let summary = launch(windlass(&format!("launch linear --epochs 20 {flags} --format json --run-dir run")));
    assert_adds_up(&summary);
    assert_is_the_line(&summary);
}

fn mnist_learns_to_read(flags: &str) {
    let files = DigitFiles::new(6000, 1000);
    // At the model's own learning rate Adam occasionally makes a large step, which may be the last one.
    let words =
        format!("launch mnist --steps 600 --learning-rate 0.002 {flags} --format json --run-dir run --data-dir");
    let summary = launch(windlass(&words).with(files.path()));
    assert_adds_up(&summary);
    assert!(summary["metrics"]["test_accuracy"].as_f64() > Some(0.85), "{summary:#}");
}

fn a_model_of_ones_own_learns(flags: &str) {
    let example = Path::new(env!("CARGO_BIN_EXE_windlass")).with_file_name("examples").join("own_model");
    assert!(example.exists(), "cargo test -p windlass builds the example; with --test, build it first");
    let words = format!("launch spirals --steps 3000 {flags} --format json --run-dir run");
    let summary = launch(Invocation::new(&example, &words));
    assert_adds_up(&summary);
    assert!(summary["metrics"]["training_accuracy"].as_f64() > Some(0.9), "{summary:#}");
}

#[test]
fn a_single_process_finds_the_line() {
    let told = windlass("train linear --run-dir run").run().succeeded();
    let summary = summary(&told);
    assert_eq!((&summary["ps"], &summary["workers"]), (&Value::from(0), &Value::from(1)));
    assert_adds_up(&summary);
    assert_is_the_line(&summary);
}

#[test]
fn a_single_process_reads_built_in_digits() {
    let told = windlass("train mnist --steps 600 --run-dir run").run().succeeded();
    assert!(told.stderr.contains("no --data-dir: using built-in digits, drawn from seed 1"), "{told}");
    let summary = summary(&told);
    assert_adds_up(&summary);
    assert!(summary["metrics"]["test_accuracy"].as_f64() > Some(0.85), "{summary:#}");
}

#[test]
fn more_workers_than_gradients_a_round_are_backups_whose_late_gradients_are_dropped() {
    let words = "launch linear --steps 2000 --workers 3 --mode sync --replicas-to-aggregate 2";
    let summary = launch(windlass(&format!("{words} --format json --run-dir run")));
    assert_eq!(summary["global_step"], 2000);
    assert!(summary["dropped_gradients"].as_u64() > Some(0), "{summary:#}");
    assert_is_the_line(&summary);
}

#[test]
fn a_worker_that_has_done_its_epochs_does_not_block_the_others_rounds() {
    // Two workers share 101 points as 51 and 50.
    let words = "launch linear --epochs 3 --mode sync --shard-data --format json --run-dir run";
    let summary = launch(windlass(words));
    assert_eq!((&summary["per_worker"][0]["steps"], &summary["per_worker"][1]["steps"]), (&153.into(), &150.into()));
    assert_eq!(summary["global_step"], 153);
}

#[test]
fn round_robin_places_whole_variables_and_learns_as_well() {
    let words = "launch linear --epochs 20 --ps 2 --sharding round_robin --format json --run-dir run";
    assert_is_the_line(&launch(windlass(words)));
}

#[test]
fn with_both_steps_and_epochs_whichever_comes_first_ends_the_run() {
    let steps = |words: &str| {
        let told = windlass(&format!("train linear --run-dir run {words}")).run().succeeded();
        summary(&told)["global_step"].clone()
    };
    assert_eq!(steps("--steps 50 --epochs 2"), 50);
    assert_eq!(steps("--steps 500 --epochs 2"), 202);
}

#[test]
fn a_run_ends_exactly_at_its_last_step_whatever_the_number_of_workers() {
    let summary = launch(windlass("launch linear --steps 333 --workers 3 --ps 2 --format json --run-dir run"));
    assert_eq!(summary["global_step"], 333);
}

#[test]
fn the_summary_is_told_as_it_is_written() {
    let told = Launched::start("linear --epochs 1").wait().succeeded();
    let mut event = told.event("summary");
    event.as_object_mut().unwrap().remove("event");
    assert_eq!(event, summary(&told));
}

#[test]
fn a_step_event_says_where_the_worker_is() {
    let told = windlass("train linear --epochs 2 --log-every 101 --format json").run().succeeded();
    let step = told.event("step");
    let expected = [("worker", 0), ("local_step", 202), ("global_step", 202), ("epoch", 2), ("batch", 101)];
    for (field, value) in expected {
        assert_eq!(step[field], value, "{field} of {step}");
    }
    for field in ["time", "loss", "step_ms"] {
        assert!(step[field].as_f64() > Some(0.0), "{field} of {step}");
    }
}

fn launch(invocation: Invocation) -> Value {
    summary(&invocation.run().succeeded())
}

fn assert_is_the_line(summary: &Value) {
    let near = |name: &str, expected: f64| {
        let value = summary["metrics"][name].as_f64().unwrap();
        assert!((value - expected).abs() < 0.25, "{name} is {value}: {summary:#}");
    };
    near("w", 2.0);
    near("b", 10.0);
}

/// Asserts that the numbers of a summary are complete and consistent.
fn assert_adds_up(summary: &Value) {
    let number = |path: &str| {
        let value = summary.pointer(path).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("no {path} in {summary:#}"))
    };
    let close = |what: &str, got: f64, expected: f64| {
        assert!((got - expected).abs() <= 0.01 * expected.abs() + 1e-6, "{what}: {got} for {expected}: {summary:#}");
    };
    let per_worker = summary["per_worker"].as_array().unwrap();
    assert_eq!(per_worker.len() as f64, number("/workers"));
    let (global_step, training_seconds) = (number("/global_step"), number("/training_seconds"));
    for worker in 0..per_worker.len() {
        let own = |name: &str| number(&format!("/per_worker/{worker}/{name}"));
        assert!(own("steps") > 0.0 && own("step_ms_p50") > 0.0, "{summary:#}");
        assert!(own("compute_ms") > 0.0 && own("wait_ms") >= 0.0, "{summary:#}");
        assert_eq!(summary["per_worker"][worker]["left"], Value::Null);
    }
    let steps: f64 = per_worker.iter().map(|worker| worker["steps"].as_f64().unwrap()).sum();
    let pushes_a_step = if summary["mode"] == "sync" { number("/workers") } else { 1.0 };
    assert_eq!(steps + number("/dropped_gradients"), global_step * pushes_a_step, "{summary:#}");
    close("steps_per_second", number("/steps_per_second"), (global_step - 1.0) / training_seconds);
    let samples_a_step = number("/batch_size") * pushes_a_step;
    close("samples_per_second", number("/samples_per_second"), number("/steps_per_second") * samples_a_step);
    assert!(number("/step_ms/p50") <= number("/step_ms/p95"), "{summary:#}");
    assert!(number("/first_step_seconds") + training_seconds <= number("/wall_seconds"), "{summary:#}");
    assert!(number("/loss") >= 0.0 && number("/mean_staleness") >= 0.0, "{summary:#}");
    for text in ["/model", "/mode", "/optimizer"] {
        assert!(summary.pointer(text).is_some_and(Value::is_string), "{text}: {summary:#}");
    }
}
