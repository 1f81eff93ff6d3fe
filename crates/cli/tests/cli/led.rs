//! Runs that `launch` starts with a client and joined workers, and what becomes of them when one of those is lost.

use rustix::process::Signal;

use crate::cluster::{Launched, summary};
use crate::process::Told;

const MNIST: &str = "mnist --hidden 16 --log-every 10 --evaluate end";
const STAGES: &str = "--workers 2 --place hidden=/task:0,output=/task:1";

/// Returns when the client is training.
fn start(flags: &str) -> Launched {
    let run = Launched::start(&format!("{MNIST} {flags}"));
    run.event("step", 0);
    run
}

/// Asserts that a run ended with this code, and that its client saved it.
fn saved(told: &Told, exit_code: i32) {
    assert_eq!(told.exit_code(), Some(exit_code), "{told}");
    let step = told.after("checkpoint: step ").split(',').next().unwrap();
    assert!(step.parse::<u64>().unwrap() > 0, "{told}");
    assert!(told.after("checkpoint: ").ends_with("in run/checkpoints"), "nothing is lost: {told}");
}

#[test]
fn a_run_with_a_client_goes_on_without_a_worker_that_is_killed_or_told_to_stop() {
    for (signal, why) in [(Signal::TERM, "was told to stop by SIGTERM"), (Signal::KILL, "was killed by signal 9")] {
        for flags in ["--mode sync", "--mode async --ps 1"] {
            let run = start(&format!("--in-graph --workers 2 --steps 4000 {flags}"));
            run.joined(1).signal(signal);
            run.0.log(&format!("worker 1 {why}; the others continue"));
            let told = run.wait().succeeded();
            assert_eq!(summary(&told)["global_step"], 4000, "{told}");
        }
    }
}

#[test]
fn a_run_whose_client_cannot_go_on_is_saved_and_ends() {
    for flags in ["--in-graph --workers 1 --mode sync", "--in-graph --workers 1 --mode async --ps 1", STAGES] {
        for (signal, why, exit_code) in
            [(Signal::TERM, "told to stop by SIGTERM", 143), (Signal::KILL, "killed by signal 9", 1)]
        {
            let run = start(&format!("{flags} --steps 100000000"));
            run.joined(0).signal(signal);
            let told = run.wait();
            saved(&told, exit_code);
            assert!(told.stderr.contains(&format!(": worker 0 was {why}")), "{told}");
            assert!(
                told.stderr.contains("cannot go on without worker 0; the client saves the run and stops"),
                "{told}"
            );
        }
    }
}

#[test]
fn a_run_ends_with_the_last_of_its_joined_workers() {
    let run = start("--in-graph --workers 2 --mode sync --steps 100000000");
    run.joined(0).signal(Signal::TERM);
    run.0.log("worker 0 was told to stop by SIGTERM; the others continue");
    run.joined(1).signal(Signal::KILL);
    let told = run.wait();
    saved(&told, 1);
    assert!(told.stderr.contains("error: worker 1 was killed by signal 9"), "{told}");
    let status = told.windlass("status run").run().succeeded();
    assert!(status.stdout.contains("The run failed: worker 1 was killed by signal 9"), "{status}");
}

#[test]
fn a_worker_with_a_stage_that_is_started_again_is_used_again() {
    let run = start(&format!("{STAGES} --steps 4000 --restart 1"));
    run.joined(1).signal(Signal::KILL);
    run.0.log("worker 1 was killed by signal 9; restarted it (0 restarts left)");
    let told = run.wait().succeeded();
    assert_eq!(summary(&told)["joined"][1]["joined"], 2, "{told}");
}

#[test]
fn a_client_that_is_told_to_stop_saves_and_is_named() {
    for flags in ["", "--ps 1"] {
        let run = start(&format!("--in-graph --workers 2 --mode sync --steps 100000000 {flags}"));
        run.client().signal(Signal::TERM);
        let told = run.wait();
        saved(&told, 143);
        assert!(told.stderr.contains("stopped: the client was told to stop by SIGTERM at step "), "{told}");
    }
}
