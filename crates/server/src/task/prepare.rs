//! How a server gets its shard: new, or restored from a checkpoint. That may take a while, so it runs beside the
//! server's session, which stays responsive.

use std::convert::Infallible;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::{info, warn};
use windlass_checkpoint::{BadCheckpointId, CheckpointError, CheckpointId, PartLayout, ReadCounter, ShardImage, Store};
use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};
use windlass_core::plan::{ServerPlan, ShardPlan};
use windlass_core::run::RunSpec;
use windlass_wire::control::proto::Prepare;
use windlass_wire::control::session::Progress;

use super::{Saver, Server};
use crate::NOTICE;
use crate::checkpoint::{self, RETRY_EVERY, ResumePoint, store_patience};
use crate::server_machine::Holding;
use crate::shard::ParameterShard;

/// How often to report that a checkpoint is being read.
const REPORT_EVERY: Duration = Duration::from_secs(1);

impl Server {
    /// Begins to allocate or restore this server's shard. The previous one is dropped first, so that there is never
    /// more than one.
    pub(super) fn prepare(&mut self, prepare: Prepare) {
        self.shard.clear();
        self.instruments.probes().set_ready(false);
        self.saver = None;
        (self.preparing, self.has_prepared) = (None, true);
        self.preparing = Some(Preparing::start(self.id, prepare, self.progress.clone(), self.peer_timeout));
    }

    /// Takes over the shard that was being prepared, and returns what this server holds now.
    pub(super) fn take_prepared(&mut self, prepared: Result<Prepared, PrepareError>) -> Result<Holding, Outcome> {
        self.preparing = None;
        let unprepared = |error: PrepareError| Outcome { exit_code: error.exit_code(), reason: error.to_string() };
        let Prepared { shard, saver, restored } = prepared.map_err(unprepared)?;
        let holding = Holding { shard: shard.is_some(), saves: saver.is_some(), restored };
        self.saver = saver;
        shard.into_iter().for_each(|shard| self.shard.set(shard.counted_by(self.counts.clone())));
        self.instruments.probes().set_ready(true);
        Ok(holding)
    }
}

/// What a server has been prepared to hold.
pub(super) struct Prepared {
    /// `None` if this server takes no part in the run.
    pub(super) shard: Option<ParameterShard>,
    /// Writes the shard's part of checkpoints, if the run has any.
    pub(super) saver: Option<Saver>,
    /// True if the shard has the values of a checkpoint.
    pub(super) restored: bool,
}

/// A shard that is being prepared.
pub(super) struct Preparing {
    task: JoinHandle<Result<Prepared, PrepareError>>,
}

impl Preparing {
    /// Begins to allocate or restore the shard of a server. The server's heartbeats report the progress; the other
    /// tasks wait for `peer_timeout`.
    pub(super) fn start(id: ServerId, prepare: Prepare, progress: Progress, peer_timeout: Duration) -> Self {
        let patience = store_patience(peer_timeout);
        Self { task: tokio::spawn(self::prepare(id, prepare, progress, patience)) }
    }

    /// Waits until the shard is ready; forever if none is being prepared.
    pub(super) async fn done(preparing: &mut Option<Self>) -> Result<Prepared, PrepareError> {
        match preparing {
            Some(preparing) => {
                (&mut preparing.task).await.unwrap_or_else(|error| Err(PrepareError::Threads(error.into())))
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Allocates or restores the shard of a server.
async fn prepare(
    id: ServerId,
    prepare: Prepare,
    progress: Progress,
    patience: Duration,
) -> Result<Prepared, PrepareError> {
    let run: RunSpec = serde_json::from_str(&prepare.run)?;
    let plan = ShardPlan::new(&run.parameters, prepare.servers as usize, run.sharding);
    describe(&run, &plan, id);
    let restored = !prepare.restore.is_empty();
    if !plan.is_active(id) {
        return Ok(Prepared { shard: None, saver: None, restored });
    }
    let deadline = Instant::now() + patience;
    let saver = match prepare.checkpoints.is_empty() {
        true => None,
        false => Some(patiently(deadline, || saver(&prepare.checkpoints, &run, &plan, id)).await?),
    };
    let own = plan.servers[id.0 as usize].clone();
    let workers: Vec<WorkerId> = prepare.workers.iter().map(|worker| WorkerId(*worker)).collect();
    let image = match restored {
        true => {
            let id = prepare.restore.parse()?;
            Some(patiently(deadline, || restore(&prepare, &id, (&run, &own), &progress)).await?)
        }
        false => None,
    };
    // Copying values into blocks is CPU work.
    let shard = tokio::task::spawn_blocking(move || {
        let shard = match image {
            Some((image, resumption)) => ParameterShard::restored(run, &own, &workers, image, &resumption),
            None => ParameterShard::new(run, &own, &workers),
        };
        shard.fence_up_to(Incarnation(prepare.latest_incarnation));
        for living in &prepare.living {
            shard.fence(WorkerId(living.worker), Incarnation(living.incarnation));
        }
        // Do not wait for workers that are not present.
        for worker in workers.iter().filter(|worker| prepare.living.iter().all(|living| living.worker != worker.0)) {
            shard.leave(*worker, Incarnation::default());
        }
        shard
    });
    let shard = shard.await.map_err(|error| PrepareError::Threads(error.into()))?;
    if let Some(saver) = &saver {
        let spares = shard.spares().clone();
        saver.background().spawn_blocking(move || spares.fill());
    }
    Ok(Prepared { shard: Some(shard), saver, restored })
}

/// Accesses the store, and retries failures that may be temporary: all other tasks have joined, and would have to end
/// together with this one.
async fn patiently<T, F: Future<Output = Result<T, PrepareError>>>(
    deadline: Instant,
    attempt: impl Fn() -> F,
) -> Result<T, PrepareError> {
    let mut told = String::new();
    loop {
        let error = match attempt().await {
            Err(PrepareError::Checkpoint(error)) if error.may_pass() && Instant::now() < deadline => error.to_string(),
            done => return done,
        };
        if told != error {
            warn!(target: NOTICE, "cannot prepare yet: {error}; trying again");
            told = error;
        }
        tokio::time::sleep(RETRY_EVERY).await;
    }
}

/// Reads this server's share of a checkpoint.
async fn restore(
    prepare: &Prepare,
    id: &CheckpointId,
    (run, own): (&RunSpec, &ServerPlan),
    progress: &Progress,
) -> Result<(ShardImage, ResumePoint), PrepareError> {
    let read = ReadCounter::default();
    tokio::select! {
        restored = checkpoint::restore((&*prepare.restore_from, read.clone()), id, run, own) => Ok(restored?),
        never = report(&read, progress) => match never {},
    }
}

/// Reports in heartbeats how much has been read, so that tasks that wait for this server see progress.
async fn report(read: &ReadCounter, progress: &Progress) -> Infallible {
    loop {
        let told = format!("its checkpoint ({} MB read so far)", read.bytes() / 1_000_000);
        progress.lock().unwrap_or_else(PoisonError::into_inner).waiting = told;
        tokio::time::sleep(REPORT_EVERY).await;
    }
}

fn describe(run: &RunSpec, plan: &ShardPlan, id: ServerId) {
    let own = &plan.servers[id.0 as usize];
    let held = own.dense_elements() + own.row_elements(&run.parameters);
    info!(
        "holds {held} of {} parameter values ({:.1} MB) of {}, optimizer {}{}",
        run.parameters.elements(),
        held as f64 * 4e-6,
        run.model,
        run.optimizer.name(),
        if held == 0 { ": the model is too small to need another ps on this host (see --min-shard-bytes)" } else { "" }
    );
}

/// Creates the writer of this server's part. Parts are numbered by the servers that take part, in order.
async fn saver(location: &str, run: &RunSpec, plan: &ShardPlan, id: ServerId) -> Result<Saver, PrepareError> {
    let active = plan.active_servers();
    let place = active.range(..id).count();
    let layout = PartLayout::new(run, &plan.servers[id.0 as usize], place, active.len());
    let store = Store::open_counted(location, ReadCounter::default()).await?;
    Saver::new(store, layout).map_err(PrepareError::Threads)
}

/// Why a server has no shard.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("cannot prepare: {0}")]
    Threads(std::io::Error),
    #[error("cannot prepare: {0}")]
    Run(#[from] serde_json::Error),
    #[error("cannot restore: {0}")]
    Id(#[from] BadCheckpointId),
    #[error("cannot restore: {}", .0.with_hint())]
    Checkpoint(#[from] CheckpointError),
}

impl PrepareError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            PrepareError::Threads(_) => exit_code::INTERNAL,
            PrepareError::Run(_) => exit_code::USAGE,
            PrepareError::Id(_) | PrepareError::Checkpoint(_) => exit_code::CHECKPOINT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Prepares the only server of a run for these checkpoints.
    async fn prepared(prepare: &Prepare, patience: Duration) -> Result<Prepared, PrepareError> {
        let prepare =
            Prepare { run: serde_json::to_string(&fixtures::run(Vec::new())).unwrap(), servers: 1, ..prepare.clone() };
        super::prepare(ServerId(0), prepare, Progress::default(), patience).await
    }

    /// Creates a link to itself, which neither exists nor is missing.
    #[cfg(unix)]
    fn break_link(path: &std::path::Path) {
        std::os::unix::fs::symlink(path, path).unwrap();
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_checkpoint_that_cannot_be_read_for_a_moment_is_tried_again() {
        let (directory, id) = (tempfile::tempdir().unwrap(), CheckpointId::new(5, 1));
        let manifest = directory.path().join(format!("{id}.json"));
        break_link(&manifest);
        let restore_from = directory.path().to_str().unwrap().to_owned();
        let prepare = Prepare { restore: id.to_string(), restore_from, ..Prepare::default() };
        let hasty = prepared(&prepare, Duration::ZERO).await;
        assert!(matches!(hasty, Err(PrepareError::Checkpoint(CheckpointError::Store { .. }))));
        let mend = async {
            tokio::time::sleep(RETRY_EVERY / 2).await;
            std::fs::remove_file(&manifest).unwrap();
        };
        let (restored, ()) = tokio::join!(prepared(&prepare, PATIENCE), mend);
        assert!(
            matches!(restored, Err(PrepareError::Checkpoint(CheckpointError::NotFound { .. }))),
            "it was read again"
        );
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_directory_that_cannot_be_opened_for_a_moment_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        break_link(&link);
        let checkpoints = link.join("run").to_str().unwrap().to_owned();
        let prepare = Prepare { checkpoints, ..Prepare::default() };
        let hasty = prepared(&prepare, Duration::ZERO).await;
        assert!(matches!(hasty, Err(PrepareError::Checkpoint(CheckpointError::Store { action: "open", .. }))));
        let mend = async {
            tokio::time::sleep(RETRY_EVERY / 2).await;
            std::fs::remove_file(&link).unwrap();
        };
        let (opened, ()) = tokio::join!(prepared(&prepare, PATIENCE), mend);
        assert!(opened.is_ok_and(|prepared| prepared.saver.is_some()));
    }
}
