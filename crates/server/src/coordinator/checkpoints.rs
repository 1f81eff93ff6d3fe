//! The checkpoints of a run, as the coordinator sees them: which to begin from, when the next is due, and the
//! manifest that makes the servers' parts a checkpoint.
//!
//! What takes time (reading, publishing, removing) runs beside the coordinator, which hears of it when it is done.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;
use tracing::{info, warn};
use windlass_checkpoint::{CheckpointError, CheckpointId, Holder, Manifest, ServerState, Store};
use windlass_core::checkpoint::{Cycle, Mark, Next, Policy, Standing};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::identity::Fingerprint;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::limits::Limits;
use windlass_core::run::RunSpec;
use windlass_wire::control::ModelFile;

use super::beginning::{Beginning, newest};
use super::lease_keeper::LeaseKeeper;
use super::positions::Positions;
use crate::checkpoint::{CheckpointConfig, Part, before_generation};

/// A run's checkpoints.
pub(super) struct Checkpoints {
    store: Arc<Store>,
    /// Where the checkpoint to begin from is, if not in `store`.
    resume_from: Arc<Store>,
    generation: u64,
    /// In which the run began.
    first_generation: u64,
    pub(super) lease: LeaseKeeper,
    config: CheckpointConfig,
    cycle: Cycle<Part>,
    id: Option<CheckpointId>,
    /// Where the workers were when it was cut.
    positions: Positions,
    /// The checkpoint to begin from.
    found: Option<Manifest>,
    /// Whether the run had come to its end when the coordinator before this one died.
    finished: bool,
    /// The step of the last one that was published, and whether it is the run's last.
    published: Option<(u64, bool)>,
    /// Whether the one under way is.
    last: bool,
    /// For how long at the most it has held up a push.
    held_up: Duration,
    /// What goes with the values of the trained network.
    files: Arc<[ModelFile]>,
    done: mpsc::Sender<Done>,
}

/// What has been done beside the coordinator.
#[derive(Debug)]
pub(super) enum Done {
    /// A checkpoint was published, or could not be.
    Published(Result<CheckpointId, CheckpointError>),
    /// The lease on the checkpoints was given up.
    Released,
    /// The checkpoint to go back to has been looked up.
    Found(Result<Option<Box<Manifest>>, CheckpointError>),
}

impl Checkpoints {
    /// Opens the store, makes this coordinator the one that publishes, and finds what to begin from.
    pub(super) async fn open(
        config: CheckpointConfig,
        address: &str,
        servers: u32,
        done: mpsc::Sender<Done>,
    ) -> Result<Self, CheckpointError> {
        let store = Arc::new(Store::open(&config.location)?);
        let mut lease = store.lease(Holder::this_process(address), config.take_over).await?;
        let Beginning { store: resume_from, found, first_generation, finished } =
            match Beginning::find(&config, &store, &lease).await {
                Ok(beginning) => beginning,
                Err(error) => {
                    let _ = lease.release().await;
                    return Err(error);
                }
            };
        lease.set_first_generation(first_generation);
        lease.renew().await?;
        let step = found.as_ref().map_or(0, |manifest| manifest.id.step);
        let policy = Policy { every: config.every, every_steps: config.every_steps, keep: config.keep };
        Ok(Self {
            store,
            resume_from,
            generation: lease.generation(),
            first_generation,
            lease: LeaseKeeper::start(lease, done.clone()),
            cycle: Cycle::new(policy, servers as usize, Duration::ZERO, step),
            config,
            id: None,
            positions: Positions::default(),
            published: None,
            last: false,
            held_up: Duration::ZERO,
            files: Arc::default(),
            found,
            finished,
            done,
        })
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

    /// True if the run had come to its end when the coordinator before this one died.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn location(&self) -> &str {
        self.store.location()
    }

    /// The checkpoint that training begins from, and where it is.
    pub(super) fn found(&self) -> Option<(&Manifest, &str)> {
        self.found.as_ref().map(|manifest| (manifest, self.resume_from.location()))
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
        let others = manifest.workers.iter().filter(|state| others_may_come && !epochs.contains_key(&state.worker));
        let fewest = epochs.values().copied().chain(others.map(|state| state.position.epoch)).min();
        limits.finished(manifest.id.step, fewest.unwrap_or(0), location)
    }

    /// Looks for the newest checkpoint anew, after a server was lost.
    pub(super) fn look_again(&mut self) {
        self.cycle.reset();
        let (store, done, generation) = (self.store.clone(), self.done.clone(), self.generation);
        let began_from = self.found.take();
        tokio::spawn(async move {
            // Without one of its own, the run goes back to where it began.
            let found = match newest(&store, generation).await {
                Ok(newest) => Ok(newest.or(began_from)),
                Err(CheckpointError::AllDamaged { .. }) if began_from.is_some() => Ok(began_from),
                Err(error) => Err(error),
            };
            let _ = done.send(Done::Found(found.map(|found| found.map(Box::new)))).await;
        });
    }

    /// Takes what was found as what to go back to.
    pub(super) fn go_back_to(&mut self, found: Option<Box<Manifest>>) {
        self.found = found.map(|manifest| *manifest);
        if self.found.as_ref().is_some_and(|manifest| manifest.id.generation == self.generation) {
            self.resume_from = self.store.clone();
        }
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
        let id = CheckpointId::new(cut.version, self.generation);
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
        manifest.first_generation = self.first_generation;
        (manifest.last, self.last) = (last, last);
        self.held_up = parts.values().map(|part| part.held_up).max().unwrap_or_default();
        let (store, keep, done) = (self.store.clone(), self.config.keep, self.done.clone());
        let (files, first) = (self.files.clone(), self.first_generation);
        tokio::spawn(async move {
            let published = publish(&store, &manifest, &files).await.map(|()| manifest.id);
            if published.is_ok()
                && let Err(error) = store.prune_since(first, keep).await
            {
                warn!("cannot remove old checkpoints: {error}");
            }
            let _ = done.send(Done::Published(published)).await;
        });
    }

    /// Notes what became of publishing.
    pub(super) fn published(&mut self, published: &Result<CheckpointId, CheckpointError>) {
        self.cycle.published();
        match published {
            Ok(id) => {
                self.published = Some((id.step, self.last));
                let held_up = 1e3 * self.held_up.as_secs_f64();
                info!(
                    "checkpoint of step {} is in {}; pushes waited {held_up:.1} ms at the most",
                    id.step,
                    self.store.location()
                );
            }
            Err(error) => warn!("no checkpoint: {error}; training goes on, and the last good one stays"),
        }
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
