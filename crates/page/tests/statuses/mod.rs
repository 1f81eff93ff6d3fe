//! Statuses of plausible runs.

use windlass_core::cluster::{TaskId, WorkerId};
use windlass_core::hang::Wait;
use windlass_core::straggler::{Cause, Course, Straggler, Verdict};
use windlass_page::{
    Checkpoint, Curve, Event, EventKind, Node, Phase, Server, State, Status, TimeSplit, Timeline, Worker,
};

/// A run that is training, with this many workers.
pub fn training(workers: u32) -> Status {
    let mut loss = Curve::new("training loss");
    (1..=390).for_each(|point| loss.push(point * 20, 2.3 / (1.0 + point as f64 / 40.0)));
    let mut timeline = Timeline::default();
    timeline.push(Event { at_secs: 0.1, kind: EventKind::Joined, what: "worker 0 joined".into() });
    timeline.push(Event { at_secs: 60.4, kind: EventKind::Saved, what: "checkpoint of step 5000 saved".into() });
    Status {
        model: "mnist".into(),
        mode: "async".into(),
        optimizer: "adam".into(),
        layout: format!("2 ps, {workers} workers"),
        phase: Phase::Training,
        step: 7800,
        target: Some(10_000),
        elapsed_secs: 72.4,
        steps_per_second: 2050.0,
        samples_per_second: 205_000.0,
        left_secs: Some(1.07),
        loss,
        scores: vec![Curve::new("test accuracy")],
        workers: (0..workers).map(worker).collect(),
        servers: (0..2).map(server).collect(),
        nodes: vec![Node { name: "node-0".into(), tasks: vec![TaskId::ps(0)], cpu: 0.81, cores: 8, ..Node::default() }],
        checkpoints: vec![Checkpoint { step: 5000, age_secs: 12.0, bytes: 954_000 }],
        timeline,
        goodput: Some(0.97),
        straggler: Verdict::Even,
        ..Status::default()
    }
}

pub fn worker(index: u32) -> Worker {
    let mut worker = Worker {
        index,
        address: format!("10.0.0.{index}:2222"),
        state: State::Alive,
        chief: index == 0,
        step: 3900,
        silent_secs: Some(0.2),
        split: TimeSplit { compute: 0.6, wait: 0.05, data: 0.05, network: 0.3 },
        staleness: 1.0,
        cpus: Some(0.98),
        memory_bytes: Some(123_000_000),
        ..Worker::default()
    };
    (0..60).for_each(|second| worker.record_speed(25_000.0 + f64::from(second * 31 % 17) * 123.0));
    worker
}

pub fn server(index: u32) -> Server {
    let address = format!("10.0.1.{index}:2222");
    let (shard_bytes, parameters) = (159_000, 39_750);
    let silent_secs = Some(0.1);
    Server {
        index,
        address,
        state: State::Alive,
        silent_secs,
        shard_bytes,
        parameters,
        applied: 7800,
        cpus: Some(0.2),
        memory_bytes: Some(45_000_000),
        ..Server::default()
    }
}

/// A run in which everybody waits for ps 1.
pub fn hanging() -> Status {
    let mut status = Status { stalled_secs: 14.0, ..training(3) };
    status.servers[1].silent_secs = Some(14.2);
    for worker in &mut status.workers {
        (worker.state, worker.wait) = (State::Waiting, Some(Wait { on: vec![TaskId::ps(1)], secs: 12.0 }));
    }
    status
}

pub fn with_straggler_and_dead_worker() -> Status {
    let straggler = Straggler {
        worker: WorkerId(1),
        course: Course::Chronic,
        slowdown: 2.4,
        cause: Cause::Network,
        slow_windows: 9,
        judged_windows: 10,
    };
    let mut status = Status { straggler: Verdict::Stragglers { stragglers: vec![straggler] }, ..training(3) };
    (status.workers[2].state, status.workers[2].silent_secs) = (State::Dead, Some(31.0));
    status
}
