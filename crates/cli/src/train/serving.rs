//! A server in the same process as the worker or client that it exclusively serves.

use std::future;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_server::Server;
use windlass_worker::task::Ended;

/// A running server with the coordinator in it, which serves until the run is over.
pub(super) struct Serving {
    runtime: Handle,
    server: JoinHandle<Outcome>,
    /// Makes the server end with this outcome.
    end: oneshot::Sender<Outcome>,
}

impl Serving {
    pub(super) fn start(runtime: &Runtime, server: Server) -> Self {
        let (end, told) = oneshot::channel();
        let told = async {
            match told.await {
                Ok(outcome) => outcome,
                Err(_) => future::pending().await,
            }
        };
        Self { runtime: runtime.handle().clone(), server: runtime.spawn(server.run_until(told)), end }
    }

    /// Waits until the server has ended, and returns how the process ended.
    pub(super) fn closed(self, ended: Ended) -> Ended {
        if ended.before_joining || !ended.was_let_in || ended.outcome.exit_code == exit_code::USAGE {
            // Otherwise the server would wait for a worker that never came, or for a store that does not open. It has
            // nothing to save.
            let _ = self.end.send(ended.outcome.clone());
        }
        let served = self.runtime.block_on(self.server);
        with_server(ended, served.ok())
    }

    /// Ends the server before anything has been trained. It still records that outcome.
    pub(super) fn give_up(self, outcome: Outcome) {
        let _ = self.end.send(outcome);
        let _ = self.runtime.block_on(self.server);
    }
}

/// How a process with a worker and a server ended. The server's outcome counts if the worker succeeded, or if the
/// worker was told to stop and its results could not be saved.
pub(super) fn with_server(worker: Ended, server: Option<Outcome>) -> Ended {
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
