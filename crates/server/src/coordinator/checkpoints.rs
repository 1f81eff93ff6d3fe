//! The checkpoints of a run, as the coordinator sees them: which to begin from, when the next is due, and the
//! manifest that makes the servers' parts a checkpoint.
//!
//! What takes time (reading, publishing, removing) runs beside the coordinator, which hears of it when it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, mpsc};
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, Holder, Manifest, ReadCounter, ServerState, Store};
use windlass_core::checkpoint::{Cycle, CycleRun, Mark, Next, Policy, Standing};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::consistency::Mode;
use windlass_core::identity::Fingerprint;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::limits::Limits;
use windlass_core::run::RunSpec;
use windlass_wire::control::ModelFile;

use super::beginning::Beginning;
use super::lease_keeper::LeaseKeeper;
use super::positions::Positions;
use crate::checkpoint::{CheckpointConfig, Part, Resume, before_generation};

/// How long removing old checkpoints may keep a new one from being told of.
const PRUNING: Duration = Duration::from_secs(10);
/// A store that takes less in a second is not waited for.
const SLOWEST_BYTES: usize = 10_000_000;

/// A run's checkpoints.
pub(super) struct Checkpoints {
    store: Arc<Store>,
    generation: u64,
    pub(super) lease: LeaseKeeper,
    config: CheckpointConfig,
    cycle: Cycle<Part>,
    id: Option<CheckpointId>,
    /// Where the workers were when it was cut.
    positions: Positions,
    /// What the run began from, once that is known.
    first: Option<Beginning>,
    /// What it begins from, or goes back to.
    beginning: Option<Beginning>,
    /// How often that was looked up.
    lookups: u64,
    /// What is read for that, and how much of it had been when last asked.
    read: ReadCounter,
    seen_read: u64,
    /// The step of the last one that was published, and whether it is the run's last.
    published: Option<(u64, bool)>,
    /// Whether the one under way is.
    last: bool,
    /// For how long at the most it has held up a push.
    held_up: Duration,
    /// What goes with the values of the trained network.
    files: Arc<[ModelFile]>,
    /// Held while one is published: a later one is never published before it.
    publishing: Arc<Mutex<()>>,
    done: mpsc::Sender<Done>,
}

/// What has been done beside the coordinator.
#[derive(Debug)]
pub(super) enum Done {
    /// The checkpoint of this number was published, or could not be.
    Published(u64, Result<CheckpointId, CheckpointError>),
    /// Another run has taken over the checkpoints.
    Overtaken(CheckpointError),
    /// The lease on the checkpoints was given up.
    Released,
    /// The checkpoint to begin from or go back to has been looked up, the so many-th time.
    Found(u64, Result<Box<Beginning>, CheckpointError>),
}

impl Checkpoints {
    /// Opens the store, makes this coordinator the one that publishes, and begins to look for what to begin from.
    pub(super) async fn open(
        config: CheckpointConfig,
        address: &str,
        done: mpsc::Sender<Done>,
    ) -> Result<Self, CheckpointError> {
        let read = ReadCounter::default();
        let store = Arc::new(Store::open_counted(&config.location, read.clone()).await?);
        let lease = store.lease(Holder::this_process(address), config.take_over).await?;
        let policy = Policy { every: config.every, every_steps: config.every_steps, keep: config.keep };
        let (generation, followed) = (lease.generation(), lease.followed());
        let mut checkpoints = Self {
            lease: LeaseKeeper::start(lease, done.clone()),
            cycle: Cycle::new(policy, Duration::ZERO, 0),
            store,
            generation,
            config,
            id: None,
            positions: Positions::default(),
            first: None,
            beginning: None,
            lookups: 0,
            read: read.clone(),
            seen_read: 0,
            published: None,
            last: false,
            held_up: Duration::ZERO,
            files: Arc::default(),
            publishing: Arc::default(),
            done,
        };
        let (config, store) = (checkpoints.config.clone(), checkpoints.store.clone());
        checkpoints.look(async move { Beginning::find(&config, (&store, read), generation, followed).await });
        Ok(checkpoints)
    }

    /// Takes a worker's files, to be kept with the checkpoints of its run.
    pub(super) fn keep_files(&mut self, run: &RunSpec, files: &[ModelFile]) {
        let is_of_run =
            |file: &ModelFile| run.identity.files.get(&file.name) == Some(&Fingerprint::of(file.content.as_bytes()));
        if files.len() == run.identity.files.len() && files.iter().all(is_of_run) {
            self.files = files.into();
        }
    }

    /// Incarnations of this coordinator are later than those of the ones before it.
    pub(super) fn before(&self) -> Incarnation {
        before_generation(self.generation)
    }

    pub(super) fn location(&self) -> &str {
        self.store.location()
    }

    /// Where the checkpoint to begin from or go back to is looked for.
    pub(super) fn looks_in(&self) -> &str {
        match &self.config.resume {
            Resume::From(location, _) if self.first.is_none() => location,
            _ => self.location(),
        }
    }

    /// The checkpoint that training begins from, and where it is.
    pub(super) fn found(&self) -> Option<(&Manifest, &str)> {
        let Beginning { store, found, .. } = self.beginning.as_ref()?;
        Some((found.as_ref()?, store.location()))
    }

    /// Why this run cannot go on from the checkpoint that was found, if it cannot. Other data are only warned of: a
    /// network may well be trained on with more.
    pub(super) fn refusal(&self, run: &RunSpec) -> Option<Outcome> {
        let (manifest, location) = self.found()?;
        let checkpoint = format!("checkpoint {}", manifest.id);
        if let Some(difference) = run.difference_from_checkpoint(&manifest.run) {
            let difference = difference.describe("this run", &checkpoint);
            let reason = format!("{difference} (in {location}); --resume never begins anew");
            return Some(Outcome { exit_code: exit_code::CHECKPOINT, reason });
        }
        let data = run.data.as_ref().zip(manifest.run.data.as_ref());
        if let Some(difference) = data.and_then(|(here, there)| here.difference(there)) {
            warn!("{}", difference.describe("this run", &checkpoint));
        }
        None
    }

    /// What to say if the run that was found has ended well, and this one asks for no more than that has had. `epochs` are
    /// the whole passes of those who are here; with dynamic workers, others may come for what they have not had.
    pub(super) fn finished(
        &self,
        run: &RunSpec,
        epochs: &BTreeMap<WorkerId, u64>,
        others_may_come: bool,
    ) -> Option<String> {
        let (manifest, location) = self.found().filter(|(manifest, _)| manifest.last)?;
        let limits = Limits { steps: run.steps, epochs: run.data.as_ref().and_then(|data| data.epochs) };
        // One that had left by then has had less, and the run had ended without it all the same.
        let as_many = manifest.workers.len() == epochs.len();
        let all = limits.epochs.filter(|_| run.ends_like(&manifest.run) && (as_many || !run.shares_data()));
        let was_there = |worker: &WorkerId| manifest.workers.iter().any(|state| state.worker == *worker);
        let had = |worker, epochs: u64| all.filter(|_| was_there(worker)).map_or(epochs, |all| epochs.max(all));
        let others = manifest.workers.iter().filter(|state| others_may_come && !epochs.contains_key(&state.worker));
        let others = others.map(|state| had(&state.worker, state.position.epoch));
        let fewest = epochs.iter().map(|(worker, epochs)| had(worker, *epochs)).chain(others).min();
        limits.finished(manifest.id.step, fewest.unwrap_or(0), location)
    }

    /// Training begins, or goes on from a checkpoint.
    pub(super) fn go_on(&mut self, run: &RunSpec, servers: BTreeSet<ServerId>, now: Duration) {
        let bytes = run.parameters.elements() * size_of::<f32>() * (1 + run.optimizer.slots());
        let stall = self.config.stall + Duration::from_secs((bytes / SLOWEST_BYTES) as u64);
        let rounds = matches!(run.mode, Mode::Sync { .. });
        let step = self.found().map_or(0, |(manifest, _)| manifest.id.step);
        self.cycle.go_on_from(CycleRun { servers, rounds, stall }, now, step);
    }

    /// Looks for the newest checkpoint anew, after a server was lost; one that is just being published counts. Where the
    /// run began is not forgotten: without a checkpoint of its own it goes back there, now or later.
    pub(super) fn look_again(&mut self) {
        self.cycle.reset();
        // If it has yet to be found what the run begins from, that will do.
        let Some(first) = self.first.clone() else { return };
        let (store, publishing, stall) = (self.store.clone(), self.publishing.clone(), self.config.stall);
        self.look(async move {
            let _ = tokio::time::timeout(stall, publishing.lock()).await;
            first.find_again(store).await
        });
    }

    fn look(&mut self, finding: impl Future<Output = Result<Beginning, CheckpointError>> + Send + 'static) {
        self.lookups += 1;
        let (done, lookup) = (self.done.clone(), self.lookups);
        tokio::spawn(async move {
            let found = finding.await.map(Box::new);
            let _ = done.send(Done::Found(lookup, found)).await;
        });
    }

    /// Whether something has been read since this was last asked.
    pub(super) fn has_read_on(&mut self) -> bool {
        let read = self.read.bytes();
        std::mem::replace(&mut self.seen_read, read) < read
    }

    /// True if this is the answer to the last look.
    pub(super) fn is_last_look(&self, lookup: u64) -> bool {
        lookup == self.lookups
    }

    /// Takes what was found as what to begin from, or to go back to.
    pub(super) fn begin_from(&mut self, found: Beginning) {
        self.lease.set_first_generation(found.first_generation);
        self.first.get_or_insert_with(|| found.clone());
        self.beginning = Some(found);
        self.published = None;
    }

    pub(super) fn cycle(&mut self) -> &mut Cycle<Part> {
        &mut self.cycle
    }

    /// True while one is under way.
    pub(super) fn is_busy(&self) -> bool {
        !self.cycle.is_idle()
    }

    /// True if this step has been saved already, as the run's last if it is to be that.
    pub(super) fn is_saved(&self, step: u64, last: bool) -> bool {
        self.published.is_some_and(|(saved, was_last)| saved == step && was_last >= last)
    }

    /// A new name for the checkpoint that is cut here. The workers' positions belong to the cut: they may have gone by
    /// the time it is published.
    pub(super) fn name(&mut self, cut: &Mark, positions: Positions) -> CheckpointId {
        let id = CheckpointId::of_attempt(cut.version, self.generation, self.cycle.number());
        (self.id, self.positions) = (Some(id), positions);
        id
    }

    /// Publishes a checkpoint of these parts, and removes what is too old.
    pub(super) fn publish(&mut self, run: &RunSpec, parts: BTreeMap<ServerId, Part>, last: bool) {
        let (Some(id), Some(first)) = (self.id, parts.values().next().cloned()) else { return };
        let mut manifest = Manifest::new(id, run.clone(), parts.values().map(|part| part.record.clone()).collect());
        manifest.created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        manifest.learning_rate = first.learning_rate;
        let state = |part: &Part| ServerState {
            version: part.mark.version,
            state: serde_json::to_value(&part.mark.pushes).unwrap_or_default(),
        };
        manifest.servers = parts.values().map(state).collect();
        manifest.workers = self.positions.at(&Standing { pushes: first.mark.pushes, notes: first.notes });
        manifest.config.clone_from(&self.config.description);
        manifest.first_generation = self.beginning.as_ref().map_or(self.generation, |began| began.first_generation);
        let since = self.found().map(|(began, _)| began.trained_since_in(&run.parameters));
        manifest.set_trained_since(since.unwrap_or_default());
        (manifest.last, self.last) = (last, last);
        self.held_up = parts.values().map(|part| part.held_up).max().unwrap_or_default();
        let (store, keep, files) = (self.store.clone(), self.config.keep, self.files.clone());
        let (publishing, done, number) = (self.publishing.clone(), self.done.clone(), self.cycle.number());
        tokio::spawn(async move {
            let _turn = publishing.lock().await;
            let published = publish(&store, &manifest, &files).await.map(|()| manifest.id);
            let tidied = tokio::time::timeout(PRUNING, tidy(&store, &manifest, &published, keep)).await;
            if let Ok(Err(error)) = tidied {
                warn!("cannot remove old checkpoints: {error}");
            }
            let _ = done.send(Done::Published(number, published)).await;
        });
    }

    /// Notes what became of publishing. False if nobody waits for that any more.
    pub(super) fn published(&mut self, number: u64, published: &Result<CheckpointId, CheckpointError>) -> bool {
        let awaited = self.cycle.published(number, published.is_ok());
        if let Ok(id) = published {
            self.published = Some((id.step, self.last));
            let held_up = 1e3 * self.held_up.as_secs_f64();
            info!(
                "checkpoint of step {} is in {}; pushes waited {held_up:.1} ms at the most",
                id.step,
                self.store.location()
            );
        }
        awaited
    }

    /// What is to be told the servers next, if the time has come for a checkpoint.
    pub(super) fn tick(&mut self, now: Duration, step: u64) -> Option<Next<Part>> {
        let next = self.cycle.tick(now);
        if next.is_some() || !self.cycle.is_due(now, step) { next } else { self.cycle.begin(now, step) }
    }
}

/// Publishes a checkpoint after the files that it takes to use it.
async fn publish(store: &Store, manifest: &Manifest, files: &[ModelFile]) -> Result<(), CheckpointError> {
    for file in files {
        store.keep_file(&file.content).await?;
    }
    store.publish(manifest).await
}

/// Removes what is too old by now, or the parts of what could not be published.
async fn tidy(
    store: &Store,
    manifest: &Manifest,
    published: &Result<CheckpointId, CheckpointError>,
    keep: usize,
) -> Result<(), CheckpointError> {
    match published {
        Ok(_) => store.prune_since(manifest.first_generation, keep).await.map(drop),
        Err(_) => {
            store.discard(&manifest.id).await;
            Ok(())
        }
    }
}
