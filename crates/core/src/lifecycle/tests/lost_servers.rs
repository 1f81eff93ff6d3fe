//! Servers that are lost: without checkpoints the run ends, with them it rolls back.

use super::*;

#[test]
fn when_all_workers_are_told_to_stop_while_a_server_is_awaited_the_run_ends() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.tick(seconds(3));
    assert_eq!(run.phase(), &Phase::Gathering);
    join(&mut run, TaskId::worker(0), 3);
    assert_eq!(goodbye(&mut run, 0), [], "worker 1 is about to come in again");
    join(&mut run, TaskId::worker(1), 4);
    let decisions = goodbye(&mut run, 1);
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code::TERMINATED));
}

#[test]
fn the_loss_of_a_server_ends_the_run_by_name() {
    let (mut run, _) = training();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let decisions = run.tick(seconds(2));
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.reason.starts_with("lost ps 0")));
}

#[test]
fn a_server_that_is_started_again_during_training_ends_the_run_by_name() {
    let (mut run, _) = training();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let (_, decisions) = join(&mut run, PS, 1);
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.reason.starts_with("ps 0 was restarted")));
}

#[test]
fn a_lost_server_is_waited_for_and_everyone_comes_in_again() {
    let (mut run, [first, _]) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let decisions = run.tick(seconds(3));
    assert!(matches!(&decisions[..], [Decision::Regather(reason)] if reason.starts_with("lost ps 0")), "{decisions:?}");
    assert_eq!(run.missing(), [PS, TaskId::worker(0), TaskId::worker(1)]);
    let (again, _) = join(&mut run, TaskId::worker(0), 3);
    assert!(again > first);
    join(&mut run, TaskId::worker(1), 3);
    let (_, decisions) = join(&mut run, PS, 5);
    assert_eq!(decisions, [Decision::Prepare]);
    assert_eq!(run.server_ready(PS, true), [Decision::Start(WorkerId(0)), Decision::Start(WorkerId(1))]);
}

#[test]
fn a_server_that_is_back_before_it_was_missed_is_restored_too() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let (_, decisions) = join(&mut run, PS, 1);
    assert!(matches!(&decisions[..], [Decision::Regather(reason)] if reason.starts_with("ps 0 was restarted")));
    assert_eq!(run.missing(), [TaskId::worker(0), TaskId::worker(1)]);
}

#[test]
fn after_a_loss_a_worker_that_does_not_come_back_is_left_out() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.tick(seconds(3));
    let (worker, _) = join(&mut run, TaskId::worker(1), 3);
    let (server, _) = join(&mut run, PS, 3);
    run.heard(TaskId::worker(1), worker, seconds(13));
    run.heard(PS, server, seconds(13));
    assert_eq!(run.tick(seconds(12)), []);
    assert_eq!(run.tick(seconds(13)), [Decision::Prepare]);
    assert_eq!(run.server_ready(PS, true), [Decision::Start(WorkerId(1))]);
}

/// A run with checkpoints that lost its server and its chief together. The server and worker 1 are back, and it
/// prepares.
fn without_its_chief() -> Lifecycle {
    let (mut run, [chief, _]) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.disconnected(TaskId::worker(0), chief, seconds(1));
    run.tick(seconds(3));
    let (worker, _) = join(&mut run, TaskId::worker(1), 3);
    let (server, _) = join(&mut run, PS, 3);
    run.heard(TaskId::worker(1), worker, seconds(13));
    run.heard(PS, server, seconds(13));
    assert_eq!(run.tick(seconds(13)), [Decision::Prepare]);
    run
}

#[test]
fn when_server_and_chief_are_lost_together_another_is_chief_after_the_rollback() {
    let mut run = without_its_chief();
    assert_eq!(run.chief(), WorkerId(1));
    assert_eq!(run.server_ready(PS, true), [Decision::Start(WorkerId(1))]);
    assert!(run.worker_finished(WorkerId(1)).contains(&Decision::AllFinished));
    assert_eq!(run.concluded(WorkerId(1)), [Decision::Save]);
}

#[test]
fn when_server_and_chief_are_lost_before_a_checkpoint_another_sends_the_first_values() {
    let mut run = without_its_chief();
    assert_eq!(run.server_ready(PS, false), [Decision::Initialise(WorkerId(1))]);
    assert_eq!(run.initialised(), [Decision::Start(WorkerId(1))]);
}
