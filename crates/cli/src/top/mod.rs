//! `windlass top HOST:PORT`: the state of a run on a screen that is redrawn continuously. `windlass_page` draws the
//! screen; this module polls the run, reads keys, and restores the terminal at the end.

mod raw_screen;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use ratatui::Terminal;
use ratatui::backend::TermionBackend;
use ratatui::termion::event::Key;
use ratatui::termion::input::TermRead;
use windlass_page::{Screen, Scroll, Silence, Status, figures};
use windlass_runs::{Ending, Run};

use crate::failure::Failure;
use crate::{runs, signals, status, terminal};
use raw_screen::RawScreen;

/// The time between a response and the next request.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The timeout for a response.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often the screen is redrawn: the terminal may have been resized, and the time without a response grows.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// The capacity of the queue of messages, most of which are keys.
const QUEUE: usize = 16;

/// Watch a run on a live screen
#[derive(Debug, Parser)]
#[command(after_help = "Keys: q or Ctrl-C quits; the arrows, Page Up, Page Down, Home and End scroll.")]
struct TopCommand {
    /// Address of the run's coordinator: ps 0, or worker 0 of a run with --colocate
    #[arg(value_name = "HOST:PORT")]
    address: String,
}

pub(crate) fn command() -> Command {
    TopCommand::command().name("top").about("Watch a run on a live screen")
}

pub(crate) fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let TopCommand { address } = TopCommand::from_arg_matches(matches).map_err(Failure::usage)?;
    let address = status::parse_address(&address).map_err(|hint| no_address(&address, hint))?.to_owned();
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() || terminal::is_dumb() {
        let hint = format!("`{} status {address}` prints a summary once, anywhere", crate::program::name());
        return Err(Failure::usage("`top` needs a terminal that can show a screen").with_hint(hint));
    }
    let (sender, messages) = mpsc::sync_channel(QUEUE);
    let told = sender.clone();
    signals::forward(move |_| told.send(Message::Quit).is_ok())?;
    let raw = RawScreen::enter().map_err(Failure::internal)?;
    let shown = Terminal::new(TermionBackend::new(io::stdout())).map_err(Failure::internal)?;
    read_keys(sender.clone());
    ask_again_and_again(address.clone(), sender);
    let screen = Screen::new(address, terminal::may_color(&io::stdout()));
    let ended = Top { screen, heard: Instant::now(), silence: None }.show(shown, &messages);
    drop(raw);
    ended.map_err(|error| Failure::internal(format!("cannot draw on the terminal: {error}")))
}

/// The failure for a place that cannot be polled. For a run directory, it suggests the address of its run.
fn no_address(place: &str, hint: &str) -> Failure {
    let directory = runs::named(Path::new(place));
    let run = Run::read(&directory).ok().filter(|_| directory.is_dir());
    // A run that has ended does not respond.
    let run = run.filter(|run| matches!(run.ending, Ending::Running | Ending::Unknown { .. }));
    let last = run.and_then(|run| run.last_status);
    let known = last.map(|last| figures::plain(&last.address)).filter(|address| !address.is_empty());
    let program = crate::program::name();
    let hint = match known {
        Some(address) => {
            format!("{} was last written by a run at {address}: `{program} top {address}`", directory.display())
        }
        None if directory.is_dir() => format!("`{program} status {place}` shows what the directory tells of its run"),
        None => hint.to_owned(),
    };
    Failure::usage(format!("{place:?} is not HOST:PORT")).with_hint(hint)
}

enum Message {
    Answer(Box<Status>),
    NoAnswer(String),
    Scroll(Scroll),
    Quit,
}

struct Top {
    screen: Screen,
    /// When the run last responded, or was first polled.
    heard: Instant,
    /// Why the run no longer responds.
    silence: Option<String>,
}

impl Top {
    /// Shows the run until the user quits.
    fn show(
        mut self,
        mut terminal: Terminal<TermionBackend<io::Stdout>>,
        messages: &mpsc::Receiver<Message>,
    ) -> io::Result<()> {
        loop {
            let secs = self.heard.elapsed().as_secs_f64();
            let silence = self.silence.clone().map(|why| Silence { secs, why });
            terminal.draw(|frame| self.screen.draw(frame, silence.as_ref()))?;
            match messages.recv_timeout(DRAW_EVERY) {
                Ok(Message::Answer(status)) => {
                    self.screen.answered(*status);
                    (self.heard, self.silence) = (Instant::now(), None);
                }
                Ok(Message::NoAnswer(why)) => self.silence = Some(why),
                Ok(Message::Scroll(to)) => self.screen.scroll(to),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Quit) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

/// Polls the run on a thread of its own, until the receiver is gone.
fn ask_again_and_again(address: String, messages: SyncSender<Message>) {
    std::thread::spawn(move || {
        loop {
            let message = match status::fetch(&address, PATIENCE) {
                Ok(status) => Message::Answer(Box::new(status)),
                Err(failure) => Message::NoAnswer(status::reason(&failure.message, &address).to_owned()),
            };
            if messages.send(message).is_err() {
                return;
            }
            std::thread::sleep(ASK_EVERY);
        }
    });
}

/// Reads keys on a thread of its own. On a terminal that is gone, nobody can type any more.
fn read_keys(messages: SyncSender<Message>) {
    std::thread::spawn(move || {
        let keys = io::stdin().keys().map_while(Result::ok).filter_map(meaning).chain([Message::Quit]);
        for message in keys {
            if messages.send(message).is_err() {
                return;
            }
        }
    });
}

fn meaning(key: Key) -> Option<Message> {
    Some(match key {
        Key::Char('q') | Key::Ctrl('c') => Message::Quit,
        Key::Up | Key::Char('k') => Message::Scroll(Scroll::Up),
        Key::Down | Key::Char('j') => Message::Scroll(Scroll::Down),
        Key::PageUp => Message::Scroll(Scroll::PageUp),
        Key::PageDown | Key::Char(' ') => Message::Scroll(Scroll::PageDown),
        Key::Home => Message::Scroll(Scroll::Home),
        Key::End => Message::Scroll(Scroll::End),
        _ => return None,
    })
}
