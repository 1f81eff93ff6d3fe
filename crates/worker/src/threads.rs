//! How many threads a worker computes on.
//!
//! More is not always faster: a small network loses more by handing work over than it gains. Unless the user says
//! how many, one thread and all threads are each tried on a few real batches before training, and the faster is
//! taken. Either computes the same bits, so that a run can be repeated or resumed with another number.

use std::time::{Duration, Instant};

use anyhow::Context;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use crate::train::Training;

/// The longest each candidate is tried.
const TRIAL: Duration = Duration::from_millis(60);
/// Steps that are not counted, while caches fill and memory is mapped.
const WARM_UP: usize = 3;

/// A pool with this many threads.
pub fn pool(threads: usize) -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new().num_threads(threads).thread_name(|index| format!("compute-{index}")).build()
}

/// The faster of one thread and `most` threads for this model. Gradients are computed and thrown away.
pub fn choose(training: &mut Training, most: usize) -> anyhow::Result<ThreadPool> {
    let (one, all) = (pool(1)?, pool(most)?);
    if most == 1 {
        return Ok(one);
    }
    let alone = one.install(|| trial(training))?;
    let together = all.install(|| trial(training))?;
    Ok(if together < alone { all } else { one })
}

/// The median time of a step.
fn trial(training: &mut Training) -> anyhow::Result<Duration> {
    let mut times = Vec::new();
    let began = Instant::now();
    for step in 0.. {
        let time = training.rehearse().context("cannot compute a first step")?;
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
