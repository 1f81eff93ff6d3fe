//! `-q` and `-v`: how much each process prints. Also: without a terminal, no escape sequences are printed.

use std::fs;

use insta::assert_snapshot;

use crate::process::{Told, windlass};

#[test]
fn a_quiet_run_prints_its_result_alone() {
    // Async workers may get a warning, so these runs are in sync mode.
    let commands = ["train linear -q", "-q launch linear --mode sync", "launch --quiet linear --mode sync"];
    for words in commands.map(|words| format!("{words} --epochs 1")) {
        let told = windlass(&words).run().succeeded();
        assert!(told.stdout.starts_with("\n run "), "{told}");
        assert!(!told.stdout.contains("live page") && !told.stdout.contains("wrote "), "{told}");
        assert_eq!(told.stderr, "", "{told}");
    }
}

#[test]
fn a_flag_may_be_repeated_before_the_names_and_behind_them() {
    for words in ["-vv train linear", "train -vv linear", "train linear -v -v"] {
        let told = windlass(&format!("{words} --epochs 1")).run().succeeded();
        assert!(told.stdout.contains(" run "), "{told}");
    }
    for words in ["-qq launch linear", "launch linear -qq"] {
        let told = windlass(&format!("{words} --mode sync --epochs 1")).run().succeeded();
        assert!(told.stdout.starts_with("\n run "), "{told}");
    }
    let told = windlass("-qv train linear").run();
    assert!(told.exit_code() == Some(2) && told.stderr.contains("exclude each other"), "{told}");
}

#[test]
fn a_quiet_run_still_warns() {
    let words = "train linear --epochs 1 --quiet";
    let told = windlass(words).env("WINDLASS_LEARNIG_RATE", "1").run().succeeded();
    assert_eq!(told.stderr, "warning: WINDLASS_LEARNIG_RATE sets nothing; did you mean WINDLASS_LEARNING_RATE?\n");
    let failed = windlass("train linear --steps 1000 --learning-rate 1e30 -q").run();
    assert_eq!(failed.exit_code(), Some(3), "{failed}");
    assert!(failed.stderr.contains("error: "), "{failed}");
}

#[test]
fn variables_say_it_too_and_flags_take_precedence() {
    let words = "launch linear --mode sync --epochs 1 --run-dir run";
    let told = windlass(words).env("WINDLASS_QUIET", "true").run().succeeded();
    assert!(told.stdout.starts_with("\n run ") && told.stderr.is_empty(), "{told}");
    let log = |told: &Told| fs::read_to_string(told.directory().join("run/worker-0.log")).unwrap();
    // A quiet launcher still needs the messages of its tasks.
    assert!(log(&told).contains("worker 0"), "{}", log(&told));
    let told = windlass(words).env("WINDLASS_VERBOSE", "1").run().succeeded();
    assert!(log(&told).contains(" DEBUG "), "{told}");
    let told = windlass(&format!("-v {words}")).env("WINDLASS_QUIET", "true").run().succeeded();
    assert!(told.stdout.contains("live page") && log(&told).contains(" DEBUG "), "{told}");
    let told = windlass("devices").env("WINDLASS_QUIET", "loud").run();
    assert!(told.exit_code() == Some(2) && told.stderr.contains("--quiet is a switch"), "{told}");
    let told = windlass("devices").env("WINDLASS_QUIET", "on").env("WINDLASS_VERBOSE", "on").run();
    assert!(told.exit_code() == Some(2) && told.stderr.contains("exclude each other"), "{told}");
}

#[test]
fn the_events_of_a_quiet_run_are_its_result() {
    let told = windlass("launch linear --mode sync --epochs 1 -q --format json").run().succeeded();
    assert_eq!(told.stdout.lines().count(), 1, "{told}");
    assert_eq!(told.event("summary")["model"], "linear");
}

#[test]
fn a_verbose_run_logs_what_is_there_for_developers() {
    let launched = windlass("-v launch linear --epochs 1 --run-dir run").run().succeeded();
    let log = fs::read_to_string(launched.directory().join("run/worker-0.log")).unwrap();
    assert!(log.contains(" DEBUG "), "{log}");
    // The verbosity is not a setting of the run.
    let settings = fs::read_to_string(launched.directory().join("run/run.toml")).unwrap();
    assert!(!settings.contains("verbose") && !settings.contains("quiet"), "{settings}");
    let again = launched.windlass("launch linear --epochs 1 --run-dir again").run().succeeded();
    let log = fs::read_to_string(again.directory().join("again/worker-0.log")).unwrap();
    assert!(!log.contains(" DEBUG "), "{log}");
}

#[test]
fn quiet_and_verbose_exclude_each_other() {
    assert_snapshot!(windlass("-q train linear -v").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: --quiet and --verbose exclude each other
    ");
}

#[test]
fn where_there_is_no_terminal_there_are_no_escape_sequences() {
    let place = windlass("train linear --epochs 1 --run-dir runs/a -v").run().succeeded();
    let others = [
        "launch linear --epochs 1 --run-dir runs/b",
        "train linear --bogus",
        "train mnist --help",
        "--help",
        "runs list",
        "runs show a",
        "runs compare a b",
        "checkpoint list runs/a",
        "checkpoint inspect runs/a",
        "compare runs/a runs/b",
        "status 127.0.0.1:1",
        "eval linear --checkpoint runs/a",
    ];
    for told in
        std::iter::once(place.windlass("runs list").run()).chain(others.map(|words| place.windlass(words).run()))
    {
        assert!(!told.stdout.contains('\x1b') && !told.stderr.contains('\x1b'), "{told}");
    }
    assert!(!place.stdout.contains('\x1b') && !place.stderr.contains('\x1b'), "{place}");
}
