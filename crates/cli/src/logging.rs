//! The log, to standard error. Events go to standard output; see `output`.

use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::{Event as LogEvent, Subscriber};
use tracing_subscriber::fmt::time::ChronoLocal;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};
use windlass_server::NOTICE;
use windlass_worker::event::Event;

use crate::output;
use crate::terminal::Terminal;

/// Starts logging. `RUST_LOG` chooses what is logged; the default is what changes in a run.
pub(crate) fn start() {
    start_beside(&Terminal::default());
}

/// The same where there may be bars.
pub(crate) fn start_beside(terminal: &Terminal) {
    start_with("info", terminal, None);
}

/// Starts logging for a task that was launched: notices are told the launcher, too, which shows them to its user.
pub(crate) fn start_for_launcher(terminal: &Terminal) {
    start_with("info", terminal, Some(Notices));
}

/// Starts logging for a run in one process, in which the tasks' coming and going is no news.
pub(crate) fn start_for_one_process(terminal: &Terminal) {
    start_with("info,windlass_server=warn,windlass_wire=warn,windlass_worker::control=warn", terminal, None);
}

fn start_with(default: &str, terminal: &Terminal, notices: Option<Notices>) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A second start, as in tests that run several commands in one process, changes nothing.
    let log = fmt::layer()
        .with_writer(terminal.clone())
        .with_target(false)
        .with_timer(ChronoLocal::new("%H:%M:%S%.3f".to_owned()))
        .with_ansi(std::io::stderr().is_terminal());
    let _ = tracing_subscriber::registry().with(filter).with(log).with(notices).try_init();
}

/// Tells the launcher, as an event, what the log has as a notice.
struct Notices;

impl<S: Subscriber> Layer<S> for Notices {
    fn on_event(&self, event: &LogEvent<'_>, _: Context<'_, S>) {
        if event.metadata().target() == NOTICE {
            let mut words = Words::default();
            event.record(&mut words);
            let notice = serde_json::to_string(&Event::Notice { text: words.0 });
            notice.iter().for_each(|line| output::print_line(line));
        }
    }
}

/// The message of a log event.
#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
