//! The log, to standard error. Events go to standard output; see `output`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::ChronoLocal;

/// Starts logging. `RUST_LOG` chooses what is logged; the default is what changes in a run.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // A second start, as in tests that run several commands in one process, changes nothing.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_timer(ChronoLocal::new("%H:%M:%S%.3f".to_owned()))
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}
