//! How a run ends, and when it is saved first.

use super::*;

#[test]
fn the_run_ends_after_all_have_finished_and_the_chief_has_said_goodbye() {
    let (mut run, _) = training();
    assert_eq!(run.worker_finished(WorkerId(0)).len(), 1);
    assert!(run.worker_finished(WorkerId(1)).contains(&Decision::AllFinished));
    assert_eq!(run.concluded(WorkerId(1)), [], "it is not the chief");
    assert_eq!(run.concluded(WorkerId(0)), [Decision::Over(Outcome::done())]);
}

#[test]
fn a_run_that_still_trains_is_not_concluded() {
    let (mut run, _) = training();
    assert_eq!(run.concluded(WorkerId(0)), []);
    assert_eq!(run.phase(), &Phase::Training);
}

#[test]
fn another_coordinator_ends_the_run_whatever_it_was_about_to_do() {
    let (mut run, _) = training_of(Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) }));
    assert_eq!(run.failed(Outcome { exit_code: exit_code::USAGE, reason: String::new() }), [Decision::Save]);
    let overtaken = Outcome { exit_code: exit_code::CHECKPOINT, reason: "overtaken".to_owned() };
    assert_eq!(run.overtaken(overtaken.clone()), [Decision::Over(overtaken)]);
}

#[test]
fn the_end_waits_for_the_last_checkpoint() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.concluded(WorkerId(0)), [Decision::Save]);
    assert_eq!(run.saved(), [Decision::Over(Outcome::done())]);
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
    assert_eq!(run.failed(outcome.clone()), [Decision::Over(outcome)]);
}

#[test]
fn when_the_last_worker_is_told_to_stop_the_parameters_are_saved() {
    let (mut run, _) = training_with_checkpoints();
    goodbye(&mut run, 0);
    assert!(goodbye(&mut run, 1).contains(&Decision::Save));
    let decisions = run.saved();
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code::TERMINATED));
}

#[test]
fn a_worker_that_leaves_while_the_last_checkpoint_is_written_is_not_waited_for() {
    let mut run = Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) });
    let (ps, _) = join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::worker(0), 0);
    let (second, _) = join(&mut run, TaskId::worker(1), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert_eq!(run.goodbye(PS, ps, seconds(1)), [Decision::Save]);
    assert_eq!(run.goodbye(TaskId::worker(0), first, seconds(1)), []);
    assert_eq!(run.goodbye(TaskId::worker(1), second, seconds(1)), []);
    let left = |worker, incarnation| Decision::Left(WorkerId(worker), incarnation, "told to stop".to_owned());
    assert_eq!(run.tick(seconds(1) + 2 * FAREWELL), [], "the cut may not be made yet");
    assert_eq!(run.tick(seconds(1) + 3 * FAREWELL), [left(0, first), left(1, second)]);
}

#[test]
fn the_last_checkpoint_waits_for_no_push_that_the_last_worker_to_stop_has_left_unfinished() {
    let (mut run, [first, second]) = training_with_checkpoints();
    goodbye(&mut run, 0);
    goodbye(&mut run, 1);
    let left = |worker, incarnation| Decision::Left(WorkerId(worker), incarnation, "told to stop".into());
    assert_eq!(run.tick(3 * FAREWELL), [left(0, first), left(1, second)]);
    assert!(matches!(run.phase(), Phase::Saving(_)));
}

#[test]
fn a_server_that_was_told_to_stop_and_reconnects_still_has_its_part_of_the_last_checkpoint() {
    let (mut run, _) = training_with_checkpoints();
    let server = run.incarnation(PS).unwrap();
    assert_eq!(run.goodbye(PS, server, seconds(1)), [Decision::Save]);
    run.disconnected(PS, server, seconds(1));
    assert_eq!(run.join(PS, Some(server), seconds(2)).unwrap(), (server, Vec::new()));
    assert_eq!(run.tick(seconds(2)), []);
    let decisions = run.saved();
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code::TERMINATED));
}

#[test]
fn a_run_whose_last_checkpoint_could_not_be_written_is_no_success() {
    let not_saved = "the last checkpoint could not be written: the disk is full";
    let ends = |end: fn(&mut Lifecycle) -> Vec<Decision>, exit_code, reason: &str| {
        let (mut run, _) = training_with_checkpoints();
        end(&mut run);
        assert!(matches!(run.phase(), Phase::Saving(_)));
        assert_eq!(
            run.not_saved("the disk is full"),
            [Decision::Over(Outcome { exit_code, reason: reason.to_owned() })]
        );
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
fn a_server_lost_while_the_last_checkpoint_is_written_is_waited_for_and_the_run_trains_the_rest_again() {
    for restarted in [false, true] {
        let (mut run, [first, _]) = saving();
        run.disconnected(PS, Incarnation(1), seconds(1));
        let decisions = if restarted { join(&mut run, PS, 1).1 } else { run.tick(seconds(3)) };
        assert!(matches!(&decisions[..], [Decision::Regather(_)]), "{decisions:?}");
        assert_eq!(run.phase(), &Phase::Gathering);
        if !restarted {
            join(&mut run, PS, 4);
        }
        assert!(join(&mut run, TaskId::worker(0), 4).0 > first, "it stayed for the end");
        assert!(join(&mut run, TaskId::worker(1), 4).1.contains(&Decision::Prepare));
        assert_eq!(run.server_ready(PS, true), [Decision::Start(WorkerId(0)), Decision::Start(WorkerId(1))]);
        run.worker_finished(WorkerId(0));
        run.worker_finished(WorkerId(1));
        assert_eq!(run.concluded(WorkerId(0)), [Decision::Save]);
        assert_eq!(run.saved(), [Decision::Over(Outcome::done())]);
    }
}

#[test]
fn a_server_lost_while_the_last_checkpoint_is_written_is_not_waited_for_for_ever() {
    let (mut run, _) = saving();
    run.disconnected(PS, Incarnation(1), seconds(1));
    assert!(matches!(&run.tick(seconds(3))[..], [Decision::Regather(_)]));
    assert!(gave_up(&run.tick(seconds(63))).starts_with("gave up waiting for ps 0, "));
}

#[test]
fn a_run_that_was_told_to_stop_ends_unsaved_without_a_server_that_has_said_goodbye_and_is_lost() {
    let (mut run, _) = training_with_checkpoints();
    let server = run.incarnation(PS).unwrap();
    assert_eq!(run.goodbye(PS, server, seconds(1)), [Decision::Save]);
    run.disconnected(PS, server, seconds(1));
    assert_eq!(run.tick(Duration::from_millis(1999)), []);
    let lost = "lost ps 0: its connection broke and it did not come back";
    let reason = format!("ps 0 was told to stop, and {NOT_SAVED}: {lost}");
    assert_eq!(run.tick(seconds(2)), [Decision::Over(Outcome { exit_code: exit_code::CHECKPOINT, reason })]);
}

#[test]
fn a_run_is_not_trained_again_without_those_who_were_told_to_stop_while_it_was_saved() {
    let two_servers = || {
        let mut run = Lifecycle::new(LifecycleConfig { servers: 2, checkpoints: true, ..config(1) });
        let incarnations = [PS, TaskId::ps(1), TaskId::worker(0)].map(|task| join(&mut run, task, 0).0);
        run.server_ready(PS, false);
        run.server_ready(TaskId::ps(1), false);
        run.initialised();
        run.worker_finished(WorkerId(0));
        assert_eq!(run.concluded(WorkerId(0)), [Decision::Save]);
        (run, incarnations)
    };
    for leaver in [PS, TaskId::worker(0)] {
        let (mut run, [first, second, worker]) = two_servers();
        let leaving = if leaver == PS { first } else { worker };
        assert_eq!(run.goodbye(leaver, leaving, seconds(1)), []);
        run.disconnected(TaskId::ps(1), second, seconds(1));
        let decisions = run.tick(seconds(2));
        let over = decisions.last();
        assert!(
            matches!(over, Some(Decision::Over(outcome)) if outcome.exit_code == exit_code::CHECKPOINT),
            "{decisions:?}"
        );
    }
}

#[test]
fn a_worker_that_comes_while_the_last_checkpoint_is_written_is_to_ask_again() {
    let (mut run, [first, _]) = saving();
    run.disconnected(TaskId::worker(0), first, seconds(1));
    assert_eq!(run.join(TaskId::worker(0), None, seconds(1)), Err(JoinError::Saving));
    run.not_saved("the disk is full");
    let Err(JoinError::Over(outcome)) = run.join(TaskId::worker(0), None, seconds(2)) else { panic!("let in") };
    assert_eq!(outcome.exit_code, exit_code::CHECKPOINT);
}

#[test]
fn a_worker_that_leaves_because_it_has_failed_is_not_said_to_have_been_told_to_stop() {
    let (mut run, [_, second]) = training_with_checkpoints();
    let error = "gave up on ps 0 after 25 s";
    assert_eq!(run.task_failed(TaskId::worker(1), exit_code::PEERS, error.to_owned()), [Decision::Save]);
    goodbye(&mut run, 1);
    assert_eq!(run.tick(3 * FAREWELL), [Decision::Left(WorkerId(1), second, error.to_owned())]);
    let reason = format!("worker 1: {error}");
    assert_eq!(run.saved(), [Decision::Over(Outcome { exit_code: exit_code::PEERS, reason })]);
}

/// Like [`saving`], or ended because its server was told to stop; with all parts of the last checkpoint written.
fn publishing(is_told_to_stop: bool) -> Lifecycle {
    let (mut run, server) = if is_told_to_stop {
        let (mut run, _) = training_with_checkpoints();
        let server = run.incarnation(PS).unwrap();
        assert_eq!(run.goodbye(PS, server, seconds(1)), [Decision::Save]);
        (run, server)
    } else {
        let (run, _) = saving();
        let server = run.incarnation(PS).unwrap();
        (run, server)
    };
    run.parts_written();
    run.disconnected(PS, server, seconds(1));
    run
}

#[test]
fn a_server_lost_when_all_parts_of_the_last_checkpoint_are_written_costs_nothing() {
    for is_told_to_stop in [true, false] {
        for is_restarted in [true, false] {
            let mut run = publishing(is_told_to_stop);
            let decisions = if is_restarted { join(&mut run, PS, 1).1 } else { run.tick(seconds(3)) };
            assert_eq!(decisions, []);
            let exit_code = if is_told_to_stop { exit_code::TERMINATED } else { 0 };
            assert!(matches!(&run.saved()[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code));
        }
    }
}

#[test]
fn a_server_lost_while_the_last_checkpoint_is_published_is_missed_if_that_fails() {
    let mut run = publishing(true);
    assert_eq!(run.tick(seconds(3)), []);
    assert_eq!(run.not_published(), [], "it has said goodbye, and is missed when it is needed again");
    let decisions = run.tick(seconds(3));
    assert!(matches!(&decisions[..], [Decision::Over(outcome)] if outcome.exit_code == exit_code::CHECKPOINT));
    let mut run = publishing(false);
    assert_eq!(run.tick(seconds(3)), []);
    assert!(matches!(&run.not_published()[..], [Decision::Regather(reason)] if reason.starts_with("lost ps 0: ")));
    join(&mut run, PS, 4);
    join(&mut run, TaskId::worker(0), 4);
    assert!(join(&mut run, TaskId::worker(1), 4).1.contains(&Decision::Prepare));
    assert_eq!(run.not_published(), [], "that is history");
}
