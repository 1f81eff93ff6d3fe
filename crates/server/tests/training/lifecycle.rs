//! How runs begin and end.

use std::sync::mpsc;
use std::time::Duration;

use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::membership::Patience;
use windlass_core::optimizer::Optimizer;
use windlass_core::run::RunSpec;
use windlass_wire::client::{ClientError, Push};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{Failure, Over, task_message};

use crate::cluster::{Cluster, LIMIT, Options, Via, Working};
use crate::numbers::{SYNC, constant, one_vector, run};
use crate::proxy::{Disconnection, Proxy};
use crate::worker::Worker;

fn small_run() -> RunSpec {
    run(SYNC, one_vector())
}

fn over(worker: &mut Worker) -> Over {
    worker.receive_until(|kind| if let Kind::Over(over) = kind { Some(over) } else { None })
}

#[test]
fn tasks_may_be_started_in_any_order() {
    // Two servers and two workers.
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let cluster = Cluster::bind(2, 2, small_run(), Options::default());
        let mut workers = Vec::new();
        for task in order {
            match task {
                0 | 1 => cluster.start_server(task),
                _ => workers.push(cluster.spawn(task - 2, |worker| {
                    worker.pull();
                    worker.push(constant(&small_run(), 1.0)).step
                })),
            }
        }
        for worker in workers {
            let ended = worker.join();
            assert_eq!((ended.result, ended.over.exit_code), (1, 0));
        }
        cluster.assert_ends_well();
    }
}

#[test]
fn the_tasks_that_are_waited_for_are_named() {
    let cluster = Cluster::bind(2, 3, small_run(), Options::default());
    cluster.start_server(0);
    let mut worker = cluster.worker(1);
    let expected = ["ps 1", "worker 0", "worker 2"];
    worker.receive_until(|kind| matches!(kind, Kind::Waiting(waiting) if waiting.tasks == expected).then_some(()));
}

#[test]
fn a_worker_with_another_run_is_refused_and_told_the_difference() {
    let cluster = Cluster::start(1, 2, RunSpec { steps: Some(10), ..small_run() });
    let mut first = cluster.worker(0);
    let other = RunSpec { steps: Some(20), ..small_run() };
    let refusal = cluster.worker_with(1, other).err().unwrap();
    assert_eq!(refusal.exit_code, u32::from(exit_code::USAGE));
    assert_eq!(refusal.reason, "worker 1 was started with --steps 20, the other workers with --steps 10");
    let told = "worker 1 was refused: worker 1 was started with --steps 20, the other workers with --steps 10";
    first.receive_until(|kind| matches!(kind, Kind::Waiting(waiting) if waiting.notices == [told]).then_some(()));
    // The first worker's run is the one that the two then agree on.
    let mut second = cluster.worker(1);
    let second = Working::start("worker 1", move || {
        second.start_training();
        second.finish(())
    });
    first.start_training();
    first.finish(());
    second.join();
    cluster.assert_ends_well();
}

#[test]
fn a_lone_worker_may_be_started_again_with_another_run() {
    let cluster = Cluster::start(1, 2, small_run());
    cluster.worker_with(0, RunSpec { learning_rate: 0.5, ..small_run() }).unwrap().vanish();
    cluster.worker_again(0);
}

#[test]
fn a_worker_that_is_not_in_the_cluster_is_refused_and_its_run_is_not_the_runs() {
    let cluster = Cluster::start(1, 1, small_run());
    let other = RunSpec { optimizer: Optimizer::named("adam").unwrap(), ..small_run() };
    let refusal = cluster.worker_with(5, other).err().unwrap();
    assert_eq!(refusal.exit_code, u32::from(exit_code::USAGE));
    assert_eq!(refusal.reason, "worker 5 is not in the cluster that ps 0 was started with (1 ps, 1 workers)");
    cluster.train(|_| ());
}

#[test]
fn a_second_process_for_the_same_task_is_refused() {
    let cluster = Cluster::start(1, 2, small_run());
    let _first = cluster.worker(0);
    let refusal = cluster.worker_with(0, small_run()).err().unwrap();
    assert_eq!(refusal.exit_code, u32::from(exit_code::USAGE));
    assert!(refusal.reason.starts_with("worker 0 is already running"), "{}", refusal.reason);
}

#[test]
fn a_failed_worker_ends_the_run_everywhere_with_its_code_and_reason() {
    for via in [Via::Unix, Via::Tcp, Via::Process] {
        let cluster = Cluster::start_with(2, 2, small_run(), Options { via, ..Options::default() });
        let mut waiting = cluster.worker(0);
        let mut failing = cluster.worker(1);
        let (pulled, has_pulled) = mpsc::channel();
        let waiting = Working::start("worker 0", move || {
            waiting.start_training();
            waiting.pull();
            pulled.send(()).unwrap();
            // This push waits for a gradient that never comes, until the end of the run interrupts it.
            let mut client = waiting.take_client();
            let interrupt = waiting.interrupt();
            let push = Working::start("a push", move || {
                client.push(Push { dense: constant(&small_run(), 1.0), ..Push::default() })?;
                client.wait().map(drop)
            });
            let over = over(&mut waiting);
            interrupt.set();
            (push.join(), over)
        });
        failing.start_training();
        has_pulled.recv_timeout(LIMIT).unwrap();
        let incarnation = failing.incarnation.0;
        let failure = Failure { exit_code: 3, reason: "the loss is NaN at step 7".into(), incarnation, prepare: 0 };
        failing.send(task_message::Kind::Failed(failure));
        let expected = Outcome { exit_code: 3, reason: "worker 1: the loss is NaN at step 7".into() };
        let (push, heard) = waiting.join();
        assert!(matches!(push, Err(ClientError::Interrupted | ClientError::Gone(_))), "{via:?}: {push:?}");
        for over in [heard, over(&mut failing)] {
            assert_eq!((over.exit_code, over.reason), (3, expected.reason.clone()));
        }
        assert_eq!(cluster.outcomes(), [expected.clone(), expected]);
    }
}

#[test]
fn a_failure_with_a_code_that_does_not_fit_is_not_taken_for_a_success() {
    let cluster = Cluster::start(1, 1, small_run());
    let mut worker = cluster.worker(0);
    let failure = Failure { exit_code: 256, reason: "unlucky".into(), incarnation: worker.incarnation.0, prepare: 0 };
    worker.send(task_message::Kind::Failed(failure));
    assert_ne!(over(&mut worker).exit_code, 0);
    assert_ne!(cluster.outcomes()[0].exit_code, 0);
}

#[test]
fn a_failure_of_a_process_that_has_been_replaced_is_not_believed() {
    let cluster = Cluster::start(1, 1, small_run());
    let mut worker = cluster.worker(0);
    worker.start_training();
    let incarnation = worker.incarnation.0 - 1;
    worker.send(task_message::Kind::Failed(Failure {
        exit_code: 5,
        reason: "from before".into(),
        incarnation,
        prepare: 0,
    }));
    assert_eq!(worker.finish(()).over.exit_code, 0);
    cluster.assert_ends_well();
}

#[test]
fn a_task_that_never_comes_is_given_up_by_name() {
    let options = Options { peer_timeout: Duration::from_secs(1), ..Options::default() };
    let cluster = Cluster::start_with(1, 2, small_run(), options);
    let over = over(&mut cluster.worker(0));
    assert_eq!(over.exit_code, u32::from(exit_code::PEERS));
    assert!(over.reason.starts_with("gave up waiting for worker 1 after "), "{}", over.reason);
    assert_eq!(cluster.outcomes(), [Outcome { exit_code: exit_code::PEERS, reason: over.reason }]);
}

#[test]
fn a_coordinator_that_does_not_answer_is_given_up() {
    let options = Options { peer_timeout: Duration::from_millis(300), ..Options::default() };
    // The port accepts connections, but no process serves them.
    let cluster = Cluster::bind(1, 1, small_run(), options);
    let refusal = cluster.worker_with(0, small_run()).err().unwrap();
    assert_eq!(refusal.exit_code, u32::from(exit_code::PEERS));
    assert!(refusal.reason.starts_with("gave up waiting for ps 0 at 127.0.0.1:"), "{}", refusal.reason);
}

#[test]
fn a_server_that_is_no_coordinator_is_given_up() {
    let options = Options { peer_timeout: Duration::from_millis(300), ..Options::default() };
    let cluster = Cluster::bind(2, 1, small_run(), options);
    cluster.start_server(1);
    let wrong = Proxy::start(cluster.address(1), Disconnection::Never);
    let refusal = cluster.worker_through(0, &wrong).err().unwrap();
    assert_eq!(refusal.exit_code, u32::from(exit_code::PEERS), "{}", refusal.reason);
}

#[test]
fn a_server_that_dies_in_training_ends_the_run_by_name() {
    let patience = Patience { silent: Duration::from_secs(20), disconnected: Duration::from_millis(100) };
    let cluster = Cluster::start_with(2, 1, small_run(), Options { patience, ..Options::default() });
    let mut worker = cluster.worker(0);
    worker.start_training();
    cluster.kill_server(1);
    let over = over(&mut worker);
    assert_eq!(over.exit_code, u32::from(exit_code::PEERS));
    assert_eq!(over.reason, "lost ps 1: its connection broke and it did not come back");
    assert_eq!(cluster.outcomes()[0].exit_code, exit_code::PEERS);
}

#[test]
fn a_server_that_is_started_again_in_training_ends_the_run_by_name() {
    let cluster = Cluster::start(2, 1, small_run());
    let mut worker = cluster.worker(0);
    worker.start_training();
    cluster.kill_server(1);
    let expected = "ps 1 was restarted and has lost its parameters";
    // The new process is refused until the loss of the first one is noticed.
    let start_again = |_| {
        cluster.start_server(1);
        Some(cluster.outcome(1)).filter(|outcome| outcome.exit_code != exit_code::USAGE)
    };
    assert_eq!((0..1000).find_map(start_again).unwrap().reason, expected);
    assert_eq!(over(&mut worker).reason, expected);
    assert_eq!(cluster.outcome(0).reason, expected);
}

#[test]
fn when_the_chief_vanishes_another_ends_the_run() {
    let patience = Patience { silent: Duration::from_secs(20), disconnected: Duration::from_millis(100) };
    let cluster = Cluster::start_with(2, 2, small_run(), Options { patience, ..Options::default() });
    let chief = cluster.worker(0);
    let other = cluster.spawn(1, |worker| {
        worker.pull();
        worker.push(constant(&small_run(), 1.0)).step
    });
    let mut chief = chief;
    chief.start_training();
    chief.vanish();
    let ended = other.join();
    assert_eq!((ended.result, ended.over.exit_code), (1, 0));
    assert_eq!(ended.all_finished.unwrap().chief, 1);
    cluster.assert_ends_well();
}

#[test]
fn a_chief_that_vanishes_before_the_first_values_is_replaced() {
    let patience = Patience { silent: Duration::from_secs(20), disconnected: Duration::from_millis(100) };
    let cluster = Cluster::start_with(2, 2, small_run(), Options { patience, ..Options::default() });
    let chief = cluster.worker(0);
    let other = cluster.spawn(1, |worker| worker.pull().step);
    let mut chief = chief;
    chief.receive_until(|kind| matches!(kind, Kind::Initialise(_)).then_some(()));
    chief.vanish();
    assert_eq!(other.join().over.exit_code, 0);
    cluster.assert_ends_well();
}
