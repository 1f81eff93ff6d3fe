//! Carries out the decisions of the lifecycle: sends messages to tasks, and keeps track of the workers.

use tracing::{info, warn};
use windlass_checkpoint::Manifest;
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Decision, Outcome, Phase, exit_code};
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{
    Abandon, AllFinished, Endpoint, Initialise, Over, Prepare, Start, WorkerJoined, WorkerLeft, WorkerReport,
};

use super::checkpoint::Checkpoints;
use super::history::{HistoryKind, SavedCheckpoint};
use super::interface::{Effect, OwnShard};
use super::machine::{Began, Coordinator, is_server};
use crate::NOTICE;

impl<S: OwnShard> Coordinator<S> {
    /// Carries out the decisions of the lifecycle.
    pub(super) fn carry_out(&mut self, decisions: Vec<Decision>) {
        for decision in decisions {
            match decision {
                Decision::Prepare => match &mut self.looking {
                    Some(wanted) => *wanted = true,
                    None => self.prepare(),
                },
                Decision::Regather(reason) => self.regather(&reason),
                Decision::Save => self.save(),
                // No `Prepare` has been sent yet: this server will get the first one with the others.
                Decision::PrepareIdle(_) if self.prepare.number == 0 => {}
                Decision::PrepareIdle(task) => self.tell(task, Kind::Prepare(self.prepare.clone())),
                Decision::IdleLeft(task, reason) => {
                    warn!("lost {task}: {reason}; it held no parameters, and training continues");
                    self.history.note(self.now, HistoryKind::Dead, format!("lost {task}: {reason}"));
                    self.members.remove(task);
                }
                Decision::Initialise(worker) => {
                    let servers = self.servers();
                    self.tell(worker.into(), Kind::Initialise(Initialise { servers }));
                }
                Decision::Start(worker) => {
                    let servers = self.servers();
                    let start = Start {
                        servers,
                        chief: worker == self.lifecycle.chief(),
                        batches: self.positions.began(worker),
                        note: self.positions.note(worker).to_owned(),
                        global_step: self.step(),
                    };
                    self.tell(worker.into(), Kind::Start(start));
                }
                Decision::Joined(worker, incarnation) => {
                    // At once on the server in this process, as when a worker leaves. Before training, the shard may
                    // still be the one from before the rollback, whose clock means nothing to the next.
                    let trains = *self.lifecycle.phase() == Phase::Training;
                    let clock = self.shard.clock().filter(|_| trains).unwrap_or_default();
                    let standing = self.shard.join(worker, incarnation, clock).unwrap_or_default();
                    self.replaced(worker, incarnation, &standing);
                    let joined = WorkerJoined { worker: worker.0, incarnation: incarnation.0, clock };
                    self.members.tell(is_server, &Kind::WorkerJoined(joined));
                }
                Decision::Left(worker, incarnation, reason) => self.left(worker, incarnation, reason),
                Decision::AllFinished => {
                    let finished = Kind::AllFinished(self.all_finished());
                    self.members.tell(|task| task.job == Job::Worker, &finished);
                }
                Decision::Over(outcome) => self.over(outcome),
            }
        }
    }

    /// Tells every task to end, and releases the checkpoints.
    fn over(&mut self, outcome: Outcome) {
        let ended = if outcome.reason.is_empty() { "training has ended" } else { &outcome.reason };
        self.history.note(self.now, HistoryKind::Phase, ended);
        if outcome == Outcome::done() {
            info!("training has ended");
        } else if outcome.exit_code == 0 {
            info!("{}", outcome.reason);
        } else {
            // Every task reports the reason as its own error.
            info!("ending the run: {}", outcome.reason);
        }
        let over = Over { exit_code: u32::from(outcome.exit_code), reason: outcome.reason.clone() };
        self.members.tell(|_| true, &Kind::Over(over));
        if self.checkpoints.as_mut().is_some_and(Checkpoints::release) {
            self.effects.push(Effect::Release(outcome));
        }
    }

    /// Tells the servers what to hold, and from which checkpoint.
    pub(super) fn prepare(&mut self) {
        let Some((text, run)) = self.run.clone() else { return };
        if let Some(outcome) = self.refusal(&run) {
            let decisions = self.lifecycle.failed(outcome);
            return self.carry_out(decisions);
        }
        let mut prepare = self.preparation(text);
        let (ps, workers) = (self.config.servers, prepare.living.len());
        info!("all tasks have joined: {ps} ps and {workers} worker{}", if workers == 1 { "" } else { "s" });
        self.resume(&run, &mut prepare);
        if let Some(reason) = self.nothing_is_left() {
            let decisions = self.lifecycle.end(Outcome { exit_code: 0, reason });
            return self.carry_out(decisions);
        }
        if self.began.is_none() {
            let step = self.checkpoints.as_ref().and_then(Checkpoints::found).map_or(0, |(found, _)| found.id.step);
            self.began = Some(Began { step, batches: self.positions.all_began() });
        }
        for living in &prepare.living {
            self.positions.replace(WorkerId(living.worker), Incarnation(living.incarnation), &Standing::default());
        }
        self.prepare = prepare;
        self.members.tell(is_server, &Kind::Prepare(self.prepare.clone()));
    }

    /// Returns how a run ends that cannot start because it does not fit its checkpoint or the servers' memory.
    fn refusal(&self, run: &RunSpec) -> Option<Outcome> {
        let refusal = self.checkpoints.as_ref().and_then(|checkpoints| checkpoints.refusal(run));
        let exit_code = exit_code::USAGE;
        refusal.or_else(|| self.shortage(run).map(|reason| Outcome { exit_code, reason }))
    }

    /// Builds the `Prepare` message from the tasks that are present now.
    fn preparation(&self, run: String) -> Prepare {
        let living = self.lifecycle.present_workers().into_iter().filter_map(|worker| {
            let incarnation = self.lifecycle.incarnation(TaskId::from(worker))?;
            Some(WorkerJoined { worker: worker.0, incarnation: incarnation.0, clock: 0 })
        });
        Prepare {
            number: self.prepare.number.max(self.lifecycle.before().0) + 1,
            run,
            servers: self.config.servers,
            workers: self.lifecycle.workers().iter().map(|worker| worker.0).collect(),
            living: living.collect(),
            latest_incarnation: self.lifecycle.latest_incarnation().0,
            ..Prepare::default()
        }
    }

    /// Resumes from the checkpoint that was found, if any: restores data positions and history, and tells the servers
    /// what to restore.
    fn resume(&mut self, run: &RunSpec, prepare: &mut Prepare) {
        let (active, now) = (self.active_servers(run), self.now);
        let Some(checkpoints) = &mut self.checkpoints else { return self.positions.restore(&[], None) };
        checkpoints.go_on(run, active, now);
        prepare.checkpoints = checkpoints.location().to_owned();
        let found = checkpoints.found();
        mention_rollback(found, self.seen_step);
        let Some((manifest, location)) = found else {
            self.positions.restore(&[], None);
            return self.note_rollback(0);
        };
        (prepare.restore, prepare.restore_from) = (manifest.id.to_string(), location.to_owned());
        let batch_size = |run: &RunSpec| run.data.as_ref().map(|data| data.batch_size);
        self.positions.restore(&manifest.workers, batch_size(&manifest.run).zip(batch_size(run)));
        let bytes = manifest.parts.iter().map(|part| part.bytes).sum();
        let (step, written_before) = (manifest.id.step, Some(manifest.created));
        let resumed = SavedCheckpoint { at: now, step, bytes, written_before, ..SavedCheckpoint::default() };
        self.history.resumed_from(resumed);
        self.note_rollback(step);
    }

    fn note_rollback(&mut self, step: u64) {
        if self.seen_step > step {
            self.history.rolled_back(self.now, self.seen_step, step);
            self.seen_step = step;
        }
    }

    /// Returns the addresses of the servers, by number. An absent server holds nothing and never gets a request.
    fn servers(&self) -> Vec<Endpoint> {
        (0..self.config.servers).map(|index| self.endpoints.get(&index).cloned().unwrap_or_default()).collect()
    }

    /// Returns the message for a run that had already ended and has nothing left to train.
    fn nothing_is_left(&self) -> Option<String> {
        let (_, run) = self.run.as_ref()?;
        let present = self.lifecycle.present_workers().into_iter();
        let epochs = present.map(|worker| (worker, self.positions.epochs(worker))).collect();
        self.checkpoints.as_ref()?.finished(run, &epochs, self.config.workers.is_none())
    }

    /// Notes whether the workers want more steps than the run had when it ended, so that it continues.
    pub(super) fn note_if_more_is_wanted(&mut self) {
        let (Some((_, run)), Some(checkpoints)) = (&self.run, &self.checkpoints) else { return };
        let Some((manifest, _)) = checkpoints.found() else { return };
        let position =
            |worker| manifest.workers.iter().find(|state| state.worker == worker).map(|state| state.position);
        let workers = self.lifecycle.workers().into_iter();
        let epochs = workers.map(|worker| (worker, position(worker).map_or(0, |position| position.epoch))).collect();
        if checkpoints.finished(run, &epochs, self.config.workers.is_none()).is_none() {
            self.lifecycle.wants_more();
        }
    }

    /// Handles the loss of a server: all tasks rejoin and roll back to the last checkpoint.
    fn regather(&mut self, reason: &str) {
        warn!(target: NOTICE, "{reason}; training continues when it is back");
        self.history.note(self.now, HistoryKind::Dead, reason);
        self.seen_step = self.seen_step.max(self.step());
        self.saving = None;
        for worker in self.lifecycle.workers() {
            self.members.remove(worker.into());
        }
        self.client.is_to_rejoin();
        if let Some(checkpoints) = &mut self.checkpoints {
            self.looking = Some(false);
            if let Some(number) = checkpoints.cycle().reset() {
                // The remaining servers have no use for their parts.
                self.members.tell(is_server, &Kind::Abandon(Abandon { number }));
            }
            self.effects.extend(checkpoints.look_again(self.now));
        }
    }

    /// From now on another process plays this worker, or none.
    fn replaced(&mut self, worker: WorkerId, process: Incarnation, standing: &Standing) {
        self.positions.replace(worker, process, standing);
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.worker_left(worker, standing);
        }
    }

    fn left(&mut self, worker: WorkerId, incarnation: Incarnation, reason: String) {
        // At once on the server in this process, so that no push of the old process is applied after they were counted.
        let standing = self.shard.retire(worker, incarnation).unwrap_or_default();
        self.replaced(worker, Incarnation::default(), &standing);
        if !reason.is_empty() {
            self.note_gone(worker, &reason);
            self.members.remove(worker.into());
            let last = self.progress.get(&TaskId::from(worker)).cloned().unwrap_or_default();
            let report = WorkerReport {
                worker: worker.0,
                loss: f64::from(last.loss),
                left: reason.clone(),
                began_at: u64::MAX,
                ..WorkerReport::default()
            };
            self.reports.insert(worker, report);
        }
        let chief = self.lifecycle.chief().0;
        let left = WorkerLeft { worker: worker.0, incarnation: incarnation.0, reason, chief };
        self.members.tell(|_| true, &Kind::WorkerLeft(left));
    }

    /// Records that a worker is gone; for a client, only when its first worker is.
    fn note_gone(&mut self, worker: WorkerId, reason: &str) {
        let name = self.lifecycle.named(worker);
        let is_client = name == TaskId::CLIENT;
        if is_client && !self.client.left(worker) {
            return;
        }
        // Without a client nobody trains.
        let goes_on = !is_client && !matches!(self.lifecycle.phase(), Phase::Saving(_));
        let goes_on = if goes_on { "; training continues without it" } else { "" };
        warn!(target: NOTICE, "{name} is gone: {reason}{goes_on}");
        self.history.note(self.now, HistoryKind::Dead, format!("{name} is gone: {reason}"));
    }

    fn all_finished(&self) -> AllFinished {
        let statistics = self.shard.statistics().unwrap_or_default();
        let first = statistics.first_step.unwrap_or_default();
        let last = statistics.last_step.unwrap_or(first);
        let began = self.began.clone().unwrap_or_default();
        let found = self.checkpoints.as_ref().and_then(Checkpoints::found);
        let resumed = |worker| found.and_then(|(found, _)| found.workers.iter().find(|state| state.worker == worker));
        let batch_size = self.run.as_ref().and_then(|(_, run)| run.data.as_ref()).map_or(0, |data| data.batch_size);
        let report = |(worker, report): (&WorkerId, &WorkerReport)| {
            // For a worker that has left, the last report will not do: it is up to half a second old, or undone by a
            // rollback.
            let steps = if report.left.is_empty() { report.steps } else { self.positions.began(*worker) };
            // This excludes steps that a rollback has undone, and includes those of earlier processes of this worker.
            let applied = steps.saturating_sub(resumed(*worker).map_or(0, |state| state.position.local_step));
            let samples_a_step = report.samples.checked_div(report.own_steps).unwrap_or(batch_size);
            // A restarted worker does not know where the run began, and neither does a restarted coordinator.
            let began_at = report.began_at.min(began.batches.get(worker).copied().unwrap_or(0));
            WorkerReport { steps, samples: applied.saturating_mul(samples_a_step), began_at, ..report.clone() }
        };
        AllFinished {
            reports: self.reports.iter().map(report).collect(),
            global_step: statistics.steps,
            dropped_gradients: statistics.dropped,
            first_step_seconds: first.as_secs_f64(),
            training_seconds: last.saturating_sub(first).as_secs_f64(),
            mean_staleness: statistics.staleness as f64 / statistics.pushes.max(1) as f64,
            chief: self.lifecycle.chief().0,
            resumed_at: statistics.resumed_at,
            began_at: began.step,
        }
    }
}

/// Logs where training continues from, and what is lost of the updates up to `seen_step`.
fn mention_rollback(found: Option<(&Manifest, &str)>, seen_step: u64) {
    let Some((manifest, location)) = found else {
        if seen_step > 0 {
            warn!(
                target: NOTICE,
                "no checkpoint exists yet: all {seen_step} updates are lost and training starts over"
            );
        }
        return;
    };
    let step = manifest.id.step;
    match seen_step.saturating_sub(step) {
        0 => info!("resuming from the checkpoint of step {step} in {location}"),
        lost => warn!(
            target: NOTICE,
            "rolling back to the checkpoint of step {step} in {location}: {lost} updates are lost"
        ),
    }
}
