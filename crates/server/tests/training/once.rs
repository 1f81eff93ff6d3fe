//! Exactly once, verified by accounting: on a network that loses, cuts, repeats and delays, every value on every server
//! is the sum of the pushes that, as workers were told, count. See [`crate::faults`] for what goes wrong.

use std::sync::mpsc;
use std::time::Duration;

use windlass_core::block::BLOCK_ELEMENTS;
use windlass_core::consistency::Mode;
use windlass_core::membership::Patience;
use windlass_core::run::RunSpec;

use crate::cluster::{Cluster, LIMIT, Options, Site};
use crate::faults::{Fault, Tally};
use crate::marks::Scenario;
use crate::numbers::{SYNC, constant, dense, run, seeds};

/// A round takes the first two gradients of three workers.
const TWO_OF_THREE: Mode = Mode::Sync { replicas_to_aggregate: Some(2) };

/// Checks the accounts of a scenario for every seed. With the usual number of seeds or more, all faults must have
/// occurred, and the total must be as `expected`.
fn count_all(usual: u64, count: impl Fn(u64) -> Tally, expected: impl Fn(&Tally) -> bool) {
    let mut tally = Tally::default();
    let counted = seeds(usual).map(|seed| tally.add(&count(seed))).count() as u64;
    println!("{tally:?}");
    if counted >= usual {
        tally.assert_bad_enough();
        assert!(expected(&tally), "{tally:?}");
    }
}

/// Trains with all workers from the beginning to the end.
fn count(scenario: Scenario) -> Tally {
    println!("{scenario}");
    let Scenario { servers, workers, .. } = scenario;
    let cluster = Cluster::start_with(servers, workers, scenario.run.clone(), scenario.options());
    let (site, pushing) = (cluster.site(), scenario.clone());
    let trained = cluster.train(move |worker| pushing.train(worker));
    scenario.check(&site, &trained.last, &trained.results);
    tally(&site)
}

fn nothing_is_dropped(tally: &Tally) -> bool {
    tally.dropped == 0
}

/// Returns what happened on the links to all servers.
fn tally(site: &Site) -> Tally {
    let mut tally = Tally::default();
    site.links.iter().for_each(|link| tally.add(&link.tally()));
    tally
}

#[test]
fn an_asynchronous_push_counts_once() {
    count_all(60, |seed| count(Scenario::new(seed, Mode::Async)), nothing_is_dropped);
}

#[test]
fn a_synchronous_push_counts_once() {
    count_all(60, |seed| count(Scenario::new(seed, SYNC)), nothing_is_dropped);
}

#[test]
fn a_push_of_bounded_staleness_counts_once() {
    count_all(40, |seed| count(Scenario::new(seed, Mode::Ssp { staleness: seed % 3 })), nothing_is_dropped);
}

#[test]
fn a_backup_workers_push_counts_once_or_is_reported_as_dropped() {
    let backup = |seed| Scenario { workers: 3, ..Scenario::new(seed, TWO_OF_THREE) };
    count_all(40, |seed| count(backup(seed)), |tally| tally.dropped > 0);
}

#[test]
fn the_steps_of_a_run_are_counted_exactly() {
    let modes = [Mode::Async, SYNC, Mode::Ssp { staleness: 1 }, TWO_OF_THREE];
    let limited = |seed| {
        let scenario = Scenario::new(seed, modes[seed as usize % modes.len()]);
        let run = RunSpec { steps: Some(3 + seed % 9), ..scenario.run.clone() };
        Scenario { run, ..scenario }
    };
    count_all(40, |seed| count(limited(seed)), |tally| tally.dropped > 0);
}

/// Shared memory loses nothing between two living processes, so it is counted by itself, and with more pushes.
#[test]
fn through_shared_memory_every_push_counts_once() {
    const PUSHES: u64 = 150;
    const WORKERS: u32 = 3;
    for (mode, updates) in [(Mode::Async, 3 * PUSHES), (Mode::Ssp { staleness: 2 }, 3 * PUSHES), (SYNC, PUSHES)] {
        for servers in [1, 3] {
            let run = run(mode, vec![dense("a", &[3 * BLOCK_ELEMENTS + 17]), dense("b", &[5])]);
            let (one, cluster) = (constant(&run, -1.0), Cluster::start(servers, WORKERS, run.clone()));
            let trained = cluster.train(move |worker| {
                while worker.steps() < PUSHES {
                    worker.push(one.clone());
                }
            });
            let expected = constant(&run, updates as f32);
            assert!(trained.last.dense == expected, "{mode:?} on {servers} ps");
        }
    }
}

#[test]
fn a_push_that_arrives_after_its_worker_was_replaced_does_not_count() {
    let modes = [Mode::Async, SYNC, Mode::Ssp { staleness: 4 }];
    let of_two = |seed| Scenario { workers: 2, ..Scenario::new(seed, modes[seed as usize % modes.len()]) };
    count_all(30, |seed| replace_a_worker(of_two(seed)), |tally| tally.faults.contains_key(&Fault::Orphaned));
}

/// A worker dies with a push on its way, which arrives when another process has taken its place and pushed.
fn replace_a_worker(scenario: Scenario) -> Tally {
    println!("{scenario}");
    let patience = Patience { silent: Duration::from_secs(20), disconnected: Duration::from_millis(50) };
    let options = Options { patience, ..scenario.options() };
    let cluster = Cluster::start_with(scenario.servers, 2, scenario.run.clone(), options);
    let site = cluster.site();
    let (joined, has_joined) = mpsc::channel();
    let pushing = scenario.clone();
    let staying = cluster.spawn(0, move |worker| {
        let before = pushing.train(worker);
        has_joined.recv_timeout(LIMIT).unwrap();
        let twice = Scenario { pushes: 2 * pushing.pushes, ..pushing };
        [before, twice.train(worker)].concat()
    });

    let mut old = cluster.worker(1);
    old.start_training();
    let last = scenario.pushes + 1;
    site.links.iter().for_each(|link| link.orphan(old.id, last));
    let mut applied = scenario.train(&mut old);
    let push = scenario.push(old.id, last);
    old.client().push(push).unwrap();
    let reached = old.client().transports();
    let reached = site.links.iter().zip(reached).filter(|(_, transport)| *transport != "unused");
    reached.for_each(|(link, _)| link.wait_for_orphan());
    drop(old.vanish());

    let mut new = cluster.worker_again(1);
    new.start_training();
    joined.send(()).unwrap();
    applied.extend(scenario.train(&mut new));
    new.finish(());
    let ended = staying.join();
    cluster.assert_ends_well();
    scenario.check(&site, &ended.last.unwrap(), &[ended.result, applied]);
    tally(&site)
}
