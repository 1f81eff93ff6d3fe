//! A worker's session with the coordinator, and its decisions: a thin shell around [`WorkerMachine`]. A listener on the
//! async runtime passes it the coordinator's messages, while the worker's own thread does the work.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tracing::{info, warn};
use windlass_core::cluster::{Job, TaskId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_instruments::{Probes, Sites};
use windlass_wire::PROTOCOL;
use windlass_wire::client::{ClientError, Interrupt};
use windlass_wire::control::proto::{Heartbeat, Hello, ModelFile, task_message};
use windlass_wire::control::session::{Persistence, Progress, Receiver, Sender, Session};
use windlass_wire::control::usage;
use windlass_wire::control::worker_machine::{
    Achievement, Cause, Setback, Work, WorkerEffect, WorkerEvent, WorkerMachine,
};

use crate::task::WorkerConfig;
use crate::train::TrainError;

/// How often an idle worker checks whether the process has been told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a leaving worker waits for its goodbye to be delivered.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a worker brings to the run that it joins.
pub(crate) struct Joining {
    /// The run as this worker sees it: `RunSpec` as JSON.
    pub(crate) run: String,
    /// Files that are kept with the values of the trained network.
    pub(crate) files: Vec<ModelFile>,
    /// Batches in one pass over its data.
    pub(crate) batches: u64,
    /// Where steps are computed.
    pub(crate) sites: Sites,
    /// The task as which people see this worker.
    pub(crate) shown_as: TaskId,
}

/// A worker's session, whose listener runs in the background, and the work that is due.
pub(crate) struct Control {
    /// Present until the goodbye.
    session: Mutex<Option<(Sender, JoinHandle<()>)>>,
    shared: Arc<Shared>,
}

/// The state that the worker's thread and the listener share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    began: Instant,
    interrupt: Arc<Interrupt>,
    probes: Probes,
}

struct State {
    machine: WorkerMachine,
    /// What the worker's thread has to do, to send, and to end with.
    work: Option<(Incarnation, Work)>,
    reports: Vec<task_message::Kind>,
    ended: Option<Outcome>,
    /// Whether the working thread has been given up as hung.
    abandoned: bool,
}

impl Control {
    /// Joins the cluster.
    pub(crate) fn open(
        runtime: &tokio::runtime::Handle,
        config: &WorkerConfig,
        joining: Joining,
        progress: &Progress,
    ) -> Self {
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
        let sites = joining.sites;
        let tell_sites = move |heartbeat: &mut Heartbeat| {
            heartbeat.sites = sites().into_iter().map(Into::into).collect();
        };
        tell_sites(&mut progress.lock().unwrap_or_else(PoisonError::into_inner));
        usage::report(config.instruments.usage(), progress, tell_sites);
        let session = Session::open(config.coordinator.clone(), hello, progress.clone(), persistence);
        let (sender, session) = session.split();
        let machine = WorkerMachine::new(config.id, joining.shown_as);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { machine, work: None, reports: Vec::new(), ended: None, abandoned: false }),
            changed: Condvar::new(),
            began: Instant::now(),
            interrupt: config.stop.clone(),
            probes: config.instruments.probes().clone(),
        });
        let listener = runtime.spawn(listen(session, shared.clone()));
        Self { session: Mutex::new(Some((sender, listener))), shared }
    }

    /// Waits for work. Returns it with the incarnation to do it as, or `None` once the worker is to end.
    pub(crate) fn next(&self) -> Option<(Incarnation, Work)> {
        loop {
            let mut state = self.shared.lock();
            let reports = std::mem::take(&mut state.reports);
            if !reports.is_empty() {
                drop(state);
                let sender = self.session().as_ref().map(|(sender, _)| sender.clone());
                if let Some(sender) = sender {
                    reports.into_iter().for_each(|report| sender.send_blocking(report));
                }
            } else if state.ended.is_some() {
                return None;
            } else if let Some(work) = state.work.take() {
                return Some(work);
            } else {
                let waited = self.shared.changed.wait_timeout(state, LOOK_EVERY);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
                let stopped = self.shared.interrupt.is_set();
                self.shared.handle(if stopped { WorkerEvent::Stop } else { WorkerEvent::Tick });
            }
        }
    }

    /// Reports the result of the work. Results of abandoned work are ignored.
    pub(crate) fn completed(&self, result: Result<Achievement, TrainError>) {
        let mut state = self.shared.lock();
        if !state.abandoned {
            self.shared.handle_locked(&mut state, WorkerEvent::Completed(result.map_err(|error| setback(&error))));
        }
    }

    /// Ends the worker on behalf of its thread, which hangs, and reports why. Returns what [`Control::close`] returns,
    /// or `None` if the thread has just come back.
    pub(crate) fn abandon(&self, why: &TrainError, runtime: &tokio::runtime::Handle) -> Option<(Outcome, bool)> {
        let mut state = self.shared.lock();
        if !state.machine.is_working() {
            return None;
        }
        // Under one lock: a result that arrived in between would be mistaken for the answer to other work.
        state.abandoned = true;
        self.shared.handle_locked(&mut state, WorkerEvent::Completed(Err(setback(why))));
        drop(state);
        while self.next().is_some() {
            // The worker has been readmitted meanwhile, but cannot do this work either.
            self.shared.handle(WorkerEvent::Completed(Err(setback(why))));
        }
        Some(self.close(runtime))
    }

    pub(crate) fn is_chief(&self) -> bool {
        self.shared.lock().machine.is_chief()
    }

    /// Says goodbye, unless the run is over, and waits briefly until it has been delivered. Must be called once there
    /// is no more work. Returns how the worker has ended, and whether it was ever admitted.
    pub(crate) fn close(&self, runtime: &tokio::runtime::Handle) -> (Outcome, bool) {
        let (was_let_in, ended) = {
            let state = self.shared.lock();
            (state.machine.incarnation().is_some(), state.ended.clone())
        };
        // Dropping the sender ends the session.
        let listener = self.session().take().map(|(_, listener)| listener);
        if let Some(listener) = listener.filter(|_| was_let_in) {
            let _ = runtime.block_on(async { tokio::time::timeout(LEAVE_WITHIN, listener).await });
        }
        (ended.expect("there is work until the worker ends"), was_let_in)
    }

    fn session(&self) -> MutexGuard<'_, Option<(Sender, JoinHandle<()>)>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Passes an event to the machine and carries out its effects, or leaves them to the worker's thread.
    fn handle(&self, event: WorkerEvent) {
        self.handle_locked(&mut self.lock(), event);
    }

    /// Like [`Shared::handle`], for callers that already hold the lock.
    fn handle_locked(&self, state: &mut State, event: WorkerEvent) {
        for effect in state.machine.handle(event, self.began.elapsed()) {
            match effect {
                WorkerEffect::Work(incarnation, work) => {
                    self.probes.set_ready(true);
                    state.work = Some((incarnation, work));
                }
                WorkerEffect::Welcomed(incarnation) => {
                    self.probes.set_ready(false);
                    self.interrupt.welcomed(incarnation);
                }
                WorkerEffect::RunIsOver => self.interrupt.run_is_over(),
                WorkerEffect::Report(report) => state.reports.push(report),
                WorkerEffect::Mention(line) => info!("{line}"),
                WorkerEffect::Warn(line) => warn!("{line}"),
                WorkerEffect::MentionWaiting(waiting) => waiting.log(),
                WorkerEffect::End(outcome) => state.ended = Some(outcome),
            }
        }
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(mut session: Receiver, shared: Arc<Shared>) {
    while let Some(message) = session.receive().await {
        shared.handle(WorkerEvent::Told(message));
    }
    shared.handle(WorkerEvent::SessionEnded);
}

fn setback(error: &TrainError) -> Setback {
    let cause = match error {
        TrainError::NotFinite { .. }
        | TrainError::GradientNotFinite { .. }
        | TrainError::StateNotFinite { .. }
        | TrainError::AnswerNotFinite { .. } => Cause::NotFinite,
        TrainError::Model(_) => Cause::Model,
        TrainError::Crew(_) => Cause::Unreachable,
        TrainError::Client(error) => match error {
            ClientError::Fenced(_) | ClientError::Rejoined => Cause::DeclaredDead,
            ClientError::Gone(server) => Cause::Released(*server),
            ClientError::Interrupted => Cause::Interrupted,
            ClientError::Refused { .. } | ClientError::GaveUp { .. } => Cause::Unreachable,
        },
    };
    Setback { cause, error: error.to_string() }
}
