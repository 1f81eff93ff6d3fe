//! Tests of every event of a run's life. Here are the runs that they start from.

mod ending;
mod idle_servers;
mod joining;
mod lost_servers;
mod lost_workers;
mod waiting;

use super::losses::FAREWELL;
use super::*;
use crate::cluster::ServerId;

const PS: TaskId = TaskId { job: Job::Ps, index: 0 };

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn join(run: &mut Lifecycle, task: TaskId, now: u64) -> (Incarnation, Vec<Decision>) {
    run.join(task, None, seconds(now)).unwrap()
}

fn lifecycle(workers: u32) -> Lifecycle {
    Lifecycle::new(config(workers))
}

fn config(workers: u32) -> LifecycleConfig {
    LifecycleConfig {
        has_client: false,
        servers: 1,
        workers: Some(workers),
        patience: Patience::new(seconds(10)),
        peer_timeout: seconds(60),
        checkpoints: false,
        before: Incarnation(0),
    }
}

fn goodbye(run: &mut Lifecycle, worker: u32) -> Vec<Decision> {
    let task = TaskId::worker(worker);
    let incarnation = run.membership.incarnation(task).unwrap();
    run.goodbye(task, incarnation, seconds(0))
}

/// A run of two workers in training, and the workers' incarnations.
fn training() -> (Lifecycle, [Incarnation; 2]) {
    training_of(lifecycle(2))
}

fn training_of(mut run: Lifecycle) -> (Lifecycle, [Incarnation; 2]) {
    join(&mut run, PS, 0);
    let (first, _) = join(&mut run, TaskId::from(WorkerId(0)), 0);
    let (second, _) = join(&mut run, TaskId::from(WorkerId(1)), 0);
    run.server_ready(PS, false);
    run.initialised();
    assert_eq!(run.phase(), &Phase::Training);
    (run, [first, second])
}

/// Like [`training`], with checkpoints.
fn training_with_checkpoints() -> (Lifecycle, [Incarnation; 2]) {
    training_of(Lifecycle::new(LifecycleConfig { checkpoints: true, ..config(2) }))
}

/// Like [`training_with_checkpoints`], with only the last checkpoint left to write.
fn saving() -> (Lifecycle, [Incarnation; 2]) {
    let (mut run, incarnations) = training_with_checkpoints();
    run.worker_finished(WorkerId(0));
    run.worker_finished(WorkerId(1));
    assert_eq!(run.concluded(WorkerId(0)), [Decision::Save]);
    (run, incarnations)
}

/// Reports a sign of life from every task at that time, and advances the time to it.
fn pass_with_all_alive(run: &mut Lifecycle, now: u64) -> Vec<Decision> {
    for task in [PS, TaskId::worker(0), TaskId::worker(1)] {
        let incarnation = run.membership.incarnation(task).unwrap();
        run.heard(task, incarnation, seconds(now));
    }
    run.tick(seconds(now))
}

fn gave_up(decisions: &[Decision]) -> &str {
    match decisions {
        [Decision::Over(Outcome { exit_code: exit_code::PEERS, reason })] => reason,
        other => panic!("{other:?}"),
    }
}
