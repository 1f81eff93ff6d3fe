//! A server within the process of the worker or of the client that it serves alone.

use std::future;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_server::Server;
use windlass_worker::task::Ended;

/// It serves, with the coordinator in it, until the run is over.
pub(super) struct Serving {
    runtime: Handle,
    server: JoinHandle<Outcome>,
    /// Tells it to end like this.
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

    /// How the process ended that has trained like this, when the server has ended, too.
    pub(super) fn closed(self, ended: Ended) -> Ended {
        if ended.before_joining || !ended.was_let_in || ended.outcome.exit_code == exit_code::USAGE {
            // It would wait for a worker that never came, or for a store that does not open, and has nothing to save.
            let _ = self.end.send(ended.outcome.clone());
        }
        let served = self.runtime.block_on(self.server);
        with_server(ended, served.ok())
    }

    /// Ends it like this before anything has been trained. It still records that.
    pub(super) fn give_up(self, outcome: Outcome) {
        let _ = self.end.send(outcome);
        let _ = self.runtime.block_on(self.server);
    }
}

/// How a process ended that is a worker and a server. The server hears last: that all is well, or that what a worker
/// told to stop has left could not be saved.
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
