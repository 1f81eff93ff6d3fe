//! A server within the process of the worker or of the client that it serves alone.

use std::future;
use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_server::Server;
use windlass_wire::client::Interrupt;
use windlass_worker::task::Ended;

use super::told_to_stop;

/// It serves, perhaps with the coordinator in it, until the run is over.
pub(super) struct Serving {
    runtime: Handle,
    server: JoinHandle<Outcome>,
    /// Tells it to end like this.
    end: oneshot::Sender<Outcome>,
    /// Whether other tasks need it, too.
    is_shared: bool,
}

impl Serving {
    /// Starts a server that ends with the run of its only worker.
    pub(super) fn start(runtime: &Runtime, server: Server) -> Self {
        Self::start_until(runtime, server, future::pending(), false)
    }

    /// Starts a server that other tasks need, too. Told to stop, it tells them.
    pub(super) fn start_shared(runtime: &Runtime, server: Server, stop: Arc<Interrupt>) -> Self {
        Self::start_until(runtime, server, told_to_stop(stop), true)
    }

    fn start_until(
        runtime: &Runtime,
        server: Server,
        stop: impl Future<Output = Outcome> + Send + 'static,
        is_shared: bool,
    ) -> Self {
        let (end, told) = oneshot::channel();
        let ending = async {
            tokio::select! {
                Ok(outcome) = told => outcome,
                outcome = stop => outcome,
            }
        };
        Self { runtime: runtime.handle().clone(), server: runtime.spawn(server.run_until(ending)), end, is_shared }
    }

    /// Whether the server has ended, by itself if nobody told it to.
    pub(super) fn has_ended(&self) -> bool {
        self.server.is_finished()
    }

    /// How the process ended that has trained like this, when the server has ended, too.
    pub(super) fn closed(self, ended: Ended) -> Ended {
        // A shared server stays with the others, which may still let another process of this worker in.
        let is_missed = ended.before_joining || ended.outcome.exit_code == exit_code::USAGE;
        if is_missed || (!self.is_shared && !ended.was_let_in) {
            // It would wait for a worker that never came, or for a store that does not open, and has nothing to save.
            let _ = self.end.send(ended.outcome.clone());
        }
        let served = self.runtime.block_on(self.server);
        with_server(ended, served.ok())
    }

    /// Ends the server like this before anything has been trained, so that it still records that. Returns how it ended,
    /// which differs if it had ended by itself.
    pub(super) fn give_up(self, outcome: Outcome) -> Outcome {
        let _ = self.end.send(outcome.clone());
        self.runtime.block_on(self.server).unwrap_or(outcome)
    }
}

/// How a process ended that is a worker and a server. The server hears last: that all is well, or that what a worker
/// told to stop has left could not be saved.
fn with_server(worker: Ended, server: Option<Outcome>) -> Ended {
    let counts = |server: &Outcome| match worker.outcome.exit_code {
        0 => true,
        exit_code::TERMINATED => server.exit_code == exit_code::CHECKPOINT,
        _ => false,
    };
    match server.filter(counts) {
        Some(outcome) => Ended { outcome, ..worker },
        None => worker,
    }
}
