use super::*;
use crate::control::proto::{Initialise, Over, Welcome};

const NOW: Duration = Duration::ZERO;

fn welcome(incarnation: u64) -> WorkerEvent {
    WorkerEvent::Told(Told::Welcome(Welcome { incarnation, heard: 0 }))
}

fn start() -> WorkerEvent {
    WorkerEvent::Told(Told::Start(Start::default()))
}

fn over(exit_code: u8, reason: &str) -> WorkerEvent {
    WorkerEvent::Told(Told::Over(Over { exit_code: u32::from(exit_code), reason: reason.to_owned() }))
}

fn setback(cause: Cause) -> WorkerEvent {
    WorkerEvent::Completed(Err(Setback { cause, error: "the error".to_owned() }))
}

/// Worker 1, welcomed as incarnation 5 and training.
fn training() -> WorkerMachine {
    training_as(TaskId::worker(1))
}

fn training_as(shown_as: TaskId) -> WorkerMachine {
    let mut machine = WorkerMachine::new(WorkerId(1), shown_as);
    machine.handle(welcome(5), NOW);
    assert!(matches!(machine.handle(start(), NOW).as_slice(), [WorkerEffect::Work(Incarnation(5), Work::Train(_))]));
    machine
}

fn ended(effects: &[WorkerEffect]) -> Option<(u8, &str)> {
    effects.iter().find_map(|effect| match effect {
        WorkerEffect::End(outcome) => Some((outcome.exit_code, outcome.reason.as_str())),
        _ => None,
    })
}

#[test]
fn one_piece_of_work_follows_the_other_and_each_is_reported_as_the_incarnation_it_was_done_as() {
    let mut machine = WorkerMachine::new(WorkerId(1), TaskId::worker(1));
    machine.handle(welcome(5), NOW);
    let first = machine.handle(WorkerEvent::Told(Told::Initialise(Initialise::default())), NOW);
    assert!(matches!(first.as_slice(), [WorkerEffect::Work(_, Work::Initialise(_))]));
    assert!(machine.handle(start(), NOW).is_empty(), "the first is still under way");
    let effects = machine.handle(WorkerEvent::Completed(Ok(Achievement::Initialised)), NOW);
    let [WorkerEffect::Report(Report::Initialised(initialised)), WorkerEffect::Work(_, Work::Train(_))] =
        effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!(initialised.incarnation, 5);
    machine.handle(welcome(8), NOW);
    let effects = machine.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
    assert!(matches!(effects.as_slice(), [WorkerEffect::Report(Report::Finished(report))] if report.incarnation == 5));
}

#[test]
fn what_was_told_to_an_earlier_incarnation_is_not_done() {
    let mut machine = training();
    machine.handle(start(), NOW);
    assert!(matches!(machine.handle(welcome(8), NOW).as_slice(), [WorkerEffect::Welcomed(Incarnation(8))]));
    let effects = machine.handle(setback(Cause::DeclaredDead), NOW);
    assert!(matches!(effects.as_slice(), [WorkerEffect::Mention(_)]), "{effects:?}");
    assert!(matches!(machine.handle(start(), NOW).as_slice(), [WorkerEffect::Work(Incarnation(8), _)]));
}

#[test]
fn a_failure_as_an_earlier_incarnation_is_not_reported() {
    let mut machine = training();
    machine.handle(welcome(8), NOW);
    let effects = machine.handle(setback(Cause::Unreachable), NOW);
    let [WorkerEffect::Mention(line)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(line, "rejoining (before that: the error)");
}

#[test]
fn after_a_failure_the_run_has_two_seconds_to_end_with_its_own_reason() {
    for (event, expected) in [
        (over(3, "worker 0 failed first"), (3, "worker 0 failed first")),
        (WorkerEvent::SessionEnded, (3, "worker 1: the error")),
    ] {
        let mut machine = training();
        let effects = machine.handle(setback(Cause::NotFinite), NOW);
        let [WorkerEffect::Report(Report::Failed(failure))] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!((failure.exit_code, failure.reason.as_str(), failure.incarnation), (3, "the error", 5));
        assert!(machine.handle(start(), NOW).is_empty(), "it does nothing more");
        assert_eq!(ended(&machine.handle(event, NOW)), Some(expected));
    }
    let mut machine = training();
    machine.handle(setback(Cause::Unreachable), NOW);
    let deadline = machine.deadline().unwrap();
    assert_eq!(ended(&machine.handle(WorkerEvent::Tick, deadline)), Some((5, "the error")));
}

#[test]
fn a_run_that_is_over_ends_the_work_and_then_the_worker() {
    let mut machine = training();
    assert!(matches!(machine.handle(over(0, ""), NOW).as_slice(), [WorkerEffect::RunIsOver]));
    assert_eq!(ended(&machine.handle(setback(Cause::Interrupted), NOW)).unwrap().0, 0);
}

#[test]
fn a_worker_that_is_told_to_stop_ends_when_its_work_does() {
    let mut machine = training();
    assert!(machine.handle(WorkerEvent::Stop, NOW).is_empty());
    assert_eq!(ended(&machine.handle(setback(Cause::Interrupted), NOW)), Some((143, "told to stop")));
    let mut idle = WorkerMachine::new(WorkerId(1), TaskId::worker(1));
    assert_eq!(ended(&idle.handle(WorkerEvent::Stop, NOW)), Some((143, "told to stop")));
}

#[test]
fn only_the_chief_sums_up_and_what_its_model_could_not_do_counts_if_the_run_went_well() {
    let finished = |chief| WorkerEvent::Told(Told::AllFinished(AllFinished { chief, ..AllFinished::default() }));
    let mut other = training();
    other.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
    assert!(other.handle(finished(0), NOW).is_empty());
    for (exit_code, expected) in [(0, (1, "no picture")), (4, (4, "unsaved"))] {
        let mut chief = training();
        chief.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
        let effects = chief.handle(finished(1), NOW);
        assert!(matches!(effects.as_slice(), [WorkerEffect::Work(_, Work::Summarise(..))]));
        let failed = Outcome { exit_code: 1, reason: "no picture".to_owned() };
        chief.handle(WorkerEvent::Completed(Ok(Achievement::Concluded(failed))), NOW);
        let reason = if exit_code == 0 { Outcome::done().reason } else { "unsaved".to_owned() };
        assert_eq!(ended(&chief.handle(over(exit_code, &reason), NOW)), Some(expected));
    }
}

#[test]
fn a_worker_becomes_chief_when_the_chief_is_gone() {
    let mut machine = training();
    let left = WorkerLeft { worker: 0, reason: "it left".to_owned(), chief: 1, ..WorkerLeft::default() };
    let effects = machine.handle(WorkerEvent::Told(Told::WorkerLeft(left)), NOW);
    assert!(matches!(effects.as_slice(), [WorkerEffect::Warn(_), WorkerEffect::Mention(_)]));
    assert!(machine.is_chief());
}

#[test]
fn a_worker_that_is_part_of_the_client_is_not_mistaken_for_a_joined_worker() {
    let mut machine = training_as(TaskId::CLIENT);
    let left = WorkerLeft { worker: 0, reason: "it left".to_owned(), chief: 1, ..WorkerLeft::default() };
    assert!(machine.handle(WorkerEvent::Told(Told::WorkerLeft(left)), NOW).is_empty());
    assert!(machine.is_chief());
    machine.handle(setback(Cause::NotFinite), NOW);
    assert_eq!(ended(&machine.handle(WorkerEvent::SessionEnded, NOW)), Some((3, "the client: the error")));
}

#[test]
fn a_session_that_ends_without_a_word_is_a_lost_coordinator() {
    let mut machine = training();
    machine.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
    assert_eq!(ended(&machine.handle(WorkerEvent::SessionEnded, NOW)), Some((5, "lost the session with ps 0")));
}

/// Worker 1, chief of a run whose conclusion failed, in the same incarnation or, after a rollback, in the next.
fn failed_to_conclude() -> WorkerMachine {
    let mut chief = training();
    chief.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
    chief.handle(WorkerEvent::Told(Told::AllFinished(AllFinished { chief: 1, ..AllFinished::default() })), NOW);
    let failed = Outcome { exit_code: 1, reason: "no picture".to_owned() };
    chief.handle(WorkerEvent::Completed(Ok(Achievement::Concluded(failed))), NOW);
    chief.handle(welcome(8), NOW);
    chief
}

#[test]
fn a_conclusion_that_failed_is_not_forgotten_when_the_run_ends_well_for_another_reason() {
    let effects = failed_to_conclude().handle(over(0, "all steps have been made"), NOW);
    assert_eq!(ended(&effects), Some((1, "no picture")));
}

#[test]
fn a_conclusion_that_a_rollback_has_undone_does_not_count() {
    let mut worker = failed_to_conclude();
    worker.handle(start(), NOW);
    worker.handle(WorkerEvent::Completed(Ok(Achievement::Trained(Box::default()))), NOW);
    assert_eq!(ended(&worker.handle(over(0, ""), NOW)), Some((0, "")));
}
