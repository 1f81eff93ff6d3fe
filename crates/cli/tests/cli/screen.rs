//! What a user sees on a terminal: the real binary at one end of a pseudoterminal, and a terminal emulator at the
//! other.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cluster::Task;
use crate::process::{Invocation, eventually, windlass};

/// The number of lines kept above the screen.
const SCROLLBACK: usize = 1000;

/// A running command and its terminal. Killed on drop.
pub struct Screen {
    child: Child,
    emulator: Arc<Mutex<vt100::Parser>>,
    /// Everything that was sent to the terminal.
    sent: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    keyboard: File,
    _command: Invocation,
}

impl Screen {
    /// Starts a command on a terminal of this size.
    pub fn start(mut command: Invocation, rows: u16, columns: u16) -> Self {
        let (terminal, user) = terminal(rows, columns);
        command.command().stdin(terminal.try_clone().unwrap());
        command.command().stdout(terminal.try_clone().unwrap()).stderr(terminal).env("TERM", "xterm-256color");
        let child = command.command().spawn().unwrap();
        // Otherwise the terminal's end would remain open here after the command has ended.
        command.command().stdin(std::process::Stdio::null());
        command.command().stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let [height, width] = [rows, columns].map(|size| NonZeroU16::new(size).expect("a terminal has some size"));
        let emulator = Arc::new(Mutex::new(vt100::Parser::new(height, width, SCROLLBACK)));
        let (shared, mut user) = (emulator.clone(), File::from(user));
        let (keyboard, sent) = (user.try_clone().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
        let transcript = sent.clone();
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails once the other end has been closed.
            while let Ok(count @ 1..) = user.read(&mut bytes) {
                shared.lock().unwrap().process(&bytes[..count]);
                transcript.lock().unwrap().extend(&bytes[..count]);
            }
        });
        Self { child, emulator, sent, reader: Some(reader), keyboard, _command: command }
    }

    /// Presses Ctrl-C. The terminal echoes it, but sends no signal, because the command is not a session leader.
    pub fn interrupt(&mut self) {
        self.keyboard.write_all(b"\x03").unwrap();
        let is_shown = || self.sent.lock().unwrap().windows(2).any(|bytes| bytes == b"^C");
        eventually("^C on the screen", || is_shown().then_some(()));
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Types these characters.
    pub fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The lines on the screen.
    pub fn lines(&self) -> Vec<String> {
        let emulator = self.emulator.lock().unwrap();
        let columns = emulator.screen().size().1.get();
        emulator.screen().rows(0, columns).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until this many lines on the screen start with `begin`.
    pub fn shows(&self, begin: &str, lines: usize) -> Vec<String> {
        eventually(&format!("{lines} lines on the screen that begin with {begin:?}"), || {
            let found: Vec<String> = self.lines().into_iter().filter(|line| line.starts_with(begin)).collect();
            (found.len() == lines).then_some(found)
        })
    }

    /// How the command ended, and everything left on the terminal, including lines that have scrolled away. Lines that
    /// did not fit are marked.
    pub fn wait(self) -> (ExitStatus, Vec<String>) {
        self.wait_keeping(|| {})
    }

    /// The same, but calls `look` while the directory in which the command ran still exists.
    pub fn wait_keeping(mut self, look: impl FnOnce()) -> (ExitStatus, Vec<String>) {
        self.reader.take().map(std::thread::JoinHandle::join).transpose().unwrap();
        let status = self.child.wait().unwrap();
        look();
        let mut emulator = self.emulator.lock().unwrap();
        (status, everything(&mut emulator))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pseudoterminal: the end that a program uses as its terminal, and the user's end.
fn terminal(rows: u16, columns: u16) -> (OwnedFd, OwnedFd) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    tcsetwinsize(&terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (terminal, user)
}

/// The lines that have scrolled away, and those on the screen.
fn everything(emulator: &mut vt100::Parser) -> Vec<String> {
    let (rows, columns) = emulator.screen().size();
    let (rows, columns) = (rows.get(), columns.get());
    emulator.screen_mut().set_scrollback(usize::MAX);
    let scrolled = emulator.screen().scrollback();
    let mut lines = Vec::new();
    for offset in (1..=scrolled).rev() {
        emulator.screen_mut().set_scrollback(offset);
        lines.push(line(emulator.screen(), 0, columns));
    }
    emulator.screen_mut().set_scrollback(0);
    lines.extend((0..rows).map(|row| line(emulator.screen(), row, columns)));
    lines
}

fn line(screen: &vt100::Screen, row: u16, columns: u16) -> String {
    let text = screen.rows(0, columns).nth(row.into()).unwrap_or_default();
    let wrapped = if screen.row_wrapped(row) { " (wrapped)" } else { "" };
    format!("{}{wrapped}", text.trim_end())
}

/// Lines that bars have left behind, or that the edge of the terminal has cut.
fn misplaced(lines: &[String]) -> Vec<&String> {
    let is_worker = |line: &String| line.starts_with("worker ") && line.contains("step time");
    let is_bar = |line: &&String| line.contains('[') || line.contains(" s left") || is_worker(line);
    // A command is a single line, meant to be copied.
    let is_cut = |line: &&String| line.ends_with("(wrapped)") && !line.starts_with("resume: ");
    lines.iter().filter(|line| is_bar(line) || is_cut(line)).collect()
}

/// The lines of the table of workers.
fn workers(lines: &[String]) -> Vec<&str> {
    let table = lines.iter().skip_while(|line| !line.trim_start().starts_with("worker  steps"));
    table.skip(1).map(|line| line.trim_start().split(' ').next().unwrap_or_default()).take(3).collect()
}

const LAUNCH: &str = "launch mnist --workers 3 --steps 900 --evaluate epoch --run-dir run";

#[test]
fn a_launched_run_shows_one_bar_and_a_line_a_worker_and_loses_nothing_at_the_end() {
    for columns in [80, 120] {
        let screen = Screen::start(windlass(LAUNCH), 24, columns);
        screen.shows("worker ", 3);
        let bars = screen.shows("step ", 1);
        assert!(bars[0].contains(" of 900 ["), "{bars:?}");
        let (status, lines) = screen.wait();
        assert!(status.success(), "{lines:#?}");
        assert_eq!(workers(&lines), ["0", "1", "2"], "at {columns} columns: {lines:#?}");
        assert_eq!(misplaced(&lines), Vec::<&String>::new(), "at {columns} columns: {lines:#?}");
        let first = lines.iter().find(|line| !line.is_empty());
        assert_eq!(first.map(String::as_str), Some("mnist on 1 ps and 3 workers, logs in run"), "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.contains("mnist on 1 ps")).count(), 2, "{lines:#?}");
    }
}

#[test]
fn a_run_in_one_process_shows_the_same() {
    let screen = Screen::start(windlass("train mnist --steps 900 --run-dir run"), 24, 80);
    screen.shows("worker 0  step ", 1);
    let bars = screen.shows("step ", 1);
    assert!(bars[0].contains(" of 900 ["), "{bars:?}");
    let (status, lines) = screen.wait();
    assert!(status.success(), "{lines:#?}");
    assert_eq!(workers(&lines)[0], "0", "{lines:#?}");
    assert_eq!(misplaced(&lines), Vec::<&String>::new(), "{lines:#?}");
}

#[test]
fn a_run_that_is_interrupted_leaves_no_bars_behind() {
    for (command, columns) in [("launch", 80), ("launch", 120), ("train", 80)] {
        let words = format!("{command} mnist --steps 1000000 --evaluate end --run-dir run");
        let mut screen = Screen::start(windlass(&words), 24, columns);
        screen.shows("worker 0  step ", 1);
        screen.interrupt();
        let (status, lines) = screen.wait();
        assert_eq!(status.code(), Some(130), "{lines:#?}");
        assert_eq!(misplaced(&lines), Vec::<&String>::new(), "{command} at {columns} columns: {lines:#?}");
        let last: Vec<&String> =
            lines.iter().skip_while(|line| !line.starts_with("stopped: SIGINT at step ")).collect();
        assert!(last.len() > 2 && last[1].starts_with("checkpoint: step "), "{lines:#?}");
        assert!(last[2].starts_with("resume: "), "{lines:#?}");
    }
}

#[test]
fn a_worker_that_leaves_is_seen_to_have_left() {
    let run = Screen::start(windlass("launch mnist --workers 3 --steps 3000 --evaluate end --run-dir run"), 24, 80);
    run.shows("worker ", 3);
    run.shows("worker 1  step ", 1);
    Task::of(Pid::from_child(&run.child)).find(|task| task.plays("worker", 1)).expect("it trains").signal(Signal::TERM);
    run.shows("worker 1  was told to stop by SIGTERM", 1);
    let (status, lines) = run.wait();
    assert!(status.success(), "{lines:#?}");
    assert_eq!(misplaced(&lines), Vec::<&String>::new(), "{lines:#?}");
    assert_eq!(workers(&lines), ["0", "1", "2"], "{lines:#?}");
    let row = lines.iter().find(|line| line.contains("left: told to stop")).unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(row.split_whitespace().nth(1).and_then(|steps| steps.parse().ok()) > Some(0u64), "it made steps: {row}");
}

#[test]
fn of_more_workers_than_there_is_room_for_the_first_are_shown_in_their_order() {
    let screen =
        Screen::start(windlass("launch linear --workers 9 --steps 1000000000 --evaluate end --run-dir run"), 11, 80);
    let expected = ["worker 0", "worker 1", "worker 2", "worker 3", "worker 4", "… and 4 others"];
    // The drawing arrives in pieces, so the screen is polled until it is complete.
    eventually("the first workers on the screen, in their order", || {
        let shown = screen.lines().into_iter().skip_while(|line| !line.starts_with("step "));
        let begins: Vec<String> =
            shown.skip(1).map(|line| line.split("  ").next().unwrap_or_default().to_owned()).collect();
        begins.iter().filter(|begin| !begin.is_empty()).eq(expected).then_some(())
    });
}

#[test]
fn lines_of_the_log_are_broken_between_words() {
    for verb in ["train", "launch"] {
        let words = format!("{verb} mnist --steps 20 --evaluate end --run-dir run");
        let (status, lines) = Screen::start(windlass(&words), 24, 48).wait();
        assert!(status.success(), "{lines:#?}");
        let log: Vec<&str> =
            lines.iter().map(String::as_str).skip_while(|line| !line.contains("INFO no --data-dir")).collect();
        assert!(log.len() > 1 && log[1].starts_with("    "), "{verb}: {lines:#?}");
        let text = [log[0], log[1].trim_start()].join(" ");
        assert!(text.ends_with("INFO no --data-dir: using built-in digits, drawn from seed 1"), "{verb}: {lines:#?}");
    }
}

#[test]
fn a_resumed_run_says_from_where_it_goes_on() {
    for command in ["train", "launch"] {
        let words = |steps| format!("{command} mnist --steps {steps} --evaluate end --run-dir run");
        let first = windlass(&words(300)).run().succeeded();
        let (status, lines) = Screen::start(first.windlass(&words(500)), 24, 80).wait();
        assert!(status.success(), "{lines:#?}");
        assert!(
            lines.iter().any(|line| line.starts_with("worker 0 resumes at global step 300 and trains ")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with(" steps ") && line.contains(" 500, 200 of them in ")),
            "{lines:#?}"
        );
    }
}

#[test]
fn with_no_color_nothing_is_coloured() {
    let words = "train mnist --steps 20 --evaluate end --run-dir run";
    let sent = |command: Invocation| {
        let screen = Screen::start(command, 24, 80);
        let sent = screen.sent.clone();
        let (status, lines) = screen.wait();
        assert!(status.success(), "{lines:#?}");
        String::from_utf8_lossy(&sent.lock().unwrap()).into_owned()
    };
    let coloured = sent(windlass(words));
    assert!(has_colors(&coloured), "a log on a terminal is coloured: {coloured:?}");
    for (words, value) in [(words, "1"), ("--help", "1"), ("train mnist --help", "yes")] {
        let plain = sent(windlass(words).env("NO_COLOR", value));
        assert!(!has_colors(&plain), "{words}: {plain:?}");
    }
}

/// Whether a text sets colours or other attributes: `ESC [ … m`.
fn has_colors(text: &str) -> bool {
    let is_parameter = |letter: char| letter.is_ascii_digit() || letter == ';';
    text.split("\x1b[").skip(1).any(|sequence| sequence.trim_start_matches(is_parameter).starts_with('m'))
}

#[test]
fn a_quiet_run_has_no_bars() {
    let words = "-q launch linear --steps 300 --evaluate end --run-dir run";
    let screen = Screen::start(windlass(words), 24, 80);
    let sent = screen.sent.clone();
    let (status, lines) = screen.wait();
    assert!(status.success(), "{lines:#?}");
    let sent = String::from_utf8_lossy(&sent.lock().unwrap()).into_owned();
    assert!(!sent.contains('\x1b'), "{sent:?}");
    let first = lines.iter().find(|line| !line.is_empty());
    assert!(first.is_some_and(|line| line.starts_with(" run ")), "{lines:#?}");
}
