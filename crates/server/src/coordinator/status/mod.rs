//! The run as its live page shows it, built from successive observations of the coordinator.
//!
//! An observation describes a single moment; what depends on the past is kept here: curves, speeds, how long tasks have
//! been waiting, and which worker is slow again and again (`workers`), and what the machine's history does not know
//! (`beside_history`). A ps 0 that replaces another continues from the status that its predecessor left (`earlier`). If
//! nothing progresses, `hang` leaves a report in the run directory; `record` leaves the status itself there.

mod beside_history;
mod earlier;
mod hang;
mod recent;
mod record;
mod workers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::hang::Wait;
use windlass_core::lifecycle::{Outcome, Phase, exit_code};
use windlass_core::membership::Presence;
use windlass_core::straggler::Verdict;
use windlass_page as page;
use windlass_page::{Curve, Status};
use windlass_wire::control::proto::WorkerTotals;

use super::history::{History, HistoryKind};
use super::observation::{NodeObservation, Observation, TaskObservation};
use beside_history::BesideHistory;
use earlier::Earlier;
use hang::HangWatch;
use recent::Recent;
use workers::WorkerWatch;

/// Between two updates of the status.
const EVERY: Duration = Duration::from_millis(500);
/// A run hangs if it makes no step for this long, or for this many times as long as its recent steps took.
const HANG: Duration = Duration::from_secs(10);
const HANG_STEPS: u32 = 4;
/// As long as it is not known how long a step takes.
const HANG_AT_FIRST: Duration = Duration::from_secs(60);
/// A task heard from within this time is assumed to be doing what it last reported.
const FRESH: Duration = Duration::from_secs(5);
/// The most scores that are drawn.
const SCORES: usize = 32;

/// The readers of a run's status, and where it is written.
pub(super) struct Readers {
    /// The live page.
    pub(super) page: watch::Sender<Arc<Status>>,
    /// Set once the end of the run is on disk, or cannot be written.
    pub(super) end_recorded: watch::Sender<bool>,
    pub(super) run_dir: Option<PathBuf>,
    /// How long the run can have waited for this coordinator, if it replaces an earlier one.
    pub(super) awaited_for: Option<Duration>,
    /// The address of the page, for readers of the run directory.
    pub(super) address: String,
}

/// What is shown of a run: an observation, its status, and whether the run has trained. `None` at first.
type Shown = Option<(Arc<Observation>, Arc<Status>, bool)>;

/// Keeps the status of a run up to date, for as long as it is observed and can change.
pub(super) async fn keep(mut observed: watch::Receiver<Arc<Observation>>, readers: Readers) {
    let is_over = |run: &Arc<Observation>| matches!(run.phase, Phase::Over(_));
    let Readers { page, end_recorded, run_dir, awaited_for, address } = readers;
    let since = observed.borrow().at;
    let earlier = match run_dir.as_deref().zip(awaited_for) {
        Some((run_dir, awaited_for)) => Earlier::read(run_dir, since, awaited_for).await,
        None => None,
    };
    // In a task of its own: if the disk hangs, the page and the hang report must still show it.
    let (shown, to_record) = watch::channel(Shown::default());
    tokio::spawn(record::keep(run_dir.clone(), address, to_record, end_recorded));
    // A coordinator that replaces another ends as the run did, whether it trained itself or not.
    let mut has_trained = earlier.is_some();
    let mut keeper = earlier.map_or_else(StatusKeeper::default, StatusKeeper::after);
    let mut hangs = HangWatch::new(run_dir);
    let mut interval = tokio::time::interval(EVERY);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while observed.changed().await.is_ok() {
        let observation = observed.borrow_and_update().clone();
        let status = Arc::new(keeper.status(&observation));
        hangs.look(&status);
        page.send_replace(status.clone());
        has_trained |= observation.phase == Phase::Training;
        shown.send_replace(Some((observation.clone(), status, has_trained)));
        if observation.is_last {
            // The live page's viewers know by this that they have seen all.
            return;
        }
        if is_over(&observation) {
            continue;
        }
        // Do not make the end of the run wait for the tick: there may be no time for it.
        let mut ending = observed.clone();
        tokio::select! {
            _ = interval.tick() => {}
            _ = ending.wait_for(is_over) => {}
        }
    }
}

/// State that is kept from one observation to the next.
#[derive(Debug, Default)]
struct StatusKeeper {
    /// The run under an earlier ps 0, if this one has taken its place.
    earlier: Option<Earlier>,
    /// Whether this ps 0 has held parameters.
    has_held: bool,
    loss: Curve,
    /// The chief, its number of steps and the sum of their losses at the last point. The next point is the mean since
    /// then.
    losses: Option<(TaskId, u64, f64)>,
    /// The curve of each score, and the step of its last value.
    scores: BTreeMap<String, (u64, Curve)>,
    workers: WorkerWatch,
    /// The latest global steps.
    steps: Recent<()>,
    beside: BesideHistory,
    /// The time at which the step last changed, or had a reason not to.
    moved: Duration,
    progress: Progress,
}

/// The share of time whose progress was kept.
#[derive(Debug, Default)]
struct Progress {
    /// The step, and the step that the values were resumed at, in the last observation.
    last: Option<(u64, u64)>,
    /// When the step last changed, or there was last a reason for it not to.
    changed: Duration,
    /// The time in which the step grew, minus what rollbacks have undone.
    kept: Duration,
    /// Updates in that time.
    updates: u64,
    lost: u64,
}

impl StatusKeeper {
    /// Continues from the status of an earlier coordinator of the same run.
    fn after(earlier: Earlier) -> Self {
        let status = &earlier.status;
        let key = |curve: &Curve| curve.name.replace(' ', "_");
        let kept = Duration::try_from_secs_f64(status.kept_secs).unwrap_or_default();
        Self {
            loss: status.loss.clone(),
            // The chief counts from its own start, so its first report is not a point of the curve.
            losses: Some((TaskId::CHIEF, u64::MAX, 0.0)),
            scores: status.scores.iter().map(|curve| (key(curve), (u64::MAX, curve.clone()))).collect(),
            progress: Progress { kept, updates: status.kept_updates, ..Progress::default() },
            earlier: Some(earlier),
            ..Self::default()
        }
    }

    fn status(&mut self, run: &Observation) -> Status {
        self.beside.follow(run, self.earlier.as_ref());
        let run = &Observation { history: self.beside.with(&run.history), ..run.clone() };
        self.follow(run);
        let (client, workers, mut straggler) = self.workers.look(run);
        let stalled = run.at.saturating_sub(self.moved);
        if stalled >= FRESH {
            // The worker that is to blame has finished no step by which it could be judged.
            let lacking = format!("no step has been made for {} s", stalled.as_secs());
            straggler = Verdict::NotEnoughEvidence { lacking };
        }
        let facts = run.facts.as_deref();
        let steps_per_second = self.steps.span(run.at).map_or(0.0, |span| span.counted() as f64 / span.seconds);
        let step = self.step(run);
        let earlier = self.earlier.as_ref();
        let elapsed = earlier.map_or(run.at, |earlier| earlier.elapsed.saturating_add(run.at));
        let before = |count: fn(&Status) -> u64| earlier.map_or(0, |earlier| count(&earlier.status));
        let left = run.target.and_then(|target| target.checked_sub(step)).filter(|_| steps_per_second > 0.0);
        let status = Status {
            model: facts.map(|facts| facts.model.clone()).unwrap_or_default(),
            mode: facts.map(|facts| facts.mode.clone()).unwrap_or_default(),
            optimizer: facts.map(|facts| facts.optimizer.clone()).unwrap_or_default(),
            layout: layout(run),
            phase: phase(&run.phase),
            awaited: awaited(run),
            step,
            target: run.target,
            start: earlier.map_or(run.began, |earlier| earlier.status.start),
            elapsed_secs: elapsed.as_secs_f64(),
            stalled_secs: run.at.saturating_sub(self.moved).as_secs_f64(),
            hang_after_secs: self.hang_after().as_secs_f64(),
            steps_per_second,
            samples_per_second: match &client {
                Some(client) => client.samples_per_second,
                None => workers.iter().map(|worker| worker.samples_per_second).sum(),
            },
            left_secs: left.map(|left| left as f64 / steps_per_second),
            loss: self.loss.clone(),
            scores: self.scores.values().map(|(_, curve)| curve.clone()).collect(),
            servers: servers(run),
            client,
            workers,
            nodes: nodes(run),
            checkpoints: checkpoints(run),
            timeline: timeline(&run.history, earlier),
            rollbacks: before(|status| status.rollbacks).saturating_add(run.history.rollbacks),
            updates_lost: before(|status| status.updates_lost).saturating_add(run.history.updates_lost),
            kept_secs: self.progress.kept.as_secs_f64(),
            kept_updates: self.progress.updates,
            goodput: self.progress.share(elapsed),
            straggler,
        };
        match run.phase {
            Phase::Over(_) => status.ended(phase(&run.phase)),
            _ => status,
        }
    }

    /// The global step. A ps 0 that has not restored its parameters yet has counted none.
    fn step(&self, run: &Observation) -> u64 {
        let earlier = self.earlier.as_ref().filter(|_| !self.has_held);
        earlier.map_or(run.statistics.steps, |earlier| earlier.status.step)
    }

    /// Returns how long a run may make no step before it counts as hanging.
    fn hang_after(&self) -> Duration {
        match self.steps.longest_pause() {
            Duration::ZERO => HANG_AT_FIRST,
            pause => HANG.max(HANG_STEPS * pause),
        }
    }

    /// Takes a new observation.
    fn follow(&mut self, run: &Observation) {
        self.has_held |= run.has_shard;
        let step = run.statistics.steps;
        // A pause longer than this is not just a slow step.
        let longest = (2 * EVERY).max(HANG_STEPS * self.steps.longest_pause());
        match self.progress.follow(run, longest) {
            Followed::On => self.steps.push(run.at, step, ()),
            // Steps that come with a checkpoint were not made now.
            Followed::Restored => self.steps.restart(run.at, step, ()),
        }
        if self.steps.changed() == Some(run.at) || run.phase != Phase::Training || is_scoring(run) {
            self.moved = run.at;
        }
        if self.loss.name.is_empty() {
            self.loss = Curve::new("loss");
        }
        let chief = run.tasks.iter().find(|observed| observed.task == run.chief);
        if let Some(heartbeat) = chief.map(|chief| &chief.heartbeat).filter(|heartbeat| heartbeat.local_step > 0) {
            if let Some(totals) = heartbeat.totals.as_deref() {
                self.follow_loss(run.chief, heartbeat.global_step, totals);
            }
            for score in heartbeat.scores.iter().take(SCORES) {
                if self.scores.len() >= SCORES && !self.scores.contains_key(&score.name) {
                    continue;
                }
                let new = || (u64::MAX, Curve::new(score.name.replace('_', " ")));
                let (last, curve) = self.scores.entry(score.name.clone()).or_insert_with(new);
                curve.is_fraction = score.is_fraction;
                if std::mem::replace(last, score.global_step) != score.global_step {
                    curve.push(score.global_step, score.value);
                }
            }
        }
    }

    /// Takes the steps and losses of the chief.
    fn follow_loss(&mut self, chief: TaskId, global_step: u64, totals: &WorkerTotals) {
        let before = self.losses.replace((chief, totals.steps, totals.loss)).unwrap_or((chief, 0, 0.0));
        let (chief_before, steps_before, losses_before) = before;
        if chief_before == chief && totals.steps > steps_before {
            let steps = (totals.steps - steps_before) as f64;
            self.loss.push(global_step, (totals.loss - losses_before) / steps);
        }
    }
}

/// True while the chief scores the network, because the others may have to wait for it.
fn is_scoring(run: &Observation) -> bool {
    let is_fresh =
        |observed: &TaskObservation| observed.heard.is_some_and(|heard| run.at.saturating_sub(heard) < FRESH);
    run.tasks.iter().any(|observed| observed.heartbeat.scoring && is_fresh(observed))
}

/// What happened to the step since the previous observation.
enum Followed {
    /// The step grew or stayed the same.
    On,
    /// The values are those of a checkpoint.
    Restored,
}

impl Progress {
    /// Takes a new observation. Of the time between two changes of the step, at most `longest` counts as progress.
    fn follow(&mut self, run: &Observation, longest: Duration) -> Followed {
        let (step, resumed_at) = (run.statistics.steps, run.statistics.resumed_at);
        let mut followed = Followed::On;
        let mut is_still = false;
        match self.last {
            Some((before, resumed)) if resumed != resumed_at || step < before => followed = Followed::Restored,
            Some((before, _)) if step > before => {
                self.kept = self.kept.saturating_add(run.at.saturating_sub(self.changed).min(longest));
                self.updates = self.updates.saturating_add(step - before);
            }
            Some(_) => is_still = run.phase == Phase::Training,
            None => {}
        }
        if !is_still {
            self.changed = run.at;
        }
        self.last = Some((step, resumed_at));
        let lost = run.history.updates_lost.saturating_sub(self.lost);
        if lost > 0 && self.updates > 0 {
            // Assume that lost updates took as long as others.
            let undone = lost.min(self.updates);
            self.kept -= self.kept.mul_f64(undone as f64 / self.updates as f64).min(self.kept);
            self.updates -= undone;
        }
        self.lost = run.history.updates_lost;
        followed
    }

    /// Returns the share of the time whose progress was kept; `None` before the first update.
    fn share(&self, elapsed: Duration) -> Option<f64> {
        (self.updates > 0).then(|| (self.kept.as_secs_f64() / elapsed.as_secs_f64()).min(1.0))
    }
}

fn layout(run: &Observation) -> String {
    let count = |job| run.tasks.iter().filter(|observed| observed.task.job == job).count();
    run.layout.in_words(count(Job::Ps), count(Job::Worker))
}

fn phase(phase: &Phase) -> page::Phase {
    match phase {
        Phase::Gathering => page::Phase::Gathering,
        Phase::Preparing => page::Phase::Preparing,
        Phase::Initialising => page::Phase::Initialising,
        Phase::Training => page::Phase::Training,
        Phase::Finishing => page::Phase::Finishing,
        Phase::Saving(_) => page::Phase::Saving,
        Phase::Over(outcome) if outcome.exit_code == 0 => page::Phase::Over,
        Phase::Over(Outcome { exit_code: exit_code::TERMINATED, reason }) => {
            page::Phase::Stopped { why: reason.clone() }
        }
        Phase::Over(outcome) => page::Phase::Failed { why: outcome.reason.clone() },
    }
}

/// Returns the tasks that the whole run waits for.
fn awaited(run: &Observation) -> Option<Wait> {
    let awaited = run.tasks.iter().filter_map(|observed| Some((observed.task, observed.awaited_since?)));
    let (mut on, since): (Vec<TaskId>, Vec<Duration>) = awaited.unzip();
    let client = run.tasks.iter().find(|observed| observed.task == TaskId::CLIENT);
    let client = client.filter(|_| run.phase == Phase::Gathering);
    if let Some(client) = client.filter(|client| on == [client.task] && !client.heartbeat.awaited.is_empty()) {
        // The run begins when the client's workers have joined.
        on = client.heartbeat.awaited.iter().filter_map(|name| TaskId::named(name)).collect();
    }
    let since = since.into_iter().min()?;
    Some(Wait { on, secs: run.at.saturating_sub(since).as_secs_f64() })
}

/// Returns the state of a task.
fn state(observed: &TaskObservation) -> page::State {
    match observed.presence {
        None => page::State::Missing,
        Some(Presence::Dead) => page::State::Dead,
        Some(Presence::Finished) => page::State::Done,
        Some(Presence::Present) if !observed.heartbeat.awaited.is_empty() => page::State::Waiting,
        Some(Presence::Present) => page::State::Alive,
    }
}

fn silent_secs(observed: &TaskObservation, run: &Observation) -> Option<f64> {
    observed.heard.map(|heard| run.at.saturating_sub(heard).as_secs_f64())
}

fn servers(run: &Observation) -> Vec<page::Server> {
    let server = |observed: &TaskObservation| {
        let index = observed.task.index;
        let shard = run.facts.as_ref().and_then(|facts| facts.shards.get(index as usize)).copied().unwrap_or_default();
        let totals = observed.heartbeat.ps_totals.unwrap_or_default();
        page::Server {
            index,
            address: run.addresses.get(&index).cloned().unwrap_or_default(),
            state: state(observed),
            silent_secs: silent_secs(observed, run),
            shard_bytes: 4 * shard,
            parameters: shard,
            applied: totals.applied,
            repeated: totals.repeated,
            dropped: totals.stale,
            cpus: observed.heartbeat.usage.as_deref().map(|usage| usage.cpus),
            memory_bytes: observed.heartbeat.usage.as_deref().map(|usage| usage.memory_bytes),
            wait: None,
        }
    };
    run.tasks.iter().filter(|observed| observed.task.job == Job::Ps).map(server).collect()
}

fn nodes(run: &Observation) -> Vec<page::Node> {
    let node = |NodeObservation { usage, tasks }: NodeObservation<'_>| page::Node {
        name: usage.node.clone(),
        tasks: tasks.into_iter().map(|(task, _)| task).collect(),
        cpu: usage.node_cpus / f64::from(usage.node_cores.max(1)),
        cores: usage.node_cores,
        memory_used_bytes: usage.node_memory_bytes.saturating_sub(usage.node_available_bytes),
        memory_bytes: usage.node_memory_bytes,
        received_per_second: usage.received_per_second,
        sent_per_second: usage.sent_per_second,
        gpus: usage.gpus.iter().filter_map(|gpu| gpu.utilization).collect(),
    };
    run.nodes().into_values().map(node).collect()
}

fn checkpoints(run: &Observation) -> Vec<page::Checkpoint> {
    let newest_first = run.history.checkpoints.iter().rev();
    let shown = newest_first.map(|saved| page::Checkpoint {
        step: saved.step,
        age_secs: run.age(saved).as_secs_f64(),
        bytes: saved.bytes,
    });
    shown.take(run.kept_checkpoints).collect()
}

fn timeline(history: &History, earlier: Option<&Earlier>) -> page::Timeline {
    let mut timeline =
        earlier.map_or_else(|| page::Timeline::after(history.forgotten), |earlier| earlier.timeline(history));
    let began = earlier.map_or(Duration::ZERO, |earlier| earlier.elapsed);
    for event in &history.events {
        let kind = match event.kind {
            HistoryKind::Joined => page::EventKind::Joined,
            HistoryKind::Left => page::EventKind::Finished,
            HistoryKind::Dead => page::EventKind::DeclaredDead,
            HistoryKind::RolledBack => page::EventKind::RolledBack,
            HistoryKind::Saved => page::EventKind::Saved,
            HistoryKind::NotSaved => page::EventKind::Warning,
            HistoryKind::Phase => page::EventKind::Phase,
        };
        timeline.push(page::Event {
            at_secs: began.saturating_add(event.at).as_secs_f64(),
            kind,
            what: event.text.clone(),
        });
    }
    timeline
}

#[cfg(test)]
mod tests;
