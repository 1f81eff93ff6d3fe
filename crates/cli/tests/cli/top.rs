//! `windlass top` on a pseudoterminal: a run that begins, a run that disappears, and quitting.

use crate::cluster::{Hosts, Launched};
use crate::process::{eventually, windlass};
use crate::screen::Screen;

use insta::assert_snapshot;

/// Trains until it is told to stop.
const FOREVER: &str = "linear --steps 1000000000 --evaluate end";

/// Waits until some line of the screen contains this text.
fn shows(screen: &Screen, text: &str) -> String {
    eventually(&format!("{text:?} on the screen"), || screen.lines().into_iter().find(|line| line.contains(text)))
}

#[test]
fn a_run_is_seen_to_begin_to_train_and_to_go_away() {
    let hosts = Hosts::new(1, 2);
    let mut top = Screen::start(windlass(&format!("top {}", hosts.ps[0])), 24, 80);
    shows(&top, "no answer for ");
    let ps = hosts.task("ps", 0, FOREVER).start();
    shows(&top, "Gathering");
    let workers = [0, 1].map(|index| hosts.task("worker", index, FOREVER).start());
    shows(&top, "● Training: step ");
    for text in ["● ps 0 ", "● worker 0 ", "● worker 1 ", "loss: ", "q quit", "joined"] {
        shows(&top, text);
    }
    let worker = shows(&top, "● worker 1 ");
    assert!(worker.chars().count() <= 80, "{worker}");
    drop(workers);
    ps.kill();
    shows(&top, "no answer for ");
    shows(&top, "Training: step ");
    top.type_keys("\x1b[B\x1b[5~q");
    let (status, lines) = top.wait();
    assert!(status.success(), "{lines:#?}");
    assert!(lines.iter().all(String::is_empty), "what was there before is there again: {lines:#?}");
}

#[test]
fn ctrl_c_leaves_it() {
    let mut top = Screen::start(windlass("top 127.0.0.1:1"), 24, 80);
    shows(&top, "no answer for ");
    top.type_keys("\x03");
    let (status, lines) = top.wait();
    assert!(status.success(), "{lines:#?}");
    assert!(lines.iter().all(String::is_empty), "{lines:#?}");
}

#[test]
fn without_a_terminal_it_names_what_can_be_used_instead() {
    assert_snapshot!(windlass("top 127.0.0.1:2222").run(), @"
    exit code 2
    --- stdout
    --- stderr
    error: `top` needs a terminal that can show a screen
    hint: `windlass status 127.0.0.1:2222` prints a summary once, anywhere
    ");
}

#[test]
fn what_is_no_address_is_refused_with_that_of_a_run_directory() {
    assert_snapshot!(windlass("top nowhere").run(), @r#"
    exit code 2
    --- stdout
    --- stderr
    error: "nowhere" is not HOST:PORT
    hint: give a host and a port, such as 127.0.0.1:2222
    "#);
    let run = windlass("launch linear --steps 200 --run-dir run").run().succeeded();
    let told = run.windlass("top run").run();
    assert_eq!(told.exit_code(), Some(2), "{told}");
    assert!(told.stderr.starts_with("error: \"run\" is not HOST:PORT\nhint: "), "{told}");
    assert!(told.stderr.contains("`windlass status run`"), "nobody answers any more: {told}");
    let live = Launched::start("linear --steps 1000000000 --evaluate end");
    live.event("step", 0);
    let hint = eventually("its address to be recorded", || {
        let told = live.0.windlass("top run").run();
        told.stderr.contains("`windlass top 127.0.0.1:").then_some(told)
    });
    assert!(hint.stderr.contains("was last written by a run at 127.0.0.1:"), "{hint}");
    let other = windlass("top x").with_file("x/notes.txt", "mine").run();
    assert!(other.stderr.contains("`windlass status x`"), "{other}");
}
