//! Slow work in the checkpoint store, done beside the coordinator: looking up a checkpoint, publishing one, and
//! removing old ones. Each may take a while or hang; the coordinator gets an event when it is done. The only decision
//! made here is how long a lookup waits for a checkpoint that is just being published.

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
    /// The run that held the store before.
    followed: Option<Followed>,
    generation: u64,
    /// Bytes read by lookups, and how many there were when last asked.
    read: ReadCounter,
    seen_read: u64,
    /// Held while a checkpoint is published, so that a later one is never published first.
    publishing: Arc<Mutex<()>>,
    /// Checkpoints that are being published, or are waiting to be.
    under_way: Arc<UnderWay>,
    tidying: Tidying,
    done: mpsc::Sender<Event>,
}

/// Held while old checkpoints are removed. The process waits for it before it ends, so that none are left.
pub(in crate::coordinator) type Tidying = Arc<Mutex<()>>;

impl StoreKeeper {
    /// Opens the store, claims the right to publish for this coordinator, and starts to look up what to begin from.
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

    /// Looks up the newest checkpoint of the run. One that is just being published counts, unless the store takes too
    /// long: then it is given up, because it must not appear after the run has continued from an earlier one. Without a
    /// checkpoint the run returns to where it began; as long as that is not known, this looks up what to begin from.
    pub(in crate::coordinator) fn look_up(&self, lookup: u64, first: Option<Beginning>) {
        let (store, config, read) = (self.store.clone(), self.config.clone(), self.read.clone());
        let (generation, followed) = (self.generation, self.followed);
        let (publishing, under_way) = (self.publishing.clone(), self.under_way.clone());
        self.spawn_lookup(lookup, async move {
            let Some(first) = first else {
                return beginning::find(&config, (&store, read), generation, followed).await;
            };
            let turn = tokio::time::timeout(config.stall, publishing.lock()).await;
            // Any checkpoint that still waits for its turn comes too late as well.
            under_way.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|id| store.disown(*id));
            drop(turn);
            beginning::find_again(first, &store).await
        });
    }

    /// Runs a lookup beside the coordinator, which gets the result as an event.
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

    /// Returns whether anything has been read since the last call.
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
        // Take the lock at once if it is free, so that a lookup that begins after this waits for it.
        let turn = publishing.clone().try_lock_owned();
        tokio::spawn(async move {
            let _turn = match turn {
                Ok(turn) => turn,
                Err(_) => publishing.lock_owned().await,
            };
            let published = publish(&store, &manifest, &files).await;
            let published = settle(&store, manifest.id, published, &under_way).await;
            let is_published = published.is_ok();
            let _tidying = tidying.lock().await;
            // Nothing waits for what follows: the checkpoint is as durable as it will be.
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

/// Decides whether a published checkpoint counts. It does not if a lookup has given it up meanwhile; after this call no
/// lookup can.
async fn settle(
    store: &Store,
    id: CheckpointId,
    published: Result<(), CheckpointError>,
    under_way: &UnderWay,
) -> Result<CheckpointId, CheckpointError> {
    let owned = {
        let mut under_way = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.remove(&id);
        store.check_owned(&id)
    };
    published?;
    if let Err(given_up) = owned {
        store.delete(&id).await?;
        return Err(given_up);
    }
    Ok(id)
}

/// Removes checkpoints that are now too old, or the parts of one that could not be published.
async fn tidy(store: &Store, manifest: &Manifest, is_published: bool, keep: usize) -> Result<(), CheckpointError> {
    match is_published {
        true => store.prune_since(manifest.first_generation, keep, Some(manifest.id.generation)).await.map(drop),
        false => {
            store.discard(&manifest.id).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_checkpoint::PartLayout;
    use windlass_core::plan::ShardPlan;

    use super::*;
    use crate::checkpoint::Resume;
    use crate::fixtures;

    /// A checkpoint without parameters, whose part is written.
    async fn manifest(store: &Store, step: u64) -> Box<Manifest> {
        let run = fixtures::run(Vec::new());
        let id = CheckpointId::of_attempt(step, 1, step, 0);
        let plan = ShardPlan::new(&run.parameters, 1, run.sharding);
        let part = store.begin_part(&id, &PartLayout::new(&run, &plan.servers[0], 0, 1)).await.unwrap();
        Box::new(Manifest::new(id, run, vec![part.finish().await.unwrap()]))
    }

    /// A keeper of an empty directory after its first lookup, the result of that, and the keeper's events.
    async fn keeper(directory: &std::path::Path) -> (StoreKeeper, Beginning, mpsc::Receiver<Event>) {
        let config = CheckpointConfig {
            location: directory.to_str().unwrap().to_owned(),
            every: None,
            every_steps: None,
            keep: 9,
            resume: Resume::Auto,
            restarted: false,
            stall: Duration::from_secs(60),
            take_over: false,
            description: String::new(),
        };
        let (done, mut results) = mpsc::channel(16);
        let (keeper, _) = StoreKeeper::open(config, "", (done, Arc::default())).await.unwrap();
        let Some(Event::Found(1, Ok(first))) = results.recv().await else { panic!("nothing is found at first") };
        (keeper, *first, results)
    }

    #[tokio::test]
    async fn a_lookup_and_a_publication_agree_on_what_is_the_newest_whoever_is_first() {
        for waits_for_its_turn in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let (keeper, first, mut results) = keeper(directory.path()).await;
            keeper.publish(1, manifest(&keeper.store, 1).await, Arc::default());
            let Some(Event::Published(1, Ok(_))) = results.recv().await else { panic!("not published") };
            let newer = manifest(&keeper.store, 2).await;
            // The lookup's task is spawned first here, as it may be polled first elsewhere.
            let turn = keeper.publishing.clone();
            let tidied = turn.lock().await;
            let held = waits_for_its_turn.then_some(tidied);
            keeper.look_up(2, Some(first));
            keeper.publish(2, newer, Arc::default());
            drop(held);
            let (mut found, mut is_published) = (None, None);
            while found.is_none() || is_published.is_none() {
                match results.recv().await {
                    Some(Event::Found(2, result)) => found = result.unwrap().found,
                    Some(Event::Published(2, result)) => is_published = Some(result.is_ok()),
                    other => panic!("{other:?}"),
                }
            }
            let newest = keeper.store.newest_verified().await.unwrap().manifest;
            assert_eq!(found.map(|found| found.id), newest.map(|newest| newest.id));
            assert_eq!(is_published, Some(!waits_for_its_turn));
        }
    }

    #[tokio::test]
    async fn a_checkpoint_that_is_given_up_as_it_is_published_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (keeper, ..) = keeper(directory.path()).await;
        let manifest = manifest(&keeper.store, 1).await;
        keeper.store.publish(&manifest).await.unwrap();
        keeper.under_way.lock().unwrap().insert(manifest.id);
        keeper.store.disown(manifest.id);
        let settled = settle(&keeper.store, manifest.id, Ok(()), &keeper.under_way).await;
        assert!(matches!(settled, Err(CheckpointError::GivenUp { .. })));
        assert!(keeper.under_way.lock().unwrap().is_empty());
        let elsewhere = Store::open(directory.path().to_str().unwrap()).unwrap();
        assert!(elsewhere.newest_verified().await.unwrap().manifest.is_none());
    }
}
