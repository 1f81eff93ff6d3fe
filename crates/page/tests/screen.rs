//! What `windlass top` draws for runs of all sizes, on screens of all sizes.

mod statuses;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use windlass_core::cluster::TaskId;
use windlass_core::hang::Wait;
use windlass_page::{Event, EventKind, Screen, Scroll, Silence, Status};

use statuses::{hanging, server, training, with_straggler_and_dead_worker};

const ADDRESS: &str = "10.0.1.0:2222";

/// A screen, without colours.
fn of(status: Status) -> Screen {
    let mut screen = Screen::new(ADDRESS, false);
    screen.answered(status);
    screen
}

fn drawn(screen: &mut Screen, silence: Option<&Silence>, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame, silence)).unwrap();
    terminal.backend().to_string()
}

fn usual(status: Status) -> String {
    drawn(&mut of(status), None, (80, 24))
}

fn silence(secs: f64) -> Silence {
    Silence { secs, why: "connection refused: nothing is listening there".into() }
}

#[test]
fn of_a_run_that_trains() {
    insta::assert_snapshot!(usual(training(2)));
}

#[test]
fn of_a_run_with_one_worker() {
    insta::assert_snapshot!(usual(Status { servers: vec![server(0)], ..training(1) }));
}

#[test]
fn of_a_run_without_tasks() {
    let awaited = Some(Wait { on: vec![TaskId::ps(1), TaskId::worker(0)], secs: 7.0 });
    insta::assert_snapshot!(usual(Status { awaited, ..Status::default() }));
}

#[test]
fn of_a_run_with_a_straggler_and_a_dead_worker() {
    insta::assert_snapshot!(usual(with_straggler_and_dead_worker()));
}

#[test]
fn of_a_run_that_hangs() {
    insta::assert_snapshot!(usual(hanging()));
}

#[test]
fn many_workers_are_scrolled() {
    let mut screen = of(training(32));
    let first = drawn(&mut screen, None, (80, 24));
    insta::assert_snapshot!(first);
    assert!(first.contains("● ps 0") && !first.contains("worker 31"), "{first}");
    screen.scroll(Scroll::Down);
    let second = drawn(&mut screen, None, (80, 24));
    assert!(!second.contains("● ps 0") && second.contains("● ps 1") && second.contains("tasks 2–"), "{second}");
    screen.scroll(Scroll::End);
    let last = drawn(&mut screen, None, (80, 24));
    assert!(last.contains("worker 31") && last.contains("–34 of 34"), "{last}");
    screen.scroll(Scroll::Down);
    assert_eq!(drawn(&mut screen, None, (80, 24)), last, "there is nothing below");
    screen.scroll(Scroll::PageUp);
    assert!(!drawn(&mut screen, None, (80, 24)).contains("worker 31"));
    [Scroll::Home, Scroll::Up].into_iter().for_each(|to| screen.scroll(to));
    assert_eq!(drawn(&mut screen, None, (80, 24)), first);
    let large = drawn(&mut screen, None, (120, 60));
    assert!(large.contains("● ps 0") && large.contains("worker 31"), "all fit: {large}");
}

#[test]
fn before_the_first_answer_it_says_whom_it_asks() {
    let mut screen = Screen::new(ADDRESS, false);
    let asking = drawn(&mut screen, None, (80, 4));
    assert!(asking.contains("○ Asking 10.0.1.0:2222"), "{asking}");
    let missing = drawn(&mut screen, Some(&silence(5.2)), (80, 4));
    assert!(
        missing.contains("✕ no answer for 5.2 s, trying again: connection refused: nothing is listening"),
        "{missing}"
    );
}

#[test]
fn what_was_known_stays_while_nobody_answers_and_is_replaced_when_somebody_does() {
    let mut screen = of(training(2));
    let silent = drawn(&mut screen, Some(&silence(65.0)), (80, 24));
    assert!(silent.contains("Training: step 7,800") && silent.contains("no answer for 1 min 5 s"), "{silent}");
    screen.answered(Status { step: 7900, ..training(2) });
    let again = drawn(&mut screen, None, (80, 24));
    assert!(again.contains("Training: step 7,900") && !again.contains("no answer"), "{again}");
}

#[test]
fn a_screen_of_any_size_shows_the_state_first() {
    for status in [Status::default(), training(0), training(32), hanging(), with_straggler_and_dead_worker()] {
        for size in [(1, 1), (20, 3), (40, 10), (80, 24), (300, 100)] {
            let shown = drawn(&mut of(status.clone()), None, size);
            let head = shown.lines().next().unwrap_or_default();
            assert!(size.1 < 3 || head.chars().count() > 5, "{size:?}: {shown}");
        }
    }
}

#[test]
fn what_users_name_cannot_command_the_terminal() {
    let evil = "a\u{1b}[2Jb\n";
    let mut status = Status { model: evil.into(), ..training(1) };
    status.timeline.push(Event { at_secs: 1.0, kind: EventKind::Warning, what: evil.into() });
    let mut screen = Screen::new(evil, true);
    screen.answered(status);
    let why = Silence { secs: 1.0, why: evil.into() };
    for silence in [None, Some(&why)] {
        assert!(!drawn(&mut screen, silence, (80, 24)).contains('\u{1b}'));
    }
}
