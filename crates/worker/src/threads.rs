//! How many threads a worker computes on.
//!
//! More is not always faster: a small network loses more by handing work over than it gains. Unless the user sets
//! the number, one thread and all threads are each tried on a few real batches before training, and the faster is
//! taken. Both compute the same bits, so a run can be repeated or resumed with another number.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use burn::tensor::Device;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use windlass_wire::client::Interrupt;

use crate::train::{TrainError, Training};

/// How long each candidate is tried at most.
const TRIAL: Duration = Duration::from_millis(60);
/// Steps that are not counted, while caches fill and memory is mapped.
const WARM_UP: usize = 3;

/// A pool with this many threads.
pub fn pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("compute-{index}")).build()
}

/// Makes a pool for each of these devices. CPU devices share this many threads, with at least one each; every other
/// device has one thread to feed it.
pub(crate) fn shared_out(devices: &[Device], threads: usize) -> Result<Vec<ThreadPool>, ThreadPoolBuildError> {
    let is_cpu = |device: &Device| *device == Device::flex();
    let on_cpu = devices.iter().filter(|device| is_cpu(device)).count();
    let mut rank = 0;
    let own = devices.iter().map(|device| {
        if !is_cpu(device) {
            return pool(1);
        }
        rank += 1;
        pool((threads / on_cpu + usize::from(rank <= threads % on_cpu)).max(1))
    });
    own.collect()
}

/// Computes on these threads. A panic there, in a user's model, becomes an ordinary error, so that the other tasks
/// learn why this one ends.
pub(crate) fn compute<T: Send, E: From<anyhow::Error> + Send>(
    threads: &ThreadPool,
    work: impl FnOnce() -> Result<T, E> + Send,
) -> Result<T, E> {
    caught("computing", || threads.install(work))
}

/// Runs `work`, which may panic in a model, and turns a panic into an error. The location of the panic has been printed
/// by then.
pub fn caught<T, E: From<anyhow::Error>>(doing: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // A caller that gets the error computes no more.
    let done = catch_unwind(AssertUnwindSafe(work));
    done.unwrap_or_else(|panic| Err(anyhow!("panicked while {doing}{}", in_words(&*panic)).into()))
}

/// The text that follows the report of a panic.
fn in_words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.map_or_else(|| ", with no message".to_owned(), |text| format!(": {text}"))
}

/// Chooses the faster of one thread and `most` threads for this model. The trial gradients are thrown away.
pub(crate) fn choose(training: &mut Training, most: usize, stop: &Interrupt) -> Result<ThreadPool, TrainError> {
    let pool = |threads| pool(threads).map_err(anyhow::Error::from);
    let (one, all) = (pool(1)?, pool(most)?);
    if most == 1 {
        return Ok(one);
    }
    let alone = compute(&one, || trial(training, stop))?;
    let together = compute(&all, || trial(training, stop))?;
    Ok(if together < alone { all } else { one })
}

/// Returns the median step time.
fn trial(training: &mut Training, stop: &Interrupt) -> Result<Duration, TrainError> {
    let mut times = Vec::new();
    let began = Instant::now();
    for step in 0.. {
        let time = training.rehearse(stop).map_err(|error| match error {
            TrainError::Model(error) => TrainError::Model(error.context("cannot compute a first step")),
            error => error,
        })?;
        let is_slow = began.elapsed() > 10 * TRIAL;
        if step >= WARM_UP || is_slow {
            times.push(time);
        }
        if is_slow || began.elapsed() > TRIAL && times.len() >= 3 {
            break;
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
