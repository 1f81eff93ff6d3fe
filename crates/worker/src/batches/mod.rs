//! A worker's batches: which samples make up each of them, and having them ready when they are needed.
//!
//! A separate thread makes batches ahead of time, so that a slow disk does not hold up training and a worker can be
//! told to stop while it waits for a batch. Batches that take microseconds are made by the training thread itself while
//! the servers are at work: handing them over would cost a short step more, and another thread would take a core from a
//! worker that the others wait for. If such a batch takes long after all, `making` lets another thread notice.

pub(crate) mod making;
pub mod order;
mod prefetch;

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tracing::info;
use windlass_wire::client::ClientError;

use crate::randomness::Draw;
use crate::replica::{Batch, BatchSource};
use crate::train::TrainError;
use making::Making;
use order::{DataPosition, Order};
use prefetch::{Next, Prefetch};

/// Batches that take less time are made by the training thread, and those that take more are made ahead; in between,
/// nothing changes.
const QUICK: Duration = Duration::from_micros(125);
const SLOW: Duration = Duration::from_millis(1);
/// The number of such batches in a row that causes a change.
const IN_A_ROW: u32 = 3;
/// The number of batches made ahead.
const AHEAD: usize = 4;
/// How often a wait for a batch checks whether it should end.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// How often a long wait is logged.
const SPEAK_EVERY: Duration = Duration::from_secs(3);

/// One worker's batches.
pub(crate) struct Batches {
    worker: u32,
    source: Arc<dyn BatchSource>,
    /// The position of the next batch to be made here, or of the first one made ahead.
    order: Order,
    patience: Duration,
    /// The thread that makes batches ahead, unless they are made here.
    ahead: Option<Prefetch<Made>>,
    is_made_here: bool,
    /// Batches used before the thread began, and since.
    used: (u64, u64),
    /// How many batches in a row were quick although made ahead, or slow although made here.
    unlike: u32,
    making: Making,
}

/// A batch, or why it could not be made, and how long that took.
type Made = (anyhow::Result<Placed>, Duration);

/// A batch and its position in the data.
pub(crate) type Placed = (Batch, DataPosition);

impl Batches {
    pub(crate) fn new(worker: u32, source: Arc<dyn BatchSource>, order: Order, patience: Duration) -> Self {
        let making = Making::new();
        Self { worker, source, order, patience, ahead: None, is_made_here: false, used: (0, 0), unlike: 0, making }
    }

    /// The batch that the training thread may be making.
    pub(crate) fn making(&self) -> &Making {
        &self.making
    }

    /// The number of batches in an epoch.
    pub(crate) fn per_epoch(&self) -> usize {
        self.order.batches()
    }

    /// The number of samples that an epoch omits.
    pub(crate) fn left_out(&self) -> usize {
        self.order.left_out()
    }

    /// The number of samples in a batch.
    pub(crate) fn samples(&self) -> usize {
        self.order.peek().len()
    }

    /// Continues after this many batches. Batches made ahead are dropped.
    pub(crate) fn seek(&mut self, batches: u64) {
        self.ahead = None;
        self.order.seek(batches);
        self.used = (batches, 0);
    }

    /// The number of epochs before the position of the last [`Batches::seek`].
    pub(crate) fn epochs_done(&self) -> u64 {
        self.order.epochs_done()
    }

    /// Returns the next batch. If it is not ready, waits as long as `may_wait` allows it, and no longer than the
    /// timeout for peers: in sync mode the others wait for this worker.
    pub(crate) fn next(&mut self, may_wait: impl Fn() -> Result<(), ClientError>) -> Result<Placed, TrainError> {
        let (made, took) = if self.is_made_here { self.make() } else { self.next_ahead(may_wait)? };
        self.used.1 += 1;
        self.choose(took);
        Ok(made.context("cannot make a batch")?)
    }

    /// Decides whether the next batches are made here or ahead, after one that took this long.
    fn choose(&mut self, took: Duration) {
        let is_unlike = if self.is_made_here { took > SLOW } else { took < QUICK };
        self.unlike = if is_unlike { self.unlike + 1 } else { 0 };
        if self.unlike < IN_A_ROW {
            return;
        }
        (self.is_made_here, self.unlike, self.ahead) = (!self.is_made_here, 0, None);
        let used = self.used.0 + self.used.1;
        self.order.seek(used); // What was ready is made again.
        self.used = (used, 0);
    }

    /// Makes the next batch on this thread.
    fn make(&mut self) -> Made {
        let (worker, source, order) = (self.worker, &*self.source, &mut self.order);
        self.making.note(|| make(worker, source, order))
    }

    fn next_ahead(&mut self, may_wait: impl Fn() -> Result<(), ClientError>) -> Result<Made, TrainError> {
        let patience = self.patience;
        let ahead = self.ahead()?;
        waited_for(patience, |patience| ahead.next_within(patience), may_wait)
    }

    /// Returns the thread that makes batches, and starts it if necessary.
    fn ahead(&mut self) -> anyhow::Result<&mut Prefetch<Made>> {
        if self.ahead.is_none() {
            let (worker, source, mut order) = (self.worker, self.source.clone(), self.order.clone());
            let make = move || make(worker, &*source, &mut order);
            // All parts of a step are made together.
            let most = (AHEAD / self.source.parts()).max(1);
            let ahead = Prefetch::start("batches", most, make);
            self.ahead = Some(ahead.context("cannot start the thread that makes batches")?);
        }
        Ok(self.ahead.as_mut().expect("just begun"))
    }

    /// Makes a batch that is not counted, waiting as in [`Batches::next`].
    pub(crate) fn sample(&self, may_wait: impl Fn() -> Result<(), ClientError>) -> Result<Batch, TrainError> {
        let draw = Draw { worker: self.worker, position: DataPosition { epoch: 0, batch: 0 }, first_part: 0 };
        let (source, samples) = (self.source.clone(), self.order.peek().to_vec());
        let (sender, made) = mpsc::sync_channel(1);
        let make = move || drop(sender.send(source.batch(&samples, draw)));
        let thread = std::thread::Builder::new().name("batches".to_owned()).spawn(make);
        thread.context("cannot start the thread that makes batches")?;
        let next = |patience| match made.recv_timeout(patience) {
            Ok(batch) => Next::Ready(batch),
            Err(RecvTimeoutError::Timeout) => Next::NotYet,
            Err(RecvTimeoutError::Disconnected) => Next::Panicked,
        };
        Ok(waited_for(self.patience, next, may_wait)?.context("cannot make a batch")?)
    }

    /// Stops making batches ahead.
    pub(crate) fn stop(&mut self) {
        self.ahead = None;
    }
}

/// Waits for the work of another thread, as long as `may_wait` allows it.
fn waited_for<T>(
    patience: Duration,
    mut next: impl FnMut(Duration) -> Next<T>,
    may_wait: impl Fn() -> Result<(), ClientError>,
) -> Result<T, TrainError> {
    let (mut time, mut spoken) = (TimeAwake::new(CHECK_EVERY, Instant::now()), Duration::ZERO);
    loop {
        match next(CHECK_EVERY) {
            Next::Ready(made) => return Ok(made),
            Next::Panicked => return Err(anyhow::anyhow!("the thread that makes batches has panicked").into()),
            Next::NotYet => may_wait()?,
        }
        let waited = time.at(Instant::now());
        if waited > patience {
            return Err(gave_up(waited));
        }
        if waited >= spoken + SPEAK_EVERY {
            spoken = waited;
            info!("waiting for a batch of training data ({} s)", waited.as_secs());
        }
    }
}

/// Measures a wait by a clock that stops while the process is suspended: a suspended worker has not waited, and
/// rejoins.
#[derive(Debug)]
struct TimeAwake {
    /// How often the clock is read.
    every: Duration,
    looked: Instant,
    total: Duration,
}

impl TimeAwake {
    fn new(every: Duration, now: Instant) -> Self {
        Self { every, looked: now, total: Duration::ZERO }
    }

    /// Returns the time so far. Of the time since the last call, it counts no more than usually lies between two calls
    /// in a running process.
    fn at(&mut self, now: Instant) -> Duration {
        self.total += now.saturating_duration_since(self.looked).min(2 * self.every);
        self.looked = now;
        self.total
    }
}

fn gave_up(waited: Duration) -> TrainError {
    anyhow::anyhow!("gave up waiting for a batch of training data after {} s", waited.as_secs()).into()
}

fn make(worker: u32, source: &dyn BatchSource, order: &mut Order) -> Made {
    let began = Instant::now();
    let (samples, position) = order.next_batch();
    let made = source.batch(samples, Draw { worker, position, first_part: 0 });
    (made.map(|batch| (batch, position)), began.elapsed())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver};

    use super::order::OrderConfig;
    use super::*;

    /// Makes a batch each time that it receives the number of samples, or an error.
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

    /// Makes batches that take this many milliseconds, one after the other, and then no time.
    struct Slow(Vec<u64>, std::sync::atomic::AtomicUsize);

    impl BatchSource for Slow {
        fn batch(&self, samples: &[usize], _draw: Draw) -> anyhow::Result<Batch> {
            let made = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(self.0.get(made).copied().unwrap_or(0)));
            Ok(Batch { content: Box::new(()), rows: Vec::new(), samples: samples[0] })
        }

        fn parts(&self) -> usize {
            1
        }
    }

    #[test]
    fn batches_come_in_order_wherever_they_are_made() {
        let config =
            OrderConfig { samples: 50, batch_size: 1, shuffle: false, seed: 1, worker: 0, shards: None, files: vec![] };
        // Slow, then quick, then slow four times in a row, then quick again.
        let times = [[2; 3].to_vec(), vec![0; 20], vec![3; 4]].concat();
        let source = Arc::new(Slow(times, 0.into()));
        let mut batches = Batches::new(0, source, Order::new(config).unwrap(), Duration::from_secs(60));
        batches.seek(10);
        for expected in 10..50 {
            let (batch, position) = batches.next(|| Ok(())).unwrap();
            assert_eq!((batch.samples(), position.batch), (expected, expected + 1));
        }
    }

    #[test]
    fn quick_batches_are_made_here_and_slow_ones_ahead() {
        let (mut batches, _sender) = batches();
        assert!(!batches.is_made_here, "until it is known");
        let observe = |batches: &mut Batches, micros: u64| {
            (0..IN_A_ROW).for_each(|_| batches.choose(Duration::from_micros(micros)));
            batches.is_made_here
        };
        assert_eq!(
            [500, 50, 500, 2000, 500, 50].map(|micros| observe(&mut batches, micros)),
            [false, true, true, false, false, true]
        );
    }

    #[test]
    fn a_batch_that_never_comes_is_given_up() {
        let (mut batches, _sender) = batches();
        for error in [batches.next(|| Ok(())).err().unwrap(), batches.sample(|| Ok(())).err().unwrap()] {
            assert_eq!(error.to_string(), "gave up waiting for a batch of training data after 0 s");
        }
    }

    #[test]
    fn the_time_in_which_the_process_stands_still_is_not_waited() {
        let began = Instant::now();
        let mut time = TimeAwake::new(CHECK_EVERY, began);
        assert_eq!(time.at(began + CHECK_EVERY), CHECK_EVERY);
        let woken = began + Duration::from_secs(3600);
        assert_eq!(time.at(woken), 3 * CHECK_EVERY);
        assert_eq!(time.at(woken + CHECK_EVERY), 4 * CHECK_EVERY);
    }

    #[test]
    fn a_batch_that_cannot_be_made_is_an_error_with_its_reason() {
        let (mut batches, sender) = batches();
        sender.send(Err("bad sector")).unwrap();
        let error = batches.next(|| Ok(())).err().unwrap();
        assert_eq!(error.to_string(), "cannot make a batch: bad sector");
    }
}
