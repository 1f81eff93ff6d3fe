//! Keeps the run's lease on its checkpoints while the coordinator lives, and gives it up at the end.

use tokio::sync::{mpsc, oneshot, watch};
use tracing::warn;
use windlass_checkpoint::{CheckpointError, Lease, RENEW_EVERY};

use super::checkpoints::Done;

/// The lease as the coordinator holds it. If the coordinator is dropped, the lease is no longer renewed.
pub(super) struct LeaseKeeper {
    end: Option<oneshot::Sender<()>>,
    first_generation: watch::Sender<u64>,
    released: bool,
}

impl LeaseKeeper {
    /// Renews the lease from now on. If another run takes over, `done` hears of it.
    pub(super) fn start(lease: Lease, done: mpsc::Sender<Done>) -> Self {
        let (end, ended) = oneshot::channel();
        let (first_generation, begun) = watch::channel(lease.generation());
        tokio::spawn(keep(lease, begun, ended, done));
        Self { end: Some(end), first_generation, released: false }
    }

    /// Says in which generation the run began, once that is known.
    pub(super) fn set_first_generation(&self, generation: u64) {
        self.first_generation.send_replace(generation);
    }

    /// Gives the lease up; [`Done::Released`] tells when that is done.
    pub(super) fn release(&mut self) {
        if let Some(end) = self.end.take() {
            // Nobody listens once another run has taken over.
            self.released |= end.send(()).is_err();
        }
    }

    /// Notes that the lease was given up.
    pub(super) fn released(&mut self) {
        self.released = true;
    }

    /// True while the lease is being given up.
    pub(super) fn is_releasing(&self) -> bool {
        self.end.is_none() && !self.released
    }
}

async fn keep(
    mut lease: Lease,
    mut begun: watch::Receiver<u64>,
    mut ended: oneshot::Receiver<()>,
    done: mpsc::Sender<Done>,
) {
    let mut warned = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW_EVERY) => {}
            Ok(()) = begun.changed() => lease.set_first_generation(*begun.borrow_and_update()),
            told = &mut ended => {
                if told.is_ok() {
                    // If it fails, the next run finds out by itself that this one is gone.
                    let _ = lease.release().await;
                    let _ = done.send(Done::Released).await;
                }
                return;
            }
        }
        match lease.renew().await {
            Ok(()) => warned = false,
            Err(error @ CheckpointError::Fenced { .. }) => {
                let _ = done.send(Done::Overtaken(error)).await;
                return;
            }
            Err(error) if !warned => {
                warned = true;
                warn!("cannot tell other runs that this one uses the checkpoints: {error}");
            }
            Err(_) => {}
        }
    }
}
