//! Every event of a run's life, and what follows from it.

use super::*;

const PS: TaskId = TaskId { job: Job::Ps, index: 0 };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn join(run: &mut Lifecycle, task: TaskId, now: u64) -> (Incarnation, Vec<Effect>) {
    run.join(task, None, seconds(now)).unwrap()
}

fn lifecycle(workers: u32) -> Lifecycle {
    Lifecycle::new(config(workers))
}

fn config(workers: u32) -> LifecycleConfig {
    LifecycleConfig {
        servers: 1,
        workers: Some(workers),
        patience: Patience::new(seconds(10)),
        peer_timeout: seconds(60),
        checkpoints: false,
        before: Incarnation(0),
    }
}

fn goodbye(run: &mut Lifecycle, worker: u32) -> Vec<Effect> {
    let task = TaskId::worker(worker);
    let incarnation = run.membership.incarnation(task).unwrap();
    run.goodbye(task, incarnation, seconds(0))
}

/// A run of two workers in training, and the workers' incarnations.
fn training() -> (Lifecycle, [Incarnation; 2]) {
    training_of(lifecycle(2))
}

fn training_of(mut run: Lifecycle) -> (Lifecycle, [Incarnation; 2]) {
    join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::from(WorkerId(0)), 0);
    let (second, _) = join(&mut run, TaskId::from(WorkerId(1)), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert_eq!(run.phase(), &Phase::Training);
    (run, [first, second])
}

/// A run of a ps that holds everything, one that holds nothing, and a worker.
fn training_with_an_idle_ps(checkpoints: bool) -> (Lifecycle, Incarnation) {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints, ..config(1) });
    join(&mut run, PS, 0);
    join(&mut run, TaskId::worker(0), 0);
    assert_eq!(run.set_active_servers(&[ServerId(0)].into()), []);
    assert_eq!(run.missing(), [TaskId::ps(1)], "it is to hear of the end, so it is waited for at the beginning");
    let (idle, effects) = join(&mut run, TaskId::ps(1), 0);
    assert_eq!(effects, [Effect::Prepare]);
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
        let effects = run.tick(seconds(2));
        assert!(matches!(&effects[..], [Effect::IdleLeft(task, _)] if *task == TaskId::ps(1)), "{effects:?}");
        assert_eq!(run.phase(), &Phase::Training);
        let (_, effects) = join(&mut run, TaskId::ps(1), 3);
        assert_eq!(effects, [Effect::PrepareIdle(TaskId::ps(1))], "it comes back, and nothing has to be done again");
        assert_eq!(run.phase(), &Phase::Training);
    }
}

#[test]
fn a_server_that_holds_nothing_may_be_told_to_stop() {
    let (mut run, idle) = training_with_an_idle_ps(true);
    let effects = run.goodbye(TaskId::ps(1), idle, seconds(1));
    assert_eq!(effects, [Effect::IdleLeft(TaskId::ps(1), "ps 1 was told to stop".into())]);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn a_run_that_goes_back_to_a_checkpoint_does_not_wait_for_a_server_that_holds_nothing() {
    let (mut run, idle) = training_with_an_idle_ps(true);
    run.goodbye(TaskId::ps(1), idle, seconds(1));
    let (_, effects) = {
        let first = run.incarnation(PS).unwrap();
        run.disconnected(PS, first, seconds(2));
        run.tick(seconds(4));
        assert_eq!(run.phase(), &Phase::Gathering);
        join(&mut run, PS, 5);
        assert_eq!(run.missing(), [TaskId::worker(0)]);
        join(&mut run, TaskId::worker(0), 5)
    };
    assert!(effects.contains(&Effect::Prepare), "{effects:?}");
}

#[test]
fn a_second_coordinator_begins_without_a_server_that_holds_nothing_as_soon_as_it_knows() {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    run.begun_before();
    let (_, effects) = join(&mut run, TaskId::worker(0), 0);
    assert!(!effects.contains(&Effect::Prepare), "it is not known yet what ps 1 holds: {effects:?}");
    assert_eq!(run.set_active_servers(&[ServerId(0)].into()), [Effect::Prepare]);
}

#[test]
fn whatever_the_order_of_arrival_the_last_one_starts_the_run() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let tasks = [PS, TaskId::from(WorkerId(0)), TaskId::from(WorkerId(1))];
        let mut run = lifecycle(2);
        for (place, index) in order.iter().enumerate() {
            let (_, effects) = join(&mut run, tasks[*index], 0);
            assert_eq!(effects.contains(&Effect::Prepare), place == 2);
        }
        assert_eq!(run.server_ready(PS, false), vec![Effect::Initialise(WorkerId(0))]);
        assert_eq!(run.initialised(), vec![Effect::Start(WorkerId(0)), Effect::Start(WorkerId(1))]);
    }
}

#[test]
fn until_training_begins_it_is_known_whom_it_waits_for() {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, ..config(1) });
    let (other, worker) = (TaskId::ps(1), TaskId::worker(0));
    assert_eq!(run.awaited(), [PS, other, worker]);
    for task in [worker, PS, other] {
        join(&mut run, task, 0);
    }
    assert_eq!(run.awaited(), [PS, other]);
    run.server_ready(PS, false);
    assert_eq!(run.awaited(), [other]);
    run.server_ready(other, false);
    assert_eq!(run.awaited(), [worker]);
    run.initialised();
    assert_eq!(run.awaited(), []);
}

#[test]
fn another_coordinator_ends_the_run_whatever_it_was_about_to_do() {
    let (mut run, _) = training_of(Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) }));
    assert_eq!(run.failed(Outcome { exit_code: exit_code::USAGE, reason: String::new() }), [Effect::Save]);
    let overtaken = Outcome { exit_code: exit_code::CHECKPOINT, reason: "overtaken".to_owned() };
    assert_eq!(run.overtaken(overtaken.clone()), [Effect::Over(overtaken)]);
}

#[test]
fn without_a_number_of_workers_the_run_begins_with_the_first_and_takes_whoever_comes() {
    let mut run = Lifecycle::new(LifecycleConfig { workers: None, ..config(0) });
    join(&mut run, PS, 0);
    let (_, effects) = join(&mut run, TaskId::worker(7), 0);
    assert!(!effects.contains(&Effect::Prepare), "worker 0 is the chief");
    let (_, effects) = join(&mut run, TaskId::worker(0), 0);
    assert!(effects.contains(&Effect::Prepare));
    run.server_ready(PS, false);
    assert_eq!(run.initialised(), vec![Effect::Start(WorkerId(0)), Effect::Start(WorkerId(7))]);
    let (_, effects) = join(&mut run, TaskId::worker(3), 1);
    assert!(effects.contains(&Effect::Start(WorkerId(3))));
    assert_eq!(run.workers(), [WorkerId(0), WorkerId(3), WorkerId(7)]);
    assert!(matches!(run.join(TaskId::ps(1), None, seconds(1)), Err(JoinError::Unknown(..))));
}

#[test]
fn a_worker_that_leaves_while_the_last_checkpoint_is_written_is_not_waited_for() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) });
    let (ps, _) = join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::worker(0), 0);
    let (second, _) = join(&mut run, TaskId::worker(1), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert_eq!(run.goodbye(PS, ps, seconds(1)), [Effect::Save]);
    assert_eq!(run.goodbye(TaskId::worker(0), first, seconds(1)), []);
    assert_eq!(run.goodbye(TaskId::worker(1), second, seconds(1)), []);
    let left = |worker, incarnation| Effect::Left(WorkerId(worker), incarnation, "told to stop".to_owned());
    assert_eq!(run.tick(seconds(1) + 2 * FAREWELL), [], "the cut may not be made yet");
    assert_eq!(run.tick(seconds(1) + 3 * FAREWELL), [left(0, first), left(1, second)]);
}

#[test]
fn the_missing_are_named() {
    let mut run = lifecycle(2);
    join(&mut run, TaskId::from(WorkerId(1)), 0);
    let missing: Vec<String> = run.missing().iter().map(ToString::to_string).collect();
    assert_eq!(missing, ["ps 0", "worker 0"]);
}

#[test]
fn the_run_ends_after_all_have_finished_and_the_chief_has_said_goodbye() {
    let (mut run, _) = training();
    assert_eq!(run.worker_finished(WorkerId(0)).len(), 1);
    assert!(run.worker_finished(WorkerId(1)).contains(&Effect::AllFinished));
    assert_eq!(run.concluded(WorkerId(1)), [], "it is not the chief");
    assert_eq!(run.concluded(WorkerId(0)), [Effect::Over(Outcome::done())]);
}

#[test]
fn a_run_that_still_trains_is_not_concluded() {
    let (mut run, _) = training();
    assert_eq!(run.concluded(WorkerId(0)), []);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn a_worker_that_is_told_to_stop_leaves_the_others_training() {
    let (mut run, [_, second]) = training();
    assert_eq!(goodbye(&mut run, 1), []);
    assert_eq!(run.tick(FAREWELL - Duration::from_millis(1)), [], "it might be the first of all");
    assert_eq!(run.tick(FAREWELL), [Effect::Left(WorkerId(1), second, "told to stop".into())]);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn when_all_are_told_to_stop_nobody_trains_without_the_first() {
    let (mut run, _) = training_with_checkpoints();
    assert_eq!(goodbye(&mut run, 1), []);
    assert_eq!(run.goodbye(PS, Incarnation(1), FAREWELL / 2), [Effect::Save]);
    assert_eq!(run.tick(FAREWELL), []);
}

#[test]
fn one_that_was_told_to_stop_is_reported_before_the_end() {
    let (mut run, [_, second]) = training();
    goodbye(&mut run, 1);
    let effects = run.worker_finished(WorkerId(0));
    assert_eq!(effects[0], Effect::Left(WorkerId(1), second, "told to stop".into()));
    assert_eq!(effects.last(), Some(&Effect::AllFinished));
}

#[test]
fn a_dead_worker_is_left_out_and_the_others_go_on() {
    let (mut run, [first, second]) = training();
    run.heard(TaskId::from(WorkerId(0)), first, seconds(9));
    run.heard(PS, Incarnation(1), seconds(9));
    let effects = run.tick(seconds(10));
    assert_eq!(effects, vec![Effect::Left(WorkerId(1), second, "no sign of life for 10.0 s".into())]);
    assert!(run.worker_finished(WorkerId(0)).contains(&Effect::AllFinished));
}

#[test]
fn a_worker_started_again_joins_the_running_training_with_a_later_incarnation() {
    let (mut run, [_, second]) = training();
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    run.heard(PS, Incarnation(1), seconds(3));
    run.tick(seconds(3));
    let (again, effects) = join(&mut run, TaskId::from(WorkerId(1)), 4);
    assert!(again > second);
    assert_eq!(effects, vec![Effect::Joined(WorkerId(1), again), Effect::Start(WorkerId(1))]);
    run.worker_finished(WorkerId(0));
    assert_eq!(run.phase(), &Phase::Training, "the one that came back still trains");
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
    assert_eq!(run.concluded(WorkerId(1)), [Effect::Over(Outcome::done())]);
}

#[test]
fn when_the_chief_dies_before_the_first_values_another_brings_them() {
    let mut run = lifecycle(2);
    join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::from(WorkerId(0)), 0);
    join(&mut run, TaskId::from(WorkerId(1)), 0);
    run.server_ready(PS, false);
    run.disconnected(TaskId::from(WorkerId(0)), first, seconds(0));
    assert!(run.tick(seconds(2)).contains(&Effect::Initialise(WorkerId(1))));
}

#[test]
fn the_loss_of_every_worker_ends_the_run() {
    let (mut run, [first, second]) = training();
    run.disconnected(TaskId::from(WorkerId(0)), first, seconds(1));
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    let effects = run.tick(seconds(3));
    let over = Outcome { exit_code: exit_code::PEERS, reason: "no workers are left".into() };
    assert!(effects.contains(&Effect::Over(over)), "{effects:?}");
}

#[test]
fn the_loss_of_a_server_ends_the_run_by_name() {
    let (mut run, _) = training();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let effects = run.tick(seconds(2));
    assert!(matches!(&effects[..], [Effect::Over(outcome)] if outcome.reason.starts_with("lost ps 0")));
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
fn a_server_that_is_lost_while_others_are_awaited_is_awaited_again() {
    let mut run = lifecycle(1);
    let (first, _) = join(&mut run, PS, 0);
    run.disconnected(PS, first, seconds(1));
    assert_eq!(run.tick(seconds(3)), Vec::new());
    assert_eq!(run.missing(), [PS, TaskId::worker(0)]);
    join(&mut run, PS, 4);
    assert_eq!(run.missing(), [TaskId::worker(0)]);
}

#[test]
fn a_server_that_is_started_again_during_training_ends_the_run_by_name() {
    let (mut run, _) = training();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let (_, effects) = join(&mut run, PS, 1);
    assert!(matches!(&effects[..], [Effect::Over(outcome)] if outcome.reason.starts_with("ps 0 was restarted")));
}

#[test]
fn the_loss_of_the_only_worker_before_training_ends_the_run() {
    let mut run = lifecycle(1);
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.disconnected(TaskId::worker(0), worker, seconds(0));
    let effects = run.tick(seconds(2));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Over(_))), "{effects:?}");
}

#[test]
fn a_worker_that_comes_when_nobody_trains_any_more_is_told_so_and_changes_nothing() {
    let (mut run, [_, second]) = training();
    goodbye(&mut run, 1);
    run.worker_finished(WorkerId(0));
    assert_eq!(run.phase(), &Phase::Finishing);
    let error = run.join(TaskId::worker(1), None, seconds(1)).unwrap_err();
    assert_eq!(error, JoinError::Over(Outcome { exit_code: 0, reason: NOTHING_LEFT.into() }));
    assert!(!run.is_played_by(TaskId::worker(1), second));
    assert_eq!(run.present_workers(), [WorkerId(0)]);
}

#[test]
fn after_a_broken_connection_the_same_process_goes_on() {
    let (mut run, [_, second]) = training();
    run.disconnected(TaskId::from(WorkerId(1)), second, seconds(1));
    let (again, effects) = run.join(TaskId::from(WorkerId(1)), Some(second), seconds(1)).unwrap();
    assert_eq!((again, effects), (second, Vec::new()));
}

/// As [`training`], with checkpoints.
fn training_with_checkpoints() -> (Lifecycle, [Incarnation; 2]) {
    training_of(Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) }))
}

#[test]
fn a_lost_server_is_waited_for_and_everyone_comes_in_again() {
    let (mut run, [first, _]) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let effects = run.tick(seconds(3));
    assert!(matches!(&effects[..], [Effect::Regather(reason)] if reason.starts_with("lost ps 0")), "{effects:?}");
    assert_eq!(run.missing(), [PS, TaskId::worker(0), TaskId::worker(1)]);
    let (again, _) = join(&mut run, TaskId::worker(0), 3);
    assert!(again > first);
    join(&mut run, TaskId::worker(1), 3);
    let (_, effects) = join(&mut run, PS, 5);
    assert_eq!(effects, [Effect::Prepare]);
    assert_eq!(run.server_ready(PS, true), [Effect::Start(WorkerId(0)), Effect::Start(WorkerId(1))]);
}

#[test]
fn a_server_that_is_back_before_it_was_missed_is_restored_too() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    let (_, effects) = join(&mut run, PS, 1);
    assert!(matches!(&effects[..], [Effect::Regather(reason)] if reason.starts_with("ps 0 was restarted")));
    assert_eq!(run.missing(), [TaskId::worker(0), TaskId::worker(1)]);
}

#[test]
fn a_lost_server_that_does_not_come_back_ends_the_run_by_name() {
    let (mut run, _) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.tick(seconds(3));
    join(&mut run, TaskId::worker(0), 3);
    join(&mut run, TaskId::worker(1), 3);
    for worker in [0, 1] {
        let incarnation = run.membership.incarnation(TaskId::worker(worker)).unwrap();
        run.heard(TaskId::worker(worker), incarnation, seconds(63));
    }
    let effects = run.tick(seconds(63));
    let reason = "gave up waiting for ps 0 after 60 s".to_owned();
    assert_eq!(effects, [Effect::Over(Outcome { exit_code: exit_code::PEERS, reason })]);
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
    assert_eq!(run.tick(seconds(13)), [Effect::Prepare]);
    assert_eq!(run.server_ready(PS, true), [Effect::Start(WorkerId(1))]);
}

#[test]
fn without_a_worker_the_parameters_wait_for_one_and_it_becomes_chief() {
    let (mut run, [first, second]) = training_with_checkpoints();
    run.disconnected(TaskId::worker(0), first, seconds(1));
    run.disconnected(TaskId::worker(1), second, seconds(1));
    run.heard(PS, Incarnation(1), seconds(9));
    run.tick(seconds(3));
    assert_eq!(run.phase(), &Phase::Training);
    let (_, effects) = join(&mut run, TaskId::worker(1), 9);
    assert!(effects.contains(&Effect::Start(WorkerId(1))));
    assert_eq!(run.chief(), WorkerId(1));
}

#[test]
fn the_end_waits_for_the_last_checkpoint() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.concluded(WorkerId(0)), [Effect::Save]);
    assert_eq!(run.saved(), [Effect::Over(Outcome::done())]);
    assert_eq!(run.saved(), []);
}

#[test]
fn a_server_that_leaves_after_the_end_is_not_missed() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    run.concluded(WorkerId(0));
    run.saved();
    run.disconnected(PS, Incarnation(1), seconds(1));
    assert_eq!(run.tick(seconds(3)), []);
    assert_eq!(run.phase(), &Phase::Over(Outcome::done()));
}

#[test]
fn a_loss_that_is_no_number_is_not_saved() {
    let (mut run, _) = training_with_checkpoints();
    let outcome = Outcome { exit_code: exit_code::NUMERIC, reason: "the loss is NaN".into() };
    assert_eq!(run.failed(outcome.clone()), [Effect::Over(outcome)]);
}

#[test]
fn when_the_last_worker_is_told_to_stop_the_parameters_are_saved() {
    let (mut run, _) = training_with_checkpoints();
    goodbye(&mut run, 0);
    assert!(goodbye(&mut run, 1).contains(&Effect::Save));
    let effects = run.saved();
    assert!(matches!(&effects[..], [Effect::Over(outcome)] if outcome.exit_code == exit_code::TERMINATED));
}

/// A run with checkpoints whose server and chief were lost together, and whose server and worker 1 are back; it prepares.
fn without_its_chief() -> Lifecycle {
    let (mut run, [chief, _]) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.disconnected(TaskId::worker(0), chief, seconds(1));
    run.tick(seconds(3));
    let (worker, _) = join(&mut run, TaskId::worker(1), 3);
    let (server, _) = join(&mut run, PS, 3);
    run.heard(TaskId::worker(1), worker, seconds(13));
    run.heard(PS, server, seconds(13));
    assert_eq!(run.tick(seconds(13)), [Effect::Prepare]);
    run
}

#[test]
fn when_server_and_chief_are_lost_together_another_is_chief_after_the_rollback() {
    let mut run = without_its_chief();
    assert_eq!(run.chief(), WorkerId(1));
    assert_eq!(run.server_ready(PS, true), [Effect::Start(WorkerId(1))]);
    assert!(run.worker_finished(WorkerId(1)).contains(&Effect::AllFinished));
    assert_eq!(run.concluded(WorkerId(1)), [Effect::Save]);
}

#[test]
fn when_server_and_chief_are_lost_before_a_checkpoint_another_sends_the_first_values() {
    let mut run = without_its_chief();
    assert_eq!(run.server_ready(PS, false), [Effect::Initialise(WorkerId(1))]);
    assert_eq!(run.initialised(), [Effect::Start(WorkerId(1))]);
}

/// Keeps everybody alive until then, and lets that much time pass.
fn pass_with_all_alive(run: &mut Lifecycle, now: u64) -> Vec<Effect> {
    for task in [PS, TaskId::worker(0), TaskId::worker(1)] {
        let incarnation = run.membership.incarnation(task).unwrap();
        run.heard(task, incarnation, seconds(now));
    }
    run.tick(seconds(now))
}

fn gave_up(effects: &[Effect]) -> &str {
    match effects {
        [Effect::Over(Outcome { exit_code: exit_code::PEERS, reason })] => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_that_does_not_get_ready_is_given_up_by_name() {
    let mut run = lifecycle(2);
    for task in [PS, TaskId::worker(0), TaskId::worker(1)] {
        join(&mut run, task, 0);
    }
    assert_eq!(pass_with_all_alive(&mut run, 1), []);
    run.progressed(seconds(50));
    assert_eq!(pass_with_all_alive(&mut run, 61), [], "it reads a large checkpoint");
    let effects = pass_with_all_alive(&mut run, 110);
    assert_eq!(gave_up(&effects), "gave up waiting for ps 0 to prepare its parameters after 60 s");
}

#[test]
fn a_chief_that_does_not_send_the_first_values_is_given_up_by_name() {
    let mut run = lifecycle(2);
    for task in [PS, TaskId::worker(0), TaskId::worker(1)] {
        join(&mut run, task, 0);
    }
    run.server_ready(PS, false);
    assert_eq!(pass_with_all_alive(&mut run, 1), []);
    let effects = pass_with_all_alive(&mut run, 61);
    assert_eq!(gave_up(&effects), "gave up waiting for worker 0 to send the initial values after 60 s");
}

#[test]
fn a_chief_that_does_not_come_to_an_end_with_its_scores_is_given_up_by_name() {
    let (mut run, _) = training();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.awaited(), [TaskId::worker(0)]);
    assert_eq!(pass_with_all_alive(&mut run, 1), []);
    assert_eq!(pass_with_all_alive(&mut run, 700), [], "scoring may take its time");
    let effects = pass_with_all_alive(&mut run, 721);
    assert_eq!(gave_up(&effects), "gave up waiting for worker 0 to score the network after 720 s");
}

#[test]
fn with_checkpoints_workers_lost_while_the_servers_prepare_are_waited_for() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.disconnected(TaskId::worker(0), worker, seconds(0));
    let effects = run.tick(seconds(2));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Over(_))), "{effects:?}");
    assert_eq!(run.missing(), [TaskId::worker(0)]);
    let (_, effects) = join(&mut run, TaskId::worker(0), 3);
    assert!(effects.contains(&Effect::Prepare));
    assert_eq!(run.server_ready(PS, false), [Effect::Initialise(WorkerId(0))]);
}

#[test]
fn with_checkpoints_a_chief_lost_while_it_scored_is_waited_for_and_scores_again() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(1) });
    join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert!(run.worker_finished(WorkerId(0)).contains(&Effect::AllFinished));
    run.disconnected(TaskId::worker(0), worker, seconds(1));
    run.tick(seconds(2));
    assert_eq!((run.phase(), run.awaited()), (&Phase::Finishing, vec![TaskId::worker(0)]));
    let (_, effects) = join(&mut run, TaskId::worker(0), 3);
    assert!(effects.contains(&Effect::Start(WorkerId(0))), "{effects:?}");
    assert!(run.worker_finished(WorkerId(0)).contains(&Effect::AllFinished));
    assert_eq!(run.concluded(WorkerId(0)), [Effect::Save]);
}

#[test]
fn a_process_whose_host_vanished_is_replaced_and_one_that_lives_is_not() {
    let (mut run, [_, second]) = training();
    let claim = |run: &mut Lifecycle, now| run.join(TaskId::worker(1), None, seconds(now));
    assert_eq!(claim(&mut run, 1), Err(JoinError::Contested(TaskId::worker(1))));
    pass_with_all_alive(&mut run, 3);
    assert_eq!(claim(&mut run, 3), Err(JoinError::Taken(TaskId::worker(1))));
    assert_eq!(claim(&mut run, 4), Err(JoinError::Contested(TaskId::worker(1))));
    let effects = run.tick(seconds(7));
    assert!(effects.contains(&Effect::Left(WorkerId(1), second, "no sign of life for 4.0 s".into())), "{effects:?}");
    assert!(run.is_dead(TaskId::worker(1), second));
    assert!(claim(&mut run, 7).unwrap().0 > second);
}

#[test]
fn a_coordinator_started_again_after_the_end_ends_well_if_no_worker_comes() {
    let config = LifecycleConfig { checkpoints: true, ..config(2) };
    let mut run = Lifecycle::new(config);
    run.finished_before();
    let (server, _) = join(&mut run, PS, 0);
    run.tick(seconds(0));
    run.heard(PS, server, seconds(59));
    assert_eq!(run.tick(seconds(59)), [], "a worker may want to train on");
    assert_eq!(run.tick(seconds(60)), [Effect::Over(Outcome::done())]);
    let mut run = Lifecycle::new(config);
    run.finished_before();
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    run.heard(TaskId::worker(0), worker, seconds(9));
    assert_eq!(run.tick(seconds(10)), [], "one does");
}

#[test]
fn the_last_checkpoint_waits_for_no_push_that_the_last_worker_to_stop_has_left_unfinished() {
    let (mut run, [first, second]) = training_with_checkpoints();
    goodbye(&mut run, 0);
    goodbye(&mut run, 1);
    let left = |worker, incarnation| Effect::Left(WorkerId(worker), incarnation, "told to stop".into());
    assert_eq!(run.tick(3 * FAREWELL), [left(0, first), left(1, second)]);
    assert!(matches!(run.phase(), Phase::Saving(_)));
}

#[test]
fn a_run_whose_last_checkpoint_could_not_be_written_is_no_success() {
    let not_saved = "the last checkpoint could not be written: the disk is full";
    let ends = |end: fn(&mut Lifecycle) -> Vec<Effect>, exit_code, reason: &str| {
        let (mut run, _) = training_with_checkpoints();
        end(&mut run);
        assert!(matches!(run.phase(), Phase::Saving(_)));
        assert_eq!(run.not_saved("the disk is full"), [Effect::Over(Outcome { exit_code, reason: reason.to_owned() })]);
    };
    let concluded = |run: &mut Lifecycle| {
        run.worker_finished(WorkerId(0));
        run.worker_finished(WorkerId(1));
        run.concluded(WorkerId(0))
    };
    ends(concluded, exit_code::CHECKPOINT, not_saved);
    let stopped = |run: &mut Lifecycle| run.goodbye(PS, Incarnation(1), seconds(0));
    ends(stopped, exit_code::CHECKPOINT, &format!("ps 0 was told to stop, and {not_saved}"));
    let failed = |run: &mut Lifecycle| run.failed(Outcome { exit_code: exit_code::PEERS, reason: "gave up".into() });
    ends(failed, exit_code::PEERS, &format!("gave up, and {not_saved}"));
}

#[test]
fn a_server_lost_before_the_last_checkpoint_is_written_is_no_success_either() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    run.concluded(WorkerId(0));
    run.disconnected(PS, Incarnation(1), seconds(1));
    let effects = run.tick(seconds(3));
    let over = effects.iter().find_map(|effect| if let Effect::Over(outcome) = effect { Some(outcome) } else { None });
    let over = over.unwrap_or_else(|| panic!("not over: {effects:?}"));
    assert_eq!(over.exit_code, exit_code::CHECKPOINT);
    assert!(over.reason.contains("could not be written: lost ps 0: "), "{}", over.reason);
}

#[test]
fn every_lost_server_has_its_own_time_to_come_back() {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 3, checkpoints: true, ..config(1) });
    let all = [PS, TaskId::ps(1), TaskId::ps(2), TaskId::worker(0)];
    let incarnations = all.map(|task| join(&mut run, task, 0).0);
    all.iter().take(3).for_each(|server| drop(run.server_ready(*server, false)));
    run.initialised();
    run.disconnected(TaskId::ps(1), incarnations[1], seconds(1));
    run.tick(seconds(3));
    assert_eq!(run.phase(), &Phase::Gathering);
    let worker = join(&mut run, TaskId::worker(0), 3).0;
    let keep_alive = |run: &mut Lifecycle, until: u64| {
        run.heard(PS, incarnations[0], seconds(until));
        run.heard(TaskId::worker(0), worker, seconds(until));
    };
    for second in 3..55 {
        keep_alive(&mut run, second);
        run.heard(TaskId::ps(2), incarnations[2], seconds(second));
        assert_eq!(run.tick(seconds(second)), []);
    }
    run.disconnected(TaskId::ps(2), incarnations[2], seconds(55));
    keep_alive(&mut run, 58);
    run.tick(seconds(58));
    let back = join(&mut run, TaskId::ps(1), 60).0;
    for second in 60..110 {
        keep_alive(&mut run, second);
        run.heard(TaskId::ps(1), back, seconds(second));
        assert_eq!(run.tick(seconds(second)), [], "ps 2 has been missing for {} s", second - 55);
    }
    keep_alive(&mut run, 125);
    run.heard(TaskId::ps(1), back, seconds(125));
    let effects = run.tick(seconds(125));
    assert!(matches!(&effects[..], [Effect::Over(outcome)] if outcome.exit_code == exit_code::PEERS), "{effects:?}");
}

#[test]
fn workers_have_time_to_come_back_after_the_last_server() {
    let (mut run, [first, _]) = training_with_checkpoints();
    run.disconnected(PS, Incarnation(1), seconds(1));
    run.disconnected(TaskId::worker(1), Incarnation(3), seconds(1));
    run.tick(seconds(3));
    let first = join(&mut run, TaskId::worker(0), 3).0.max(first);
    for second in 3..30 {
        run.heard(TaskId::worker(0), first, seconds(second));
        assert_eq!(run.tick(seconds(second)), []);
    }
    let server = join(&mut run, PS, 30).0;
    for second in 30..40 {
        run.heard(TaskId::worker(0), first, seconds(second));
        run.heard(PS, server, seconds(second));
        assert_eq!(run.tick(seconds(second)), [], "worker 1 is about to come");
    }
    let (_, effects) = join(&mut run, TaskId::worker(1), 39);
    assert!(effects.contains(&Effect::Prepare), "{effects:?}");
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

#[test]
fn a_run_that_was_taken_up_again_after_its_end_is_not_finished_for_that() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, peer_timeout: seconds(300), ..config(1) });
    run.finished_before();
    let (server, _) = join(&mut run, PS, 0);
    join(&mut run, TaskId::worker(0), 5);
    run.server_ready(PS, true);
    assert_eq!(run.phase(), &Phase::Training);
    run.disconnected(PS, server, seconds(6));
    run.tick(seconds(8));
    let (server, _) = join(&mut run, PS, 10);
    run.heard(PS, server, seconds(79));
    run.tick(seconds(10));
    assert_eq!(run.tick(seconds(79)), [], "it waits for its worker, as any run does");
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
    assert_eq!(early.unwrap_err(), JoinError::Contested(TaskId::worker(0)), "it is to ask again");
    let (_, effects) = join(&mut run, TaskId::worker(0), 1);
    assert!(effects.contains(&Effect::Start(WorkerId(0))), "{effects:?}");
}

#[test]
fn a_chief_whose_host_vanished_while_it_scored_is_replaced_when_it_is_started_elsewhere() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    let elsewhere = run.join(TaskId::worker(0), None, seconds(1));
    assert_eq!(elsewhere.unwrap_err(), JoinError::Contested(TaskId::worker(0)), "it may live; it is to ask again");
    let comes_to_its_end = run.join(TaskId::worker(1), None, seconds(1)).unwrap_err();
    assert!(matches!(comes_to_its_end, JoinError::Over(_)), "{comes_to_its_end:?}");
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
