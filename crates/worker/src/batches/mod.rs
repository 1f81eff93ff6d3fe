//! A worker's batches: which samples make each of them, and having them ready when they are needed.

pub mod order;
mod prefetch;

use std::sync::Arc;

use anyhow::Context;

use crate::randomness::Draw;
use crate::replica::{Batch, BatchSource};
use order::{DataPosition, Order};
use prefetch::Prefetch;

/// One worker's batches, made ahead of their use on a thread of their own.
pub(crate) struct Batches {
    worker: u32,
    source: Arc<dyn BatchSource>,
    /// Where the next batch to be used was when the thread began.
    order: Order,
    ahead: Option<Prefetch<anyhow::Result<Placed>>>,
}

/// A batch and where it is in the data.
pub(crate) type Placed = (Batch, DataPosition);

impl Batches {
    pub(crate) fn new(worker: u32, source: Arc<dyn BatchSource>, order: Order) -> Self {
        Self { worker, source, order, ahead: None }
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

    /// The next batch. Waits for it if it is not ready.
    pub(crate) fn next(&mut self) -> anyhow::Result<Placed> {
        if self.ahead.is_none() {
            let (worker, source, mut order) = (self.worker, self.source.clone(), self.order.clone());
            let make = move || {
                let (samples, position) = order.next_batch();
                let batch = source.batch(samples, Draw { worker, position })?;
                Ok((batch, position))
            };
            self.ahead = Some(Prefetch::start("batches", make).context("cannot start the thread that makes batches")?);
        }
        let next = self.ahead.as_mut().and_then(Prefetch::next);
        next.context("the thread that makes batches has panicked")?.context("cannot make a batch")
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
