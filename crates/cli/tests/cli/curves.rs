//! What a run leaves for TensorBoard: curves, pictures, hyperparameters and the command line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::cluster::Launched;
use crate::digits::DigitFiles;
use crate::event_files::{Message, Value, curve, event_files, shown};
use crate::process::{Told, windlass};

const NETWORK: &str = "mnist --hidden 8 --batch-size 20 --threads 1 --run-dir run --format json";
const LOSS: &str = "loss/loss";
const SPEED: &str = "throughput/samples_per_second";

fn directory(told: &Told, name: &str) -> PathBuf {
    told.directory().join("run/tensorboard").join(name)
}

fn tags(directory: &Path) -> BTreeSet<String> {
    shown(directory).into_iter().map(|shown| shown.tag).collect()
}

fn steps(points: &[(u64, f32)]) -> Vec<u64> {
    points.iter().map(|(step, _)| *step).collect()
}

fn assert_ascending(steps: &[u64]) {
    assert!(steps.is_sorted_by(|left, right| left < right), "{steps:?}");
}

#[test]
fn training_and_evaluation_are_one_chart_in_groups() {
    let files = DigitFiles::new(400, 100);
    let words = format!("train {NETWORK} --epochs 3 --data-dir");
    let told = windlass(&words).with(files.path()).run().succeeded();
    let (train, eval) = (directory(&told, "train"), directory(&told, "eval"));
    let steps_a_epoch = 18;
    let losses = steps(&curve(&train, LOSS));
    assert_eq!(
        (losses[0], losses[losses.len() - 1]),
        (1, 3 * steps_a_epoch),
        "the first and the last step have a point"
    );
    assert_ascending(&losses);
    let epochs = [1, 2, 3].map(|epoch| epoch * steps_a_epoch);
    assert_eq!(steps(&curve(&eval, LOSS)), epochs, "once after each epoch");
    assert_eq!(steps(&curve(&eval, "score/test_accuracy")), epochs);
    let expected = [
        "command_line",
        "loss/loss",
        "optimizer/gradient_norm",
        "optimizer/learning_rate",
        "optimizer/staleness",
        SPEED,
        "time/compute_ms",
        "time/data_ms",
        "time/step_ms",
        "time/wait_ms",
    ];
    assert_eq!(tags(&train), expected.map(str::to_owned).into());
    assert!(!told.directory().join("run/tensorboard/worker_0").exists(), "the only worker is the run");
}

#[test]
fn the_mean_over_all_points_is_the_mean_loss_of_the_epoch() {
    let files = DigitFiles::new(400, 100);
    let told = windlass(&format!("train {NETWORK} --epochs 1 --data-dir")).with(files.path()).run().succeeded();
    let mut done = 0;
    let weighted = curve(&directory(&told, "train"), LOSS).into_iter().map(|(step, loss)| {
        let steps = step - std::mem::replace(&mut done, step);
        f64::from(loss) * steps as f64
    });
    let mean = weighted.sum::<f64>() / 18.0;
    let epoch = told.stdout.lines().find(|line| line.contains(r#""event":"epoch""#)).unwrap();
    let loss = serde_json::from_str::<serde_json::Value>(epoch).unwrap()["loss"].as_f64().unwrap();
    assert!((mean - loss).abs() < 1e-5 * loss, "{mean} and {loss}");
}

#[test]
fn hyperparameters_and_the_command_line_are_those_of_the_user() {
    let files = DigitFiles::new(400, 100);
    let words = format!("train {NETWORK} --optimizer momentum --steps 5 --evaluate end --data-dir");
    let told = windlass(&words).with(files.path()).run().succeeded();
    let text = |path: &Path| {
        shown(path).into_iter().find_map(|shown| if let Value::Text(text) = shown.value { Some(text) } else { None })
    };
    let command = text(&directory(&told, "train")).unwrap();
    assert_eq!(command, format!("    windlass {words} {}\n", files.path().display()));
    let sessions = shown(&directory(&told, "eval")).into_iter().filter_map(|shown| match shown.value {
        Value::HParams(bytes) => Some((shown.step, bytes)),
        _ => None,
    });
    let [(0, start), (5, end)] = &sessions.collect::<Vec<_>>()[..] else { panic!("no start and end") };
    let hparams = Message(start).hparams();
    let has = |name: &str, value: &str| hparams.contains(&(name.to_owned(), value.to_owned()));
    assert!(has("model", "mnist") && has("optimizer", "momentum") && has("mode", "async"), "{hparams:?}");
    let names: Vec<&str> = hparams.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["batch_size", "hidden", "learning_rate", "momentum", "seed", "workers"];
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    assert_eq!(Message(end).status(), Some(1), "success");
}

#[test]
fn every_worker_has_curves_of_its_own_speed_and_times() {
    let files = DigitFiles::new(400, 100);
    let words = format!("launch {NETWORK} --workers 3 --mode sync --steps 200 --evaluate end --data-dir");
    let told = windlass(&words).with(files.path()).run().succeeded();
    for worker in 0..3 {
        let own = directory(&told, &format!("worker_{worker}"));
        let speeds = curve(&own, SPEED);
        assert!(speeds.iter().all(|(_, speed)| *speed > 0.0), "{speeds:?}");
        assert_ascending(&steps(&speeds));
        assert_eq!(speeds.last().unwrap().0, 200, "worker {worker}");
        let times = ["time/compute_ms", "time/data_ms", "time/step_ms", "time/wait_ms"];
        assert_eq!(tags(&own), times.into_iter().chain([SPEED]).map(str::to_owned).collect());
    }
    let train = tags(&directory(&told, "train"));
    assert!(train.contains(SPEED) && !train.contains("time/step_ms"), "{train:?}");
}

#[test]
fn pictures_are_drawn_after_evaluations_and_at_the_end() {
    let files = DigitFiles::new(400, 100);
    for (model, epoch) in
        [("autoencoder --hidden 16 --learning-rate 0.003", 9), ("stn --filters 4 --hidden 16 --images 400", 10)]
    {
        let words = format!("train {model} --batch-size 40 --epochs 2 --run-dir run --data-dir");
        let told = windlass(&words).with(files.path()).run().succeeded();
        let images = shown(&directory(&told, "eval")).into_iter().filter_map(|shown| match shown.value {
            Value::Image(png) => Some((shown.step, shown.tag, png)),
            _ => None,
        });
        let images: Vec<_> = images.collect();
        // If the second epoch takes less than a second, it has a picture only because the run ends with it.
        assert_eq!(
            images.iter().map(|(step, tag, _)| (*step, tag.as_str())).collect::<Vec<_>>(),
            [(epoch, "images/test_images"), (2 * epoch, "images/test_images")]
        );
        assert_ne!(images[0].2, images[1].2, "{model} has learned");
        let mut reader = png::Decoder::new(std::io::Cursor::new(&images[1].2)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        assert!(reader.next_frame(&mut pixels).unwrap().width > 600);
    }
}

#[test]
fn a_resumed_run_has_every_step_once() {
    let files = DigitFiles::new(400, 100);
    let words = |steps: u32| format!("launch {NETWORK} --steps {steps} --evaluate end --data-dir");
    let first = windlass(&words(300)).with(files.path()).run().succeeded();
    let second = first.windlass(&words(600)).with(files.path()).run().succeeded();
    for name in ["train", "worker_0", "worker_1"] {
        let points = steps(&curve(&directory(&second, name), SPEED));
        assert_ascending(&points);
        assert!(points[0] < 300 && points.last() > Some(&300), "{name}: {points:?}");
    }
    assert_eq!(steps(&curve(&directory(&second, "eval"), LOSS)), [300, 600]);
}

#[test]
fn a_run_begun_anew_shows_nothing_of_the_one_before() {
    let files = DigitFiles::new(400, 100);
    let words = |flags: &str| format!("launch {NETWORK} --evaluate end --resume never {flags} --data-dir");
    let first = windlass(&words("--steps 300 --workers 3")).with(files.path()).run().succeeded();
    let second = words("--steps 100 --workers 2 --mode sync");
    let second = first.windlass(&second).with(files.path()).run().succeeded();
    assert_eq!(steps(&curve(&directory(&second, "eval"), LOSS)), [100]);
    assert!(curve(&directory(&second, "train"), LOSS).iter().all(|(step, _)| *step <= 100));
    assert!(event_files(&directory(&second, "worker_2")).is_empty());
    let start = shown(&directory(&second, "eval")).into_iter().find_map(|shown| match shown.value {
        Value::HParams(bytes) => Some(Message(&bytes).hparams()),
        _ => None,
    });
    assert!(start.unwrap().contains(&("mode".to_owned(), "sync".to_owned())));
}

#[test]
fn the_curves_of_a_chief_that_died_are_continued_by_the_next() {
    let files = DigitFiles::new(400, 100);
    let words = format!("launch {NETWORK} --workers 2 --steps 20000 --evaluate end --worker-timeout 1 --data-dir");
    let run = Launched::by(windlass(&words).with(files.path()));
    run.0.event(|event| event["event"] == "step" && event["global_step"].as_u64() > Some(200));
    run.task("worker", 0).signal(Signal::KILL);
    run.logged("worker-1", "this worker is now the chief");
    let told = run.wait();
    let losses = steps(&curve(&directory(&told, "train"), LOSS));
    assert_ascending(&losses);
    assert!(losses[0] < 200, "the first points remain: {losses:?}");
    assert!(losses.last() > Some(&19990), "{losses:?}");
    assert_eq!(event_files(&directory(&told, "train")).len(), 2);
}
