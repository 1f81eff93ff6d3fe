//! A worker's session with the coordinator, and what it decides to do: a thin shell around [`WorkerMachine`]. A listener
//! on the async runtime hands it what the coordinator says, while the worker's own thread does the work.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tracing::{info, warn};
use windlass_core::cluster::Job;
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

/// Between two looks, while there is nothing to do, at whether the process has been told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a worker that leaves waits for its goodbye to be heard.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a worker brings to the run that it joins.
pub(crate) struct Joining {
    /// The run as this worker sees it: `RunSpec` as JSON.
    pub(crate) run: String,
    /// What goes with the values of the trained network.
    pub(crate) files: Vec<ModelFile>,
    /// Batches in one pass over its data.
    pub(crate) batches: u64,
    /// Where steps are computed.
    pub(crate) sites: Sites,
}

/// A worker's session, listened to in the background, and what there is to do.
pub(crate) struct Control {
    /// Until the goodbye.
    session: Mutex<Option<(Sender, JoinHandle<()>)>>,
    shared: Arc<Shared>,
}

/// What the worker's thread and the listener share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    began: Instant,
    interrupt: Arc<Interrupt>,
    probes: Probes,
}

struct State {
    machine: WorkerMachine,
    /// For the worker's thread to do, to send, and to end with.
    work: Option<(Incarnation, Work)>,
    reports: Vec<task_message::Kind>,
    ended: Option<Outcome>,
    /// Whether the thread that does the work has been given up.
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
        let machine = WorkerMachine::new(config.id);
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

    /// Waits for work, and as which incarnation to do it; `None` once the worker is to end.
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

    /// Says what came of the work. Of work that was given up, nobody wants to know.
    pub(crate) fn completed(&self, result: Result<Achievement, TrainError>) {
        let mut state = self.shared.lock();
        if !state.abandoned {
            self.shared.handle_locked(&mut state, WorkerEvent::Completed(result.map_err(|error| setback(&error))));
        }
    }

    /// Ends in place of the thread that works, which hangs, and says why. `None` if that has just come back. Returns what
    /// [`Control::close`] does.
    pub(crate) fn abandon(&self, why: &TrainError, runtime: &tokio::runtime::Handle) -> Option<(Outcome, bool)> {
        let mut state = self.shared.lock();
        if !state.machine.is_working() {
            return None;
        }
        // Together: should it come back in between, what it says would be taken for the answer to something else.
        state.abandoned = true;
        self.shared.handle_locked(&mut state, WorkerEvent::Completed(Err(setback(why))));
        drop(state);
        while self.next().is_some() {
            // It was let in again meanwhile, and cannot do this either.
            self.shared.handle(WorkerEvent::Completed(Err(setback(why))));
        }
        Some(self.close(runtime))
    }

    pub(crate) fn is_chief(&self) -> bool {
        self.shared.lock().machine.is_chief()
    }

    /// Says goodbye, unless the run is over, and waits for a moment until it has been heard. Returns how the worker has
    /// ended, once there is no more work, and whether it was ever let in.
    pub(crate) fn close(&self, runtime: &tokio::runtime::Handle) -> (Outcome, bool) {
        let (was_let_in, ended) = {
            let state = self.shared.lock();
            (state.machine.incarnation().is_some(), state.ended.clone())
        };
        // Without a sender the session ends.
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
    /// Lets the machine decide, and does what it says, or leaves that to the worker's thread.
    fn handle(&self, event: WorkerEvent) {
        self.handle_locked(&mut self.lock(), event);
    }

    /// As [`Shared::handle`], for whoever has looked at the state first.
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
