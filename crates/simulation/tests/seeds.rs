//! Runs of a simulated cluster, one per seed. `WINDLASS_SEED=n` runs one seed and prints everything that happens in it,
//! `WINDLASS_SEEDS=n` runs the first n, and `WINDLASS_SEEDS=m..n` those from m up to n.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use windlass_simulation::{Report, run};

/// Events, checkpoints, restores, and the reports with violations.
type Found = (u64, u64, u64, Vec<Report>);

/// The single seed to run, if requested, or else the range.
fn asked_for() -> (Option<u64>, Range<u64>) {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{text:?} is not a seed"));
    let one = std::env::var("WINDLASS_SEED").ok();
    let many = std::env::var("WINDLASS_SEEDS").unwrap_or_else(|_| "10000".to_owned());
    let many = match many.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => 0..number(&many),
    };
    (one.as_deref().map(number), many)
}

#[test]
fn whatever_goes_wrong_every_push_counts_once_and_every_run_ends() {
    let (one, seeds) = asked_for();
    if let Some(seed) = one {
        let report = run(seed, true);
        assert!(report.wrong.is_none(), "{report:#?}");
        return;
    }
    let (next, began) = (AtomicU64::new(seeds.start), Instant::now());
    let work = || {
        let (mut events, mut published, mut restored, mut wrong) = (0, 0, 0, Vec::<Report>::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
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
    let count = seeds.end.saturating_sub(seeds.start);
    println!(
        "{count} seeds in {seconds:.1} s ({:.0} a second): {} events, {} checkpoints, {} restores",
        count as f64 / seconds,
        sum(|result| result.0),
        sum(|result| result.1),
        sum(|result| result.2),
    );
    let mut wrong: Vec<Report> = results.into_iter().flat_map(|result| result.3).collect();
    wrong.sort_by_key(|report| report.seed);
    for report in wrong.iter().take(50) {
        println!("WINDLASS_SEED={}: {}", report.seed, report.wrong.clone().unwrap_or_default());
    }
    assert!(wrong.is_empty(), "{} of {count} seeds found something wrong", wrong.len());
}
