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
fn a_server_lost_before_the_last_checkpoint_is_written_is_no_success_either() {
    let (mut run, _) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    run.concluded(WorkerId(0));
    run.disconnected(PS, Incarnation(1), seconds(1));
    let decisions = run.tick(seconds(3));
    let over =
        decisions.iter().find_map(|effect| if let Decision::Over(outcome) = effect { Some(outcome) } else { None });
    let over = over.unwrap_or_else(|| panic!("not over: {decisions:?}"));
    assert_eq!(over.exit_code, exit_code::CHECKPOINT);
    assert!(over.reason.contains("could not be written: lost ps 0: "), "{}", over.reason);
}
