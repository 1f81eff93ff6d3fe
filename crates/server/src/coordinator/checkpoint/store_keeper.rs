//! What a coordinator has done in the checkpoint store, beside it: a checkpoint is looked for, published, and old ones
//! are removed. Each may take a while or hang; the coordinator hears of it when it is done. When that is, and how long a
//! lookup waits for what is just being published, is all that is decided here.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Mutex, mpsc};
use tracing::warn;
use windlass_checkpoint::{CheckpointError, CheckpointId, Followed, Holder, Manifest, ReadCounter, Store};
use windlass_wire::control::proto::ModelFile;

use super::beginning;
use super::checkpoints::Beginning;
use super::lease_keeper::LeaseKeeper;
use crate::checkpoint::CheckpointConfig;
use crate::coordinator::interface::{Claimed, Event};

/// How long removing old checkpoints may take. Nothing but the next publication and the end of ps 0 waits for it.
const PRUNING: Duration = Duration::from_secs(10);

/// Checkpoints that are being published, or wait for it.
type UnderWay = std::sync::Mutex<BTreeSet<CheckpointId>>;

/// A run's hold on its checkpoint store.
pub(in crate::coordinator) struct StoreKeeper {
    store: Arc<Store>,
    pub(in crate::coordinator) lease: LeaseKeeper,
    config: CheckpointConfig,
    /// The run of the holder before.
    followed: Option<Followed>,
    generation: u64,
    /// What is read to find a checkpoint, and how much of it had been when last asked.
    read: ReadCounter,
    seen_read: u64,
    /// Held while one is published: a later one is never published before it.
    publishing: Arc<Mutex<()>>,
    /// Those that are being published, or wait for it.
    under_way: Arc<UnderWay>,
    tidying: Tidying,
    done: mpsc::Sender<Event>,
}

/// Held while old checkpoints are removed. Whoever is about to end waits for it, so that none are left.
pub(in crate::coordinator) type Tidying = Arc<Mutex<()>>;

impl StoreKeeper {
    /// Opens the store, makes this coordinator the one that publishes, and begins to look for what to begin from.
    pub(in crate::coordinator) async fn open(
        config: CheckpointConfig,
        address: &str,
        (done, tidying): (mpsc::Sender<Event>, Tidying),
    ) -> Result<(Self, Claimed), CheckpointError> {
        let read = ReadCounter::default();
        let store = Arc::new(Store::open_counted(&config.location, read.clone()).await?);
        let holder = Holder::this_process(address);
        let lease = match config.restarted {
            true => store.lease_again(holder, config.take_over).await?,
            false => store.lease(holder, config.take_over).await?,
        };
        let (generation, followed) = (lease.generation(), lease.followed());
        let claimed = Claimed {
            config: config.clone(),
            location: store.location().to_owned(),
            generation,
            salt: CheckpointId::new(0, 0).attempt as u8,
            goes_on: config.restarted || followed.is_some_and(|followed| followed.crashed),
        };
        let keeper = Self {
            lease: LeaseKeeper::start(lease, done.clone()),
            store,
            config,
            followed,
            generation,
            read,
            seen_read: 0,
            publishing: Arc::default(),
            under_way: Arc::default(),
            tidying,
            done,
        };
        keeper.look_up(1, None);
        Ok((keeper, claimed))
    }

    /// Looks for the newest checkpoint of the run. One that is just being published counts, unless the store takes too long
    /// for it: then it is given up, for it must not appear when the run has gone on from an earlier one. Without one the
    /// run goes back to where it began; as long as that is not known, this looks for what to begin from.
    pub(in crate::coordinator) fn look_up(&self, lookup: u64, first: Option<Beginning>) {
        let (store, config, read) = (self.store.clone(), self.config.clone(), self.read.clone());
        let (generation, followed) = (self.generation, self.followed);
        let (publishing, under_way) = (self.publishing.clone(), self.under_way.clone());
        self.spawn_lookup(lookup, async move {
            let Some(first) = first else {
                return beginning::find(&config, (&store, read), generation, followed).await;
            };
            if tokio::time::timeout(config.stall, publishing.lock()).await.is_err() {
                let given_up = under_way.lock().unwrap_or_else(PoisonError::into_inner).clone();
                given_up.into_iter().for_each(|id| store.disown(id));
            }
            beginning::find_again(first, &store).await
        });
    }

    /// Looks for a checkpoint beside the coordinator, which hears what was found.
    fn spawn_lookup(
        &self,
        lookup: u64,
        finding: impl Future<Output = Result<Beginning, CheckpointError>> + Send + 'static,
    ) {
        let done = self.done.clone();
        tokio::spawn(async move {
            let found = finding.await.map(Box::new);
            let _ = done.send(Event::Found(lookup, found)).await;
        });
    }

    /// Whether something has been read since this was last asked.
    pub(in crate::coordinator) fn has_read_on(&mut self) -> bool {
        let read = self.read.bytes();
        std::mem::replace(&mut self.seen_read, read) < read
    }

    /// Publishes a checkpoint, and then removes what is too old.
    pub(in crate::coordinator) fn publish(&self, number: u64, mut manifest: Box<Manifest>, files: Arc<[ModelFile]>) {
        manifest.created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let (store, keep) = (self.store.clone(), self.config.keep);
        let (publishing, under_way, done) = (self.publishing.clone(), self.under_way.clone(), self.done.clone());
        let tidying = self.tidying.clone();
        under_way.lock().unwrap_or_else(PoisonError::into_inner).insert(manifest.id);
        tokio::spawn(async move {
            let _turn = publishing.lock().await;
            let published = publish(&store, &manifest, &files).await.map(|()| manifest.id);
            under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&manifest.id);
            let is_published = published.is_ok();
            let _tidying = tidying.lock().await;
            // Nobody waits for what comes after this: the checkpoint is as durable as it will be.
            let _ = done.send(Event::Published(number, published)).await;
            let tidied = tokio::time::timeout(PRUNING, tidy(&store, &manifest, is_published, keep)).await;
            if let Ok(Err(error)) = tidied {
                warn!("cannot remove old checkpoints: {error}");
            }
        });
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
async fn tidy(store: &Store, manifest: &Manifest, is_published: bool, keep: usize) -> Result<(), CheckpointError> {
    match is_published {
        true => store.prune_since(manifest.first_generation, keep, Some(manifest.id.generation)).await.map(drop),
        false => {
            store.discard(&manifest.id).await;
            Ok(())
        }
    }
}
