//! Tables and pictures that a comparison makes from run directories.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use windlass_compare::{Comparison, Measured, Plan, Wishes, file, png, render, svg};

/// A run with the properties that a test needs.
struct Run {
    ps: u32,
    workers: u32,
    mode: &'static str,
    colocated: bool,
    accuracy: f64,
    step_ms: f64,
    /// How fast its loss falls.
    rate: f64,
}

const SINGLE: Run =
    Run { ps: 0, workers: 1, mode: "async", colocated: false, accuracy: 0.7213, step_ms: 0.72, rate: 1.0 };
const ASYNC: Run = Run { ps: 1, workers: 2, accuracy: 0.8012, step_ms: 0.9, rate: 1.7, ..SINGLE };
const SYNC: Run = Run { mode: "sync", accuracy: 0.72, step_ms: 1.0, rate: 1.0, ..ASYNC };
const COLOCATED: Run = Run { ps: 2, colocated: true, ..ASYNC };

impl Run {
    fn write(&self, directory: &Path) -> PathBuf {
        std::fs::create_dir_all(directory).unwrap();
        let samples_per_second = f64::from(self.workers) * 100.0 / self.step_ms * 1e3;
        let summary = json!({
            "model": "mnist", "mode": self.mode, "ps": self.ps, "workers": self.workers, "colocated": self.colocated,
            "optimizer": "sgd", "batch_size": 100, "global_step": 55_000, "wall_seconds": 62.0,
            "first_step_seconds": 0.25, "training_seconds": 60.0, "samples_per_second": samples_per_second,
            "step_ms": {"p50": self.step_ms, "p95": 2.0}, "bytes_per_step": {"sent": 318_000.0, "received": 318_000.0},
            "loss": 1.25, "metrics": {"validation_loss": 0.9, "test_accuracy": self.accuracy},
            "metric_kinds": {"validation_loss": "loss", "test_accuracy": "fraction"},
            "per_worker": [{"step_ms": 1.0, "wait_ms": 0.25}],
        });
        std::fs::write(directory.join("summary.json"), summary.to_string()).unwrap();
        std::fs::write(directory.join("run.toml"), "[train]\nepochs = 100\n").unwrap();
        let point = |index: u32| {
            let (seconds, step) = (0.2 * f64::from(index + 1), u64::from(index) * 180 + 1);
            let noise = 0.05 * f64::from(index * 7919 % 13) / 13.0;
            let loss = 9.0 * (-self.rate * seconds / 15.0).exp() + 0.4 + noise;
            json!({"seconds": seconds, "step": step, "samples": step * 100, "loss": loss}).to_string()
        };
        let history: Vec<String> = (0..300).map(point).collect();
        std::fs::write(directory.join("history.jsonl"), history.join("\n")).unwrap();
        let tasks = json!([
            {"task": "ps 0", "busy_cpus": 0.25, "memory_bytes": 30_000_000},
            {"task": "worker 0", "busy_cpus": 0.75, "memory_bytes": 80_000_000},
            {"task": "worker 1", "busy_cpus": 0.75, "memory_bytes": 80_000_000},
        ]);
        let node = json!({"node": "here", "cores": 2, "busy_cpus": 1.8, "tasks": tasks});
        std::fs::write(
            directory.join("utilization.jsonl"),
            json!({"time": 1.0, "step": 5, "nodes": [node]}).to_string(),
        )
        .unwrap();
        directory.to_owned()
    }
}

/// Creates run directories in a temporary directory.
fn directories(runs: &[(&str, Run)]) -> (TempDir, Vec<PathBuf>) {
    let directory = tempfile::tempdir().unwrap();
    let paths = runs.iter().map(|(name, run)| run.write(&directory.path().join(name))).collect();
    (directory, paths)
}

fn four() -> (TempDir, Comparison) {
    let (directory, paths) =
        directories(&[("single", SINGLE), ("1ps2w-async", ASYNC), ("1ps2w-sync", SYNC), ("2w-colocated", COLOCATED)]);
    (directory, Comparison::of_directories(&paths, None).unwrap())
}

/// A comparison with references, in which each layout was run `repeat` times.
fn repeated(repeat: u32) -> Comparison {
    let text = "title = 'Digits'\nmodel = 'mnist'\n[reference]\nname = 'TensorFlow'\ntolerance = 0.02\n\
        [[layouts]]\nlayout = 'single'\nreference = { score = 0.72, epoch_seconds = 1.3 }\n\
        [[layouts]]\nlayout = '1ps2w-async'\nreference = { score = 0.75 }";
    let wishes = Wishes { repeat: Some(repeat), ..Wishes::default() };
    let plan = Plan::new(file::parse(text).unwrap(), wishes, &()).unwrap();
    let mut comparison = Comparison::new(&plan);
    for planned in plan.runs() {
        let off = f64::from(planned.repetition) / 100.0;
        let run = if planned.entry == 0 { SINGLE } else { ASYNC };
        let run = Run { accuracy: run.accuracy + off, step_ms: run.step_ms + off, rate: run.rate + off * 5.0, ..run };
        let directory = tempfile::tempdir().unwrap();
        let measured = Measured::read(&run.write(directory.path())).unwrap();
        comparison.rows[planned.entry].runs[planned.repetition as usize - 1] = Some(measured);
    }
    comparison
}

#[test]
fn a_table_of_directories_fits_a_terminal() {
    let (_directory, comparison) = four();
    let text = render::text(&comparison, 80);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn a_narrow_terminal_gets_more_and_narrower_tables() {
    let (_directory, comparison) = four();
    let text = render::text(&comparison, 40);
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    assert!(text.contains("worker") && text.contains("kB per"), "{text}");
}

#[test]
fn a_table_of_repeated_runs_shows_medians_spreads_and_references() {
    insta::assert_snapshot!(render::text(&repeated(3), 80));
}

#[test]
fn markdown_is_one_table() {
    insta::assert_snapshot!(render::markdown(&repeated(2)));
}

#[test]
fn csv_has_every_column_in_every_line() {
    let text = render::csv(&repeated(2));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{text}");
    let column = |name: &str| lines[0].iter().position(|heading| *heading == name).unwrap();
    let value = |row: usize, name: &str| lines[row][column(name)];
    assert_eq!((value(1, "name"), value(1, "runs"), value(1, "score_name")), ("single", "2", "test_accuracy"));
    assert_eq!((value(1, "step_ms_min"), value(1, "step_ms_max")), ("0.73", "0.74"));
    assert_eq!((value(1, "score_reference"), value(2, "score_reference")), ("0.72", "0.75"));
    assert_eq!((value(1, "epoch_seconds_reference"), value(2, "epoch_seconds_reference")), ("1.3", ""));
    assert_eq!((value(1, "bytes_per_step"), value(2, "bytes_per_step")), ("0", "636000"));
}

#[test]
fn json_has_all_scores_and_nodes() {
    let value: Value = serde_json::from_str(&render::json(&repeated(3))).unwrap();
    let row = &value["layouts"][1];
    assert_eq!((&row["name"], &row["runs"]), (&json!("1ps2w-async"), &json!(3)));
    assert_eq!(row["scores"]["validation_loss"]["median"], 0.9);
    let score = &row["columns"]["score"];
    assert!((score["median"].as_f64().unwrap() - 0.8212).abs() < 1e-9 && score["reference"] == 0.75, "{score}");
    assert_eq!(row["nodes"][0][0]["role"], "ps_and_worker");
    assert_eq!(value["reference"]["tolerance"], 0.02);
}

/// Changes the summary of a run.
fn edit(directory: &Path, change: impl FnOnce(&mut Value)) {
    let path = directory.join("summary.json");
    let mut summary = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut summary);
    std::fs::write(path, summary.to_string()).unwrap();
}

#[test]
fn joined_workers_and_stages_are_layouts_of_their_own_and_no_base_of_ratios() {
    let (_directory, paths) =
        directories(&[("in-graph", SINGLE), ("stages", SINGLE), ("spread", SINGLE), ("one", SINGLE)]);
    let joined = json!([{"worker": "worker 0 at a:1", "steps": 5, "joined": 1}, {"worker": "worker 1 at b:1"}]);
    let devices = json!([{"device": "cpu:0", "stages": ["hidden"], "busy": 0.5},
        {"device": "cpu:1", "stages": ["hidden"], "busy": 0.5}, {"device": "cpu:2", "stages": ["output"], "busy": 0.5}]);
    edit(&paths[0], |summary| (summary["joined"], summary["mode"]) = (joined.clone(), "sync".into()));
    edit(&paths[1], |summary| summary["devices"] = devices.clone());
    edit(&paths[2], |summary| (summary["joined"], summary["devices"]) = (joined, devices));
    edit(&paths[3], |summary| summary["step_ms"]["p50"] = json!(0.36));
    let comparison = Comparison::of_directories(&paths, None).unwrap();
    let layouts: Vec<&str> = comparison.rows.iter().map(|row| &*row.layout).collect();
    assert_eq!(layouts, ["2 joined, sync", "2 stages", "2 stages on 2 joined", "single"]);
    let value: Value = serde_json::from_str(&render::json(&comparison)).unwrap();
    let column = |row: usize, name: &str| value["layouts"][row]["columns"][name]["median"].clone();
    assert_eq!([0, 1, 2, 3].map(|row| column(row, "step_vs_single")), [2.0, 2.0, 2.0, 1.0].map(Value::from));
    // The traffic to joined workers is unknown; stages on devices of one process send nothing.
    let traffic = [Value::Null, 0.0.into(), Value::Null, 0.0.into()];
    assert_eq!([0, 1, 2, 3].map(|row| column(row, "bytes_per_step")), traffic);
}

#[test]
fn a_run_without_a_record_of_what_it_used_is_told_from_one_that_was_too_short() {
    let (_directory, paths) = directories(&[("long", SINGLE), ("short", ASYNC), ("whole", SYNC)]);
    for path in &paths[..2] {
        std::fs::remove_file(path.join("utilization.jsonl")).unwrap();
    }
    let notes = |paths: &[PathBuf]| Comparison::of_directories(paths, None).unwrap().notes();
    assert_eq!(notes(&paths), ["CPUs and memory were not recorded (utilization.jsonl): long, short."]);
    edit(&paths[1], |summary| summary["wall_seconds"] = json!(1.5));
    assert_eq!(
        notes(&paths),
        [
            "Runs of less than about 3 s are too short to tell which CPUs they used.",
            "CPUs and memory were not recorded (utilization.jsonl): long."
        ]
    );
}

#[test]
fn a_ratio_is_taken_within_a_repetition() {
    let comparison = repeated(3);
    let value: Value = serde_json::from_str(&render::json(&comparison)).unwrap();
    let ratio = &value["layouts"][1]["columns"]["step_vs_single"];
    let expected = [0.91 / 0.73, 0.92 / 0.74, 0.93 / 0.75];
    assert!((ratio["max"].as_f64().unwrap() - expected[0]).abs() < 1e-9, "{ratio}");
    assert!((ratio["median"].as_f64().unwrap() - expected[1]).abs() < 1e-9, "{ratio}");
    assert!((ratio["min"].as_f64().unwrap() - expected[2]).abs() < 1e-9, "{ratio}");
}

#[test]
fn another_score_can_be_shown() {
    let (_directory, paths) = directories(&[("a", SINGLE)]);
    let comparison = Comparison::of_directories(&paths, Some("validation_loss".to_owned())).unwrap();
    let text = render::text(&comparison, 80);
    assert!(text.contains("validation") && text.contains("0.9000"), "{text}");
}

#[test]
fn what_is_missing_or_failed_is_said() {
    let mut comparison = repeated(2);
    comparison.rows[0].runs[1] = None;
    comparison.rows[1].runs = vec![None, None];
    comparison.rows[1].failures = vec!["the loss is not finite".to_owned()];
    let notes = comparison.notes();
    let has = |text: &str| notes.iter().any(|note| note == text);
    assert!(has("single: 1 of 2 runs are missing."), "{notes:?}");
    assert!(has("1ps2w-async failed: the loss is not finite"), "{notes:?}");
    assert!(render::text(&comparison, 80).contains("1ps2w-async"));
}

#[test]
fn directories_without_a_finished_run_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let refusal = |name: &str| Comparison::of_directories(&[path(name)], None).unwrap_err().to_string();
    std::fs::create_dir(path("empty")).unwrap();
    assert!(refusal("empty").ends_with("empty holds no finished run: it is empty"), "{}", refusal("empty"));
    std::fs::create_dir(path("begun")).unwrap();
    std::fs::write(path("begun").join("run.toml"), "").unwrap();
    assert!(refusal("begun").ends_with("begun holds no finished run: there is no summary.json"));
    std::fs::write(path("file"), "").unwrap();
    assert!(refusal("file").ends_with("file is not a directory"));
    assert!(refusal("nowhere").contains("nowhere: No such file"), "{}", refusal("nowhere"));
    for (name, text) in [("torn", "{\"model\": \"mn"), ("other", "{}"), ("list", "[]"), ("no-text", "\u{0}")] {
        SINGLE.write(&path(name));
        std::fs::write(path(name).join("summary.json"), text).unwrap();
        let refusal = refusal(name);
        assert!(refusal.contains(&format!("{name}/summary.json is damaged: it is not the summary")), "{refusal}");
    }
}

#[test]
fn the_picture_names_what_it_shows() {
    let (_directory, comparison) = four();
    let picture = svg(&comparison).unwrap().unwrap();
    for text in ["single", "1ps2w-async", "2w-colocated", "training loss", "seconds", "samples seen by all workers"] {
        assert!(picture.contains(text), "no {text:?}");
    }
    assert!(picture.matches("<polyline").count() >= 8, "a line for each layout, twice");
}

#[test]
fn the_bitmap_has_every_colour_and_text() {
    let (_directory, comparison) = four();
    let bytes = png(&comparison).unwrap().unwrap();
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((frame.width, frame.color_type), (2000, ::png::ColorType::Rgb));
    for colour in [[0, 0, 0], [0, 114, 178], [213, 94, 0], [0, 158, 115], [50, 50, 60]] {
        let inked = pixels.chunks(3).filter(|pixel| *pixel == colour).count();
        assert!(inked > 300, "{inked} pixels of {colour:?}");
    }
    if let Some(directory) = std::env::var_os("WINDLASS_PICTURES") {
        std::fs::write(Path::new(&directory).join("loss.png"), &bytes).unwrap();
        std::fs::write(Path::new(&directory).join("loss.svg"), svg(&comparison).unwrap().unwrap()).unwrap();
        std::fs::write(Path::new(&directory).join("repeated.png"), png(&repeated(3)).unwrap().unwrap()).unwrap();
    }
}

#[test]
fn without_a_history_there_is_no_picture() {
    let (_directory, paths) = directories(&[("a", SINGLE)]);
    std::fs::remove_file(paths[0].join("history.jsonl")).unwrap();
    let comparison = Comparison::of_directories(&paths, None).unwrap();
    assert!(svg(&comparison).unwrap().is_none() && png(&comparison).unwrap().is_none());
}

#[test]
fn the_speed_of_a_run_that_was_resumed_near_its_end_is_that_of_all_of_it() {
    let (directory, paths) = directories(&[("single", SINGLE), ("1ps2w-async", ASYNC)]);
    let whole = Measured::read(&paths[0]).unwrap().samples_per_second();
    let path = paths[0].join("summary.json");
    let mut summary: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    summary["resumed_at"] = json!(54_999);
    summary["samples_per_second"] = json!(0.0);
    std::fs::write(&path, summary.to_string()).unwrap();
    // The run had trained for a minute, then loads and makes one step.
    let history = std::fs::read_to_string(paths[0].join("history.jsonl")).unwrap();
    let last = json!({"seconds": 0.5, "step": 55_000, "samples": 5_500_000, "loss": 0.5});
    std::fs::write(paths[0].join("history.jsonl"), format!("{history}\n{last}\n")).unwrap();
    let comparison = Comparison::of_directories(&paths, None).unwrap();
    let resumed = comparison.rows[0].finished().next().unwrap();
    assert!((resumed.samples_per_second() / whole - 1.0).abs() < 0.5, "{}", resumed.samples_per_second());
    assert!(render::text(&comparison, 200).contains("single was resumed at step 54,999"), "{directory:?}");
}
