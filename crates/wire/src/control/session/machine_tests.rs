use super::*;
use crate::control::proto::{Busy, Initialised, Start, Waiting};

const PATIENCE: Duration = Duration::from_secs(20);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn machine() -> SessionMachine {
    let place = " at a:1".to_owned();
    SessionMachine::new(SessionConfig { hello: Hello::default(), patience: PATIENCE, place }, Duration::ZERO)
}

fn told(kind: Told) -> SessionEvent {
    SessionEvent::Arrived(CoordinatorMessage { number: 0, heard: 0, kind: Some(kind) })
}

fn welcome(incarnation: u64) -> SessionEvent {
    told(Told::Welcome(Welcome { incarnation, heard: 0 }))
}

/// A machine that has been welcomed at time zero, and has sent its first heartbeat.
fn welcomed() -> SessionMachine {
    let mut machine = machine();
    machine.handle(SessionEvent::Tick, Duration::ZERO);
    machine.handle(SessionEvent::Opened, Duration::ZERO);
    machine.handle(welcome(5), Duration::ZERO);
    machine.handle(SessionEvent::Tick, Duration::ZERO);
    machine
}

fn mentions(effects: &[SessionEffect]) -> Vec<&str> {
    let mut lines = Vec::new();
    for effect in effects {
        if let SessionEffect::Mention(line) = effect {
            lines.push(line.as_str());
        }
    }
    lines
}

fn looks(effects: &[SessionEffect]) -> Vec<(u64, Option<Incarnation>)> {
    let look = |effect: &SessionEffect| match effect {
        SessionEffect::Look { number, incarnation } => Some((*number, *incarnation)),
        _ => None,
    };
    effects.iter().filter_map(look).collect()
}

fn over(effects: &[SessionEffect]) -> Option<&Over> {
    effects.iter().find_map(|effect| match effect {
        SessionEffect::Deliver(Told::Over(over)) => Some(over),
        _ => None,
    })
}

/// Lets every attempt to connect fail until this time. Returns all effects.
fn refuse_until(machine: &mut SessionMachine, until: Duration) -> Vec<SessionEffect> {
    let mut all = Vec::new();
    while let Some(now) = machine.deadline().filter(|now| *now < until) {
        let effects = machine.handle(SessionEvent::Tick, now);
        if effects.iter().any(|effect| matches!(effect, SessionEffect::Open)) {
            all.extend(machine.handle(SessionEvent::NotOpened("nobody is there".to_owned()), now));
        }
        all.extend(effects);
    }
    all
}

#[test]
fn a_long_wait_is_spoken_of_and_the_records_are_looked_at_one_look_at_a_time() {
    let mut machine = machine();
    let effects = refuse_until(&mut machine, seconds(10.0));
    let expected = [3, 6, 9].map(|seconds| format!("waiting for ps 0 at a:1 ({seconds} s): nobody is there"));
    assert_eq!(mentions(&effects), expected);
    assert_eq!(looks(&effects), [(1, None)], "the first look is still under way");
    machine.handle(SessionEvent::Looked(1, None), seconds(10.0));
    assert_eq!(looks(&refuse_until(&mut machine, seconds(15.0))), [(2, None)]);
}

#[test]
fn the_end_that_the_records_tell_of_is_told_while_the_coordinator_is_away() {
    let mut machine = welcomed();
    machine.handle(SessionEvent::Broken, seconds(1.0));
    let effects = refuse_until(&mut machine, seconds(5.0));
    assert_eq!(looks(&effects), [(1, Some(Incarnation(5)))]);
    let ended = Outcome { exit_code: 0, reason: "it ended".to_owned() };
    let effects = machine.handle(SessionEvent::Looked(1, Some(ended)), seconds(5.0));
    assert_eq!(over(&effects).map(|over| over.exit_code), Some(0));
    assert!(machine.is_over());
}

#[test]
fn what_the_records_told_before_a_welcome_does_not_count_after_it() {
    let mut machine = machine();
    refuse_until(&mut machine, seconds(4.0));
    machine.handle(SessionEvent::Tick, seconds(4.0));
    machine.handle(SessionEvent::Tick, seconds(5.0));
    machine.handle(SessionEvent::Opened, seconds(5.0));
    machine.handle(welcome(5), seconds(5.0));
    let lost = machine.handle(SessionEvent::Broken, seconds(6.0));
    assert_eq!(mentions(&lost), ["lost the session with ps 0, reconnecting"]);
    let ended = Outcome { exit_code: 0, reason: "it ended".to_owned() };
    assert!(machine.handle(SessionEvent::Looked(1, Some(ended)), seconds(6.0)).is_empty());
    assert!(machine.is_away());
}

#[test]
fn a_coordinator_that_only_says_what_it_waits_for_is_given_up_with_its_words() {
    let mut machine = machine();
    machine.handle(SessionEvent::Tick, Duration::ZERO);
    machine.handle(SessionEvent::Opened, Duration::ZERO);
    let notices = vec!["opening the store".to_owned()];
    let mut effects = Vec::new();
    for now in (0..20).map(|tick| seconds(f64::from(tick))) {
        effects.extend(
            machine.handle(told(Told::Waiting(Waiting { notices: notices.clone(), ..Waiting::default() })), now),
        );
        effects.extend(machine.handle(SessionEvent::Tick, now));
    }
    assert!(mentions(&effects).is_empty() && over(&effects).is_none());
    let effects = machine.handle(SessionEvent::Tick, PATIENCE);
    let reason = "gave up waiting for ps 0 at a:1 after 20 s: opening the store";
    assert_eq!(over(&effects).map(|over| (over.exit_code, over.reason.as_str())), Some((5, reason)));
}

#[test]
fn a_server_that_hangs_up_each_time_is_given_up_with_those_words() {
    let mut machine = machine();
    for now in [Duration::ZERO, seconds(19.0)] {
        machine.handle(SessionEvent::Tick, now);
        machine.handle(SessionEvent::Opened, now);
        if now.is_zero() {
            machine.handle(SessionEvent::Broken, now);
        }
    }
    let effects = machine.handle(SessionEvent::Tick, PATIENCE);
    let reason = "gave up waiting for ps 0 at a:1 after 20 s: it closed the session at once";
    assert_eq!(over(&effects).map(|over| over.reason.as_str()), Some(reason));
}

#[test]
fn a_busy_coordinator_is_left_and_asked_again_and_its_reason_is_told_once_in_a_while() {
    let mut machine = machine();
    let (mut now, mut lines) = (Duration::ZERO, Vec::new());
    while now < seconds(2.0) {
        now = machine.deadline().unwrap_or(now);
        machine.handle(SessionEvent::Tick, now);
        machine.handle(SessionEvent::Opened, now);
        let effects = machine.handle(told(Told::Busy(Busy { reason: "not yet".to_owned() })), now);
        assert!(effects.iter().any(|effect| matches!(effect, SessionEffect::StopSending)));
        lines.extend(mentions(&effects).into_iter().map(str::to_owned));
        lines.extend(mentions(&machine.handle(SessionEvent::Broken, now)).into_iter().map(str::to_owned));
    }
    assert_eq!(lines, ["not yet"]);
}

#[test]
fn a_goodbye_is_given_a_second_and_then_the_session_ends() {
    let mut machine = welcomed();
    let effects = machine.handle(SessionEvent::Finish, seconds(1.0));
    assert!(matches!(
        effects.as_slice(),
        [
            SessionEffect::Send(TaskMessage { number: 1, kind: Some(Report::Goodbye(_)), .. }),
            SessionEffect::StopSending
        ]
    ));
    assert_eq!(machine.deadline(), Some(seconds(2.0)));
    assert!(machine.handle(told(Told::Start(Start::default())), seconds(1.5)).is_empty(), "all is said");
    machine.handle(SessionEvent::Tick, seconds(2.0));
    assert!(machine.is_over());
}

#[test]
fn over_is_answered_with_a_heartbeat() {
    let mut machine = welcomed();
    machine.progress.global_step = 7;
    let effects = machine.handle(told(Told::Over(Over::default())), seconds(1.0));
    let [SessionEffect::Deliver(Told::Over(_)), SessionEffect::Send(answer), SessionEffect::StopSending] =
        effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert!(matches!(&answer.kind, Some(Report::Heartbeat(heartbeat)) if heartbeat.global_step == 7));
    machine.handle(SessionEvent::Broken, seconds(1.1));
    assert!(machine.is_over());
}

#[test]
fn a_task_that_does_not_listen_any_more_ends_a_session_that_is_not_open() {
    let mut machine = welcomed();
    machine.handle(SessionEvent::Say(Report::Initialised(Initialised::default())), seconds(1.0));
    machine.handle(SessionEvent::Abandoned, seconds(1.0));
    assert!(machine.is_welcomed(), "it has yet to say goodbye");
    machine.handle(SessionEvent::Broken, seconds(2.0));
    machine.handle(SessionEvent::Abandoned, seconds(2.0));
    assert!(machine.is_over());
}

#[test]
fn a_hello_says_of_which_incarnation_the_messages_were_that_have_been_heard() {
    let mut machine = welcomed();
    let kind = Some(Told::Start(Start::default()));
    machine.handle(SessionEvent::Arrived(CoordinatorMessage { number: 3, heard: 0, kind }), seconds(1.0));
    machine.handle(SessionEvent::Broken, seconds(1.0));
    machine.handle(SessionEvent::Tick, seconds(1.0));
    let effects = machine.handle(SessionEvent::Opened, seconds(1.0));
    let [SessionEffect::Send(TaskMessage { heard: 3, kind: Some(Report::Hello(hello)), .. })] = effects.as_slice()
    else {
        panic!("{effects:?}")
    };
    assert_eq!((hello.incarnation, hello.begun), (5, true));
}

#[test]
fn a_coordinator_that_has_a_task_ask_again_is_not_given_up_and_not_asked_more_than_once_a_second() {
    let (mut machine, mut now, mut hellos) = (machine(), Duration::ZERO, 0);
    while now < 3 * PATIENCE {
        now = machine.deadline().expect("it asks again");
        let effects = machine.handle(SessionEvent::Tick, now);
        assert!(over(&effects).is_none(), "{effects:?}");
        if effects.iter().any(|effect| matches!(effect, SessionEffect::Open)) {
            machine.handle(SessionEvent::Opened, now);
            machine.handle(told(Told::Busy(Busy { reason: "not yet".to_owned() })), now);
            machine.handle(SessionEvent::Broken, now);
            hellos += 1;
        }
    }
    assert_eq!(hellos, 3 * PATIENCE.as_secs() + 1);
    // Once the coordinator is gone, patience counts from its last message.
    let gone = now;
    assert!(over(&refuse_until(&mut machine, gone + PATIENCE)).is_none());
    assert!(over(&refuse_until(&mut machine, gone + PATIENCE + seconds(1.0))).is_some());
}
