//! Fixed faults, reintroduced one at a time: the simulation finds each of them.

use windlass_core::fault::{Fault, put_back};
use windlass_simulation::{Report, run, run_without_chief};

/// Enough seeds to find each fault.
const SEEDS: u64 = 10_000;

/// The same for a scenario made for the fault.
const TARGETED_SEEDS: u64 = 100;

fn assert_found(fault: Fault) {
    assert_found_by(run, fault, SEEDS);
}

fn assert_found_by(run: impl Fn(u64, bool) -> Report, fault: Fault, seeds: u64) {
    put_back(Some(fault));
    let found = (0..seeds).map(|seed| run(seed, false)).find(|report| report.wrong.is_some());
    put_back(None);
    let Some(report) = found else { panic!("{fault:?} was not found in {seeds} seeds") };
    println!("{fault:?} was found after {} seeds: {}", report.seed + 1, report.wrong.unwrap_or_default());
}

#[test]
fn a_server_that_holds_nothing_and_has_a_part_in_checkpoints_is_found() {
    assert_found(Fault::EmptyServerInCut);
}

#[test]
fn a_chief_that_is_lost_with_a_server_and_not_replaced_is_found() {
    assert_found_by(run_without_chief, Fault::ChiefLostWithServer, TARGETED_SEEDS);
}

#[test]
fn a_run_that_loses_its_chief_with_a_server_continues_without_it() {
    for seed in 0..TARGETED_SEEDS {
        let report = run_without_chief(seed, false);
        assert!(report.wrong.is_none(), "{report:#?}");
    }
}

#[test]
fn a_run_that_restores_an_older_checkpoint_than_the_newest_is_found() {
    assert_found(Fault::OlderCheckpointRestored);
}

#[test]
fn a_sleeper_that_is_not_told_that_it_was_declared_dead_is_found() {
    assert_found(Fault::SleeperNotDismissed);
}

#[test]
fn a_torn_snapshot_is_found() {
    assert_found(Fault::TornSnapshot);
}

#[test]
fn a_server_that_was_told_to_stop_and_loses_its_part_with_its_connection_is_found() {
    assert_found(Fault::StoppedServerForgotten);
}

#[test]
fn a_run_that_ends_because_a_server_is_lost_while_it_is_saved_is_found() {
    assert_found(Fault::LostWhileSaving);
}

#[test]
fn a_server_that_was_told_to_stop_and_dies_and_is_not_missed_is_found() {
    assert_found(Fault::StoppedServerNotMissed);
}

#[test]
fn a_server_that_is_missed_though_its_part_of_the_last_checkpoint_is_written_is_found() {
    assert_found(Fault::NeededWhilePublished);
}

#[test]
fn a_run_that_waits_for_workers_that_were_told_to_stop_is_found() {
    assert_found(Fault::StoppedWorkersAwaited);
}

#[test]
fn a_run_that_waits_for_a_worker_that_came_and_went_before_it_began_is_found() {
    assert_found(Fault::EarlyWorkerAwaited);
}
