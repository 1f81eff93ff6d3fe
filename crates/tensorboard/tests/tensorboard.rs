//! What the real TensorBoard reads from the files. All three of its readers must show the same.
//!
//! Skipped unless `WINDLASS_PYTHON` names an interpreter that has the `tensorboard` package.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use windlass_tensorboard::{Description, EventWriter, HParam, Moment, RunBoard, tag};

/// TensorBoard's readers: for scripts, of the server, and of the server with default settings.
const READERS: [&str; 3] = ["accumulator", "multiplexer", "data_server"];

/// What TensorBoard shows of a log directory, by reader, run, kind and tag. `None` if TensorBoard is not available.
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

fn description(command_line: &str) -> Description {
    Description { command_line: command_line.into(), ..Description::default() }
}

/// The points of a series; `kind` is `scalars`, `histograms`, `text` or `images`.
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
fn a_command_line_comes_back_as_text() {
    let directory = tempfile::tempdir().unwrap();
    drop(RunBoard::create(directory.path(), &description("windlass train 'größe'\n")).unwrap());
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        let expected = serde_json::json!([[0, "    windlass train 'größe'\n"]]);
        assert_eq!(shown[reader]["train"]["text"]["command_line"], expected, "{reader}");
    }
}

/// A red pixel.
const PNG: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8\xcf\
    \xc0\0\0\x03\x01\x01\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82";

#[test]
fn images_come_back_with_their_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut board = RunBoard::create(directory.path(), &Description::default()).unwrap();
    [10, 20].into_iter().for_each(|step| board.image(step, "images/digits", PNG).unwrap());
    drop(board);
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        let hexadecimal: String = PNG.iter().map(|byte| format!("{byte:02x}")).collect();
        let expected = [10, 20].map(|step| serde_json::json!([step, 1, 1, hexadecimal]));
        assert_eq!(series(&shown, [reader, "eval", "images", "images/digits"]), expected, "{reader}");
    }
}

/// What the HParams tab shows of two runs side by side, each with its own hyperparameters.
#[test]
fn hyperparameters_come_back_with_the_last_scores_of_every_run() {
    let directory = tempfile::tempdir().unwrap();
    let number = |name: &str, value| (name.to_owned(), HParam::Number(value));
    let runs = [
        ("a", vec![number("rate", 0.01), ("mode".to_owned(), HParam::Text("async".into()))]),
        ("b", vec![number("rate", 0.02), ("mode".to_owned(), HParam::Text("sync".into())), number("keep", 0.5)]),
    ];
    for (name, hparams) in runs {
        let description = Description { hparams, ..Description::default() };
        let mut board = RunBoard::create(directory.path().join(name), &description).unwrap();
        [(10, 0.5), (20, 0.25)].into_iter().for_each(|(step, loss)| board.eval(step, &[(tag::LOSS, loss)]).unwrap());
        if name == "a" {
            board.end(20).unwrap();
        }
    }
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in &READERS[1..] {
        let sessions = &shown[reader]["sessions"];
        let loss = serde_json::json!({"loss/loss": 0.25});
        let expected = serde_json::json!({
            "a/eval": {"hparams": {"rate": 0.01, "mode": "async"}, "metrics": loss, "status": "STATUS_SUCCESS"},
            "b/eval": {"hparams": {"rate": 0.02, "mode": "sync", "keep": 0.5}, "metrics": loss, "status": "STATUS_UNKNOWN"},
        });
        assert_eq!(*sessions, expected, "{reader}");
    }
}

#[test]
fn a_run_begun_anew_has_its_own_hyperparameters() {
    let directory = tempfile::tempdir().unwrap();
    for rate in [0.01, 0.02] {
        let hparams = vec![("rate".to_owned(), HParam::Number(rate))];
        let mut board = RunBoard::create(directory.path(), &Description { hparams, ..Description::default() }).unwrap();
        board.eval(1, &[("score", rate)]).unwrap();
    }
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in &READERS[1..] {
        assert_eq!(shown[reader]["sessions"]["eval"]["hparams"], serde_json::json!({"rate": 0.02}), "{reader}");
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
    write(&mut RunBoard::create(directory.path(), &description("seed = 1")).unwrap(), 1..=100, 0.0);
    write(&mut RunBoard::resume(directory.path(), &description("seed = 1"), 61, 61).unwrap(), 61..=150, 0.5);
    write(&mut RunBoard::resume(directory.path(), &description("seed = 1"), 141, 141).unwrap(), 141..=160, 0.75);
    let Some(shown) = read_back(directory.path()) else { return };

    let offset = |step| if step > 140 { 0.75 } else { [0.0, 0.5][usize::from(step > 60)] };
    let every = |stride| (1..=160).filter(move |step| step % stride == 0);
    let expected = |stride| every(stride).map(|step| (step, step as f32 + offset(step))).collect::<Vec<_>>();
    for reader in READERS {
        assert_eq!(curve(&shown, reader, "train", tag::LOSS), expected(1), "{reader}");
        assert_eq!(curve(&shown, reader, "eval", tag::LOSS), expected(10), "{reader}");
        let commands = [0, 60, 140].map(|step| serde_json::json!([step, "    seed = 1\n"]));
        assert_eq!(series(&shown, [reader, "train", "text", "command_line"]), commands, "{reader}");
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
    let mut board = RunBoard::create(directory.path(), &description("")).unwrap();
    [10, 65, 90].into_iter().for_each(|step| board.eval(step, &[("loss", 1.0)]).unwrap());
    drop(board);
    let mut board = RunBoard::resume(directory.path(), &description("seed = 1"), 61, 61).unwrap();
    [70, 80].into_iter().for_each(|step| board.eval(step, &[("loss", 2.0)]).unwrap());
    drop(board);
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in &READERS[..2] {
        assert_eq!(curve(&shown, reader, "eval", "loss"), [(10, 1.0), (70, 2.0), (80, 2.0)], "{reader}");
    }
    // This reader ignores session starts: it drops a curve's old points from the step of the first new one on.
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
        let mut board = RunBoard::create(directory.path(), &description(&format!("loss = {loss}"))).unwrap();
        (1..=steps).for_each(|step| board.train(step, &[("loss", loss)]).unwrap());
    }
    let Some(shown) = read_back(directory.path()) else { return };
    for reader in READERS {
        assert_eq!(curve(&shown, reader, "train", "loss"), [(1, 2.0), (2, 2.0), (3, 2.0)], "{reader}");
    }
    for reader in &READERS[1..] {
        assert_eq!(
            shown[reader]["train"]["text"]["command_line"],
            serde_json::json!([[0, "    loss = 2\n"]]),
            "{reader}"
        );
    }
}
