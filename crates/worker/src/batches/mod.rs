//! A worker's batches: which samples make each of them, and having them ready when they are needed.

pub mod order;
mod prefetch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tracing::info;
use windlass_wire::client::ClientError;

use crate::randomness::Draw;
use crate::replica::{Batch, BatchSource};
use crate::train::TrainError;
use order::{DataPosition, Order};
use prefetch::{Next, Prefetch};

/// Batches that are made ahead.
const AHEAD: usize = 4;
/// How soon a wait for a batch sees that there is nothing to wait for any more.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How often a long wait is spoken of.
const SPEAK_EVERY: Duration = Duration::from_secs(3);

/// One worker's batches, made ahead of their use on a thread of their own.
pub(crate) struct Batches {
    worker: u32,
    source: Arc<dyn BatchSource>,
    /// Where the next batch to be used was when the thread began.
    order: Order,
    patience: Duration,
    ahead: Option<Prefetch<anyhow::Result<Placed>>>,
}

/// A batch and where it is in the data.
pub(crate) type Placed = (Batch, DataPosition);

impl Batches {
    pub(crate) fn new(worker: u32, source: Arc<dyn BatchSource>, order: Order, patience: Duration) -> Self {
        Self { worker, source, order, patience, ahead: None }
    }

    /// How many an epoch has.
    pub(crate) fn per_epoch(&self) -> usize {
        self.order.batches()
    }

    /// How many samples each has.
    pub(crate) fn samples(&self) -> usize {
        self.order.peek().len()
    }

    /// Goes to where so many batches have been used. What was made ahead is forgotten.
    pub(crate) fn seek(&mut self, batches: u64) {
        self.ahead = None;
        self.order.seek(batches);
    }

    /// How many epochs lie before the place that was last gone to.
    pub(crate) fn epochs_done(&self) -> u64 {
        self.order.epochs_done()
    }

    /// The next batch. If it is not ready, waits for it as long as `may_wait` has nothing against it and no longer than
    /// the patience for peers: in sync mode the others wait for this worker.
    pub(crate) fn next(&mut self, may_wait: impl Fn() -> Result<(), ClientError>) -> Result<Placed, TrainError> {
        let began = Instant::now();
        let mut spoken = began;
        loop {
            match self.ahead()?.next_within(CHECK_EVERY) {
                Next::Ready(next) => return Ok(next.context("cannot make a batch")?),
                Next::Panicked => return Err(anyhow::anyhow!("the thread that makes batches has panicked").into()),
                Next::NotYet => may_wait()?,
            }
            let waited = began.elapsed();
            if waited > self.patience {
                return Err(anyhow::anyhow!(
                    "gave up waiting for a batch of training data after {} s",
                    waited.as_secs()
                )
                .into());
            }
            if spoken.elapsed() >= SPEAK_EVERY {
                spoken = Instant::now();
                info!("waiting for a batch of training data ({} s)", waited.as_secs());
            }
        }
    }

    /// The thread that makes batches, which begins when the first is wanted.
    fn ahead(&mut self) -> anyhow::Result<&mut Prefetch<anyhow::Result<Placed>>> {
        if self.ahead.is_none() {
            let (worker, source, mut order) = (self.worker, self.source.clone(), self.order.clone());
            let make = move || {
                let (samples, position) = order.next_batch();
                let batch = source.batch(samples, Draw { worker, position })?;
                Ok((batch, position))
            };
            // Of a step in several parts, all are made together.
            let most = (AHEAD / self.source.parts()).max(1);
            let ahead = Prefetch::start("batches", most, make);
            self.ahead = Some(ahead.context("cannot start the thread that makes batches")?);
        }
        Ok(self.ahead.as_mut().expect("just begun"))
    }

    /// A batch that is not counted, made here and now.
    pub(crate) fn sample(&self) -> anyhow::Result<Batch> {
        let position = DataPosition { epoch: 0, batch: 0 };
        self.source.batch(self.order.peek(), Draw { worker: self.worker, position })
    }

    /// Stops making batches ahead.
    pub(crate) fn stop(&mut self) {
        self.ahead = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver};

    use super::order::OrderConfig;
    use super::*;

    /// Makes a batch whenever it is told how: of so many samples, or not at all.
    struct Told(Mutex<Receiver<Result<usize, &'static str>>>);

    impl BatchSource for Told {
        fn batch(&self, _samples: &[usize], _draw: Draw) -> anyhow::Result<Batch> {
            let told = self.0.lock().unwrap().recv()?;
            let samples = told.map_err(anyhow::Error::msg)?;
            Ok(Batch { content: Box::new(()), rows: Vec::new(), samples })
        }

        fn parts(&self) -> usize {
            1
        }
    }

    const PATIENCE: Duration = Duration::from_millis(120);

    fn batches() -> (Batches, mpsc::Sender<Result<usize, &'static str>>) {
        let (sender, receiver) = mpsc::channel();
        let config =
            OrderConfig { samples: 4, batch_size: 2, shuffle: false, seed: 1, worker: 0, shards: None, files: vec![] };
        (Batches::new(0, Arc::new(Told(Mutex::new(receiver))), Order::new(config).unwrap(), PATIENCE), sender)
    }

    #[test]
    fn a_worker_that_is_told_to_stop_does_not_wait_for_a_batch_that_never_comes() {
        let (mut batches, sender) = batches();
        sender.send(Ok(7)).unwrap();
        let (batch, position) = batches.next(|| Ok(())).unwrap();
        assert_eq!((batch.samples(), position), (7, DataPosition { epoch: 1, batch: 1 }));
        let stopped = batches.next(|| Err(ClientError::Interrupted));
        assert!(matches!(stopped, Err(TrainError::Client(ClientError::Interrupted))));
    }

    #[test]
    fn a_batch_that_never_comes_is_given_up() {
        let (mut batches, _sender) = batches();
        let error = batches.next(|| Ok(())).err().unwrap();
        assert_eq!(error.to_string(), "gave up waiting for a batch of training data after 0 s");
    }

    #[test]
    fn a_batch_that_cannot_be_made_is_an_error_with_its_reason() {
        let (mut batches, sender) = batches();
        sender.send(Err("bad sector")).unwrap();
        let error = batches.next(|| Ok(())).err().unwrap();
        assert_eq!(error.to_string(), "cannot make a batch: bad sector");
    }
}
