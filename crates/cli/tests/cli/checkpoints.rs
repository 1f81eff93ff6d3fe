//! Checkpoints from a user's view: what training starts from, what is refused, and the commands that manage them.

use std::fs;
use std::path::PathBuf;

use insta::{assert_snapshot, with_settings};
use serde_json::Value;

use crate::cluster::summary;
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

/// A run in one process that leaves one checkpoint, taken at its last step.
fn trained(steps: u64) -> Told {
    windlass(&training(steps, "")).run().succeeded()
}

fn training(steps: u64, flags: &str) -> String {
    format!("train linear --steps {steps} --threads 1 --format json --run-dir run {flags}")
}

/// The manifests in `run`, oldest first.
pub fn manifests(told: &Told) -> Vec<PathBuf> {
    let files = fs::read_dir(told.directory().join("run/checkpoints")).unwrap().map(|entry| entry.unwrap().path());
    let mut manifests: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|end| end == "json")).collect();
    manifests.retain(|file| file.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit()));
    manifests.sort();
    manifests
}

/// The values of the newest checkpoint in `run`.
pub fn values(told: &Told) -> Vec<u8> {
    told.windlass("checkpoint export run/checkpoints --output model.safetensors").run().succeeded();
    let file = fs::read(told.directory().join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    rest[u64::from_le_bytes(*length) as usize..].to_vec()
}

/// Changes one byte of the newest checkpoint's values, in place.
fn flip_a_byte(told: &Told) {
    let newest = manifests(told).pop().unwrap().with_extension("");
    let part = fs::read_dir(newest).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&part).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(part, bytes).unwrap();
}

/// Compares a snapshot with the names of attempts, times and directories masked.
fn assert_looks_like(told: &Told, check: impl FnOnce()) {
    assert_eq!(told.exit_code(), Some(0), "{told}");
    let names = [(r"-[0-9a-f]{8}\b", "-[attempt]"), (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "[time]"), (r"(?m) +$", "")];
    with_settings!({filters => names}, { check() });
}

#[test]
fn training_goes_on_from_the_newest_checkpoint_to_the_same_values_as_without_a_break() {
    let first = trained(150);
    let resumed = first.windlass(&training(400, "")).run().succeeded();
    assert_eq!(resumed.event("started")["from"], 150);
    let outcome = summary(&resumed);
    assert_eq!((&outcome["resumed_at"], &outcome["global_step"]), (&150.into(), &400.into()), "{outcome:#}");
    assert_eq!(values(&resumed), values(&trained(400)));
}

#[test]
fn a_run_that_has_had_its_steps_takes_no_more() {
    let first = trained(150);
    let before = values(&first);
    let again = first.windlass(&training(150, "")).run().succeeded();
    assert_eq!(summary(&again)["global_step"], 150);
    assert_eq!(values(&again), before);
}

#[test]
fn resume_never_begins_anew_and_what_it_learns_is_the_newest() {
    let first = trained(150);
    let anew = first.windlass(&training(100, "--resume never")).run().succeeded();
    assert_eq!(anew.event("started")["from"], 0);
    let next = anew.windlass(&training(120, "")).run().succeeded();
    assert_eq!(next.event("started")["from"], 100);
}

#[test]
fn resume_begins_from_the_checkpoints_of_another_run() {
    let first = trained(150);
    let other = first.windlass("train linear --steps 200 --format json --run-dir other --resume run/checkpoints");
    assert_eq!(other.run().succeeded().event("started")["from"], 150);
    let again = first.windlass("train linear --steps 210 --format json --run-dir other").run().succeeded();
    assert_eq!(again.event("started")["from"], 200, "its own come first from then on");
}

#[test]
fn resume_begins_from_the_one_checkpoint_that_is_named() {
    let first = trained(150);
    first.windlass(&training(200, "")).run().succeeded();
    let oldest = manifests(&first).remove(0);
    let words = format!("train linear --steps 300 --format json --run-dir other --resume {}", oldest.display());
    assert_eq!(first.windlass(&words).run().succeeded().event("started")["from"], 150);
}

#[test]
fn resume_from_where_there_is_nothing_is_refused() {
    let told = windlass(&training(10, "--resume nowhere")).run();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("error: there is no whole checkpoint in `"), "{told}");
}

#[test]
fn a_checkpoint_of_another_network_is_refused_by_the_flag_that_differs() {
    let files = DigitFiles::new(100, 20);
    let train = |hidden| format!("mnist --hidden {hidden} --batch-size 20 --steps 5 --run-dir run --data-dir");
    let first = windlass(&format!("train {}", train(8))).with(files.path()).run().succeeded();
    for command in ["train", "launch"] {
        let told = first.windlass(&format!("{command} {}", train(9))).with(files.path()).run();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        assert!(
            told.stderr.contains("this run was started with --hidden 9, checkpoint 000000000005-g000001-"),
            "{told}"
        );
        assert!(told.stderr.contains(" with --hidden 8 (in "), "{told}");
    }
}

#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    let told = trained(10).windlass(&training(20, "--optimizer adam")).run();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.contains("holds the state of `sgd`, not of `adam`"), "{told}");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_for_the_one_before_it() {
    let first = trained(150);
    first.windlass(&training(200, "")).run().succeeded();
    flip_a_byte(&first);
    let resumed = first.windlass(&training(250, "")).run().succeeded();
    assert_eq!(resumed.event("started")["from"], 150);
    assert!(resumed.stderr.contains("skipped checkpoint 000000000200-g000002-"), "{resumed}");
    assert!(resumed.stderr.contains("was changed after it was written"), "{resumed}");
}

#[test]
fn a_damaged_checkpoint_that_is_named_is_refused_with_a_way_to_find_another() {
    let first = trained(150);
    flip_a_byte(&first);
    let damaged = manifests(&first).remove(0);
    let damaged = damaged.strip_prefix(first.directory()).unwrap_or(&damaged).display();
    let hint = "`windlass checkpoint list` shows the others; name the .json file of one of them";
    for words in [training(200, &format!("--resume {damaged}")), format!("eval linear --checkpoint {damaged}")] {
        let told = first.windlass(&words).run();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        assert!(told.stderr.contains(hint), "{told}");
    }
}

#[test]
fn a_program_reads_the_values_of_a_trained_network() {
    let first = trained(150);
    let run = first.directory().join("run").display().to_string();
    let trained = windlass::Trained::load(&run).unwrap();
    assert_eq!((trained.model.as_str(), trained.step), ("linear", 150));
    let read: Vec<u8> = trained
        .parameters
        .iter()
        .flat_map(|parameter| &parameter.values)
        .flat_map(|value| value.to_le_bytes())
        .collect();
    assert_eq!(read, values(&first));
    let named = manifests(&first)[0].display().to_string();
    assert_eq!(windlass::Trained::load(&named).unwrap(), trained);
    let error = windlass::Trained::load(&format!("{run}/nowhere")).unwrap_err().to_string();
    assert!(error.starts_with("there is no directory "), "{error}");
}

#[test]
fn pruning_keeps_at_least_one() {
    let first = trained(150);
    let told = first.windlass("checkpoint prune run --keep 0").run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.starts_with("error: --keep is 0, but must be at least 1\n"), "{told}");
    assert_eq!(manifests(&first).len(), 1);
}

#[test]
fn a_resumed_run_that_clips_otherwise_is_warned_with_both_values() {
    let first = windlass(&training(150, "--clip-norm 5")).run().succeeded();
    let resumed = first.windlass(&training(200, "--clip-norm 2")).run().succeeded();
    let warning = "this run was started with --clip-norm 2, checkpoint ";
    let lines: Vec<&str> = resumed.stderr.lines().filter(|line| line.contains(warning)).collect();
    assert!(lines.len() == 1 && lines[0].ends_with(" with --clip-norm 5"), "{resumed}");
    let again = resumed.windlass(&training(250, "--clip-norm 2")).run().succeeded();
    assert!(!again.stderr.contains("was started with"), "{again}");
    let told = again.windlass(&training(300, "--clip-norm 2 --learning-rate 0.5")).run().succeeded();
    let warning = "this run continues with --learning-rate 0.5, checkpoint ";
    assert!(told.stderr.contains(warning) && told.stderr.contains(" had 0.01"), "{told}");
    let inspected = told.windlass("checkpoint inspect run").run().succeeded();
    assert!(inspected.stdout.contains("learning rate") && inspected.stdout.contains("0.5"), "{inspected}");
}

#[test]
fn a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_and_leaves_them() {
    let first = trained(150);
    flip_a_byte(&first);
    for command in ["train", "launch"] {
        let told = first.windlass(&training(200, "").replace("train", command)).run();
        assert_eq!(told.exit_code(), Some(4), "{told}");
        assert!(told.stderr.contains("the only checkpoint in `"), "{told}");
        assert!(told.stderr.contains("was changed after it was written"), "{told}");
        assert!(told.stderr.contains("`windlass checkpoint verify /"), "{told}");
        assert!(told.stderr.contains("pass --resume never to start from scratch"), "{told}");
    }
    assert_eq!(manifests(&first).len(), 1);
    let anew = first.windlass(&training(100, "--resume never")).run().succeeded();
    assert_eq!(anew.event("started")["from"], 0);
    assert_eq!(manifests(&first).len(), 2, "the damaged one stays");
}

#[test]
fn a_run_that_begins_anew_leaves_the_checkpoints_of_the_earlier_run_alone() {
    let first = trained(150);
    let flags = "--keep 1 --checkpoint-secs 0 --checkpoint-steps 10";
    first.windlass(&training(100, &format!("--resume never {flags}"))).run().succeeded();
    let kept = |steps: [u64; 2]| {
        let names: Vec<String> = manifests(&first).iter().map(|file| file.display().to_string()).collect();
        let wanted = steps.map(|step| format!("/{step:012}-"));
        assert!(names.len() == 2 && names.iter().zip(&wanted).all(|(name, step)| name.contains(step)), "{names:?}");
    };
    kept([100, 150]);
    let resumed = first.windlass(&training(120, flags)).run().succeeded();
    assert_eq!(resumed.event("started")["from"], 100);
    kept([120, 150]);
}

#[test]
fn checkpoints_that_cannot_be_kept_are_told_before_anything_is_trained() {
    for command in ["train", "launch"] {
        let words = format!("{command} linear --steps 10 --run-dir run --checkpoint-dir taken");
        let told = windlass(&words).with_file("taken", "a file").run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.contains("error: "), "{told}");
        assert!(told.stderr.contains("taken`"), "{told}");
        assert!(!told.directory().join("run/summary.json").exists());
    }
}

#[test]
fn verify_reads_every_byte() {
    let first = trained(150);
    first.windlass(&training(200, "")).run().succeeded();
    let verify = || first.windlass("checkpoint verify run/checkpoints").run();
    let told = verify();
    assert_looks_like(&told, || {
        assert_snapshot!(told.stdout, @"
    000000000200-g000002-[attempt]: whole
    000000000150-g000001-[attempt]: whole
    ")
    });
    flip_a_byte(&first);
    let told = verify();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stdout.contains(": DAMAGED\n"), "{told}");
    assert!(told.stderr.contains("error: 1 of 2 checkpoints damaged"), "{told}");
}

#[test]
fn list_shows_the_newest_first() {
    let first = trained(150);
    first.windlass(&training(200, "")).run().succeeded();
    let told = first.windlass("checkpoint list run/checkpoints").run();
    assert_looks_like(&told, || {
        assert_snapshot!(told.stdout, @"
    step  taken (UTC)           MB  ps  model   checkpoint
     200  [time]  0.0   1  linear  000000000200-g000002-[attempt]
     150  [time]  0.0   1  linear  000000000150-g000001-[attempt]
    ")
    });
}

#[test]
fn inspect_shows_what_the_newest_holds() {
    let told = trained(150).windlass("checkpoint inspect run/checkpoints").run();
    assert_looks_like(&told, || {
        assert_snapshot!(told.stdout, @"
    checkpoint     000000000150-g000001-[attempt]
    taken          [time] UTC
    model          linear, 2 values
    --noise        0.33
    training       step 150, async, sgd
    learning rate  0.01
    parts          1 of 0.0 MB in all
    worker 0       150 batches, now in epoch 2, batch 49
    command        windlass train linear --steps 150 --threads 1 --format json --run-dir run

    parameter  shape
    weight     1
    bias       1
    ")
    });
}

#[test]
fn prune_leaves_the_newest() {
    let first = trained(150);
    first.windlass(&training(200, "")).run().succeeded();
    let told = first.windlass("checkpoint prune run/checkpoints --keep 1").run();
    assert_looks_like(&told, || {
        assert_snapshot!(told.stdout, @"
    removed 000000000150-g000001-[attempt]
    1 checkpoint left in run/checkpoints
    ")
    });
    assert_eq!(manifests(&first).len(), 1);
}

#[test]
fn a_run_keeps_as_many_as_it_is_told() {
    let first = trained(10);
    for steps in [20, 30] {
        first.windlass(&training(steps, "--keep 2")).run().succeeded();
    }
    let kept: Vec<String> = manifests(&first).iter().map(|file| file.display().to_string()).collect();
    assert!(matches!(&kept[..], [one, two] if one.contains("/000000000020-") && two.contains("/000000000030-")));
}

#[test]
fn the_commands_make_no_directory_to_look_into() {
    for action in ["list", "verify", "inspect", "export", "prune"] {
        let told = windlass(&format!("checkpoint {action} nowhere")).run();
        assert_eq!(told.exit_code(), Some(2), "{told}");
        assert!(told.stderr.starts_with("error: there is no directory nowhere\nhint: "), "{told}");
        assert!(!told.directory().join("nowhere").exists());
    }
}

#[test]
fn eval_scores_as_the_run_itself_did() {
    let files = DigitFiles::new(600, 200);
    let words = "train mnist --hidden 8 --batch-size 20 --steps 100 --run-dir run --data-dir";
    let first = windlass(words).with(files.path()).run().succeeded();
    let eval = "eval mnist --hidden 8 --checkpoint run/checkpoints --format json --data-dir";
    let told = first.windlass(eval).with(files.path()).run().succeeded();
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["global_step"], 100);
    assert_eq!(told["metrics"]["test_accuracy"], summary(&first)["metrics"]["test_accuracy"], "{told}");
    assert!(told["metrics"]["test_accuracy"].as_f64().is_some_and(|accuracy| accuracy > 0.2), "{told}");
}

#[test]
fn eval_of_another_network_is_refused() {
    let told = trained(10).windlass("eval mnist --checkpoint run/checkpoints").run();
    assert_eq!(told.exit_code(), Some(4), "{told}");
    assert!(told.stderr.ends_with("is for linear, not mnist\n"), "{told}");
}

#[test]
fn for_programs_the_commands_print_json() {
    let told = trained(150);
    let json = |words: &str, exit_code| {
        let told = told.windlass(&format!("checkpoint {words} --json")).run();
        assert_eq!(told.exit_code(), Some(exit_code), "{told}");
        serde_json::from_str::<Value>(&told.stdout).unwrap_or_else(|error| panic!("{error} in {told}"))
    };
    let listed = json("list run", 0);
    assert_eq!((&listed[0]["step"], &listed[0]["model"], &listed[0]["ps"]), (&150.into(), &"linear".into(), &1.into()));
    assert!(listed[0]["bytes"].as_u64() > Some(0) && listed[0].get("damage").is_none(), "{listed}");
    let inspected = json("inspect run", 0);
    assert_eq!((&inspected["checkpoint"], &inspected["run"]["model"]), (&listed[0]["checkpoint"], &"linear".into()));
    assert_eq!(json("verify run", 0)[0]["whole"], true);
    flip_a_byte(&told);
    let verified = json("verify run", 4);
    assert_eq!((&verified[0]["whole"], verified[0]["damage"].as_array().map(Vec::len)), (&false.into(), Some(1)));
    fs::create_dir(told.directory().join("empty")).unwrap();
    assert_eq!(json("list empty", 0), Value::Array(Vec::new()));
}
