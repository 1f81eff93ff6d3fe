//! The coordinator's machine while its store is slow.

use windlass_core::cluster::{RunLayout, TaskId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_core::membership::Patience;
use windlass_wire::control::proto::{Failure, task_message};

use super::*;
use crate::checkpoint::{CheckpointConfig, Resume};
use crate::coordinator::interface::{Claimed, CoordinatorConfig, TICK};
use crate::fixtures::NoShard;

/// A restarted coordinator that waits up to a minute for its peers.
fn coordinator() -> Coordinator<NoShard> {
    let config = CoordinatorConfig {
        servers: 1,
        workers: Some(1),
        layout: RunLayout::Apart,
        patience: Patience::new(Duration::from_secs(10)),
        peer_timeout: Duration::from_secs(60),
        memory: None,
        before: Incarnation(0),
    };
    let checkpoints = CheckpointConfig {
        location: "there".to_owned(),
        every: None,
        every_steps: None,
        keep: 1,
        resume: Resume::Auto,
        restarted: true,
        stall: Duration::from_secs(60),
        take_over: false,
        description: String::new(),
    };
    let location = checkpoints.location.clone();
    let claimed = Claimed { config: checkpoints, location, generation: 1, salt: 0, goes_on: true };
    Coordinator::new(config, NoShard, Some(claimed))
}

/// Advances time until the run is over. Returns when and how it ended.
fn end_of(machine: &mut Coordinator<NoShard>, has_read_on: impl Fn(Duration) -> bool) -> (Duration, Outcome) {
    let times = (0..).map(|ticks: u32| ticks * TICK).take_while(|now| *now < Duration::from_secs(600));
    for now in times {
        machine.handle(Event::Tick { has_read_on: has_read_on(now) }, now);
        if let Phase::Over(outcome) = machine.phase() {
            return (now, outcome.clone());
        }
    }
    panic!("it does not end");
}

#[test]
fn a_store_that_does_not_answer_is_given_up_and_named_before_those_who_wait_for_it() {
    let (at, outcome) = end_of(&mut coordinator(), |_| false);
    let reason = "gave up looking for a whole checkpoint in there after 57 s: the store does not answer".to_owned();
    assert_eq!((at, outcome), (Duration::from_secs(57), Outcome { exit_code: exit_code::CHECKPOINT, reason }));
}

#[test]
fn a_store_has_time_to_answer_however_short_peers_are_waited_for() {
    assert_eq!(store_patience(Duration::from_secs(60)), Duration::from_secs(57));
    assert_eq!(store_patience(Duration::from_secs(3)), Duration::from_millis(1500));
}

#[test]
fn a_store_whose_later_attempts_take_long_is_given_up_with_what_it_said_first() {
    let mut machine = coordinator();
    let (location, object, reason) = ("there".to_owned(), "/".to_owned(), "try later".to_owned());
    let error = CheckpointError::Store { location, action: "list", object, reason };
    machine.handle(Event::Found(1, Err(error)), Duration::from_secs(40));
    let (_, outcome) = end_of(&mut machine, |_| false);
    let reason = "gave up looking for a whole checkpoint in there after 57 s: cannot list `/` in `there`: try later";
    assert_eq!((outcome.exit_code, outcome.reason.as_str()), (exit_code::CHECKPOINT, reason));
}

#[test]
fn a_large_checkpoint_may_be_read_for_longer_than_peers_are_waited_for() {
    let (at, outcome) = end_of(&mut coordinator(), |now| now <= Duration::from_secs(50));
    assert_eq!((at, outcome.exit_code), (Duration::from_secs(107), exit_code::CHECKPOINT));
}

#[test]
fn a_server_whose_process_has_failed_ends_the_run_while_a_checkpoint_is_looked_up() {
    let mut machine = coordinator();
    let own = Failure { exit_code: 5, reason: "nobody came".to_owned(), incarnation: 0, prepare: 0 };
    let failed = |prepare| task_message::Kind::Failed(Failure { prepare, ..own.clone() });
    machine.message(TaskId::ps(0), Incarnation(1), failed(1));
    assert_eq!(*machine.lifecycle.phase(), Phase::Gathering, "an answer to what was said before");
    machine.message(TaskId::ps(0), Incarnation(1), failed(0));
    let outcome = Outcome { exit_code: 5, reason: "nobody came".to_owned() };
    assert_eq!(*machine.lifecycle.phase(), Phase::Over(outcome));
}
