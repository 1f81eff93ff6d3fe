//! Servers that hold no parameters, as the second of two ps on one host does by default: nothing waits for them, and
//! nothing is lost with them.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::cluster::{Launched, Task, summary};
use crate::digits::DigitFiles;
use crate::process::{Told, windlass};

const STEPS: u64 = 12000;
const INTERVAL: u64 = 500;

/// Two processes that could each have a shard, but the second has none; for separate ps that is the default.
const LAYOUTS: [(&str, &str); 2] = [("--ps 2", "ps"), ("--colocate --min-shard-bytes 4194304", "worker")];

const MODES: [&str; 3] = ["--mode sync", "--mode async", "--mode ssp --staleness 2"];

/// A run of a small model with the default sharding.
struct Run {
    cluster: Launched,
    files: DigitFiles,
    words: String,
}

impl Run {
    fn start(steps: u64, interval: u64, flags: &str) -> Self {
        let files = DigitFiles::new(400, 100);
        let words = format!(
            "launch mnist --hidden 8 --batch-size 20 --evaluate end --log-every 10 --workers 2 --steps {steps} \
             --checkpoint-secs 0 --checkpoint-steps {interval} --format json --run-dir run {flags} --data-dir"
        );
        let cluster = Launched::by(windlass(&words).with(files.path()));
        Self { cluster, files, words }
    }

    /// Returns when there is a checkpoint. All tasks are suspended, so that the run does not end too soon.
    fn start_beyond_a_checkpoint(flags: &str, first: &str) -> Self {
        let run = Self::start(STEPS, INTERVAL, flags);
        run.cluster.logged(first, "checkpoint of step ");
        run.freeze();
        run
    }

    fn freeze(&self) {
        self.cluster.tasks().iter().for_each(|task| task.signal(Signal::STOP));
    }

    /// Sends a signal to a task, and continues all tasks.
    fn signal(&self, task: &Task, signal: Signal) {
        task.signal(signal);
        self.cluster.tasks().iter().for_each(Task::go_on);
    }

    /// Runs to the end, and checks that the run is complete as if nothing had happened.
    fn ends_well(self) -> Told {
        let told = self.cluster.wait().succeeded();
        let summary = summary(&told);
        assert_eq!((&summary["global_step"], &summary["resumed_at"]), (&STEPS.into(), &0.into()), "{summary:#}");
        let verified = told.windlass("checkpoint verify run/checkpoints").run().succeeded();
        assert!(verified.stdout.starts_with(&format!("{STEPS:012}-")), "{verified}");
        told
    }
}

fn log(told: &Told, task: &str) -> String {
    fs::read_to_string(told.directory().join(format!("run/{task}.log"))).unwrap()
}

#[test]
fn checkpoints_are_written_all_along_in_every_mode_and_layout() {
    for (layout, job) in LAYOUTS {
        for mode in MODES {
            let run = Run::start(STEPS, INTERVAL, &format!("{layout} {mode}"));
            let told = run.ends_well();
            let (first, second) = (log(&told, &format!("{job}-0")), log(&told, &format!("{job}-1")));
            assert!(second.contains("holds 0 of "), "{layout} {mode}: {second}");
            let (early, _) = first.split_once(&format!("checkpoint of step {STEPS} ")).unwrap();
            assert!(early.contains("checkpoint of step "), "{layout} {mode}: {first}");
        }
    }
}

#[test]
fn one_that_is_killed_and_started_again_costs_no_update() {
    for (layout, job) in LAYOUTS {
        for mode in MODES {
            let first = format!("{job}-0");
            let run = Run::start_beyond_a_checkpoint(&format!("{layout} {mode} --restart 1"), &first);
            let killed = run.cluster.task(job, 1);
            run.signal(&killed, Signal::KILL);
            let told = run.ends_well();
            assert!(told.stderr.contains(&format!("{job} 1 was killed by signal 9; restarted it")), "{told}");
            assert!(!log(&told, &first).contains("rolling back"), "{}", log(&told, &first));
            if job == "worker" {
                assert_eq!(summary(&told)["per_worker"][1]["left"], Value::Null, "it was there at the end");
            }
        }
    }
}

#[test]
fn one_that_is_killed_for_good_leaves_the_others_training() {
    for (layout, job) in LAYOUTS {
        for mode in MODES {
            let run = Run::start_beyond_a_checkpoint(&format!("{layout} {mode}"), &format!("{job}-0"));
            let killed = run.cluster.task(job, 1);
            run.signal(&killed, Signal::KILL);
            let told = run.ends_well();
            assert!(told.stderr.contains(&format!("{job} 1 was killed by signal 9; the others continue")), "{told}");
        }
    }
}

#[test]
fn one_that_is_told_to_stop_leaves_the_others_training() {
    let run = Run::start_beyond_a_checkpoint("--ps 2", "ps-0");
    let stopped = run.cluster.task("ps", 1);
    run.signal(&stopped, Signal::TERM);
    let told = run.ends_well();
    assert!(told.stderr.contains("ps 1 was told to stop by SIGTERM; the others continue"), "{told}");
}

#[test]
fn a_run_that_has_lost_one_for_good_recovers_from_the_loss_of_the_other() {
    let run = Run::start_beyond_a_checkpoint("--ps 2 --restart 1", "ps-0");
    // A task that is told to stop is not restarted.
    let stopped = run.cluster.task("ps", 1);
    run.signal(&stopped, Signal::TERM);
    run.cluster.logged("ps-0", "lost ps 1");
    let lost = run.cluster.task("ps", 0);
    run.signal(&lost, Signal::KILL);
    let told = run.cluster.wait().succeeded();
    let summary = summary(&told);
    assert_eq!(summary["global_step"], STEPS);
    assert!(summary["resumed_at"].as_u64() >= Some(INTERVAL), "{summary:#}");
}

#[test]
fn an_interrupted_run_saves_itself_and_goes_on_from_there() {
    for (layout, job) in LAYOUTS {
        for mode in MODES {
            // The only checkpoint is the one written when the run is told to stop.
            let endless = 1_000_000_000;
            let Run { cluster, files, words } = Run::start(endless, endless, &format!("{layout} {mode}"));
            cluster.event("step", 0);
            cluster.event("step", 1);
            cluster.0.signal(Signal::INT);
            let told = cluster.wait();
            assert_eq!(told.exit_code(), Some(130), "{layout} {mode}: {told}");
            let first = log(&told, &format!("{job}-0"));
            let saved: Vec<&str> = first.split("checkpoint of step ").skip(1).collect();
            let [saved] = saved[..] else { panic!("{layout} {mode}: not one checkpoint in {first}") };
            let saved: u64 = saved.split_once(" is in ").unwrap().0.parse().unwrap();
            let again = words.replace(&format!("--steps {endless} "), &format!("--steps {} ", saved + STEPS));
            let resumed = told.windlass(&again).with(files.path()).run().succeeded();
            assert_eq!(summary(&resumed)["resumed_at"], saved, "{layout} {mode}");
            assert_eq!(summary(&resumed)["global_step"], saved + STEPS, "{layout} {mode}");
        }
    }
}
