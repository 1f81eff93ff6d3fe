//! The log, to standard error. Events go to standard output; see `output`.

use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::{Event as LogEvent, Level, Subscriber};
use tracing_subscriber::fmt::time::ChronoLocal;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};
use windlass_server::NOTICE;
use windlass_worker::event::{self, Event};

use crate::output;
use crate::terminal::{self, Terminal};
use crate::verbosity::{self, Verbosity};

/// What `-q` and `-v` log. `-v` logs no more than usual from other crates.
const QUIET: &str = "warn";
const VERBOSE: &str = "info,windlass=debug";

/// Starts logging. The level comes from `-q` and `-v`, or else from `RUST_LOG`; by default, changes of a run's state
/// are logged.
pub(crate) fn start() {
    start_beside(&Terminal::default());
}

/// Starts logging where bars may be shown.
pub(crate) fn start_beside(terminal: &Terminal) {
    start_with("info", terminal, None);
}

/// Starts logging for a launched task: notices are also sent to the launcher, which shows them to its user. Messages of
/// the model about its data are the same in every task, so only the chief sends them.
pub(crate) fn start_for_launcher(terminal: &Terminal, is_chief: bool) {
    start_with("info", terminal, Some(Notices { is_chief }));
}

/// Starts logging for a run in one process, in which joining and leaving tasks are not worth logging.
pub(crate) fn start_for_one_process(terminal: &Terminal) {
    start_with("info,windlass_server=warn,windlass_wire=warn,windlass_worker::control=warn", terminal, None);
}

fn start_with(default: &str, terminal: &Terminal, notices: Option<Notices>) {
    let filter = match verbosity::chosen() {
        Verbosity::Quiet => EnvFilter::new(QUIET),
        Verbosity::Normal => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default)),
        Verbosity::Verbose => EnvFilter::new(VERBOSE),
    };
    // A second start has no effect, as in tests that run several commands in one process.
    let log = fmt::layer()
        .with_writer(terminal.clone())
        .with_target(false)
        .with_timer(ChronoLocal::new("%H:%M:%S%.3f".to_owned()))
        .with_ansi(terminal::may_color(&std::io::stderr()));
    let _ = tracing_subscriber::registry().with(filter).with(log).with(notices).try_init();
}

/// A log message of a task about its data. The launcher logs it unchanged.
#[derive(Serialize, Deserialize)]
pub(crate) struct Remark {
    pub(crate) remark: String,
}

/// The log target of models.
const MODELS: &str = "windlass_models";

/// Sends log messages that the user should see to the launcher, on standard output.
struct Notices {
    is_chief: bool,
}

impl<S: Subscriber> Layer<S> for Notices {
    fn on_event(&self, event: &LogEvent<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let text = || {
            let mut words = Words::default();
            event.record(&mut words);
            words.0
        };
        let line = match metadata.target() {
            NOTICE | event::NOTICE => serde_json::to_string(&Event::Notice { text: text() }),
            target if target.starts_with(MODELS) && *metadata.level() == Level::INFO && self.is_chief => {
                serde_json::to_string(&Remark { remark: text() })
            }
            _ => return,
        };
        line.iter().for_each(|line| output::print_line(line));
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
