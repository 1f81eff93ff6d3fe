//! Keeps the run's lease on its checkpoints while the coordinator lives, and gives it up at the end.

use tokio::sync::{mpsc, oneshot, watch};
use tracing::warn;
use windlass_checkpoint::{CheckpointError, Ending, Lease, RENEW_EVERY};
use windlass_core::lifecycle::Outcome;

use crate::coordinator::interface::Event;

/// The lease as the coordinator holds it. If the coordinator is dropped, the lease is no longer renewed.
pub(in crate::coordinator) struct LeaseKeeper {
    end: Option<oneshot::Sender<Outcome>>,
    first_generation: watch::Sender<u64>,
}

impl LeaseKeeper {
    /// Renews the lease from now on. If another run takes over, `done` receives an event.
    pub(in crate::coordinator) fn start(lease: Lease, done: mpsc::Sender<Event>) -> Self {
        let (end, ended) = oneshot::channel();
        let (first_generation, begun) = watch::channel(lease.generation());
        tokio::spawn(keep(lease, begun, ended, done));
        Self { end: Some(end), first_generation }
    }

    /// Records in which generation the run began, once that is known.
    pub(in crate::coordinator) fn set_first_generation(&self, generation: u64) {
        self.first_generation.send_replace(generation);
    }

    /// Releases the lease, and records how the run ended; [`Event::Released`] follows when that is done. Returns false
    /// if the lease is already lost because another run has taken over.
    pub(in crate::coordinator) fn release(&mut self, outcome: Outcome) -> bool {
        self.end.take().is_some_and(|end| end.send(outcome).is_ok())
    }
}

async fn keep(
    mut lease: Lease,
    mut begun: watch::Receiver<u64>,
    mut ended: oneshot::Receiver<Outcome>,
    done: mpsc::Sender<Event>,
) {
    let mut warned = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            Ok(()) = begun.changed() => lease.set_first_generation(*begun.borrow_and_update()),
            told = &mut ended => {
                if let Ok(Outcome { exit_code, reason }) = told {
                    lease.set_ending(Ending { exit_code, reason });
                    // If it fails, the next run finds out by itself that this one is gone.
                    let _ = lease.release().await;
                    let _ = done.send(Event::Released).await;
                }
                return;
            }
        }
        match lease.renew().await {
            Ok(()) => warned = false,
            Err(error @ CheckpointError::Fenced { .. }) => {
                let _ = done.send(Event::Overtaken(error)).await;
                return;
            }
            Err(error) if !warned => {
                warned = true;
                warn!("cannot renew this run's claim on the checkpoints: {error}");
            }
            Err(_) => {}
        }
    }
}
