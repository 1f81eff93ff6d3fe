//! The log, to standard error. Events go to standard output; see `output`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::ChronoLocal;

use crate::terminal::Terminal;

/// Starts logging. `RUST_LOG` chooses what is logged; the default is what changes in a run.
pub(crate) fn start() {
    start_beside(&Terminal::default());
}

/// The same where there may be bars.
pub(crate) fn start_beside(terminal: &Terminal) {
    start_with("info", terminal);
}

/// Starts logging for a run in one process, in which the tasks' coming and going is no news.
pub(crate) fn start_for_one_process(terminal: &Terminal) {
    start_with("info,windlass_server=warn,windlass_wire=warn,windlass_worker::control=warn", terminal);
}

fn start_with(default: &str, terminal: &Terminal) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A second start, as in tests that run several commands in one process, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(terminal.clone())
        .with_target(false)
        .with_timer(ChronoLocal::new("%H:%M:%S%.3f".to_owned()))
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
