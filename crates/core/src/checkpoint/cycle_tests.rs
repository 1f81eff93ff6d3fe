//! Checkpoints that succeed, one after another, and what becomes of those that fail.

use super::*;
use crate::checkpoint::HOLD;
use crate::cluster::WorkerId;
use crate::ledger::Incarnation;

const A: WorkerId = WorkerId(0);
const B: WorkerId = WorkerId(1);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn cycle(servers: u32) -> Cycle<&'static str> {
    let policy = Policy { every: Some(seconds(60)), every_steps: Some(1000), keep: 3 };
    let mut cycle = Cycle::new(policy, seconds(0), 0);
    cycle.go_on_from(run(servers), seconds(0), 0);
    cycle
}

fn run(servers: u32) -> CycleRun {
    CycleRun { servers: (0..servers).map(ServerId).collect(), rounds: false, limit: None, stall: seconds(30) }
}

/// A cycle of two servers that write a checkpoint begun at one second.
fn writing() -> Cycle<&'static str> {
    let mut cycle = cycle(2);
    cycle.begin(seconds(1), 5);
    cycle.marked(1, ServerId(0), mark(1, &[]));
    cycle.marked(1, ServerId(1), mark(1, &[]));
    cycle
}

fn setback(reason: &str, kind: SetbackKind) -> Setback {
    Setback { reason: reason.to_owned(), kind }
}

fn mark(version: u64, pushes: &[(WorkerId, u64)]) -> CutPoint {
    CutPoint { version, pushes: pushes.iter().map(|(worker, push)| (*worker, (Incarnation(1), *push))).collect() }
}

#[test]
fn one_is_due_after_the_time_or_the_steps_whichever_comes_first_and_only_if_something_happened() {
    let cycle = cycle(1);
    assert!(!cycle.is_due(seconds(59), 999));
    assert!(cycle.is_due(seconds(60), 1));
    assert!(cycle.is_due(seconds(1), 1000));
    assert!(!cycle.is_due(seconds(100), 0), "nothing has been learned since");
}

#[test]
fn the_cut_of_a_run_that_has_come_to_its_end_is_at_its_last_step() {
    // The first server has dropped the push after the last step; for the second server, the same push was its last
    // step.
    let mut cycle = cycle(2);
    cycle.go_on_from(CycleRun { limit: Some(9), ..run(2) }, seconds(0), 0);
    cycle.begin(seconds(1), 5);
    cycle.marked(1, ServerId(0), mark(9, &[(A, 5), (B, 4)]));
    let cut = cycle.marked(1, ServerId(1), mark(9, &[(A, 4), (B, 5)])).unwrap();
    assert_eq!(cut, Next::Cut(mark(9, &[(A, 5), (B, 5)])));
}

#[test]
fn the_cut_is_the_latest_that_any_server_has_admitted_of_each_worker() {
    let mut cycle = cycle(2);
    assert_eq!(cycle.begin(seconds(1), 5), Some(Next::Mark));
    assert_eq!(cycle.begin(seconds(1), 5), None, "one at a time");
    assert_eq!(cycle.marked(1, ServerId(0), mark(9, &[(A, 5), (B, 4)])), None);
    let cut = cycle.marked(1, ServerId(1), mark(9, &[(A, 4), (B, 5)])).unwrap();
    assert_eq!(cut, Next::Cut(mark(10, &[(A, 5), (B, 5)])), "each lacks one push of the other");
}

#[test]
fn the_cut_of_rounds_is_the_latest_round_that_any_server_has_applied() {
    let mut cycle = cycle(2);
    cycle.go_on_from(CycleRun { rounds: true, ..run(2) }, seconds(0), 0);
    cycle.begin(seconds(1), 5);
    cycle.marked(1, ServerId(0), mark(9, &[(A, 9), (B, 9)]));
    let cut = cycle.marked(1, ServerId(1), mark(8, &[(A, 8), (B, 8)])).unwrap();
    assert_eq!(cut, Next::Cut(mark(9, &[(A, 9), (B, 9)])));
}

#[test]
fn a_later_process_of_a_worker_counts_for_more_than_any_push_of_an_earlier_one() {
    let mut first = mark(1, &[(A, 100)]);
    let second = CutPoint { version: 1, pushes: [(A, (Incarnation(2), 1))].into() };
    first.merge(&second);
    assert_eq!(first.pushes[&A], (Incarnation(2), 1));
}

#[test]
fn it_is_published_when_every_part_is_written_and_the_next_may_begin_then() {
    let mut cycle = writing();
    assert_eq!(cycle.written(1, ServerId(1), "b"), None);
    assert_eq!(cycle.written(7, ServerId(0), "of another"), None);
    let parts = [(ServerId(0), "a"), (ServerId(1), "b")].into();
    assert_eq!(cycle.written(1, ServerId(0), "a"), Some(Next::Publish(parts)));
    assert!(!cycle.is_idle());
    assert!(!cycle.published(7, true), "another");
    assert!(cycle.published(1, true));
    assert!(cycle.is_idle() && !cycle.is_due(seconds(1), 5));
}

#[test]
fn only_servers_that_have_a_part_are_asked_and_heard() {
    let mut cycle = cycle(0);
    let servers = [ServerId(0), ServerId(2)].into();
    cycle.go_on_from(CycleRun { servers, ..run(0) }, seconds(0), 0);
    cycle.begin(seconds(1), 5);
    assert_eq!(cycle.marked(1, ServerId(0), mark(1, &[])), None);
    assert_eq!(cycle.marked(1, ServerId(1), mark(9, &[])), None, "it holds nothing");
    assert_eq!(cycle.marked(1, ServerId(2), mark(1, &[])), Some(Next::Cut(mark(1, &[]))));
    assert_eq!(cycle.written(1, ServerId(2), "c"), None);
    assert_eq!(cycle.written(1, ServerId(1), "b"), None);
    let parts = [(ServerId(0), "a"), (ServerId(2), "c")].into();
    assert_eq!(cycle.written(1, ServerId(0), "a"), Some(Next::Publish(parts)));
}

#[test]
fn a_failure_abandons_it_and_the_next_is_tried_soon() {
    let mut cycle = cycle(1);
    cycle.begin(seconds(60), 5);
    cycle.marked(1, ServerId(0), mark(5, &[]));
    let full = setback("the disk is full", SetbackKind::Failed);
    assert_eq!(cycle.failed(1, full.clone()), Some(Next::Abandon(full.clone())));
    assert_eq!(cycle.failed(1, full), None);
    assert!(!cycle.is_due(seconds(61), 6) && cycle.is_due(seconds(60) + RETRY, 6));
    cycle.begin(seconds(60) + RETRY, 6);
    cycle.reset();
    assert!(!cycle.is_due(seconds(119), 7), "once that has been begun, the interval counts again");
}

#[test]
fn a_server_that_does_not_mark_is_named() {
    let mut cycle = cycle(3);
    cycle.begin(seconds(1), 5);
    cycle.marked(1, ServerId(1), mark(1, &[]));
    assert_eq!(cycle.tick(seconds(1) + HOLD), None);
    let missed = setback("no answer from ps 0, ps 2", SetbackKind::Missed);
    assert_eq!(cycle.tick(seconds(2)), Some(Next::Abandon(missed)));
}

#[test]
fn a_server_that_does_not_get_on_with_writing_is_named_and_then_waited_for_no_longer() {
    let mut cycle = writing();
    cycle.tick(seconds(3));
    assert_eq!(cycle.describe_wait(), None);
    cycle.progressed(1, ServerId(0));
    cycle.tick(seconds(4));
    let waits = "the checkpoint is waiting for ps 1 to write: no progress for 3 s";
    assert_eq!(cycle.describe_wait().as_deref(), Some(waits));
    assert_eq!(cycle.tick(seconds(31)), None);
    cycle.written(1, ServerId(0), "a");
    let stalled = setback("ps 1 made no progress writing for 30 s", SetbackKind::Stalled);
    assert_eq!(cycle.tick(seconds(32)), Some(Next::Abandon(stalled)));
    assert!(cycle.is_idle());
}

#[test]
fn a_server_that_gets_on_with_writing_is_waited_for_for_as_long_as_that_takes() {
    let mut cycle = writing();
    for now in 2..500 {
        assert_eq!(cycle.tick(seconds(now)), None);
        assert_eq!(cycle.describe_wait(), None);
        (0..2).for_each(|server| cycle.progressed(1, ServerId(server)));
    }
}

#[test]
fn a_store_that_does_not_take_the_manifest_is_waited_for_no_longer_than_a_server() {
    let mut cycle = writing();
    cycle.written(1, ServerId(0), "a");
    cycle.written(1, ServerId(1), "b");
    assert_eq!(cycle.tick(seconds(4)), None);
    let waits = "the checkpoint has been waiting for the store to accept its manifest for 3 s";
    assert_eq!(cycle.describe_wait().as_deref(), Some(waits));
    let overdue = setback("the store did not accept its manifest within 30 s", SetbackKind::Stalled);
    assert_eq!(cycle.tick(seconds(32)), Some(Next::Overdue(overdue)));
    assert!(cycle.is_idle() && cycle.is_due(seconds(60), 6));
    assert!(!cycle.published(1, true), "nobody waits for it any more");
}
