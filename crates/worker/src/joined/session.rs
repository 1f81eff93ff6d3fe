//! One client's connection, from its first word to its end: gives the client the place, makes the model that it assigns,
//! and reports how it ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tracing::{debug, info, warn};
use windlass_core::cluster::TaskId;
use windlass_core::footprint::gradient_bytes;
use windlass_core::lifecycle::Outcome;
use windlass_instruments::{UsageMeter, WorkerInstruments};
use windlass_wire::compute::{self, ComputeError};
use windlass_wire::lobby::Visit;
use windlass_wire::stream::Socket;

use super::line::{Line, legible};
use super::place::{ClientPlace, Denied};
use super::protocol::{Answer, Ask, Assignment, PING_EVERY, assignment_limits, read};
use super::requests::{Requests, Stepping};
use super::stages::StageStepper;
use super::steps::Stepper;
use super::usage_teller::UsageTeller;
use super::{Builder, Computing, JoinConfig, News};
use crate::memory::{self, OutOfMemory};
use crate::{devices, threads};

/// How long a client may take to send its first request.
const FIRST_WORDS: Duration = Duration::from_secs(10);
/// How long a client may stall in reading an answer.
const STALLED: Duration = Duration::from_secs(60);
/// How long a client may be silent if no other client wants its place. Otherwise it gives way much sooner.
const SILENT: Duration = Duration::from_secs(24 * 3600);
/// The shortest silence after which a worker may give up on its client.
const LEAST_SILENCE: Duration = PING_EVERY.saturating_mul(3);
/// The size limit of the name of a client or a model.
const NAME_BYTES: usize = 200;

/// Everything that the connections of a joined worker share.
pub(super) struct Desk {
    pub(super) config: JoinConfig,
    pub(super) build: Builder,
    pub(super) place: ClientPlace,
    /// The name by which clients on this host reach it.
    pub(super) local_name: Mutex<String>,
    /// Receives the events of sessions that are given the place.
    pub(super) news: mpsc::Sender<News>,
    /// What the worker has computed, for all clients together.
    pub(super) counts: WorkerInstruments,
    /// Measures the hardware usage of this process and its host.
    pub(super) usage: UsageMeter,
    /// The last run whose model could not be made: each is logged once.
    pub(super) refused: AtomicU64,
}

impl Desk {
    /// Serves a connection until it ends.
    pub(super) fn serve(&self, socket: Socket, visit: &Visit) {
        let local_name = self.local_name.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let connection = match compute::accept(socket, &local_name) {
            Ok(connection) => connection,
            Err(error) => return visit.refused(&error),
        };
        let line = Line::new(connection, self.patience().min(STALLED));
        let asked = line.receive(&assignment_limits(), FIRST_WORDS, &self.is_stopped());
        let mut assignment = match asked.map_err(anyhow::Error::from).and_then(|message| read::<Ask>(&message.head)) {
            Ok(Ask::Assign(assignment)) => *assignment,
            // A client has checked whether a worker is listening here.
            Ok(Ask::Ping) => return drop(line.answer(&Answer::Here, &[])),
            Ok(_) => return visit.refused(&"received a request before the assignment"),
            Err(error) => {
                let is_gone = matches!(error.downcast_ref(), Some(ComputeError::Io(_) | ComputeError::Stopped));
                return if is_gone { debug!(%error, "a connection closed") } else { visit.refused(&error) };
            }
        };
        if assignment.client.len().max(assignment.model.len()) > NAME_BYTES {
            return visit.refused(&format!("the name of a client or a model is longer than {NAME_BYTES} bytes"));
        }
        assignment.client = legible(&assignment.client);
        visit.has_spoken();
        let who = (assignment.run, assignment.worker);
        let seated = line
            .handle()
            .map_err(|error| Denied { reason: error.to_string(), is_busy: true })
            .and_then(|handle| self.place.take(&assignment.client, who, handle, Instant::now()));
        let seated = match seated {
            Ok(seated) => seated,
            Err(Denied { reason, is_busy }) => {
                if self.place.is_news(&assignment.client) {
                    info!("refused {}: {reason}", assignment.client);
                }
                let _ = line.answer(&Answer::Refused { reason, is_busy }, &[]);
                return;
            }
        };
        let mut session = Session::begin(&self.news);
        visit.admit(TaskId::CHIEF);
        seated.heard(true);
        let (client, model) = (assignment.client.clone(), legible(&assignment.model));
        let made = line.busy(|| threads::caught("making the model", || self.make(&assignment)));
        let computing = match made {
            Ok(computing) => computing,
            Err(error) => {
                let reason = format!("{error:#}");
                // A client that may retry does so every second.
                if self.refused.swap(assignment.run, Ordering::Relaxed) != assignment.run {
                    warn!("cannot compute {model} for {client}: {}", legible(&reason));
                }
                let is_busy = error.downcast_ref().is_some_and(|OutOfMemory { is_temporary, .. }| *is_temporary);
                let _ = line.answer(&Answer::Refused { reason, is_busy }, &[]);
                return;
            }
        };
        info!("computing {model} for {client}, via {}", line.kind());
        if line.answer(&Answer::Assigned(self.config.capacity.clone()), &[]).is_err() {
            session.ended = line.last_words(&assignment_limits()).map(|outcome| self.ended_with(outcome));
            return;
        }
        seated.heard(false);
        let requests = Requests {
            line: &line,
            patience: self.patience(),
            is_stopped: &self.is_stopped(),
            heard: &|is_served| seated.heard(is_served),
            usage: UsageTeller::new(&self.usage),
        };
        let threads = self.config.capacity.threads;
        let (ended, steps) = match computing {
            Computing::Replica(replica) => {
                let mut stepper = Stepper::new(replica, threads, self.counts.clone());
                (requests.serve(&mut stepper), stepper.steps())
            }
            Computing::Stages(stages) => match StageStepper::new(stages, threads, self.counts.clone()) {
                Ok(mut stepper) => (requests.serve(&mut stepper), stepper.steps()),
                Err(error) => (Err(error), 0),
            },
        };
        drop(seated);
        devices::log_memory(&self.config.devices);
        match ended {
            Ok(outcome) => {
                let reason = if outcome.exit_code == 0 { "done" } else { &outcome.reason };
                info!("{client} ended ({reason}); computed {steps} steps for it");
                session.ended = Some(self.ended_with(outcome));
            }
            // The client was not lost, but left.
            Err(_) if self.config.stop.is_set() => {}
            Err(error) => {
                let why = legible(&format!("{error:#}"));
                warn!("lost {client} after computing {steps} steps for it: {why}; waiting for a client");
                session.silent = silence(&error);
            }
        }
    }

    /// What a client's end means for this process. A launcher learns the outcome from the client.
    fn ended_with(&self, outcome: Outcome) -> Outcome {
        if self.config.is_launched { Outcome::done() } else { outcome }
    }

    /// Makes the model, and checks that its parameters are the client's.
    fn make(&self, assignment: &Assignment) -> anyhow::Result<Computing> {
        if assignment.placed.is_none() {
            let towers = self.config.capacity.towers as u64;
            memory::check("the model is", gradient_bytes(&assignment.parameters).saturating_mul(towers))?;
        }
        let computing = (self.build)(assignment)?;
        if let Computing::Stages(stages) = &computing {
            memory::check("its stages are", stages.gradient_bytes())?;
        }
        match computing.table().first_difference(&assignment.parameters) {
            None => Ok(computing),
            Some(difference) => Err(anyhow::anyhow!("its {} differs: {difference}", assignment.model))
                .context("are both programs of the same version?"),
        }
    }

    /// How long a client may be silent.
    fn patience(&self) -> Duration {
        if self.config.once { self.config.peer_timeout.max(LEAST_SILENCE) } else { SILENT }
    }

    fn is_stopped(&self) -> impl Fn() -> bool + '_ {
        || self.config.stop.is_set()
    }
}

/// The time for which a client has the place, however it ends.
struct Session<'a> {
    news: &'a mpsc::Sender<News>,
    /// How the client has ended, as it reported.
    ended: Option<Outcome>,
    /// How long the client was silent, if it was lost for that reason.
    silent: Duration,
}

impl<'a> Session<'a> {
    fn begin(news: &'a mpsc::Sender<News>) -> Self {
        let _ = news.send(News::Began);
        Self { news, ended: None, silent: Duration::ZERO }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let _ = self.news.send(self.ended.take().map_or(News::Lost { silent: self.silent }, News::Left));
    }
}

/// Returns how long a client that was lost with this error had been silent.
fn silence(error: &anyhow::Error) -> Duration {
    match error.downcast_ref() {
        Some(ComputeError::Silent(silent)) => *silent,
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_is_given_up_for_its_silence_was_lost_with_the_first_of_it() {
        let silent = Duration::from_secs(7);
        assert_eq!(silence(&ComputeError::Silent(silent).into()), silent);
        assert_eq!(silence(&ComputeError::Stopped.into()), Duration::ZERO);
    }
}
