//! Workers that are told to stop, or die.

use super::*;

#[test]
fn a_worker_that_is_told_to_stop_leaves_the_others_training() {
    let (mut run, [_, second]) = training();
    assert_eq!(goodbye(&mut run, 1), []);
    assert_eq!(run.tick(FAREWELL - Duration::from_millis(1)), [], "it might be the first of all");
    assert_eq!(run.tick(FAREWELL), [Decision::Left(WorkerId(1), second, "told to stop".into())]);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn when_all_are_told_to_stop_nobody_trains_without_the_first() {
    let (mut run, _) = training_with_checkpoints();
    assert_eq!(goodbye(&mut run, 1), []);
    assert_eq!(run.goodbye(PS, Incarnation(1), FAREWELL / 2), [Decision::Save]);
    assert_eq!(run.tick(FAREWELL), []);
}

#[test]
fn one_that_was_told_to_stop_is_reported_before_the_end() {
    let (mut run, [_, second]) = training();
    goodbye(&mut run, 1);
    let decisions = run.worker_finished(WorkerId(0));
    assert_eq!(decisions[0], Decision::Left(WorkerId(1), second, "told to stop".into()));
    assert_eq!(decisions.last(), Some(&Decision::AllFinished));
}

#[test]
fn a_dead_worker_is_left_out_and_the_others_go_on() {
    let (mut run, [first, second]) = training();
    run.heard(TaskId::from(WorkerId(0)), first, seconds(9));
    run.heard(PS, Incarnation(1), seconds(9));
    let decisions = run.tick(seconds(10));
    assert_eq!(decisions, vec![Decision::Left(WorkerId(1), second, "no sign of life for 10.0 s".into())]);
    assert!(run.worker_finished(WorkerId(0)).contains(&Decision::AllFinished));
}

#[test]
fn when_the_chief_dies_another_is_named() {
    let (mut run, [first, second]) = training();
    run.disconnected(TaskId::from(WorkerId(0)), first, seconds(1));
    run.heard(TaskId::from(WorkerId(1)), second, seconds(3));
    run.heard(PS, Incarnation(1), seconds(3));
    run.tick(seconds(3));
    assert_eq!(run.chief(), WorkerId(1));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.concluded(WorkerId(1)), [Decision::Over(Outcome::done())]);
}

#[test]
fn when_the_chief_dies_before_the_first_values_another_brings_them() {
    let mut run = lifecycle(2);
    join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::from(WorkerId(0)), 0);
    join(&mut run, TaskId::from(WorkerId(1)), 0);
    run.server_ready(PS, false);
    run.disconnected(TaskId::from(WorkerId(0)), first, seconds(0));
    assert!(run.tick(seconds(2)).contains(&Decision::Initialise(WorkerId(1))));
}

#[test]
fn the_loss_of_every_worker_ends_the_run() {
    let (mut run, [first, second]) = training();
    run.disconnected(TaskId::from(WorkerId(0)), first, seconds(1));
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    let decisions = run.tick(seconds(3));
    let over = Outcome { exit_code: exit_code::PEERS, reason: "no workers are left".into() };
    assert!(decisions.contains(&Decision::Over(over)), "{decisions:?}");
}

#[test]
fn the_loss_of_the_only_worker_before_training_ends_the_run() {
    let mut run = lifecycle(1);
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.disconnected(TaskId::worker(0), worker, seconds(0));
    let decisions = run.tick(seconds(2));
    assert!(decisions.iter().any(|effect| matches!(effect, Decision::Over(_))), "{decisions:?}");
}

#[test]
fn without_a_worker_the_parameters_wait_for_one_and_it_becomes_chief() {
    let (mut run, [first, second]) = training_with_checkpoints();
    run.disconnected(TaskId::worker(0), first, seconds(1));
    run.disconnected(TaskId::worker(1), second, seconds(1));
    run.heard(PS, Incarnation(1), seconds(9));
    run.tick(seconds(3));
    assert_eq!(run.phase(), &Phase::Training);
    let (_, decisions) = join(&mut run, TaskId::worker(1), 9);
    assert!(decisions.contains(&Decision::Start(WorkerId(1))));
    assert_eq!(run.chief(), WorkerId(1));
}

#[test]
fn with_checkpoints_workers_lost_while_the_servers_prepare_are_waited_for() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.disconnected(TaskId::worker(0), worker, seconds(0));
    let decisions = run.tick(seconds(2));
    assert!(!decisions.iter().any(|effect| matches!(effect, Decision::Over(_))), "{decisions:?}");
    assert_eq!(run.missing(), [TaskId::worker(0)]);
    let (_, decisions) = join(&mut run, TaskId::worker(0), 3);
    assert!(decisions.contains(&Decision::Prepare));
    assert_eq!(run.server_ready(PS, false), [Decision::Initialise(WorkerId(0))]);
}

#[test]
fn with_checkpoints_a_chief_lost_while_it_scored_is_waited_for_and_scores_again() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert!(run.worker_finished(WorkerId(0)).contains(&Decision::AllFinished));
    run.disconnected(TaskId::worker(0), worker, seconds(1));
    run.tick(seconds(2));
    assert_eq!((run.phase(), run.awaited()), (&Phase::Finishing, vec![TaskId::worker(0)]));
    let (_, decisions) = join(&mut run, TaskId::worker(0), 3);
    assert!(decisions.contains(&Decision::Start(WorkerId(0))), "{decisions:?}");
    assert!(run.worker_finished(WorkerId(0)).contains(&Decision::AllFinished));
    assert_eq!(run.concluded(WorkerId(0)), [Decision::Save]);
}

#[test]
fn a_worker_told_to_stop_while_the_run_rolls_back_does_not_end_it() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.tick(seconds(3));
    let (worker, _) = join(&mut run, TaskId::worker(1), 3);
    assert_eq!(run.goodbye(TaskId::worker(1), worker, seconds(3)), []);
    assert_eq!(run.phase(), &Phase::Gathering, "worker 0 is about to come in again");
}
