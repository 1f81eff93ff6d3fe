//! The log, to standard error. Events go to standard output; see `output`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::ChronoLocal;

/// Starts logging. `RUST_LOG` chooses what is logged; the default is what changes in a run.
pub(crate) fn start() {
    start_with("info");
}

/// Starts logging for a run in one process, in which the tasks' coming and going is no news.
pub(crate) fn start_for_one_process() {
    start_with("info,windlass_server=warn,windlass_wire=warn,windlass_worker::control=warn");
}

fn start_with(default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A second start, as in tests that run several commands in one process, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_timer(ChronoLocal::new("%H:%M:%S%.3f".to_owned()))
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
