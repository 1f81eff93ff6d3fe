//! Servers that hold nothing: awaited at the start, never missed later.

use super::*;

/// A run with a ps that holds everything, a ps that holds nothing, and a worker.
fn training_with_an_idle_ps(checkpoints: bool) -> (Lifecycle, Incarnation) {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints, ..config(1) });
    join(&mut run, PS, 0);
    join(&mut run, TaskId::worker(0), 0);
    assert_eq!(run.set_active_servers(&[ServerId(0)].into()), []);
    assert_eq!(run.missing(), [TaskId::ps(1)], "it is to hear of the end, so it is waited for at the beginning");
    let (idle, decisions) = join(&mut run, TaskId::ps(1), 0);
    assert_eq!(decisions, [Decision::Prepare]);
    assert_eq!(run.awaited(), [PS]);
    run.server_ready(PS, false);
    run.initialised();
    assert_eq!(run.phase(), &Phase::Training);
    (run, idle)
}

#[test]
fn nothing_is_lost_with_a_server_that_holds_nothing() {
    for checkpoints in [false, true] {
        let (mut run, idle) = training_with_an_idle_ps(checkpoints);
        run.disconnected(TaskId::ps(1), idle, seconds(1));
        let decisions = run.tick(seconds(2));
        assert!(matches!(&decisions[..], [Decision::IdleLeft(task, _)] if *task == TaskId::ps(1)), "{decisions:?}");
        assert_eq!(run.phase(), &Phase::Training);
        let (_, decisions) = join(&mut run, TaskId::ps(1), 3);
        assert_eq!(
            decisions,
            [Decision::PrepareIdle(TaskId::ps(1))],
            "it comes back, and nothing has to be done again"
        );
        assert_eq!(run.phase(), &Phase::Training);
    }
}

#[test]
fn a_server_that_holds_nothing_may_be_told_to_stop() {
    let (mut run, idle) = training_with_an_idle_ps(true);
    let decisions = run.goodbye(TaskId::ps(1), idle, seconds(1));
    assert_eq!(decisions, [Decision::IdleLeft(TaskId::ps(1), "ps 1 was told to stop".into())]);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn a_run_that_goes_back_to_a_checkpoint_does_not_wait_for_a_server_that_holds_nothing() {
    let (mut run, idle) = training_with_an_idle_ps(true);
    run.goodbye(TaskId::ps(1), idle, seconds(1));
    let (_, decisions) = {
        let first = run.incarnation(PS).unwrap();
        run.disconnected(PS, first, seconds(2));
        run.tick(seconds(4));
        assert_eq!(run.phase(), &Phase::Gathering);
        join(&mut run, PS, 5);
        assert_eq!(run.missing(), [TaskId::worker(0)]);
        join(&mut run, TaskId::worker(0), 5)
    };
    assert!(decisions.contains(&Decision::Prepare), "{decisions:?}");
}

#[test]
fn a_second_coordinator_begins_without_a_server_that_holds_nothing_as_soon_as_it_knows() {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    run.begun_before();
    let (_, decisions) = join(&mut run, TaskId::worker(0), 0);
    assert!(!decisions.contains(&Decision::Prepare), "it is not known yet what ps 1 holds: {decisions:?}");
    assert_eq!(run.set_active_servers(&[ServerId(0)].into()), [Decision::Prepare]);
}

#[test]
fn a_server_without_parameters_is_not_missed_after_the_end() {
    let (mut run, idle) = training_with_an_idle_ps(false);
    run.worker_finished(WorkerId(0));
    run.concluded(WorkerId(0));
    assert_eq!(run.phase(), &Phase::Over(Outcome::done()));
    run.disconnected(TaskId::ps(1), idle, seconds(1));
    assert_eq!(run.tick(seconds(5)), []);
}
