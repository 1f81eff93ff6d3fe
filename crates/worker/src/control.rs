//! A worker's session with the coordinator, listened to in the background while the worker computes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use windlass_core::cluster::{Job, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_wire::PROTOCOL;
use windlass_wire::client::{ClientError, Interrupt};
use windlass_wire::control::proto::{
    AllFinished, Endpoint, Hello, ModelFile, Start, coordinator_message, task_message,
};
use windlass_wire::control::session::{Persistence, Progress, Receiver, Sender, Session};

use crate::task::WorkerConfig;

/// Between two looks, while there is nothing to do, at whether the process has been told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the coordinator tells a worker that its thread has to act on, and as which incarnation.
pub(crate) type Instruction = (Incarnation, Told);

/// What there is to do.
pub(crate) enum Told {
    Initialise(Vec<Endpoint>),
    Start(Begin),
    AllFinished(AllFinished),
    Over,
}

/// What a worker brings to the run that it joins.
pub(crate) struct Joining {
    /// The run as this worker sees it: `RunSpec` as JSON.
    pub(crate) run: String,
    /// What goes with the values of the trained network.
    pub(crate) files: Vec<ModelFile>,
    /// Batches in one pass over its data.
    pub(crate) batches: u64,
}

/// Where and from where to train.
pub(crate) struct Begin {
    pub(crate) servers: Vec<Endpoint>,
    /// Batches of its data that this worker has had.
    pub(crate) batches: u64,
    /// What it sent along with the last of them, as JSON; empty if nothing.
    pub(crate) note: String,
    /// The global step that the parameters have.
    pub(crate) global_step: u64,
}

/// A worker's session, listened to in the background.
pub(crate) struct Control {
    sender: Sender,
    shared: Arc<Shared>,
    stop: Arc<Interrupt>,
    listener: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    incarnation: Mutex<u64>,
    servers: Mutex<Vec<Endpoint>>,
    chief: AtomicBool,
    outcome: Mutex<Option<Outcome>>,
}

impl Control {
    /// Joins the cluster. What the worker is told to do comes out of the receiver.
    pub(crate) fn open(
        runtime: &tokio::runtime::Handle,
        config: &WorkerConfig,
        joining: Joining,
        progress: &Progress,
    ) -> (Self, mpsc::Receiver<Instruction>) {
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Worker.to_string(),
            index: config.id.0,
            run: joining.run,
            files: joining.files,
            batches: joining.batches,
            ..Hello::default()
        };
        let _guard = runtime.enter();
        let persistence = Persistence { patience: config.peer_timeout, records: config.records.clone() };
        let session = Session::open(config.coordinator.clone(), hello, progress.clone(), persistence);
        let (sender, session) = session.split();
        let shared = Arc::new(Shared::default());
        let (told, messages) = mpsc::channel();
        let listening = listen(session, config.id, shared.clone(), told, config.stop.clone());
        (Self { sender, shared, stop: config.stop.clone(), listener: runtime.spawn(listening) }, messages)
    }

    /// What the worker has to do next; `None` once the session is over. What it was told as an earlier incarnation
    /// is not to be done any more.
    pub(crate) fn next(&self, instructions: &mpsc::Receiver<Instruction>) -> Result<Option<Instruction>, ClientError> {
        loop {
            match instructions.recv_timeout(LOOK_EVERY) {
                Ok((incarnation, told)) if incarnation == self.incarnation() || matches!(told, Told::Over) => {
                    return Ok(Some((incarnation, told)));
                }
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(None),
                Err(mpsc::RecvTimeoutError::Timeout) if self.stop.is_set() => return Err(ClientError::Interrupted),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Tells the coordinator something.
    pub(crate) fn send(&self, message: task_message::Kind) {
        self.sender.send_blocking(message);
    }

    /// As which incarnation the coordinator knows this process now.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(*lock(&self.shared.incarnation))
    }

    pub(crate) fn servers(&self) -> Vec<Endpoint> {
        lock(&self.shared.servers).clone()
    }

    pub(crate) fn is_chief(&self) -> bool {
        self.shared.chief.load(Ordering::Relaxed)
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        lock(&self.shared.outcome).clone()
    }

    /// Gives the coordinator a moment to end the run, as it should after a failure.
    pub(crate) fn wait_until_over(&self, instructions: &mpsc::Receiver<Instruction>) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while let Ok((_, told)) = instructions.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if matches!(told, Told::Over) {
                return;
            }
        }
    }

    /// Says goodbye, unless the run is over, and waits for a moment until it has been heard.
    pub(crate) fn close(self, runtime: &tokio::runtime::Handle) {
        let was_let_in = *lock(&self.shared.incarnation) > 0;
        drop(self.sender);
        if !was_let_in {
            return;
        }
        let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(2), self.listener).await });
    }
}

async fn listen(
    mut session: Receiver,
    id: WorkerId,
    shared: Arc<Shared>,
    told: mpsc::Sender<Instruction>,
    stop: Arc<Interrupt>,
) {
    while let Some(message) = session.receive().await {
        let tell = match message {
            coordinator_message::Kind::Welcome(welcome) => {
                *lock(&shared.incarnation) = welcome.incarnation;
                stop.welcomed(Incarnation(welcome.incarnation));
                continue;
            }
            coordinator_message::Kind::Waiting(waiting) => {
                waiting.log();
                continue;
            }
            coordinator_message::Kind::Initialise(initialise) => {
                lock(&shared.servers).clone_from(&initialise.servers);
                Told::Initialise(initialise.servers)
            }
            coordinator_message::Kind::Start(start) => {
                lock(&shared.servers).clone_from(&start.servers);
                shared.chief.store(start.chief, Ordering::Relaxed);
                let Start { servers, batches, note, global_step, .. } = start;
                Told::Start(Begin { servers, batches, note, global_step })
            }
            coordinator_message::Kind::WorkerLeft(left) => {
                if !left.reason.is_empty() {
                    warn!("{} is gone: {}", WorkerId(left.worker), left.reason);
                }
                if left.chief == id.0 && !shared.chief.swap(true, Ordering::Relaxed) {
                    info!("this worker is now the chief");
                }
                continue;
            }
            coordinator_message::Kind::AllFinished(finished) => Told::AllFinished(finished),
            coordinator_message::Kind::Over(over) => {
                let outcome = Outcome { exit_code: over.exit_code as u8, reason: over.reason };
                *lock(&shared.outcome) = Some(outcome);
                // A wait for parameters that will not come any more ends here, and finds the outcome.
                stop.run_is_over();
                Told::Over
            }
            _ => continue,
        };
        if told.send((Incarnation(*lock(&shared.incarnation)), tell)).is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
