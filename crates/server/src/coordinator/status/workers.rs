//! Recent activity of every worker: its speed, where its time goes, which tasks it waits for, and whether it slows the
//! others down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::hang::Wait;
use windlass_core::straggler::{Measured, Verdict, Window, judge};
use windlass_page as page;
use windlass_wire::control::proto::{Heartbeat, Site, Usage, WorkerTotals};

use super::recent::Recent;
use super::{silent_secs, state};
use crate::coordinator::observation::{Observation, TaskObservation};

/// The minimum and maximum length of the windows in which workers are compared, and how many windows are kept.
const WINDOW: Duration = Duration::from_secs(2);
const LONGEST_WINDOW: Duration = Duration::from_secs(60);
/// With fewer steps in a window, where it ends would decide how slow a worker seems.
const STEPS_PER_WINDOW: f64 = 4.0;
const WINDOWS: usize = 15;
/// The maximum number of sites that are shown for a worker.
const MOST_SITES: usize = 64;
/// The interval between two speeds that are drawn.
const SPEED_EVERY: Duration = Duration::from_secs(1);

/// Watches all workers.
#[derive(Debug, Default)]
pub(super) struct WorkerWatch {
    workers: BTreeMap<TaskId, Watched>,
    /// When the last window ended.
    window_ended: Duration,
    straggler: Verdict,
}

#[derive(Debug, Default)]
struct Watched {
    /// The worker's latest totals.
    recent: Recent<WorkerTotals>,
    /// The same when the last window ended.
    window_began: Option<WorkerTotals>,
    windows: Vec<Window>,
    /// Whether it was scoring the network then.
    scored: bool,
    /// What is shown of the worker, including its latest speeds.
    shown: page::Worker,
    sped: Duration,
    /// The tasks that the worker waits for, and since when.
    waits: Option<(Duration, Vec<TaskId>)>,
}

impl WorkerWatch {
    /// Updates all workers. Returns the client if there is one, the workers, and the verdict on stragglers.
    pub(super) fn look(&mut self, run: &Observation) -> (Option<page::Worker>, Vec<page::Worker>, Verdict) {
        let observed: BTreeSet<TaskId> = run.tasks.iter().map(|observed| observed.task).collect();
        self.workers.retain(|task, _| observed.contains(task));
        let (mut client, mut shown) = (None, Vec::new());
        for observed in run.tasks.iter().filter(|observed| observed.task.job != Job::Ps) {
            let row = self.workers.entry(observed.task).or_default().look(run, observed);
            match observed.task.job {
                Job::Client => client = Some(row),
                _ => shown.push(row),
            }
        }
        self.end_window(run);
        let has_stages = shown.iter().any(|worker| !worker.stages.is_empty());
        if let Some(client) = client.as_mut().filter(|_| !has_stages) {
            // The client lets others compute, and waits for them.
            client.split.wait += std::mem::take(&mut client.split.compute);
        }
        let straggler = match has_stages {
            true => Verdict::NotEnoughEvidence { lacking: "the workers compute different stages".to_owned() },
            false => self.straggler.clone(),
        };
        (client, shown, straggler)
    }

    /// Ends a window of all workers at once, if the last is long enough ago, and judges them.
    fn end_window(&mut self, run: &Observation) {
        let span = run.at.saturating_sub(self.window_ended);
        if span < self.window(run.at) {
            return;
        }
        self.window_ended = run.at;
        for observed in run.tasks.iter().filter(|observed| observed.task.job == Job::Worker) {
            let Some(watched) = self.workers.get_mut(&observed.task) else { continue };
            match watched.is_alive() {
                true => watched.end_window(span, &observed.heartbeat),
                // A worker that comes back is judged only by what it does from then on.
                false => (watched.window_began, watched.windows) = (None, Vec::new()),
            }
        }
        let living = self.workers.iter().filter(|(task, watched)| task.job == Job::Worker && watched.is_alive());
        let measured =
            living.map(|(task, watched)| Measured { worker: WorkerId(task.index), windows: watched.windows.clone() });
        self.straggler = judge(&measured.collect::<Vec<_>>());
    }

    /// Returns the length of the current window: a few steps of the fastest worker.
    fn window(&self, now: Duration) -> Duration {
        let steps = self.workers.values().filter(|watched| watched.is_alive());
        let steps =
            steps.filter_map(|watched| watched.recent.span(now)).map(|span| span.seconds / span.counted() as f64);
        let fastest = steps.min_by(f64::total_cmp).unwrap_or_default();
        Duration::from_secs_f64((STEPS_PER_WINDOW * fastest).min(LONGEST_WINDOW.as_secs_f64())).max(WINDOW)
    }
}

/// Returns how to show a device of a worker. A joined worker is itself a device, so only its number of replicas is
/// shown.
fn site(site: &Site) -> Option<page::Site> {
    let name = match &site.joined {
        None => site.name.clone(),
        Some(_) if site.replicas > 1 => page::Site::TOWERS.to_owned(),
        Some(_) => return None,
    };
    Some(page::Site { name, replicas: site.replicas, reachable: site.reachable })
}

impl Watched {
    fn is_alive(&self) -> bool {
        matches!(self.shown.state, page::State::Alive | page::State::Waiting)
    }

    fn look(&mut self, run: &Observation, observed: &TaskObservation) -> page::Worker {
        let totals = observed.heartbeat.totals.as_deref().copied().unwrap_or_default();
        if observed.heartbeat.totals.is_some() {
            // Not before: after ps 0 is replaced, a worker's whole past would seem to have happened just now.
            self.recent.push(run.at, totals.steps, totals);
        }
        let (seconds, done) = match self.recent.span(run.at) {
            Some(span) => (span.seconds, difference(&span.last.1, &span.first.1)),
            None => (1.0, WorkerTotals::default()),
        };
        let share = |part: f64| part / seconds;
        if run.at.saturating_sub(self.sped) >= SPEED_EVERY {
            self.sped = run.at;
            self.shown.record_speed(share(done.samples as f64));
        }
        self.note_wait(run.at, &observed.heartbeat.awaited);
        let steps = done.steps.max(1) as f64;
        let joined = observed.heartbeat.sites.iter().find_map(|site| Some((site, site.joined.as_ref()?)));
        self.shown = page::Worker {
            index: observed.task.index,
            address: joined.map(|(_, joined)| joined.address.clone()).unwrap_or_default(),
            stages: joined.map(|(_, joined)| joined.stages.clone()).unwrap_or_default(),
            state: state(observed),
            chief: observed.task == run.chief,
            step: observed.heartbeat.local_step,
            silent_secs: silent_secs(observed, run),
            split: page::TimeSplit {
                compute: share(done.compute_seconds),
                wait: share(done.held_back_seconds),
                data: share(done.data_seconds),
                network: share(done.wait_seconds - done.held_back_seconds),
            },
            staleness: done.staleness as f64 / steps,
            dropped: totals.dropped,
            cpus: observed.heartbeat.usage.as_deref().map(|usage| usage.cpus),
            memory_bytes: observed.heartbeat.usage.as_deref().map(|usage| usage.memory_bytes),
            wait: self.wait(run.at),
            sites: observed.heartbeat.sites.iter().take(MOST_SITES).filter_map(site).collect(),
            ..std::mem::take(&mut self.shown)
        };
        self.shown.clone()
    }

    fn note_wait(&mut self, now: Duration, awaited: &[String]) {
        let on: Vec<TaskId> = awaited.iter().filter_map(|name| TaskId::named(name)).collect();
        self.waits = match self.waits.take() {
            _ if on.is_empty() => None,
            // At first a worker knows only the server that does not answer, and later whom that waits for.
            Some((since, _)) => Some((since, on)),
            None => Some((now, on)),
        };
    }

    fn wait(&self, now: Duration) -> Option<Wait> {
        let (since, on) = self.waits.as_ref()?;
        Some(Wait { on: on.clone(), secs: now.saturating_sub(*since).as_secs_f64() })
    }

    fn end_window(&mut self, span: Duration, heartbeat: &Heartbeat) {
        let totals = heartbeat.totals.as_deref().copied().unwrap_or_default();
        let began = self.window_began.replace(totals).filter(|began| began.steps <= totals.steps);
        let scored = std::mem::replace(&mut self.scored, heartbeat.scoring);
        let Some(began) = began else { return };
        let done = difference(&totals, &began);
        let usage = heartbeat.usage.as_deref();
        let span_secs = span.as_secs_f64();
        let of_training = Window {
            // A worker cannot train while it scores the network.
            span_secs: (span_secs - done.scoring_seconds).max(0.0),
            steps: done.steps,
            samples: done.samples,
            compute_secs: done.compute_seconds,
            data_secs: done.data_seconds,
            network_secs: done.wait_seconds - done.held_back_seconds,
            wait_secs: done.held_back_seconds,
            processor_secs: usage.map(|usage| usage.cpus * span.as_secs_f64()),
            memory_stall: usage.map(|usage| usage.memory_stall).filter(|stall| *stall >= 0.0),
            swapped: usage.and_then(swapped_share),
        };
        // How much of the window scoring took is known only later; until then the worker counts as waiting.
        let only_scored = Window { span_secs, wait_secs: span_secs, ..Window::default() };
        self.windows.push(if scored || heartbeat.scoring { only_scored } else { of_training });
        let excess = self.windows.len().saturating_sub(WINDOWS);
        self.windows.drain(..excess);
    }
}

/// The part of a process's memory that is swapped out.
fn swapped_share(usage: &Usage) -> Option<f64> {
    let all = usage.memory_bytes.saturating_add(usage.swapped_bytes);
    (all > 0).then(|| usage.swapped_bytes as f64 / all as f64)
}

fn difference(now: &WorkerTotals, before: &WorkerTotals) -> WorkerTotals {
    WorkerTotals {
        steps: now.steps.saturating_sub(before.steps),
        samples: now.samples.saturating_sub(before.samples),
        compute_seconds: now.compute_seconds - before.compute_seconds,
        wait_seconds: now.wait_seconds - before.wait_seconds,
        data_seconds: now.data_seconds - before.data_seconds,
        bytes_sent: now.bytes_sent.saturating_sub(before.bytes_sent),
        bytes_received: now.bytes_received.saturating_sub(before.bytes_received),
        held_back_seconds: now.held_back_seconds - before.held_back_seconds,
        staleness: now.staleness.saturating_sub(before.staleness),
        dropped: now.dropped.saturating_sub(before.dropped),
        loss: now.loss - before.loss,
        scoring_seconds: now.scoring_seconds - before.scoring_seconds,
    }
}
