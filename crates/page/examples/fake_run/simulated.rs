//! A plausible run: numbers that move like those of a real one, and one fault. Nothing is trained.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use windlass_core::cluster::{TaskId, WorkerId};
use windlass_core::hang::Wait;
use windlass_core::straggler::{self, Measured, Window};
use windlass_page::{
    Checkpoint, Curve, Event, EventKind, Node, Phase, Server, State, Status, TimeSplit, Timeline, Worker,
};

use crate::Fault;

/// How many steps of 100 samples a worker makes per second.
const STEPS_PER_SECOND: f64 = 260.0;
const BATCH: f64 = 100.0;
/// The parameters of the simulated network, in bytes.
const MODEL_BYTES: u64 = 38_400_000;
const CHECKPOINT_EVERY_SECS: f64 = 15.0;
/// A worker is declared dead after this silence.
const DEAD_AFTER_SECS: f64 = 2.0;
/// Stragglers are judged by the latest windows, one per second.
const WINDOWS: usize = 20;

pub struct Run {
    status: Status,
    fault: Fault,
    fault_at: f64,
    random: StdRng,
    measured: Vec<Measured>,
    exact_step: f64,
    last_second: u64,
    productive_secs: f64,
}

impl Run {
    pub fn new(workers: u32, servers: u32, fault: Fault, fault_at: f64, target: u64) -> Self {
        let mut timeline = Timeline::default();
        let tasks = (0..servers).map(TaskId::ps).chain((0..workers).map(TaskId::worker));
        for (order, task) in tasks.enumerate() {
            let what = format!("{task} joined");
            timeline.push(Event { at_secs: 0.02 * order as f64, kind: EventKind::Joined, what });
        }
        let named = |index: u32| Measured { worker: WorkerId(index), windows: Vec::new() };
        let missing = Wait { on: vec![TaskId::worker(0)], secs: 0.0 };
        let mut accuracy = Curve::new("test accuracy");
        accuracy.is_fraction = true;
        let status = Status {
            model: "mnist".into(),
            mode: "async".into(),
            optimizer: "adam 0.01".into(),
            layout: format!("{servers} ps, {workers} workers"),
            phase: if workers == 0 { Phase::Gathering } else { Phase::Training },
            awaited: (workers == 0).then_some(missing),
            target: Some(target),
            loss: Curve::new("training loss"),
            scores: vec![accuracy, Curve::new("validation cross entropy")],
            workers: (0..workers).map(worker).collect(),
            servers: (0..servers).map(|index| server(index, servers)).collect(),
            timeline,
            ..Status::default()
        };
        Self {
            status,
            fault,
            fault_at,
            random: StdRng::seed_from_u64(7),
            measured: (0..workers).map(named).collect(),
            exact_step: 0.0,
            last_second: 0,
            productive_secs: 0.0,
        }
    }

    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Triggers the fault now.
    pub fn go_wrong(&mut self) {
        self.fault_at = self.status.elapsed_secs;
    }

    pub fn advance(&mut self, secs: f64) {
        self.status.elapsed_secs += secs;
        self.status.checkpoints.iter_mut().for_each(|checkpoint| checkpoint.age_secs += secs);
        self.status.servers.iter_mut().for_each(|server| server.silent_secs = Some(0.1));
        if let Some(awaited) = &mut self.status.awaited {
            awaited.secs += secs;
        }
        if self.status.phase != Phase::Training {
            return;
        }
        let since = self.status.elapsed_secs - self.fault_at;
        match self.fault {
            Fault::Failed if since > 0.0 => return self.fail(),
            Fault::Hang if since > 0.0 => return self.hang(since),
            Fault::Dead if since > 0.0 => self.kill(since),
            _ => (),
        }
        self.train(secs);
    }

    fn train(&mut self, secs: f64) {
        let whole = self.status.elapsed_secs as u64;
        let second = whole > std::mem::replace(&mut self.last_second, whole);
        let slow = self.fault == Fault::Straggler && self.status.elapsed_secs > self.fault_at;
        let last = self.status.workers.len() - 1;
        let mut steps = 0.0;
        for (index, worker) in self.status.workers.iter_mut().enumerate() {
            if worker.state == State::Dead || worker.silent_secs.is_some_and(|silent| silent > DEAD_AFTER_SECS) {
                if second {
                    worker.record_speed(0.0);
                }
                continue;
            }
            let jitter = self.random.random_range(0.94..1.06);
            let slowdown = if slow && index == last { 3.2 } else { 1.0 };
            let own_steps = STEPS_PER_SECOND / slowdown * jitter;
            let busy = [0.64, 0.2, 0.04].map(|share| share / slowdown);
            let network = 1.0 - busy[0] - busy[2] - 0.06;
            worker.step += (own_steps * secs) as u64;
            worker.split = TimeSplit { compute: busy[0], network, data: busy[2], wait: 0.02 };
            worker.staleness = last as f64 * jitter;
            worker.silent_secs = Some(self.random.random_range(0.02..0.4));
            steps += own_steps * secs;
            if second {
                worker.record_speed(own_steps * BATCH);
                let windows = &mut self.measured[index].windows;
                windows.push(window(&worker.split, own_steps));
                windows.drain(..windows.len().saturating_sub(WINDOWS));
            }
        }
        self.progress(steps, secs);
        if second {
            self.look_around();
        }
    }

    fn progress(&mut self, steps: f64, secs: f64) {
        self.exact_step += steps;
        self.productive_secs += secs * 0.97;
        let status = &mut self.status;
        let target = status.target.unwrap_or(u64::MAX);
        let step = (self.exact_step as u64).min(target);
        status.step = step;
        status.stalled_secs = if steps > 0.0 { 0.0 } else { status.stalled_secs + secs };
        status.steps_per_second = 0.8 * status.steps_per_second + 0.2 * steps / secs;
        status.samples_per_second = status.steps_per_second * BATCH;
        status.left_secs = Some((target - step) as f64 / status.steps_per_second.max(1e-9));
        status.goodput = Some(self.productive_secs / status.elapsed_secs);
        let progress = self.exact_step / 8000.0;
        let noise = self.random.random_range(0.9..1.1);
        status.loss.push(step, (2.3 / (1.0 + progress) + 0.02) * noise);
        status.scores[0].push(step, 1.0 - 0.9 / (1.0 + 3.0 * progress) - 0.02 * noise);
        status.scores[1].push(step, 2.3 / (1.0 + 1.6 * progress) + 0.14 * noise);
        for server in status.servers.iter_mut().filter(|server| server.shard_bytes > 0) {
            server.applied += steps as u64;
        }
        if step == target {
            status.phase = Phase::Over;
            status.workers.iter_mut().for_each(|worker| worker.state = State::Done);
            let what = "the run ended".to_owned();
            status.timeline.push(Event { at_secs: status.elapsed_secs, kind: EventKind::Finished, what });
        }
    }

    /// Updates whatever changes once a second.
    fn look_around(&mut self) {
        let status = &mut self.status;
        let alive = |measured: &&Measured| status.workers[measured.worker.0 as usize].state != State::Dead;
        let alive: Vec<Measured> = self.measured.iter().filter(alive).cloned().collect();
        status.straggler = straggler::judge(&alive);
        let hosts = status.servers.len().max(status.workers.len().div_ceil(4)).max(1);
        status.nodes = (0..hosts).map(|host| node(host, hosts, status, &mut self.random)).collect();
        let saved = status.checkpoints.first().map_or(status.elapsed_secs, |newest| newest.age_secs);
        if saved >= CHECKPOINT_EVERY_SECS || (status.checkpoints.is_empty() && saved > 4.0) {
            let checkpoint = Checkpoint { step: status.step, age_secs: 0.0, bytes: 3 * MODEL_BYTES };
            status.checkpoints.insert(0, checkpoint);
            status.checkpoints.truncate(5);
            let what = format!("checkpoint of step {} saved", status.step);
            status.timeline.push(Event { at_secs: status.elapsed_secs, kind: EventKind::Saved, what });
        }
    }

    fn kill(&mut self, since: f64) {
        let at_secs = self.status.elapsed_secs;
        let Some(worker) = self.status.workers.last_mut().filter(|worker| worker.state != State::Dead) else { return };
        worker.silent_secs = Some(since + DEAD_AFTER_SECS);
        if since > DEAD_AFTER_SECS {
            worker.state = State::Dead;
            (worker.samples_per_second, worker.split) = (0.0, TimeSplit::default());
            let what = format!("worker {} declared dead: nothing heard for {DEAD_AFTER_SECS} s", worker.index);
            self.status.timeline.push(Event { at_secs, kind: EventKind::DeclaredDead, what });
        }
    }

    fn hang(&mut self, since: f64) {
        let status = &mut self.status;
        status.stalled_secs = since;
        (status.steps_per_second, status.samples_per_second, status.left_secs) = (0.0, 0.0, None);
        status.goodput = Some(self.productive_secs / status.elapsed_secs);
        let silent = status.servers.last_mut().expect("a hang needs a server");
        silent.silent_secs = Some(since + 1.0);
        let on = TaskId::ps(silent.index);
        for worker in &mut status.workers {
            worker.state = State::Waiting;
            worker.silent_secs = Some(self.random.random_range(0.02..0.4));
            worker.split = TimeSplit { wait: 1.0, ..TimeSplit::default() };
            worker.wait = Some(Wait { on: vec![on], secs: (since - 0.1 * f64::from(worker.index)).max(0.1) });
            worker.samples_per_second = 0.0;
        }
    }

    fn fail(&mut self) {
        let why = "ps 1 did not come back within 60 s\nhint: raise --peer-timeout".to_owned();
        self.status.phase = Phase::Failed { why };
    }
}

fn worker(index: u32) -> Worker {
    Worker {
        index,
        address: format!("10.0.{}.{}:2222", index / 4, 10 + index),
        state: State::Alive,
        chief: index == 0,
        silent_secs: Some(0.1),
        ..Worker::default()
    }
}

/// A server with its share of the model; the first has a little more.
fn server(index: u32, servers: u32) -> Server {
    let even = MODEL_BYTES / u64::from(servers);
    let shard_bytes = if index == 0 { even } else { even * 3 / 4 };
    let address = format!("10.0.{index}.2:2222");
    Server { index, address, state: State::Alive, shard_bytes, parameters: shard_bytes / 4, ..Server::default() }
}

fn window(split: &TimeSplit, steps: f64) -> Window {
    Window {
        span_secs: 1.0,
        steps: steps as u64,
        samples: (steps * BATCH) as u64,
        compute_secs: split.compute,
        data_secs: split.data,
        network_secs: split.network,
        wait_secs: split.wait,
        ..Window::default()
    }
}

fn node(host: usize, hosts: usize, status: &Status, random: &mut StdRng) -> Node {
    let here = |index: u32| index as usize % hosts == host;
    let servers = status.servers.iter().filter(|server| here(server.index)).map(|server| TaskId::ps(server.index));
    let workers = status.workers.iter().filter(|worker| here(worker.index)).map(|worker| TaskId::worker(worker.index));
    Node {
        name: format!("node-{host}"),
        tasks: servers.chain(workers).collect(),
        cpu: random.random_range(0.7..0.96),
        cores: 8,
        memory_used_bytes: random.random_range(5_000_000_000..6_000_000_000),
        memory_bytes: 32_000_000_000,
        received_per_second: random.random_range(80e6..110e6),
        sent_per_second: random.random_range(80e6..110e6),
        gpus: if host == 0 { vec![random.random_range(0.4..0.9)] } else { Vec::new() },
    }
}
