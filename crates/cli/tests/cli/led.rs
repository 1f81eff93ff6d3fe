//! Runs that `launch` starts with a client and joined workers, and what becomes of them when one of those is lost.

use rustix::process::Signal;

use crate::cluster::{Launched, summary};

const MNIST: &str = "mnist --hidden 16 --log-every 10 --evaluate end";

/// Returns when the client trains.
fn start(flags: &str) -> Launched {
    let run = Launched::start(&format!("{MNIST} {flags}"));
    run.event("step", 0);
    run
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
