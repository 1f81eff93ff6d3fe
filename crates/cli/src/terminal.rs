//! The user's terminal: bars at its bottom, and lines that scroll by above them. Without a terminal there are no bars,
//! and lines are simply printed.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use console::Term;
use indicatif::{MultiProgress, ProgressDrawTarget, TermLike};
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::Failure;
use crate::output::print_line;
use crate::verbosity;

/// Standard output and standard error. Anything printed through this type stays separate from the bars.
#[derive(Clone, Default)]
pub(crate) struct Terminal {
    bars: Option<MultiProgress>,
}

impl Terminal {
    /// Shows bars if standard error is a terminal that supports them and the user wants them.
    pub(crate) fn with_bars() -> Self {
        let term = Term::buffered_stderr();
        let bars = (term.is_term() && !is_dumb() && !verbosity::is_quiet()).then(|| {
            MultiProgress::with_draw_target(ProgressDrawTarget::term_like_with_hz(Box::new(Screen::new(term)), 20))
        });
        Self { bars }
    }

    /// The place to add bars to, if they may be shown.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        self.bars.as_ref()
    }

    /// Removes the bars before a process exits abruptly.
    pub(crate) fn clear_bars(&self) {
        let _ = self.bars.as_ref().map(MultiProgress::clear);
    }

    /// Prints to standard output without wrapping.
    pub(crate) fn print(&self, text: &str) {
        self.above_bars(|| print_line(text));
    }

    /// Prints to standard output, wrapping long lines between words on a terminal.
    pub(crate) fn print_wrapped(&self, text: &str) {
        match columns() {
            None => self.print(text),
            Some(columns) => {
                self.print(&textwrap::fill(text, breaking(columns)));
            }
        }
    }

    /// Prints to standard error without wrapping.
    pub(crate) fn print_error(&self, text: &str) {
        self.above_bars(|| drop(writeln!(io::stderr().lock(), "{text}")));
    }

    /// Prints a line that is neither a warning nor a result to standard error, unless in quiet mode.
    pub(crate) fn print_note(&self, text: &str) {
        if !verbosity::is_quiet() {
            self.print_error(text);
        }
    }

    fn above_bars<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }
}

/// Wraps long lines only between words: long words are paths or names, meant to be copied.
fn breaking(columns: u16) -> textwrap::Options<'static> {
    textwrap::Options::new(columns.into())
        .subsequent_indent("    ")
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
}

/// The width of standard output, if it is a terminal.
pub(crate) fn columns() -> Option<u16> {
    columns_of(&Term::stdout())
}

fn columns_of(term: &Term) -> Option<u16> {
    if term.is_term() { term.size_checked().map(|(_, columns)| columns) } else { None }
}

/// Prints a failure to standard error. On a terminal, lines are wrapped between words, except for commands, which are
/// meant to be copied. Errors are ignored: the loss of the terminal may be the failure itself.
pub(crate) fn print_failure(failure: &Failure) {
    let text = failure.to_string();
    let columns = columns_of(&Term::stderr());
    let broken = |line: &str| match columns {
        Some(columns) if !Failure::is_command(line) => textwrap::fill(line, breaking(columns)),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = text.lines().map(broken).collect();
    // In one write, because the launcher also writes to the log of a launched task.
    let _ = io::stderr().lock().write_all((lines.join("\n") + "\n").as_bytes());
}

/// Whether output to this stream may be coloured: on a terminal with colours, unless `NO_COLOR` is set
/// (<https://no-color.org>).
pub(crate) fn may_color(stream: &impl IsTerminal) -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !is_dumb() && !is_refused
}

/// Whether the terminal can only print.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Whether standard output is a terminal.
pub(crate) fn is_read_by_a_person() -> bool {
    io::stdout().is_terminal()
}

/// The log goes to standard error, above the bars. Loss of the terminal does not stop the program.
impl<'a> MakeWriter<'a> for Terminal {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter(self.clone())
    }
}

/// Writes whole lines of the log. On a terminal they are wrapped between words.
pub(crate) struct LogWriter(Terminal);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let broken = columns_of(&Term::stderr()).zip(std::str::from_utf8(bytes).ok()).map(|(columns, text)| {
            let lines = text.lines().map(|line| textwrap::fill(line, breaking(columns)) + "\n");
            lines.collect::<String>()
        });
        let bytes_to_write = broken.as_deref().map_or(bytes, str::as_bytes);
        let _ = self.0.above_bars(|| io::stderr().lock().write_all(bytes_to_write));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error for bars, which assume that a terminal can always be written to: when the user closes it, training
/// continues, or is saved.
///
/// Bars fill every line up to its right edge. This type leaves the rest of the last line empty, with the cursor after
/// its text: at the edge, the `^C` that a terminal echoes for Ctrl-C would go to the next line, and the bars would be
/// redrawn one line too low.
#[derive(Debug)]
struct Screen {
    term: Term,
    /// The padding of the current line, held back until it is known whether another line follows.
    filler: Mutex<String>,
}

const CLEAR_TO_EDGE: &str = "\x1b[K";

impl Screen {
    fn new(term: Term) -> Self {
        Self { term, filler: Mutex::default() }
    }

    /// Writes the padding that was held back, and then draws.
    fn after_filler(&self, draw: impl FnOnce(&Term) -> io::Result<()>) -> io::Result<()> {
        let filler = std::mem::take(&mut *self.filler());
        let _ = self.term.write_str(&filler).and_then(|()| draw(&self.term));
        Ok(())
    }

    fn filler(&self) -> MutexGuard<'_, String> {
        self.filler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.term.size().1
    }

    fn height(&self) -> u16 {
        self.term.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.after_filler(|term| term.move_cursor_up(lines))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.after_filler(|term| term.move_cursor_down(lines))
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.after_filler(|term| term.move_cursor_right(columns))
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.after_filler(|term| term.move_cursor_left(columns))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.after_filler(|term| term.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        if !text.is_empty() && text.bytes().all(|byte| byte == b' ') {
            self.filler().push_str(text);
            return Ok(());
        }
        self.after_filler(|term| term.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.after_filler(Term::clear_line)
    }

    fn flush(&self) -> io::Result<()> {
        let is_cut_short = !std::mem::take(&mut *self.filler()).is_empty();
        if is_cut_short {
            let _ = self.term.write_str(CLEAR_TO_EDGE);
        }
        let _ = self.term.flush();
        Ok(())
    }
}
