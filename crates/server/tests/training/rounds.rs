//! Synchronous rounds when workers are late, leave, die and come back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::ledger::Incarnation;
use windlass_core::membership::Patience;
use windlass_core::run::RunSpec;
use windlass_wire::client::{ClientError, Push};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::link::ServeError;
use windlass_wire::stream::frame::{AnswerKind, Request, RequestKind};

use crate::cluster::{Cluster, LIMIT, Options, Via, Working};
use crate::numbers::{SYNC, constant, one_vector, run, several_blocks};
use crate::proxy::{Disconnection, Proxy};
use crate::streams::{Scripted, push_header};
use crate::worker::Worker;

/// Broken connections soon count as deaths.
fn impatient() -> Options {
    let patience = Patience { silent: Duration::from_secs(20), disconnected: Duration::from_millis(100) };
    Options { patience, ..Options::default() }
}

fn push(run: &RunSpec, value: f32) -> Push {
    Push { dense: constant(run, value), ..Push::default() }
}

#[test]
fn rounds_go_on_without_a_backup_worker_whose_late_gradient_is_dropped_and_counted() {
    let run = run(Mode::Sync { replicas_to_aggregate: Some(2) }, several_blocks());
    for servers in [1, 3] {
        let cluster = Cluster::start(servers, 3, run.clone());
        let all_have_pulled = Arc::new(Barrier::new(3));
        let (fast_ones_done, done) = mpsc::channel();
        let fast: Vec<_> = (0..2)
            .map(|index| {
                let (run, done, pulled) = (run.clone(), fast_ones_done.clone(), all_have_pulled.clone());
                cluster.spawn(index, move |worker| {
                    worker.pull();
                    pulled.wait();
                    for step in 1..=3 {
                        let pulled = worker.push(constant(&run, 1.0));
                        assert!(pulled.applied && pulled.step == step);
                    }
                    done.send(()).unwrap();
                })
            })
            .collect();
        let slow_run = run.clone();
        let slow = cluster.spawn(2, move |worker| {
            assert_eq!(worker.pull().step, 0);
            all_have_pulled.wait();
            (0..2).for_each(|_| done.recv_timeout(LIMIT).unwrap());
            let late = worker.push(constant(&slow_run, 100.0));
            assert!(!late.applied);
            assert_eq!((late.step, late.dense), (3, constant(&slow_run, -3.0)));
        });
        let ended: Vec<_> = fast.into_iter().map(Working::join).collect();
        slow.join();
        assert_eq!(ended[0].all_finished.as_ref().unwrap().dropped_gradients, 1);
        assert_eq!(ended[0].last.as_ref().unwrap().dense, constant(&run, -3.0));
        cluster.assert_ends_well();
    }
}

#[test]
fn workers_that_lag_behind_on_different_servers_do_not_wait_for_each_other_for_ever() {
    let run = run(Mode::Sync { replicas_to_aggregate: Some(2) }, several_blocks());
    let cluster = Cluster::start_with(2, 4, run.clone(), Options { via: Via::Tcp, ..Options::default() });
    let mut lagging = [0, 1].map(|index| cluster.worker(index));
    let mut leading = [2, 3].map(|index| cluster.worker(index));
    let proxies = [(); 2].map(|()| [0, 1].map(|server| Proxy::start(cluster.address(server), Disconnection::Never)));
    lagging.iter_mut().zip(&proxies).for_each(|(worker, proxies)| worker.go_through(proxies));
    lagging.iter_mut().chain(&mut leading).for_each(Worker::start_training);
    lagging.iter_mut().chain(&mut leading).for_each(|worker| assert_eq!(worker.pull().step, 0));

    // Both push gradients that are stale by then. One server says so in the first round, the other only in the second.
    let leading = round(leading, &run);
    proxies[0][0].hold();
    proxies[1][1].hold();
    let before = [proxies[0][1].answered(), proxies[1][0].answered()];
    let late = lagging.map(|mut worker| {
        let run = run.clone();
        Working::start("a late push", move || {
            assert!(!worker.push(constant(&run, 100.0)).applied);
            worker
        })
    });
    proxies[0][1].wait_for_more_than(before[0]);
    proxies[1][0].wait_for_more_than(before[1]);
    let leading = round(leading, &run);
    proxies[0][0].release();
    proxies[1][1].release();
    let lagging = late.map(Working::join);

    // From here on every round needs both workers.
    let leading = leading.map(|worker| Working::start("a leading worker", move || worker.finish(())));
    let lagging = (0..3).fold(lagging, |workers, _| round(workers, &run));
    let lagging = lagging.map(|worker| Working::start("a lagging worker", move || worker.finish(())));
    drop(leading.map(Working::join));
    let ended = lagging.map(Working::join);
    assert_eq!(ended[0].last.as_ref().unwrap().dense, constant(&run, -5.0));
    cluster.assert_ends_well();
}

#[test]
fn a_dead_process_that_asks_for_a_round_to_come_takes_its_worker_out_of_none() {
    let run = run(SYNC, several_blocks());
    let cluster = Cluster::start(1, 2, run.clone());
    let workers = two_that_have_begun(&cluster);

    // The worker saw that round before a server was lost and the run rolled back.
    let header = push_header(&workers[1], 0, 0);
    let earlier = Incarnation(header.incarnation.0 - 1);
    let pull = Request { kind: RequestKind::Pull, incarnation: earlier, base: 42, ..header };
    let mut asking = Scripted::new(|_| ());
    cluster.shard(0).serve(&pull, &mut asking).unwrap();
    assert_eq!(asking.answers, [(AnswerKind::Fenced, String::new())]);

    let workers = (0..3).fold(workers, |workers, _| round(workers, &run));
    let ended = workers.map(|worker| Working::start("a worker", move || worker.finish(()))).map(Working::join);
    assert_eq!(ended[0].last.as_ref().unwrap().dense, constant(&run, -3.0));
    cluster.assert_ends_well();
}

#[test]
fn a_process_that_was_never_announced_gets_nothing_and_takes_its_worker_out_of_no_round() {
    let run = run(SYNC, several_blocks());
    let cluster = Cluster::start(1, 2, run.clone());
    let workers = two_that_have_begun(&cluster);

    let header = push_header(&workers[1], 0, 0);
    let later = Incarnation(header.incarnation.0 + 1);
    let pull = Request { kind: RequestKind::Pull, incarnation: later, base: 1, ..header };
    let shard = cluster.shard(0);
    let asking = Working::start("a pull", move || {
        let mut asking = Scripted::new(|_| ());
        let refused = shard.serve(&pull, &mut asking).unwrap_err();
        (matches!(refused, ServeError::Unannounced(WorkerId(1))), asking.answers)
    });
    let workers = round(workers, &run);
    assert_eq!(asking.join(), (true, Vec::new()));
    let ended = workers.map(|worker| Working::start("a worker", move || worker.finish(()))).map(Working::join);
    assert_eq!(ended[0].last.as_ref().unwrap().dense, constant(&run, -1.0));
    cluster.assert_ends_well();
}

/// The two workers of a cluster, with the first values.
fn two_that_have_begun(cluster: &Cluster) -> [Worker; 2] {
    let mut workers = [0, 1].map(|index| cluster.worker(index));
    workers.iter_mut().for_each(Worker::start_training);
    workers.iter_mut().for_each(|worker| assert_eq!(worker.pull().step, 0));
    workers
}

/// A round of two workers, in which each counts.
fn round(workers: [Worker; 2], run: &RunSpec) -> [Worker; 2] {
    let pushes = workers.map(|mut worker| {
        let run = run.clone();
        Working::start("a round", move || {
            assert!(worker.push(constant(&run, 1.0)).applied);
            worker
        })
    });
    pushes.map(Working::join)
}

#[test]
fn backup_workers_on_several_servers_never_wait_for_each_other_for_ever() {
    // Which two of the three workers complete a round differs between servers and rounds.
    let run = RunSpec { steps: Some(200), ..run(Mode::Sync { replicas_to_aggregate: Some(2) }, several_blocks()) };
    let expected = constant(&run, -200.0);
    let cluster = Cluster::start(3, 3, run.clone());
    let trained = cluster.train(move |worker| {
        let mut pulled = worker.pull();
        while !pulled.over {
            // Worker 2 leaves early, and then every round needs both of the others.
            if worker.id.0 == 2 && pulled.step > 50 {
                break;
            }
            pulled = worker.push(constant(&run, 1.0));
        }
    });
    assert_eq!(trained.last.dense, expected);
}

#[test]
fn co_located_workers_that_lose_each_others_gradients_send_them_again() {
    let run = run(SYNC, several_blocks());
    let cluster = Cluster::start_with(2, 2, run.clone(), Options { via: Via::Colocated, ..Options::default() });
    let mut workers = [0, 1].map(|index| cluster.worker(index));
    let proxies = [(); 2].map(|()| [0, 1].map(|server| Proxy::start(cluster.address(server), Disconnection::Never)));
    workers.iter_mut().zip(&proxies).for_each(|(worker, proxies)| worker.go_through(proxies));
    workers.iter_mut().for_each(Worker::start_training);
    workers.iter_mut().for_each(|worker| assert_eq!(worker.pull().step, 0));
    proxies.iter().flatten().for_each(Proxy::hold);
    workers.iter_mut().for_each(|worker| worker.client().push(push(&run, 1.0)).unwrap());
    proxies.iter().flatten().for_each(Proxy::cut);
    proxies.iter().flatten().for_each(Proxy::release);
    // Each waits at its own server for the other, whose gradient is lost.
    let waits = workers.map(|mut worker| Working::start("a wait", move || worker.client().wait().unwrap()));
    for pulled in waits.map(Working::join) {
        assert_eq!((pulled.step, pulled.dense), (1, constant(&run, -1.0)));
    }
}

#[test]
fn a_finished_worker_does_not_block_the_round() {
    let run = run(SYNC, one_vector());
    let cluster = Cluster::start(2, 2, run.clone());
    let trained = cluster.train(move |worker| {
        worker.pull();
        let steps = if worker.id.0 == 1 { 1 } else { 4 };
        for _ in 0..steps {
            worker.push(constant(&run, 1.0 + worker.id.0 as f32));
        }
    });
    // The first round is a mean of 1 and 2; three more are the first worker's alone.
    assert_eq!(trained.last.dense, [[-4.5; 5]]);
    assert_eq!(trained.summary.global_step, 4);
    assert_eq!(trained.summary.reports.iter().map(|report| report.steps).collect::<Vec<_>>(), [4, 1]);
}

#[test]
fn a_worker_that_vanishes_is_noticed_and_the_round_goes_on() {
    let run = run(SYNC, several_blocks());
    for servers in [1, 3] {
        let cluster = Cluster::start_with(servers, 2, run.clone(), impatient());
        let staying_run = run.clone();
        let staying = cluster.spawn(0, move |worker| {
            worker.pull();
            worker.push(constant(&staying_run, 1.0));
            assert_eq!(worker.push(constant(&staying_run, 1.0)).step, 2);
        });
        let mut vanishing = cluster.worker(1);
        vanishing.start_training();
        vanishing.pull();
        vanishing.push(constant(&run, 1.0));
        vanishing.vanish();
        let ended = staying.join();
        let reports = ended.all_finished.unwrap().reports;
        assert_eq!(reports[1].left, "its connection broke and it did not come back");
        assert_eq!(ended.last.unwrap().dense, constant(&run, -2.0));
        cluster.assert_ends_well();
    }
}

#[test]
fn a_worker_started_again_goes_on_from_the_current_values_and_its_old_process_is_fenced() {
    let run = run(SYNC, several_blocks());
    for (servers, via) in [(1, Via::Tcp), (3, Via::Tcp), (3, Via::Unix)] {
        let cluster = Cluster::start_with(servers, 2, run.clone(), Options { via, ..impatient() });
        let counted = Arc::new(AtomicBool::new(false));
        let (staying_run, until) = (run.clone(), counted.clone());
        let staying = cluster.spawn(0, move |worker| {
            worker.pull();
            while !until.load(Ordering::Relaxed) {
                worker.push(constant(&staying_run, 1.0));
            }
        });
        let mut old = cluster.worker(1);
        old.start_training();
        old.pull();
        old.push(constant(&run, 1.0));
        let old_incarnation = old.incarnation;
        let mut old_client = old.vanish().unwrap();

        let mut new = cluster.worker_again(1);
        assert!(new.incarnation > old_incarnation);
        new.start_training();
        let pulled = new.pull();
        assert!(pulled.step >= 1);
        assert_eq!(pulled.dense, constant(&run, -(pulled.step as f32)), "a mean of ones is subtracted in every step");
        let refused = old_client.push(push(&run, 1.0)).and_then(|()| old_client.wait()).unwrap_err();
        assert!(matches!(refused, ClientError::Fenced(_)), "{refused}");
        // The other workers may end a round while a gradient is in flight, but not every time.
        let mut pushes = 0..100;
        assert!(pushes.any(|_| new.push(constant(&run, 1.0)).applied), "no push was counted on every server");
        counted.store(true, Ordering::Relaxed);
        let ended = new.finish(());
        assert_eq!(ended.over.exit_code, 0);
        let global_step = ended.all_finished.unwrap().global_step;
        assert_eq!(staying.join().last.unwrap().dense, constant(&run, -(global_step as f32)));
        cluster.assert_ends_well();
    }
}

#[test]
fn a_worker_that_was_silent_too_long_is_fenced_and_welcomed_anew() {
    let run = run(SYNC, one_vector());
    let patience = Patience::new(Duration::from_millis(2500));
    let cluster = Cluster::start_with(1, 2, run.clone(), Options { patience, ..Options::default() });
    let between = Proxy::start(cluster.address(0), Disconnection::Never);
    let ((went_on, gone_on), (joined_again, joined)) = (mpsc::channel(), mpsc::channel());
    let staying_run = run.clone();
    let staying = cluster.spawn(0, move |worker| {
        worker.pull();
        worker.push(constant(&staying_run, 1.0));
        assert_eq!(worker.push(constant(&staying_run, 1.0)).step, 2, "without the silent one");
        went_on.send(()).unwrap();
        joined.recv_timeout(LIMIT).unwrap();
    });
    let mut silent = cluster.worker_through(1, &between).unwrap();
    silent.start_training();
    silent.pull();
    silent.push(constant(&run, 1.0));
    between.hold();
    gone_on.recv_timeout(LIMIT).unwrap();
    between.release();
    let refused = silent.try_push(push(&run, 1.0)).unwrap_err();
    assert!(matches!(refused, ClientError::Fenced(_)), "{refused}");
    let welcome = |kind| if let Kind::Welcome(welcome) = kind { Some(Incarnation(welcome.incarnation)) } else { None };
    let incarnation = silent.receive_until(welcome);
    assert!(incarnation > silent.incarnation);
    silent.incarnation = incarnation;
    silent.start_training();
    assert_eq!(silent.pull().step, 2);
    joined_again.send(()).unwrap();
    assert_eq!(silent.finish(()).over.exit_code, 0);
    staying.join();
    cluster.assert_ends_well();
}

/// Otherwise its gradient would count on the servers that have it, and not on the others.
#[test]
fn a_worker_that_is_told_to_stop_while_it_pushes_hands_its_gradient_to_every_server() {
    let run = run(SYNC, several_blocks());
    for via in [Via::Colocated, Via::Process, Via::Tcp] {
        let cluster = Cluster::start_with(2, 2, run.clone(), Options { via, ..impatient() });
        let (staying_run, (pushed, has_pushed)) = (run.clone(), mpsc::channel());
        let staying = cluster.spawn(1, move |worker| {
            worker.pull();
            let pulled = worker.push(constant(&staying_run, 3.0));
            pushed.send((pulled.step, pulled.applied)).unwrap();
        });
        let mut leaving = cluster.worker(0);
        leaving.start_training();
        leaving.pull();
        leaving.client().push(push(&run, 1.0)).unwrap();
        leaving.interrupt().set();
        leaving.client().deliver();
        assert_eq!(has_pushed.recv_timeout(LIMIT).unwrap(), (1, true), "{via:?}");
        leaving.vanish();
        staying.join();
    }
}
