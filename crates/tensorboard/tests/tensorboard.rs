//! What the real TensorBoard reads from the files: all three of its readers must show the same.
//!
//! Skipped unless `WINDLASS_PYTHON` names an interpreter that has the `tensorboard` package.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use windlass_tensorboard::{EventWriter, Moment, RunBoard, tag};

/// TensorBoard's readers: of scripts, of the server, and of the server in its default setting.
const READERS: [&str; 3] = ["accumulator", "multiplexer", "data_server"];

/// What TensorBoard shows of a log directory: by reader, run, kind and tag. None if there is no TensorBoard.
fn read_back(directory: &Path) -> Option<Value> {
    let Some(python) = std::env::var_os("WINDLASS_PYTHON") else {
        eprintln!("skipped: WINDLASS_PYTHON does not name a Python interpreter with tensorboard");
        return None;
    };
    let import = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: {} cannot import tensorboard", python.display());
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_back.py");
    let output = Command::new(&python).arg(script).arg(directory).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn at(step: u64) -> Moment {
    Moment { step, wall_time: UNIX_EPOCH + Duration::from_millis(1_700_000_000_000 + 250 * step) }
}

/// The points of a series; `kind` is `scalars`, `histograms` or `text`.
fn series<'a>(shown: &'a Value, [reader, run, kind, tag]: [&str; 4]) -> &'a [Value] {
    shown[reader][run][kind][tag].as_array().unwrap_or_else(|| panic!("{reader} shows no {kind} {tag} of {run}"))
}

/// The (step, value) of a curve.
fn curve(shown: &Value, reader: &str, run: &str, tag: &str) -> Vec<(u64, f32)> {
    let point = |point: &Value| (point[0].as_u64().unwrap(), point[2].as_str().unwrap().parse().unwrap());
    series(shown, [reader, run, "scalars", tag]).iter().map(point).collect()
}

#[test]
fn scalars_come_back_with_step_and_wall_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let losses = [(0, 2.5), (1, 0.1), (2, f64::NAN), (3, f64::INFINITY), (4, f64::NEG_INFINITY), (1 << 40, -1e-30)];
    for (step, loss) in losses {
        writer.scalars(at(step), &[("loss", loss), ("layer 1/größe", step as f64)]).unwrap();
    }
    drop(writer);
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        let points = curve(&shown, reader, ".", "loss");
        assert_eq!(points.len(), losses.len());
        for ((step, value), (expected_step, expected)) in points.into_iter().zip(losses) {
            assert_eq!(step, expected_step);
            assert_eq!(value.to_bits(), (expected as f32).to_bits(), "{reader}, step {step}");
        }
        let sizes = curve(&shown, reader, ".", "layer 1/größe");
        assert_eq!(sizes, losses.map(|(step, _)| (step, step as f32)));
        let wall_times: Vec<_> = series(&shown, [reader, ".", "scalars", "loss"]).iter().map(|p| &p[1]).collect();
        assert_eq!(wall_times[..3], [1_700_000_000.0, 1_700_000_000.25, 1_700_000_000.5]);
    }
}

#[test]
fn histograms_come_back_with_every_value_in_its_bucket() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    let values: Vec<f32> = (-300..700).map(|index| (index as f32 / 100.0).powi(3)).collect();
    writer.histogram(at(5), "weights", &values).unwrap();
    writer.histogram(at(6), "weights", &[f32::NAN, 0.5, 0.5]).unwrap();
    writer.histogram(at(7), "weights", &[]).unwrap();
    drop(writer);
    let Some(shown) = read_back(directory.path()) else { return };

    let raw = series(&shown, ["accumulator", ".", "histograms", "weights"]);
    assert_eq!(raw.len(), 2);
    let sum = |power| values.iter().map(|value| f64::from(*value).powi(power)).sum::<f64>();
    let moments: Vec<f64> = serde_json::from_value(raw[0][1].clone()).unwrap();
    let expected = [f64::from(values[0]), f64::from(values[999]), 1000.0, sum(1), sum(2)];
    for (moment, expected) in moments.iter().zip(expected) {
        assert!((moment - expected).abs() <= 1e-12 * expected.abs(), "{moments:?}");
    }

    for reader in &READERS[1..] {
        let points = series(&shown, [reader, ".", "histograms", "weights"]);
        assert_eq!([&points[0][0], &points[1][0]], [5, 6]);
        let buckets: Vec<[f64; 3]> = serde_json::from_value(points[0][1].clone()).unwrap();
        assert!(buckets.len() > 100, "{} buckets", buckets.len());
        for (index, [left, right, count]) in buckets.iter().enumerate() {
            let closed = index + 1 == buckets.len();
            let inside = |value: &&f32| {
                let value = f64::from(**value);
                *left <= value && (value < *right || closed && value == *right)
            };
            assert_eq!(*count, values.iter().filter(inside).count() as f64, "{reader}: from {left} to {right}");
        }
        assert_eq!(points[1][1], serde_json::json!([[0.5, 0.5, 2.0]]));
        assert_eq!(points.len(), 2);
    }
}

#[test]
fn a_config_comes_back_as_text() {
    let directory = tempfile::tempdir().unwrap();
    drop(RunBoard::create(directory.path(), "[model]\nname = \"größe\"\n").unwrap());
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        let expected = serde_json::json!([[0, "    [model]\n    name = \"größe\"\n"]]);
        assert_eq!(shown[reader]["train"]["text"]["config"], expected, "{reader}");
    }
}

#[test]
fn a_resumed_run_has_every_step_once_with_the_new_values() {
    let directory = tempfile::tempdir().unwrap();
    let write = |board: &mut RunBoard, steps: std::ops::RangeInclusive<u64>, offset: f64| {
        for step in steps {
            board.train(step, &[(tag::LOSS, step as f64 + offset), (tag::STEP_MS, offset)]).unwrap();
            if step % 10 == 0 {
                board.eval(step, &[(tag::LOSS, step as f64 + offset)]).unwrap();
                board.histogram(step, "weights", &[offset as f32]).unwrap();
            }
        }
    };
    write(&mut RunBoard::create(directory.path(), "seed = 1").unwrap(), 1..=100, 0.0);
    write(&mut RunBoard::resume(directory.path(), 61, 61).unwrap(), 61..=150, 0.5);
    write(&mut RunBoard::resume(directory.path(), 141, 141).unwrap(), 141..=160, 0.75);
    let Some(shown) = read_back(directory.path()) else { return };

    let offset = |step| if step > 140 { 0.75 } else { [0.0, 0.5][usize::from(step > 60)] };
    let every = |stride| (1..=160).filter(move |step| step % stride == 0);
    let expected = |stride| every(stride).map(|step| (step, step as f32 + offset(step))).collect::<Vec<_>>();
    for reader in READERS {
        assert_eq!(curve(&shown, reader, "train", "loss"), expected(1), "{reader}");
        assert_eq!(curve(&shown, reader, "eval", "loss"), expected(10), "{reader}");
        assert_eq!(shown[reader]["train"]["text"]["config"], serde_json::json!([[0, "    seed = 1\n"]]));
    }
    for reader in &READERS[1..] {
        let histograms: Vec<_> = series(&shown, [reader, "train", "histograms", "weights"])
            .iter()
            .map(|point| (point[0].as_u64().unwrap(), point[1][0][0].as_f64().unwrap() as f32))
            .collect();
        assert_eq!(histograms, every(10).map(|step| (step, offset(step))).collect::<Vec<_>>(), "{reader}");
    }
}

#[test]
fn a_resumed_run_drops_old_points_at_steps_that_the_new_one_does_not_write() {
    let directory = tempfile::tempdir().unwrap();
    let mut board = RunBoard::create(directory.path(), "").unwrap();
    [10, 65, 90].into_iter().for_each(|step| board.eval(step, &[("loss", 1.0)]).unwrap());
    drop(board);
    let mut board = RunBoard::resume(directory.path(), 61, 61).unwrap();
    [70, 80].into_iter().for_each(|step| board.eval(step, &[("loss", 2.0)]).unwrap());
    drop(board);
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in &READERS[..2] {
        assert_eq!(curve(&shown, reader, "eval", "loss"), [(10, 1.0), (70, 2.0), (80, 2.0)], "{reader}");
    }
    // This one does not look at session starts: a curve's old points go when a new one comes that is not after them.
    assert_eq!(curve(&shown, "data_server", "eval", "loss"), [(10, 1.0), (65, 1.0), (70, 2.0), (80, 2.0)]);
}

#[test]
fn a_file_cut_short_by_a_crash_does_not_hide_the_resumed_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = EventWriter::create(directory.path()).unwrap();
    (1..=10).for_each(|step| writer.scalars(at(step), &[("loss", 1.0)]).unwrap());
    let path = writer.path().to_owned();
    drop(writer);
    let length = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 7).unwrap();
    let mut writer = EventWriter::resume(directory.path(), 6).unwrap();
    (6..=12).for_each(|step| writer.scalars(at(step), &[("loss", 2.0)]).unwrap());
    drop(writer);
    let Some(shown) = read_back(directory.path()) else { return };
    let expected: Vec<_> = (1..=12).map(|step| (step, if step < 6 { 1.0 } else { 2.0 })).collect();
    for reader in READERS {
        assert_eq!(curve(&shown, reader, ".", "loss"), expected, "{reader}");
    }
}

#[test]
fn a_run_begun_anew_replaces_the_curves_of_the_old_one() {
    let directory = tempfile::tempdir().unwrap();
    for (steps, loss) in [(100, 1.0), (3, 2.0)] {
        let mut board = RunBoard::create(directory.path(), &format!("loss = {loss}")).unwrap();
        (1..=steps).for_each(|step| board.train(step, &[("loss", loss)]).unwrap());
    }
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        assert_eq!(curve(&shown, reader, "train", "loss"), [(1, 2.0), (2, 2.0), (3, 2.0)], "{reader}");
    }
    for reader in &READERS[1..] {
        assert_eq!(shown[reader]["train"]["text"]["config"], serde_json::json!([[0, "    loss = 2\n"]]), "{reader}");
    }
}
