//! The output of a run: lines for people, JSON for programs, and a table at the end.

use insta::{assert_snapshot, with_settings};
use serde_json::Value;

use crate::process::{Told, windlass};

/// Compares a snapshot with the digits of measured and computed numbers masked, and table padding collapsed.
fn assert_looks_like(told: &Told, check: impl FnOnce()) {
    assert_eq!(told.exit_code(), Some(0), "{told}");
    let numbers = [(r"-?\d+\.\d+", "[N]"), (r"\d+ (steps|samples)/s", "[N] $1/s")];
    let spaces = [(r" +", " "), (r"(?m)^ | $", "")];
    with_settings!({filters => [numbers, spaces].concat()}, { check() });
}

#[test]
fn a_run_in_one_process_tells_steps_epochs_and_scores() {
    let told = windlass("train linear --epochs 2 --threads 1 --run-dir run").run();
    assert_looks_like(&told, || {
        assert_snapshot!(told.stdout, @"
    worker 0 trains for 2 epochs: 101 batches of 1 per epoch, 1 thread, parameters in this process, chief
    worker 0 step 100 global 100 epoch 1 batch 100 of 101 loss [N] avg [N] ms
    worker 0 epoch 1 ended: mean loss [N] w [N], b [N], mean squared error [N] in [N] s
    worker 0 step 200 global 200 epoch 2 batch 99 of 101 loss [N] avg [N] ms
    worker 0 epoch 2 ended: mean loss [N] w [N], b [N], mean squared error [N] in [N] s
    worker 0 finished: 202 steps of its own, global step 202, [N] s

    run linear in one process, async, sgd
    steps 202 in [N] s
    first step after [N] s
    speed [N] steps/s, [N] samples/s
    step time median [N] ms, 95th percentile [N] ms
    loss [N] per sample, in the last batches
    scores w [N], b [N], mean squared error [N]

    worker steps share mean step ms compute ms wait ms
    0 202 100% [N] [N] [N]

    wrote run/summary.json
    ")
    });
}

#[test]
fn a_run_tells_of_samples_that_do_not_fill_a_step_and_of_steps_of_several_batches() {
    let started = |flags: &str| {
        let told = windlass(&format!("train linear --epochs 1 --threads 1 {flags}")).run().succeeded();
        told.stdout.lines().next().unwrap_or_default().to_owned()
    };
    let line =
        |epoch: &str| format!("worker 0 trains for 1 epoch: {epoch}, 1 thread, parameters in this process, chief");
    assert_eq!(started("--batch-size 25"), line("4 batches of 25 per epoch (1 sample left out)"));
    assert_eq!(
        started("--batch-size 5 --accumulate 4"),
        line("5 steps per epoch, each 4 batches of 5 (1 sample left out)")
    );
    let in_towers = line("4 batches of 25 per epoch (1 sample left out), 2 towers on").replace(" on, ", " on ");
    assert_eq!(started("--batch-size 25 --towers 2"), in_towers);
    assert_eq!(started("--batch-size 101"), line("1 batch of 101 per epoch"));
}

#[test]
fn a_launched_run_tells_of_every_worker() {
    let told = windlass("launch linear --epochs 1 --mode sync --threads 1 --log-every 1000 --run-dir run").run();
    let mut lines: Vec<&str> = told.stdout.lines().collect();
    let page = lines.remove(1);
    assert!(page.starts_with("live page at http://127.0.0.1:"), "{page}");
    // Two workers report in any order.
    lines.sort_by_key(|line| line.starts_with("worker 1"));
    assert_looks_like(&told, || {
        assert_snapshot!(lines.join("\n"), @"
    linear on 1 ps and 2 workers, logs in run
    worker 0 trains for 1 epoch: 101 batches of 1 per epoch, 1 thread, parameters via shared memory, chief
    worker 0 epoch 1 ended: mean loss [N] w [N], b [N], mean squared error [N] in [N] s
    worker 0 finished: 101 steps of its own, global step 101, [N] s

    run linear on 1 ps, 2 workers, sync, sgd
    steps 101 in [N] s
    first step after [N] s
    speed [N] steps/s, [N] samples/s
    step time median [N] ms, 95th percentile [N] ms
    traffic per step 8 B sent, 8 B received
    loss [N] per sample, in the last batches
    scores w [N], b [N], mean squared error [N]
    gradients 0 dropped as stale, [N] updates old on average

    worker steps share mean step ms compute ms wait ms
    0 101 50% [N] [N] [N]
    1 101 50% [N] [N] [N]

    wrote run/summary.json
    logs and checkpoints are in run
    worker 1 trains for 1 epoch: 101 batches of 1 per epoch, 1 thread, parameters via shared memory
    worker 1 epoch 1 ended: mean loss [N] in [N] s
    worker 1 finished: 101 steps of its own, global step 101, [N] s
    ")
    });
}

#[test]
fn every_line_of_json_is_json() {
    for words in ["train linear --epochs 1 --run-dir run", "launch linear --epochs 1 --run-dir run"] {
        let told = windlass(&format!("{words} --format json")).run().succeeded();
        for line in told.stdout.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(event["event"].is_string(), "{line}");
        }
    }
}

#[test]
fn a_reader_that_went_away_does_not_end_the_training() {
    let told = windlass("train linear --run-dir run").without_reader().run().succeeded();
    assert!(told.directory().join("run/summary.json").exists());
}

#[test]
fn a_reader_that_went_away_is_no_panic() {
    windlass("train linear --print-cluster").without_reader().run().succeeded();
}
