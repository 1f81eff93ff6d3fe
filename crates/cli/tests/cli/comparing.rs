//! `windlass compare`: layouts run in turn, interrupted, continued and repeated; existing run directories; refusals.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::Task;
use crate::process::{Process, Told, eventually, windlass};

/// A small network with few steps.
const SMALL: &str = "mnist --hidden 8 --steps 400 --batch-size 20 --threads 1 --evaluate end";
/// Takes several seconds on any machine.
const LONG: &str = "linear --steps 200000 --threads 1";

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap_or_else(|_| panic!("{}", path.display()))).unwrap()
}

fn comparison(told: &Told, output: &str) -> Value {
    json(&told.directory().join(output).join("comparison.json"))
}

/// When a result was written.
fn written(told: &Told, run: &str) -> std::time::SystemTime {
    fs::metadata(told.directory().join(run).join("summary.json")).unwrap().modified().unwrap()
}

/// Waits until a run of a comparison is training.
fn training(process: &Process, run: &str) {
    let history = process.directory().join(run).join("history.jsonl");
    eventually("a first step", || fs::read_to_string(&history).ok().filter(|text| text.contains('\n')));
}

#[test]
fn layouts_are_run_in_turn_and_put_into_one_table() {
    // Long enough for every layout to have a curve.
    let run = SMALL.replace("--steps 400", "--steps 4000");
    let told = windlass(&format!("compare --layouts single,1ps2w-sync,2w-colocated-async --output out -- {run}")).run();
    let told = told.succeeded();
    for part in ["layout", "accuracy", "single", "1ps2w-sync", "2w-colocated-async", "samples", "kB per"] {
        assert!(told.stdout.contains(part), "no {part:?} in {told}");
    }
    assert!(told.stdout.lines().all(|line| line.chars().count() <= 80), "{told}");
    assert!(told.stderr.contains("[1/3] single: test accuracy 0."), "{told}");
    assert!(told.stderr.contains("table, picture and runs are in out"), "{told}");
    let output = told.directory().join("out");
    assert_eq!(fs::read_to_string(output.join("comparison.txt")).unwrap().trim_end(), told.stdout.trim_end());
    assert!(fs::read_to_string(output.join("comparison.md")).unwrap().contains("\n| 1ps2w-sync | 0."));
    assert_eq!(fs::read_to_string(output.join("comparison.csv")).unwrap().lines().count(), 4);
    assert!(fs::read(output.join("loss.png")).unwrap().starts_with(b"\x89PNG"));
    assert!(fs::read_to_string(output.join("loss.svg")).unwrap().contains("2w-colocated-async"));
    let table = comparison(&told, "out");
    let layouts = table["layouts"].as_array().unwrap();
    assert_eq!(layouts.len(), 3);
    for layout in layouts {
        let columns = &layout["columns"];
        for column in ["score", "loss", "step_ms", "samples_per_second", "first_step_seconds", "step_vs_single"] {
            assert!(columns[column]["median"].as_f64().unwrap() > 0.0, "{column} in {layout:#}");
        }
    }
    assert_eq!(layouts[0]["columns"]["step_vs_single"]["median"], 1.0);
    let moved = |row: usize| layouts[row]["columns"]["bytes_per_step"]["median"].as_f64().unwrap();
    // A network this small is held entirely by one of the two workers.
    assert!(moved(0) == 0.0 && moved(2) > 0.3 * moved(1) && moved(2) < 0.7 * moved(1), "{table:#}");
    let summary = json(&output.join("runs/1ps2w-sync/summary.json"));
    assert_eq!((&summary["mode"], &summary["workers"]), (&"sync".into(), &2.into()));
    assert_eq!(json(&output.join("runs/2w-colocated-async/summary.json"))["colocated"], true);
}

#[test]
fn what_was_run_is_not_run_again_and_more_can_be_added() {
    let command = |more: &str| {
        format!("compare --layouts single,1ps1w {more} --output out --format csv -- {SMALL} --checkpoint-steps 200")
    };
    let first = windlass(&command("")).run().succeeded();
    let (single, apart) = (written(&first, "out/runs/single"), written(&first, "out/runs/1ps1w"));
    let again = first.windlass(&command("")).run().succeeded();
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(again.stderr.matches("was run before").count(), 2, "{again}");
    let more = first.windlass(&command("--repeat 2")).run().succeeded();
    assert_eq!(more.stderr.matches("was run before").count(), 2, "{more}");
    assert_eq!((single, apart), (written(&more, "out/runs/single"), written(&more, "out/runs/1ps1w")));
    let row = &comparison(&more, "out")["layouts"][1];
    assert_eq!(row["runs"], 2);
    assert!(row["columns"]["step_ms"]["min"].as_f64() <= row["columns"]["step_ms"]["median"].as_f64());
    let settings = fs::read_to_string(more.directory().join("out/runs/1ps1w.2/run.toml")).unwrap();
    assert!(settings.contains("seed = 2"), "{settings}");
    let other = first.windlass(&command("").replace("--steps 400", "--steps 60")).run();
    assert_eq!(other.exit_code(), Some(2), "{other}");
    assert!(other.stderr.contains("out/runs/single holds a run with other settings: train mnist"), "{other}");
}

#[test]
fn an_interrupted_comparison_continues_in_the_middle_of_a_run() {
    let command = format!("compare --layouts 1ps1w,single --output out -- {LONG}");
    let process = windlass(&command).start();
    training(&process, "out/runs/1ps1w");
    let launcher = Task::of(process.pid()).next().expect("a run");
    process.signal(Signal::INT);
    let told = process.wait();
    assert_eq!(told.exit_code(), Some(130), "{told}");
    assert!(told.stderr.contains("stopped: by SIGINT in 1ps1w; 0 of 2 runs finished"), "{told}");
    assert!(told.stderr.contains("run the same command again to continue"), "{told}");
    assert!(!launcher.is_alive(), "its run has ended");
    let continued = told.windlass(&command).run().succeeded();
    let summary = json(&continued.directory().join("out/runs/1ps1w/summary.json"));
    assert!(summary["resumed_at"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["global_step"], 200_000);
    assert_eq!(comparison(&continued, "out")["layouts"][0]["runs"], 1);
}

#[test]
fn a_comparison_that_is_killed_takes_its_run_along() {
    let process = windlass(&format!("compare --layouts 1ps1w --output out -- {LONG}")).start();
    training(&process, "out/runs/1ps1w");
    let launcher = Task::of(process.pid()).next().expect("a run");
    process.kill();
    eventually("the run has ended", || (!launcher.is_alive()).then_some(()));
}

#[test]
fn a_run_that_fails_is_told_of_and_the_others_are_run() {
    let file = "model = 'linear'\nlayouts = ['single', { layout = 'single', name = 'wild', \
                flags = { learning-rate = 1e30 } }, '1ps1w']\n[flags]\nsteps = 50";
    let told = windlass("compare wild.toml").with_file("wild.toml", file).run();
    assert_eq!(told.exit_code(), Some(3), "{told}");
    assert!(told.stderr.contains("1 of 3 runs failed"), "{told}");
    let table = comparison(&told, "runs/wild");
    let runs = |row: usize| table["layouts"][row]["runs"].as_u64();
    assert_eq!((runs(0), runs(1), runs(2)), (Some(1), Some(0), Some(1)), "{table:#}");
    assert!(told.stdout.contains("wild failed: "), "{told}");
}

#[test]
fn a_file_has_layouts_names_and_references_and_flags_override_it() {
    let file = "title = 'Small digits'\nmodel = 'mnist'\n[flags]\nhidden = [8]\nsteps = 1000000\nthreads = 1\nlr = 0.2\n\
                [reference]\nname = 'a guess'\ntolerance = 1.0\n\
                [[layouts]]\nlayout = 'single'\nname = 'alone'\nreference = { score = 0.5 }";
    let told = windlass("compare digits.toml --output out -- --steps 40 --learning-rate 0.1")
        .with_file("digits.toml", file)
        .run();
    let told = told.succeeded();
    assert!(told.stdout.starts_with("Small digits\n"), "{told}");
    let verdict = "ref.: a guess. The test accuracy of 1 of 1 layouts is within 1 of it.";
    assert!(told.stdout.contains(verdict), "{told}");
    assert_eq!(json(&told.directory().join("out/runs/alone/summary.json"))["global_step"], 40);
}

#[test]
fn flags_override_those_of_the_file_that_they_conflict_with() {
    let file = "model = 'linear'\nlayouts = ['single']\n[flags]\nsteps = 1000000\nthreads = 1";
    let told = windlass("compare linear.toml --output out -- --epochs 1").with_file("linear.toml", file).run();
    let told = told.succeeded();
    let settings = fs::read_to_string(told.directory().join("out/runs/single/run.toml")).unwrap();
    assert!(settings.contains("epochs = 1") && !settings.contains("\nsteps ="), "{settings}");
}

#[test]
fn run_directories_that_are_there_are_compared() {
    let single = windlass(&format!("train {SMALL} --run-dir a/single")).run().succeeded();
    let told = single.windlass(&format!("launch {SMALL} --workers 2 --run-dir b/two")).run().succeeded();
    let compared = told.windlass("compare a/single b/two --output out").run().succeeded();
    assert!(compared.stdout.contains("\nsingle ") && compared.stdout.contains("\ntwo "), "{compared}");
    assert!(compared.directory().join("out/loss.png").exists());
    let table =
        told.windlass("compare a/single b/two --format json --score validation_cross_entropy").run().succeeded();
    let table: Value = serde_json::from_str(&table.stdout).unwrap();
    let shorter = told.windlass("compare a/single b/two --json --score validation_cross_entropy").run().succeeded();
    assert_eq!(serde_json::from_str::<Value>(&shorter.stdout).unwrap(), table);
    let layouts = [0, 1].map(|row| table["layouts"][row]["layout"].clone());
    assert_eq!(layouts, ["single", "1ps2w-async"]);
    assert_eq!(table["score"], "validation_cross_entropy");
    let history = fs::read_to_string(told.directory().join("b/two/history.jsonl")).unwrap();
    let first: Value = serde_json::from_str(history.lines().next().unwrap()).unwrap();
    assert!(
        first["loss"].as_f64().unwrap() > 0.0
            && first["samples"].as_u64() == first["step"].as_u64().map(|step| step * 20)
    );
    let markdown = told.windlass("compare b/two --format markdown").run().succeeded();
    assert!(markdown.stdout.contains("| two | 0."), "{markdown}");
    let unknown = told.windlass("compare a/single --score beauty").run();
    assert_eq!(unknown.exit_code(), Some(2));
    assert!(unknown.stderr.contains("no run has a score called beauty\nhint: there are "), "{unknown}");
}

#[test]
fn directories_that_are_empty_or_damaged_are_named_and_refused() {
    let told = windlass(&format!("train {SMALL} --run-dir good")).run().succeeded();
    let path = |name: &str| told.directory().join(name);
    fs::create_dir(path("empty")).unwrap();
    fs::create_dir(path("torn")).unwrap();
    fs::write(path("torn/summary.json"), "{\"model\": \"mn").unwrap();
    for (words, said) in [
        ("good empty", "empty holds no finished run: it is empty"),
        ("torn good", "torn/summary.json is damaged: it is not the summary of a run"),
        ("good nowhere", "cannot read nowhere: No such file"),
        ("good good/summary.json", "good/summary.json is not a directory"),
        ("good --layouts single", "run directories are compared as they are"),
        ("good -- mnist", "run directories are compared as they are"),
    ] {
        let refused = told.windlass(&format!("compare {words}")).run();
        assert_eq!((refused.exit_code(), &*refused.stdout), (Some(2), ""), "{words}: {refused}");
        assert!(refused.stderr.contains(said), "no {said:?} for {words}: {refused}");
    }
}

#[test]
fn bad_input_is_refused_before_anything_is_run() {
    for (words, said) in [
        ("", "no model given"),
        ("-- mnist", "no layouts given"),
        ("--layouts single", "no model given"),
        ("--layouts 1ps2 -- mnist", "\"1ps2\" is not a layout"),
        ("--layouts single,single -- mnist", "it is there twice"),
        ("--layouts 2w -- mnist", "it does not say where the parameters are"),
        ("--layouts single --repeat 0 -- mnist", "repeat is 0"),
        ("--layouts single -- nonet", "nonet"),
        ("--layouts single -- mnist --no-such-flag", "--no-such-flag"),
        ("--layouts single -- mnist --steps 0", "--steps must be at least 1"),
        ("--layouts single,1ps2w-async -- mnist --deterministic", "--deterministic needs --mode sync"),
        ("--layouts single -- mnist --keep 0", "--keep must be at least 1"),
        ("--layouts single -- mnist --run-dir x", "--run-dir is not a flag to compare with"),
        ("--layouts single -- mnist --workers 3", "--workers is not a flag to compare with"),
        ("nowhere.toml", "cannot read the comparison nowhere.toml: No such file"),
        ("bad.toml", "bad.toml: line 1: unknown field `modle`"),
        ("--layouts single --format xml -- mnist", "xml"),
    ] {
        let refused = windlass(&format!("compare --output out {words}")).with_file("bad.toml", "modle = 'mnist'").run();
        assert_eq!((refused.exit_code(), &*refused.stdout), (Some(2), ""), "{words}: {refused}");
        assert!(refused.stderr.contains(said), "no {said:?} for {words}: {refused}");
        assert!(!refused.directory().join("out").exists(), "{words}");
    }
}

#[test]
fn a_score_that_no_run_has_is_refused_after_the_first_run() {
    let told = windlass(&format!("compare --layouts single,1ps1w --score beauty --output out -- {SMALL}")).run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("no run has a score called beauty\nhint: there are "), "{told}");
    assert!(told.stderr.contains("[1/2] single: ") && !told.stderr.contains("[2/2]"), "{told}");
}

#[test]
fn runs_with_joined_workers_and_in_stages_are_compared_as_what_they_are_by_their_names() {
    let words = "mnist --hidden 8 --steps 40 --batch-size 20 --evaluate end";
    let first = windlass(&format!("train {words} --threads 1 --run-dir runs/alone")).run().succeeded();
    first
        .windlass(&format!("launch {words} --in-graph --mode sync --workers 2 --run-dir runs/joined"))
        .run()
        .succeeded();
    first.windlass(&format!("train {words} --place hidden=cpu:0,output=cpu:1 --run-dir runs/stages")).run().succeeded();
    let told = first.windlass("compare joined stages alone --json").run().succeeded();
    let table: Value = serde_json::from_str(&told.stdout).unwrap();
    let layouts: Vec<&str> =
        table["layouts"].as_array().unwrap().iter().map(|row| row["layout"].as_str().unwrap()).collect();
    assert_eq!(layouts, ["2 joined, sync", "2 stages", "single"]);
    let column = |row: usize, name: &str| table["layouts"][row]["columns"][name]["median"].as_f64();
    assert_eq!((column(2, "step_vs_single"), column(0, "bytes_per_step")), (Some(1.0), None), "{table:#}");
    assert!(column(0, "step_vs_single") != Some(1.0), "{table:#}");
}

#[test]
fn runs_without_a_history_are_compared_with_one_warning() {
    let told = windlass(&format!("train {SMALL} --run-dir a")).run().succeeded();
    fs::remove_file(told.directory().join("a/history.jsonl")).unwrap();
    let compared = told.windlass("compare a --output out").run().succeeded();
    assert_eq!(compared.stderr.matches("so there is no picture").count(), 1, "{compared}");
    assert!(!told.directory().join("out/loss.png").exists());
}

#[test]
fn an_output_directory_with_something_else_is_left_alone() {
    let told = windlass(&format!("compare --layouts single --output out -- {SMALL}"))
        .with_file("out/runs/single/notes.txt", "mine")
        .run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.contains("out/runs/single is not empty, and no comparison has written it"), "{told}");
}
