//! The checkpoints of a run, as the coordinator sees them: which to begin from, when the next is due, and the
//! manifest that makes the servers' parts a checkpoint.
//!
//! Pure: what takes time (reading, publishing, removing) is done beside the coordinator by `store_keeper`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, Manifest, ServerState};
use windlass_core::checkpoint::{CutPoint, Cycle, CycleRun, Next, Policy, Standing};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::fault::{self, Fault};
use windlass_core::identity::Fingerprint;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::limits::Limits;
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;
use windlass_wire::control::proto::ModelFile;

use crate::checkpoint::{CheckpointConfig, Part, RETRY_EVERY, Resume};
use crate::coordinator::data_positions::DataPositions;
use crate::coordinator::history::SavedCheckpoint;
use crate::coordinator::interface::{Claimed, Effect};
use crate::{CANNOT_CONTINUE, NOTICE};

/// The lowest throughput of a store, in bytes per second, that is worth waiting for.
const SLOWEST_BYTES: usize = 10_000_000;

/// What a run begins from, or rolls back to.
#[derive(Debug, Clone)]
pub struct Beginning {
    /// The location of the checkpoint.
    pub location: String,
    /// The checkpoint, if there is one.
    pub found: Option<Manifest>,
    /// The generation in which the run began. Checkpoints of earlier generations belong to other runs and are left
    /// alone.
    pub first_generation: u64,
    /// True if the previous coordinator died after the run had already completed.
    pub finished: bool,
}

/// A run's checkpoints.
#[derive(Debug)]
pub(in crate::coordinator) struct Checkpoints {
    location: String,
    generation: u64,
    salt: u8,
    config: CheckpointConfig,
    cycle: Cycle<Part>,
    id: Option<CheckpointId>,
    /// The workers' data positions at the cut.
    positions: DataPositions,
    /// What the run began from, once that is known.
    first: Option<Beginning>,
    /// What the run begins from or rolls back to.
    beginning: Option<Beginning>,
    /// How many lookups there have been.
    lookups: u64,
    /// The time since which the lookup has read or found nothing.
    looking_since: Duration,
    /// The step of the last one that was published, and whether it is the run's last.
    published: Option<(u64, bool)>,
    /// Checkpoints that are being published, by number. There are several only if the store is slow.
    publishing: BTreeMap<u64, Publication>,
    /// The error that keeps a lookup from succeeding.
    trouble: Option<LookupTrouble>,
    /// True if the run had already begun and its tasks are waiting for this coordinator.
    goes_on: bool,
    /// The files that are stored with the trained network.
    files: Arc<[ModelFile]>,
    lease: LeaseStage,
}

/// A checkpoint that is being published.
#[derive(Debug)]
struct Publication {
    /// When publishing began.
    begun: Duration,
    /// The size of its parts.
    bytes: u64,
    /// The longest time that it held up a push.
    held_up: Duration,
    /// Whether it is the run's last.
    last: bool,
}

/// A store failure during a lookup.
#[derive(Debug)]
struct LookupTrouble {
    /// When to retry; `None` while a retry is under way.
    again: Option<Duration>,
    /// The error of the store.
    error: String,
    /// The same error, worded for the waiting tasks.
    notice: String,
}

/// The state of the lease on the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseStage {
    Held,
    Releasing,
    Released,
}

impl Checkpoints {
    /// Creates the checkpoints of a run that holds this claim. The first lookup of what to begin from is already under
    /// way.
    pub(in crate::coordinator) fn new(claimed: Claimed) -> Self {
        let Claimed { config, location, generation, salt, goes_on } = claimed;
        let policy = Policy { every: config.every, every_steps: config.every_steps, keep: config.keep };
        Self {
            location,
            generation,
            salt,
            config,
            cycle: Cycle::new(policy, Duration::ZERO, 0),
            id: None,
            positions: DataPositions::default(),
            first: None,
            beginning: None,
            lookups: 1,
            looking_since: Duration::ZERO,
            published: None,
            publishing: BTreeMap::new(),
            trouble: None,
            goes_on,
            files: Arc::default(),
            lease: LeaseStage::Held,
        }
    }

    /// Begins to release the lease. Returns false if that has already begun.
    pub(in crate::coordinator) fn release(&mut self) -> bool {
        let held = self.lease == LeaseStage::Held;
        if held {
            self.lease = LeaseStage::Releasing;
        }
        held
    }

    /// Notes that the lease was released.
    pub(in crate::coordinator) fn released(&mut self) {
        self.lease = LeaseStage::Released;
    }

    /// True while the lease is being released.
    pub(in crate::coordinator) fn is_releasing(&self) -> bool {
        self.lease == LeaseStage::Releasing
    }

    /// Takes a worker's files, to be kept with the checkpoints of its run.
    pub(in crate::coordinator) fn keep_files(&mut self, run: &RunSpec, files: &[ModelFile]) {
        let is_of_run =
            |file: &ModelFile| run.identity.files.get(&file.name) == Some(&Fingerprint::of(file.content.as_bytes()));
        if files.len() == run.identity.files.len() && files.iter().all(is_of_run) {
            self.files = files.into();
        }
    }

    pub(in crate::coordinator) fn location(&self) -> &str {
        &self.location
    }

    /// Returns where the checkpoint to begin from or roll back to is looked for.
    pub(in crate::coordinator) fn looks_in(&self) -> &str {
        match &self.config.resume {
            Resume::From(location, _) if self.first.is_none() => location,
            _ => self.location(),
        }
    }

    /// The checkpoint that training begins from, and where it is.
    pub(in crate::coordinator) fn found(&self) -> Option<(&Manifest, &str)> {
        let Beginning { location, found, .. } = self.beginning.as_ref()?;
        Some((found.as_ref()?, location))
    }

    /// Explains why this run cannot continue from the checkpoint that was found, if it cannot. Different data only
    /// causes a warning: a network may well be trained further on more data.
    pub(in crate::coordinator) fn refusal(&self, run: &RunSpec) -> Option<Outcome> {
        let (manifest, location) = self.found()?;
        let checkpoint = format!("checkpoint {}", manifest.id);
        if let Some(difference) = run.difference_from_checkpoint(&manifest.run) {
            let difference = difference.describe("this run", &checkpoint);
            let reason = format!("{difference} (in {location}); pass --resume never to start from scratch");
            return Some(Outcome { exit_code: exit_code::CHECKPOINT, reason });
        }
        let data = run.data.as_ref().zip(manifest.run.data.as_ref());
        if let Some(difference) = data.and_then(|(here, there)| here.difference(there)) {
            warn!("{}", difference.describe("this run", &checkpoint));
        }
        let (rate, reached) = (run.learning_rate, manifest.learning_rate.rate);
        if run.schedule == Schedule::Constant && rate != manifest.run.learning_rate {
            let change = format!("this run continues with --learning-rate {rate}, {checkpoint} had {reached}");
            warn!(target: NOTICE, "{change}");
        }
        for change in run.changes_since(&manifest.run) {
            warn!(target: NOTICE, "{}", change.describe("this run", &checkpoint));
        }
        None
    }

    /// Returns the message for a found run that completed, if this run asks for no more training. `epochs` holds the
    /// full epochs of the workers that are present; with dynamic workers, others may still join to train theirs.
    pub(in crate::coordinator) fn finished(
        &self,
        run: &RunSpec,
        epochs: &BTreeMap<WorkerId, u64>,
        others_may_come: bool,
    ) -> Option<String> {
        let (manifest, location) = self.found().filter(|(manifest, _)| manifest.last)?;
        let limits = Limits { steps: run.steps, epochs: run.data.as_ref().and_then(|data| data.epochs) };
        // A worker that had left before the end has fewer epochs, but the run completed without it.
        let as_many = manifest.workers.len() == epochs.len();
        let all = limits.epochs.filter(|_| run.ends_like(&manifest.run) && (as_many || !run.shares_data()));
        let was_there = |worker: &WorkerId| manifest.workers.iter().any(|state| state.worker == *worker);
        let had = |worker, epochs: u64| all.filter(|_| was_there(worker)).map_or(epochs, |all| epochs.max(all));
        let others = manifest.workers.iter().filter(|state| others_may_come && !epochs.contains_key(&state.worker));
        let others = others.map(|state| had(&state.worker, state.position.epoch));
        let fewest = epochs.iter().map(|(worker, epochs)| had(worker, *epochs)).chain(others).min();
        limits.finished(manifest.id.step, fewest.unwrap_or(0), location)
    }

    /// Starts the checkpoint cycle as training begins or resumes.
    pub(in crate::coordinator) fn go_on(&mut self, run: &RunSpec, servers: BTreeSet<ServerId>, now: Duration) {
        let bytes = run.parameters.elements() * size_of::<f32>() * (1 + run.optimizer.slots());
        let stall = self.config.stall + Duration::from_secs((bytes / SLOWEST_BYTES) as u64);
        let rounds = matches!(run.mode, Mode::Sync { .. });
        let step = self.found().map_or(0, |(manifest, _)| manifest.id.step);
        self.cycle.go_on_from(CycleRun { servers, rounds, limit: run.steps, stall }, now, step);
    }

    /// Looks up the newest checkpoint again after a server was lost; one that is just being published counts. The run
    /// remembers where it began, and returns there if it has no checkpoint of its own.
    pub(in crate::coordinator) fn look_again(&mut self, now: Duration) -> Option<Effect> {
        // If the first lookup is still under way, its result will do.
        let first = self.first.clone()?;
        (self.trouble, self.looking_since) = (None, now);
        self.lookups += 1;
        Some(Effect::Look(self.lookups, Some(Box::new(first))))
    }

    /// Notes that the last lookup failed. Returns true if it should be retried: a store may fail temporarily, and the
    /// tasks of a run that had begun are waiting. A run that is about to begin fails at once.
    pub(in crate::coordinator) fn is_looked_for_again(
        &mut self,
        error: &CheckpointError,
        now: Duration,
        patience: Duration,
    ) -> bool {
        let had_begun = self.goes_on || self.first.is_some();
        if !had_begun || !error.may_pass() || now.saturating_sub(self.looking_since) >= patience {
            return false;
        }
        let notice = format!("{CANNOT_CONTINUE}: {error}");
        if self.trouble.as_ref().is_none_or(|trouble| trouble.notice != notice) {
            warn!(target: NOTICE, "{notice}; trying again");
        }
        self.trouble = Some(LookupTrouble { again: Some(now + RETRY_EVERY), error: error.to_string(), notice });
        true
    }

    /// Notes that the lookup has read more data.
    pub(in crate::coordinator) fn read_on(&mut self, now: Duration) {
        self.looking_since = now;
    }

    /// Returns how the run ends if the lookup has made no progress for this long. A store may retry by itself for
    /// minutes, or hang; the servers that wait for the result are not to blame.
    pub(in crate::coordinator) fn gives_up_looking(&self, now: Duration, patience: Duration) -> Option<Outcome> {
        let waited = now.saturating_sub(self.looking_since);
        if waited < patience {
            return None;
        }
        let (location, seconds) = (self.looks_in(), waited.as_secs());
        let error = self.trouble.as_ref().map_or("the store does not answer", |trouble| &trouble.error);
        let reason = format!("gave up looking for a whole checkpoint in {location} after {seconds} s: {error}");
        Some(Outcome { exit_code: exit_code::CHECKPOINT, reason })
    }

    /// Retries a failed lookup when its pause is over.
    pub(in crate::coordinator) fn look_if_due(&mut self, now: Duration) -> Option<Effect> {
        self.trouble.as_mut()?.again.take_if(|again| now >= *again)?;
        self.lookups += 1;
        Some(Effect::Look(self.lookups, self.first.clone().map(Box::new)))
    }

    /// Describes the error that keeps a lookup from succeeding.
    pub(in crate::coordinator) fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().map(|trouble| trouble.notice.as_str())
    }

    /// True if this is the result of the latest lookup.
    pub(in crate::coordinator) fn is_last_look(&self, lookup: u64) -> bool {
        lookup == self.lookups
    }

    /// Accepts a lookup's result as what to begin from or roll back to.
    pub(in crate::coordinator) fn begin_from(&mut self, found: Beginning) {
        self.first.get_or_insert_with(|| found.clone());
        if self.beginning.is_none() || !fault::is_back(Fault::OlderCheckpointRestored) {
            self.beginning = Some(found);
        }
        (self.published, self.trouble) = (None, None);
        // Even if one of these is still published, the run does not continue from it.
        self.publishing.clear();
    }

    pub(in crate::coordinator) fn cycle(&mut self) -> &mut Cycle<Part> {
        &mut self.cycle
    }

    /// True while a checkpoint is under way.
    pub(in crate::coordinator) fn is_busy(&self) -> bool {
        !self.cycle.is_idle()
    }

    /// True if this step has already been saved, and as the run's last checkpoint if `last` is set.
    pub(in crate::coordinator) fn is_saved(&self, step: u64, last: bool) -> bool {
        self.published.is_some_and(|(saved, was_last)| saved == step && was_last >= last)
    }

    /// Returns a new id for the checkpoint that is cut here. The workers' positions belong to the cut, because the
    /// workers may be gone by the time it is published.
    pub(in crate::coordinator) fn name(&mut self, cut: &CutPoint, positions: DataPositions) -> CheckpointId {
        let id = CheckpointId::of_attempt(cut.version, self.generation, self.cycle.number(), self.salt);
        (self.id, self.positions) = (Some(id), positions);
        id
    }

    /// Notes that a worker's process has left or was replaced, perhaps after the cut but before a server takes it.
    pub(in crate::coordinator) fn worker_left(&mut self, worker: WorkerId, standing: &Standing) {
        self.positions.note_left(worker, standing);
    }

    /// Publishes a checkpoint of these parts, and removes what is too old.
    pub(in crate::coordinator) fn publish(
        &mut self,
        run: &RunSpec,
        parts: BTreeMap<ServerId, Part>,
        last: bool,
    ) -> Option<Effect> {
        let (id, first) = (self.id?, parts.values().next().cloned()?);
        let mut manifest = Manifest::new(id, run.clone(), parts.values().map(|part| part.record.clone()).collect());
        manifest.learning_rate = first.learning_rate;
        let state = |part: &Part| ServerState {
            version: part.mark.version,
            state: serde_json::to_value(&part.mark.pushes).unwrap_or_default(),
        };
        manifest.servers = parts.values().map(state).collect();
        let CutPoint { version, pushes } = first.mark;
        let standing = Standing { version, pushes, notes: first.notes, ..Standing::default() };
        manifest.workers = self.positions.at(&standing);
        manifest.config.clone_from(&self.config.description);
        manifest.first_generation = self.beginning.as_ref().map_or(self.generation, |began| began.first_generation);
        let since = self.found().map(|(began, _)| began.trained_since_in(&run.parameters));
        manifest.set_trained_since(since.unwrap_or_default());
        manifest.last = last;
        let publication = Publication {
            begun: self.cycle.begun_at(),
            bytes: parts.values().map(|part| part.record.bytes).sum(),
            held_up: parts.values().map(|part| part.held_up).max().unwrap_or_default(),
            last,
        };
        self.publishing.insert(self.cycle.number(), publication);
        Some(Effect::Publish(self.cycle.number(), Box::new(manifest), self.files.clone()))
    }

    /// How many checkpoints are kept.
    pub(in crate::coordinator) fn kept(&self) -> usize {
        self.config.keep
    }

    /// Notes the result of publishing. Returns whether anyone still waits for it, and the checkpoint that was saved.
    pub(in crate::coordinator) fn published(
        &mut self,
        number: u64,
        published: &Result<CheckpointId, CheckpointError>,
        at: Duration,
    ) -> (bool, Option<SavedCheckpoint>) {
        let awaited = self.cycle.published(number, published.is_ok());
        let publication = self.publishing.remove(&number);
        let (Ok(id), Some(Publication { begun, bytes, held_up, last })) = (published, publication) else {
            return (awaited, None);
        };
        self.published = Some((id.step, last));
        info!(
            "checkpoint of step {} is in {}; pushes were delayed by at most {:.1} ms",
            id.step,
            self.location,
            1e3 * held_up.as_secs_f64()
        );
        let duration = at.saturating_sub(begun);
        (awaited, Some(SavedCheckpoint { at, step: id.step, bytes, duration, held_up, written_before: None }))
    }

    /// Advances the checkpoint cycle, and begins a checkpoint if one is due. Returns what to do next.
    pub(in crate::coordinator) fn tick(&mut self, now: Duration, step: u64) -> Option<Next<Part>> {
        let next = self.cycle.tick(now);
        if next.is_some() || !self.cycle.is_due(now, step) { next } else { self.cycle.begin(now, step) }
    }
}

#[cfg(test)]
#[path = "checkpoints_tests.rs"]
mod tests;
