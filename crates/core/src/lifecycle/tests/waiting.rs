//! Whom a run waits for, and when it gives up.

use super::*;

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
fn the_missing_are_named() {
    let mut run = lifecycle(2);
    join(&mut run, TaskId::from(WorkerId(1)), 0);
    let missing: Vec<String> = run.missing().iter().map(ToString::to_string).collect();
    assert_eq!(missing, ["ps 0", "worker 0"]);
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
    let decisions = run.tick(seconds(63));
    let reason = "gave up waiting for ps 0 after 60 s".to_owned();
    assert_eq!(decisions, [Decision::Over(Outcome { exit_code: exit_code::PEERS, reason })]);
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
    let decisions = pass_with_all_alive(&mut run, 110);
    assert_eq!(gave_up(&decisions), "gave up waiting for ps 0 to prepare its parameters after 60 s");
}

#[test]
fn a_chief_that_does_not_send_the_first_values_is_given_up_by_name() {
    let mut run = lifecycle(2);
    for task in [PS, TaskId::worker(0), TaskId::worker(1)] {
        join(&mut run, task, 0);
    }
    run.server_ready(PS, false);
    assert_eq!(pass_with_all_alive(&mut run, 1), []);
    let decisions = pass_with_all_alive(&mut run, 61);
    assert_eq!(gave_up(&decisions), "gave up waiting for worker 0 to send the initial values after 60 s");
}

#[test]
fn a_chief_that_does_not_come_to_an_end_with_its_scores_is_given_up_by_name() {
    let (mut run, _) = training();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.awaited(), [TaskId::worker(0)]);
    assert_eq!(pass_with_all_alive(&mut run, 1), []);
    assert_eq!(pass_with_all_alive(&mut run, 700), [], "scoring may take its time");
    let decisions = pass_with_all_alive(&mut run, 721);
    assert_eq!(gave_up(&decisions), "gave up waiting for worker 0 to score the network after 720 s");
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
    let decisions = run.tick(seconds(125));
    assert!(
        matches!(&decisions[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code::PEERS),
        "{decisions:?}"
    );
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
    let (_, decisions) = join(&mut run, TaskId::worker(1), 39);
    assert!(decisions.contains(&Decision::Prepare), "{decisions:?}");
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
fn a_coordinator_started_again_after_the_end_ends_well_if_no_worker_comes() {
    let config = LifecycleConfig { checkpoints: true, ..config(2) };
    let mut run = Lifecycle::new(config);
    run.finished_before();
    let (server, _) = join(&mut run, PS, 0);
    run.tick(seconds(0));
    run.heard(PS, server, seconds(59));
    assert_eq!(run.tick(seconds(59)), [], "a worker may want to train on");
    assert_eq!(run.tick(seconds(60)), [Decision::Over(Outcome::done())]);
}

/// A coordinator that was restarted after the end of its run, with ps 0 and worker 0 of two. `begun` is whether the
/// worker reports that the run had begun. Another ps has learned of the end and does not come.
fn ended_and_started_again(begun: bool) -> (Lifecycle, impl Fn(&mut Lifecycle, u64) -> Vec<Decision>) {
    let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints: true, ..config(2) });
    run.finished_before();
    let (server, _) = join(&mut run, PS, 0);
    let (worker, _) = join(&mut run, TaskId::worker(0), 0);
    if begun {
        assert_eq!(run.begun_before(), []);
    }
    run.tick(seconds(0));
    let pass = move |run: &mut Lifecycle, until: u64| {
        run.heard(PS, server, seconds(until));
        run.heard(TaskId::worker(0), worker, seconds(until));
        run.tick(seconds(until))
    };
    (run, pass)
}

#[test]
fn who_has_not_heard_of_the_end_does_not_wait_for_those_who_have() {
    let (mut run, pass) = ended_and_started_again(true);
    assert_eq!(pass(&mut run, 9), [], "others may not have heard of it either");
    assert_eq!(pass(&mut run, 10), [Decision::Over(Outcome::done())]);
}

#[test]
fn a_run_that_is_started_anew_after_its_end_ends_well_if_not_all_come() {
    let (mut run, pass) = ended_and_started_again(false);
    assert_eq!(pass(&mut run, 59), []);
    assert_eq!(pass(&mut run, 60), [Decision::Over(Outcome::done())]);
}

#[test]
fn a_worker_that_wants_more_than_a_finished_run_had_waits_for_all_the_others() {
    let (mut run, pass) = ended_and_started_again(true);
    run.wants_more();
    assert_eq!(pass(&mut run, 59), []);
    assert_eq!(gave_up(&pass(&mut run, 60)), "gave up waiting for ps 1, worker 1 after 60 s");
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
