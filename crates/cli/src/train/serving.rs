//! A server in the same process as a worker or client that it serves.

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

/// A running server, perhaps with the coordinator in it, which serves until the run is over.
pub(super) struct Serving {
    runtime: Handle,
    server: JoinHandle<Outcome>,
    /// Makes the server end with this outcome.
    end: oneshot::Sender<Outcome>,
    /// Whether it also serves other tasks.
    is_shared: bool,
}

impl Serving {
    /// Starts a server that ends with the run of its only worker.
    pub(super) fn start(runtime: &Runtime, server: Server) -> Self {
        Self::start_until(runtime, server, future::pending(), false)
    }

    /// Starts a server that also serves other tasks, which learn when it is told to stop.
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

    /// Waits until the server has ended, and returns how the process ended.
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

/// Combines how the worker and the server of one process ended. The server learns last how the run ended: its outcome
/// counts after a successful worker. After a worker that was told to stop it counts if the run could not be saved, or had
/// been completed and is saved.
fn with_server(worker: Ended, server: Option<Outcome>) -> Ended {
    let counts = |server: &Outcome| match worker.outcome.exit_code {
        0 => true,
        exit_code::TERMINATED => match server.exit_code {
            0 => worker.summary.is_some(),
            code => code == exit_code::CHECKPOINT,
        },
        _ => false,
    };
    match server.filter(counts) {
        Some(outcome) => Ended { outcome, ..worker },
        None => worker,
    }
}
