//! A server's part of a checkpoint: cut where all servers cut, and written while training continues. A server writes
//! one part at a time, and drops it as soon as the checkpoint is abandoned.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use windlass_checkpoint::{BadCheckpointId, CheckpointError, CheckpointId, PartLayout, PartWriter, Store};
use windlass_core::rows::RowTable;
use windlass_wire::control::proto::{CheckpointFailed, Cut, PartProgress, PartWritten, task_message};
use windlass_wire::control::session::Sender;

use crate::background::Background;
use crate::checkpoint::Part;
use crate::shard::{CutError, ParameterShard, Snapshot};

/// How often to report the progress of a part.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Writes this server's parts of checkpoints.
pub(super) struct Saver {
    writing: Arc<Writing>,
    background: Background,
    /// The last checkpoint that was given up.
    given_up: watch::Sender<u64>,
}

/// What it takes to write a part.
struct Writing {
    store: Store,
    layout: PartLayout,
    /// Held as long as numbers of a part are in memory, so that a hanging store keeps those of at most one part.
    turn: Arc<AsyncMutex<()>>,
    /// The number and the object of the last complete part.
    written: Mutex<Option<(u64, String)>>,
}

impl Saver {
    /// Writes parts of this layout to a store.
    pub(super) fn new(store: Store, layout: PartLayout) -> std::io::Result<Self> {
        let writing = Writing { store, layout, turn: Arc::default(), written: Mutex::default() };
        Ok(Self { writing: Arc::new(writing), background: Background::start()?, given_up: watch::Sender::new(0) })
    }

    /// Returns the runtime for work that yields to training.
    pub(super) fn background(&self) -> &Handle {
        self.background.handle()
    }

    /// Cuts the shard, and writes its part in the background. The result is reported to the coordinator.
    pub(super) fn cut(&self, shard: Arc<ParameterShard>, sender: Sender, Cut { number, id, cut }: Cut) {
        let foreground = Handle::current();
        let mut given_up = self.given_up.subscribe();
        let made = serde_json::from_str(&cut).map_err(|error| Failed::from(error.to_string()));
        let made = made.and_then(|cut| shard.cut(number, &cut).map_err(Failed::from));
        let writing = self.writing.clone();
        self.background().spawn(async move {
            let bytes = AtomicU64::new(0);
            let written = async {
                made?;
                let id = id.parse().map_err(|error: BadCheckpointId| error.to_string())?;
                let turn = writing.begin().await;
                // Not at low priority, because pushes wait for the locks that it holds.
                let read = shard.clone();
                let snapshot = foreground.spawn_blocking(move || read.snapshot(number)).await;
                let snapshot = snapshot.map_err(|error| error.to_string())??;
                let part = writing.write(&id, snapshot, turn, &shard, &bytes).await;
                Ok(part.map_err(|error| error.to_string())?)
            };
            let reply = tokio::select! {
                // This drops whatever is on its way to the store.
                _ = given_up.wait_for(|last| *last >= number) => return,
                written = written => written,
                never = report(number, &bytes, &sender) => match never {},
            };
            let reply = match reply {
                Ok(part) => {
                    writing.set_written(Some((number, part.record.object.clone())));
                    // It may have been given up just now, before there was a complete part to drop.
                    if *given_up.borrow() >= number {
                        if let Some(object) = writing.take_written(number) {
                            writing.store.discard_part(&object).await;
                        }
                        return;
                    }
                    let part = serde_json::to_string(&part).unwrap_or_default();
                    task_message::Kind::PartWritten(PartWritten { number, part })
                }
                Err(Failed { reason, missed }) => {
                    task_message::Kind::CheckpointFailed(CheckpointFailed { number, reason, missed })
                }
            };
            sender.send(reply).await;
        });
    }

    /// Drops the part of a checkpoint that is given up, even if it is whole.
    pub(super) fn give_up(&self, number: u64) {
        self.given_up.send_replace(number);
        if let Some(object) = self.writing.take_written(number) {
            let store = self.writing.store.clone();
            self.background().spawn(async move { store.discard_part(&object).await });
        }
    }
}

impl Writing {
    /// Waits until no part is being written, and nothing of one that was dropped is still on its way to the store.
    async fn begin(&self) -> OwnedMutexGuard<()> {
        let turn = self.turn.clone().lock_owned().await;
        self.set_written(None);
        turn
    }

    /// Writes a snapshot of a shard, and counts the bytes as the store takes them.
    async fn write(
        &self,
        id: &CheckpointId,
        snapshot: Snapshot,
        turn: OwnedMutexGuard<()>,
        shard: &ParameterShard,
        bytes: &AtomicU64,
    ) -> Result<Part, CheckpointError> {
        let Snapshot { mark, notes, learning_rate, blocks, tables } = snapshot;
        let turn = Arc::new(turn);
        // The values of all blocks, then each slot of all; their buffers go back to the shard, whatever happens.
        let mut dense = Vec::new();
        for block in blocks {
            for (index, numbers) in iter::once(block.values).chain(block.slots).enumerate() {
                if dense.len() == index {
                    dense.push(Vec::new());
                }
                dense[index].push(shard.spares().lend(numbers));
            }
        }
        let mut part = self.store.begin_part(id, &self.layout).await?;
        for table in &tables {
            part.write_steps(table.steps()).await?;
        }
        for numbers in dense.into_iter().flatten() {
            write_counted(&mut part, numbers, &turn, bytes).await?;
        }
        for block in tables.into_iter().map(RowTable::into_block) {
            for numbers in iter::once(block.values).chain(block.slots) {
                write_counted(&mut part, numbers, &turn, bytes).await?;
            }
        }
        let record = part.finish().await?;
        Ok(Part { record, mark, notes, learning_rate, held_up: shard.longest_held_up() })
    }

    /// Takes the part of this number in order to drop it, if it is whole and has not been taken.
    fn take_written(&self, number: u64) -> Option<String> {
        self.written().take_if(|(last, _)| *last == number).map(|(_, object)| object)
    }

    fn set_written(&self, written: Option<(u64, String)>) {
        *self.written() = written;
    }

    fn written(&self) -> std::sync::MutexGuard<'_, Option<(u64, String)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers of a part, which hold the part's turn until they are dropped.
struct HeldNumbers<T> {
    numbers: T,
    _turn: Arc<OwnedMutexGuard<()>>,
}

impl<T: AsRef<[f32]>> AsRef<[f32]> for HeldNumbers<T> {
    fn as_ref(&self) -> &[f32] {
        self.numbers.as_ref()
    }
}

async fn write_counted(
    part: &mut PartWriter,
    numbers: impl AsRef<[f32]> + Send + 'static,
    turn: &Arc<OwnedMutexGuard<()>>,
    bytes: &AtomicU64,
) -> Result<(), CheckpointError> {
    let taken = size_of_val(numbers.as_ref());
    part.write_owned(HeldNumbers { numbers, _turn: turn.clone() }).await?;
    bytes.fetch_add(taken as u64, Ordering::Relaxed);
    Ok(())
}

/// Tells the coordinator that bytes are being written, for as long as there are.
async fn report(number: u64, bytes: &AtomicU64, sender: &Sender) -> std::convert::Infallible {
    let mut told = 0;
    loop {
        tokio::time::sleep(REPORT_EVERY).await;
        let written = bytes.load(Ordering::Relaxed);
        if std::mem::replace(&mut told, written) < written {
            sender.send(task_message::Kind::PartProgress(PartProgress { number })).await;
        }
    }
}

/// Why there is no part.
struct Failed {
    reason: String,
    /// True if this server missed the cut: it was too slow or too fast.
    missed: bool,
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self { reason, missed: false }
    }
}

impl From<CutError> for Failed {
    fn from(error: CutError) -> Self {
        Self { reason: error.to_string(), missed: true }
    }
}
