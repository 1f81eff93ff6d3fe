//! Who is let in, as which process, and what begins with it.

use super::*;

#[test]
fn whatever_the_order_of_arrival_the_last_one_starts_the_run() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let tasks = [PS, TaskId::from(WorkerId(0)), TaskId::from(WorkerId(1))];
        let mut run = lifecycle(2);
        for (place, index) in order.iter().enumerate() {
            let (_, decisions) = join(&mut run, tasks[*index], 0);
            assert_eq!(decisions.contains(&Decision::Prepare), place == 2);
        }
        assert_eq!(run.server_ready(PS, false), vec![Decision::Initialise(WorkerId(0))]);
        assert_eq!(run.initialised(), vec![Decision::Start(WorkerId(0)), Decision::Start(WorkerId(1))]);
    }
}

#[test]
fn without_a_number_of_workers_the_run_begins_with_the_first_and_takes_whoever_comes() {
    let mut run = Lifecycle::new(LifecycleConfig { workers: None, ..config(0) });
    join(&mut run, PS, 0);
    let (_, decisions) = join(&mut run, TaskId::worker(7), 0);
    assert!(!decisions.contains(&Decision::Prepare), "worker 0 is the chief");
    let (_, decisions) = join(&mut run, TaskId::worker(0), 0);
    assert!(decisions.contains(&Decision::Prepare));
    run.server_ready(PS, false);
    assert_eq!(run.initialised(), vec![Decision::Start(WorkerId(0)), Decision::Start(WorkerId(7))]);
    let (_, decisions) = join(&mut run, TaskId::worker(3), 1);
    assert!(decisions.contains(&Decision::Start(WorkerId(3))));
    assert_eq!(run.workers(), [WorkerId(0), WorkerId(3), WorkerId(7)]);
    assert!(matches!(run.join(TaskId::ps(1), None, seconds(1)), Err(JoinError::Unknown(..))));
}

#[test]
fn a_worker_that_nobody_has_asked_for_is_not_waited_for_when_it_comes_and_goes_before_the_run_begins() {
    let mut run = Lifecycle::new(LifecycleConfig { workers: None, checkpoints: true, ..config(0) });
    join(&mut run, PS, 0);
    let (early, _) = join(&mut run, TaskId::worker(3), 0);
    join(&mut run, TaskId::worker(5), 0);
    run.disconnected(TaskId::worker(3), early, seconds(1));
    goodbye(&mut run, 5);
    run.heard(PS, Incarnation(1), seconds(3));
    assert_eq!(run.tick(seconds(3)), []);
    assert_eq!(run.awaited(), [TaskId::worker(0)]);
    let (_, decisions) = join(&mut run, TaskId::worker(0), 4);
    assert!(decisions.contains(&Decision::Prepare), "{decisions:?}");
    assert_eq!(run.workers(), [WorkerId(0)], "nor when the run goes back to a checkpoint");
}

#[test]
fn a_worker_that_was_not_let_in_is_not_waited_for() {
    let mut run = Lifecycle::new(LifecycleConfig { workers: None, checkpoints: true, ..config(0) });
    join(&mut run, PS, 0);
    join(&mut run, TaskId::worker(0), 0);
    run.server_ready(PS, false);
    run.initialised();
    run.worker_finished(WorkerId(0));
    assert!(run.join(TaskId::worker(3), None, seconds(1)).is_err());
    assert_eq!(run.workers(), [WorkerId(0)]);
}

#[test]
fn a_worker_started_again_joins_the_running_training_with_a_later_incarnation() {
    let (mut run, [_, second]) = training();
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    run.heard(PS, Incarnation(1), seconds(3));
    run.tick(seconds(3));
    let (again, decisions) = join(&mut run, TaskId::from(WorkerId(1)), 4);
    assert!(again > second);
    assert_eq!(decisions, vec![Decision::Joined(WorkerId(1), again), Decision::Start(WorkerId(1))]);
    run.worker_finished(WorkerId(0));
    assert_eq!(run.phase(), &Phase::Training, "the one that came back still trains");
}

#[test]
fn a_second_process_for_the_same_task_is_refused_by_name() {
    let (mut run, [_, second]) = training();
    let claim = |run: &mut Lifecycle, now| run.join(TaskId::from(WorkerId(1)), None, seconds(now)).unwrap_err();
    assert!(claim(&mut run, 1).to_string().starts_with("another process already runs as worker 1; waiting"));
    run.heard(TaskId::worker(1), second, seconds(3));
    assert!(claim(&mut run, 3).to_string().starts_with("worker 1 is already running"));
    let stranger = run.join(TaskId::from(WorkerId(7)), None, seconds(1)).unwrap_err();
    assert_eq!(stranger.to_string(), "worker 7 is not in the cluster that ps 0 was started with (1 ps, 2 workers)");
}

#[test]
fn a_worker_that_comes_when_nobody_trains_any_more_changes_nothing_and_hears_how_the_run_ends() {
    let (mut run, [_, second]) = training();
    goodbye(&mut run, 1);
    run.worker_finished(WorkerId(0));
    assert_eq!(run.phase(), &Phase::Finishing);
    assert_eq!(run.join(TaskId::worker(1), None, seconds(1)), Err(JoinError::Scoring));
    assert!(run.has_left(TaskId::worker(1), second));
    assert_eq!(run.present_workers(), [WorkerId(0)]);
    run.concluded(WorkerId(0));
    assert_eq!(run.join(TaskId::worker(1), None, seconds(2)), Err(JoinError::Over(Outcome::done())));
}

#[test]
fn a_worker_that_comes_while_the_chief_scores_is_there_should_the_chief_be_lost() {
    let (mut run, [first, _]) = training_with_checkpoints();
    goodbye(&mut run, 1);
    run.worker_finished(WorkerId(0));
    assert_eq!(run.join(TaskId::worker(1), None, seconds(1)), Err(JoinError::Scoring));
    run.disconnected(TaskId::worker(0), first, seconds(1));
    run.tick(seconds(3));
    let (_, decisions) = join(&mut run, TaskId::worker(1), 3);
    assert!(decisions.contains(&Decision::Start(WorkerId(1))), "{decisions:?}");
}

#[test]
fn after_a_broken_connection_the_same_process_goes_on() {
    let (mut run, [_, second]) = training();
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    let (again, decisions) = run.join(TaskId::from(WorkerId(1)), Some(second), seconds(1)).unwrap();
    assert_eq!((again, decisions), (second, Vec::new()));
}

#[test]
fn a_process_whose_host_vanished_is_replaced_and_one_that_lives_is_not() {
    let (mut run, [_, second]) = training();
    let claim = |run: &mut Lifecycle, now| run.join(TaskId::worker(1), None, seconds(now));
    assert_eq!(claim(&mut run, 1), Err(JoinError::Contested(TaskId::worker(1))));
    pass_with_all_alive(&mut run, 3);
    assert_eq!(claim(&mut run, 3), Err(JoinError::Taken(TaskId::worker(1))));
    assert_eq!(claim(&mut run, 4), Err(JoinError::Contested(TaskId::worker(1))));
    let decisions = run.tick(seconds(7));
    assert!(
        decisions.contains(&Decision::Left(WorkerId(1), second, "no sign of life for 4.0 s".into())),
        "{decisions:?}"
    );
    assert!(run.is_dead(TaskId::worker(1), second));
    assert!(claim(&mut run, 7).unwrap().0 > second);
}

#[test]
fn a_worker_that_comes_back_when_the_last_one_died_scoring_scores_in_its_place() {
    let (mut run, [first, second]) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.phase(), &Phase::Finishing);
    run.disconnected(TaskId::worker(0), first, seconds(1));
    run.disconnected(TaskId::worker(1), second, seconds(1));
    let early = run.join(TaskId::worker(1), None, seconds(1));
    assert_eq!(early.unwrap_err(), JoinError::Scoring, "it is to ask again");
    let (_, decisions) = join(&mut run, TaskId::worker(0), 1);
    assert!(decisions.contains(&Decision::Start(WorkerId(0))), "{decisions:?}");
}

#[test]
fn a_chief_whose_host_vanished_while_it_scored_is_replaced_when_it_is_started_elsewhere() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    let elsewhere = run.join(TaskId::worker(0), None, seconds(1));
    assert_eq!(elsewhere.unwrap_err(), JoinError::Contested(TaskId::worker(0)), "it may live; it is to ask again");
    assert_eq!(run.join(TaskId::worker(1), None, seconds(1)), Err(JoinError::Scoring), "another waits");
}
