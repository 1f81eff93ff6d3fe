//! Runs of a simulated cluster, one a seed. `WINDLASS_SEED=n` runs one with everything that happens in it,
//! `WINDLASS_SEEDS=n` as many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use windlass_simulation::{Report, run};

/// Events, checkpoints, restores, and what was wrong.
type Found = (u64, u64, u64, Vec<Report>);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn whatever_goes_wrong_every_push_counts_once_and_every_run_ends() {
    if let Some(seed) = from_environment("WINDLASS_SEED") {
        let report = run(seed, true);
        assert!(report.wrong.is_none(), "{report:#?}");
        return;
    }
    let seeds = from_environment("WINDLASS_SEEDS").unwrap_or(10_000);
    let (next, began) = (AtomicU64::new(0), Instant::now());
    let work = || {
        let (mut events, mut published, mut restored, mut wrong) = (0, 0, 0, Vec::<Report>::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return (events, published, restored, wrong);
            }
            let report = run(seed, false);
            events += report.events;
            published += report.published;
            restored += report.restored;
            if report.wrong.is_some() {
                wrong.push(report);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().map(|thread| thread.join().expect("a simulation that does not panic")).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let sum = |count: fn(&Found) -> u64| results.iter().map(count).sum::<u64>();
    println!(
        "{seeds} seeds in {seconds:.1} s ({:.0} a second): {} events, {} checkpoints, {} restores",
        seeds as f64 / seconds,
        sum(|result| result.0),
        sum(|result| result.1),
        sum(|result| result.2),
    );
    let mut wrong: Vec<Report> = results.into_iter().flat_map(|result| result.3).collect();
    wrong.sort_by_key(|report| report.seed);
    for report in wrong.iter().take(20) {
        println!("WINDLASS_SEED={}: {}", report.seed, report.wrong.clone().unwrap_or_default());
    }
    assert!(wrong.is_empty(), "{} of {seeds} seeds found something wrong", wrong.len());
}
