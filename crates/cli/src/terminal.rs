//! The user's terminal: bars at its bottom, and lines that scroll by above them. Where there is no terminal there are
//! no bars, and lines are only printed.

use std::io::{self, IsTerminal, Write};

use console::Term;
use indicatif::{MultiProgress, ProgressDrawTarget, TermLike};
use tracing_subscriber::fmt::MakeWriter;

use crate::output::print_line;

/// Standard output and standard error. Whatever is printed through it while there are bars does not mix with them.
#[derive(Clone, Default)]
pub(crate) struct Terminal {
    bars: Option<MultiProgress>,
}

impl Terminal {
    /// With bars, if standard error is a terminal that can show them.
    pub(crate) fn with_bars() -> Self {
        let term = Term::buffered_stderr();
        let can_move_its_cursor = std::env::var_os("TERM").is_none_or(|name| name != "dumb");
        let bars = (term.is_term() && can_move_its_cursor).then(|| {
            MultiProgress::with_draw_target(ProgressDrawTarget::term_like_with_hz(Box::new(Forgiving(term)), 20))
        });
        Self { bars }
    }

    /// Where bars are added, if there may be any.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        self.bars.as_ref()
    }

    /// Prints to standard output, as it is.
    pub(crate) fn print(&self, text: &str) {
        self.above_bars(|| print_line(text));
    }

    /// Prints to standard output; lines too long for a terminal are broken between words.
    pub(crate) fn print_wrapped(&self, text: &str) {
        match columns() {
            None => self.print(text),
            Some(columns) => {
                let options = textwrap::Options::new(columns.into()).subsequent_indent("    ").break_words(false);
                self.print(&textwrap::fill(text, options));
            }
        }
    }

    /// Prints to standard error, as it is.
    pub(crate) fn print_error(&self, text: &str) {
        self.above_bars(|| drop(writeln!(io::stderr().lock(), "{text}")));
    }

    fn above_bars<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bars {
            Some(bars) => bars.suspend(write),
            None => write(),
        }
    }
}

/// How wide standard output is, if it is a terminal.
pub(crate) fn columns() -> Option<u16> {
    let stdout = Term::stdout();
    if stdout.is_term() { stdout.size_checked().map(|(_, columns)| columns) } else { None }
}

/// Whether standard output is a terminal.
pub(crate) fn is_read_by_a_person() -> bool {
    io::stdout().is_terminal()
}

/// The log goes to standard error, above the bars. A terminal that has gone away is no reason to stop.
impl<'a> MakeWriter<'a> for Terminal {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter(self.clone())
    }
}

/// Writes lines of the log.
pub(crate) struct LogWriter(Terminal);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.above_bars(|| io::stderr().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Standard error for bars, which take it for granted that a terminal can be written to: training goes on, or is saved,
/// when the user has closed it.
#[derive(Debug)]
struct Forgiving(Term);

impl TermLike for Forgiving {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        forgive(self.0.move_cursor_up(lines))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        forgive(self.0.move_cursor_down(lines))
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        forgive(self.0.move_cursor_right(columns))
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        forgive(self.0.move_cursor_left(columns))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        forgive(self.0.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        forgive(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        forgive(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        forgive(self.0.flush())
    }
}

fn forgive(_written: io::Result<()>) -> io::Result<()> {
    Ok(())
}
