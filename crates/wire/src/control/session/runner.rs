//! Runs a session on the async runtime: carries out what its machine decides, using the connection, the records and the
//! channels to the task.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, info};
use windlass_core::lifecycle::Outcome;

use super::machine::{SessionConfig, SessionEffect, SessionEvent, SessionMachine};
use super::{CHANNEL, Coordinator, Progress, Records};
use crate::control::dial::dial;
use crate::control::proto::coordinator_client::CoordinatorClient;
use crate::control::proto::{CoordinatorMessage, TaskMessage, coordinator_message, task_message};

type Opened = (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>);
type Opening = Pin<Box<dyn Future<Output = Result<Opened, String>> + Send>>;

/// What a runner needs besides its machine.
pub(super) struct Surroundings {
    pub(super) coordinator: Coordinator,
    pub(super) progress: Progress,
    pub(super) records: Option<Arc<dyn Records>>,
    /// Messages from the task.
    pub(super) to_send: mpsc::Receiver<task_message::Kind>,
    /// Messages to the task.
    pub(super) arrived: mpsc::Sender<coordinator_message::Kind>,
}

pub(super) struct Runner {
    surroundings: Surroundings,
    machine: SessionMachine,
    began: Instant,
    opening: Option<Opening>,
    /// The two directions of the connection. The session may stop sending before it stops listening.
    sender: Option<mpsc::Sender<TaskMessage>>,
    receiver: Option<mpsc::Receiver<CoordinatorMessage>>,
    /// The lookup in the records that is in progress, and its number.
    looking: Option<(u64, JoinHandle<Option<Outcome>>)>,
}

impl Runner {
    pub(super) fn new(config: SessionConfig, surroundings: Surroundings) -> Self {
        Self {
            surroundings,
            machine: SessionMachine::new(config, Duration::ZERO),
            began: Instant::now(),
            opening: None,
            sender: None,
            receiver: None,
            looking: None,
        }
    }

    /// Runs the session to its end.
    pub(super) async fn run(mut self) {
        while !self.machine.is_over() {
            let mut events = VecDeque::from([self.next().await]);
            while let Some(event) = events.pop_front() {
                if let Ok(progress) = self.surroundings.progress.lock() {
                    self.machine.progress.clone_from(&progress);
                }
                for effect in self.machine.handle(event, self.began.elapsed()) {
                    events.extend(self.carry_out(effect).await);
                }
            }
        }
    }

    /// Waits for the next event. Messages that have arrived come first.
    async fn next(&mut self) -> SessionEvent {
        let deadline = self.machine.deadline().map(|deadline| self.began + deadline);
        let Surroundings { to_send, arrived, .. } = &mut self.surroundings;
        tokio::select! {
            biased;
            opened = opened(&mut self.opening) => match opened {
                Ok((sender, receiver)) => {
                    (self.sender, self.receiver) = (Some(sender), Some(receiver));
                    SessionEvent::Opened
                }
                Err(error) => SessionEvent::NotOpened(error),
            },
            message = received(&mut self.receiver) => match message {
                Some(message) => SessionEvent::Arrived(message),
                None => {
                    debug!("the session with ps 0 broke");
                    SessionEvent::Broken
                }
            },
            // Once every sender has been dropped, the task is done with its session.
            kind = to_send.recv(), if self.machine.is_welcomed() => kind.map_or(SessionEvent::Finish, SessionEvent::Say),
            () = sleep_until(deadline) => SessionEvent::Tick,
            () = arrived.closed(), if self.machine.is_away() => SessionEvent::Abandoned,
            (number, found) = looked(&mut self.looking) => SessionEvent::Looked(number, found),
        }
    }

    /// Carries out an effect. Returns the event that immediately follows from it, if any.
    async fn carry_out(&mut self, effect: SessionEffect) -> Option<SessionEvent> {
        match effect {
            SessionEffect::Open => {
                self.opening = Some(match &self.surroundings.coordinator {
                    Coordinator::Local(coordinator) => Box::pin(std::future::ready(Ok(coordinator.attach()))),
                    Coordinator::Remote(address) => Box::pin(open(address.clone())),
                });
            }
            SessionEffect::Send(message) => {
                // After a message could not be sent, later ones are not tried.
                let sender = self.sender.take()?;
                if sender.send(message).await.is_err() {
                    return Some(SessionEvent::Broken);
                }
                self.sender = Some(sender);
            }
            SessionEffect::StopSending => self.sender = None,
            SessionEffect::Close => (self.sender, self.receiver, self.opening) = (None, None, None),
            // A task that no longer listens is about to say goodbye.
            SessionEffect::Deliver(kind) => drop(self.surroundings.arrived.send(kind).await),
            SessionEffect::Look { number, incarnation } => {
                // Runs beside the session, since a store may be slow or hang.
                let look = |records: Arc<dyn Records>| async move { records.outcome(incarnation).await };
                let records = self.surroundings.records.clone();
                self.looking = records.map(|records| (number, tokio::spawn(look(records))));
            }
            SessionEffect::Mention(line) => info!("{line}"),
            SessionEffect::End => {}
        }
        None
    }
}

/// Completes with the result of the connection attempt in progress. Pending forever if there is none.
async fn opened(opening: &mut Option<Opening>) -> Result<Opened, String> {
    let Some(attempt) = opening else { return std::future::pending().await };
    let opened = attempt.await;
    *opening = None;
    opened
}

/// Receives the next message from the connection; `None` if it is closed. Pending forever if there is none.
async fn received(receiver: &mut Option<mpsc::Receiver<CoordinatorMessage>>) -> Option<CoordinatorMessage> {
    let Some(open) = receiver else { return std::future::pending().await };
    let message = open.recv().await;
    if message.is_none() {
        *receiver = None;
    }
    message
}

/// Completes with the result of the lookup in progress. Pending forever if there is none.
async fn looked(looking: &mut Option<(u64, JoinHandle<Option<Outcome>>)>) -> (u64, Option<Outcome>) {
    let Some((number, look)) = looking else { return std::future::pending().await };
    let looked = (*number, look.await.ok().flatten());
    *looking = None;
    looked
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Opens a session over the network.
async fn open(address: String) -> Result<Opened, String> {
    let channel = dial(&address).await?;
    let (sender, to_send) = mpsc::channel(CHANNEL);
    let (arrived, receiver) = mpsc::channel(CHANNEL);
    let mut client = CoordinatorClient::new(channel).max_decoding_message_size(crate::MESSAGE_BYTES);
    // The coordinator answers the call only after the first message, so the two run concurrently.
    tokio::spawn(async move {
        match client.session(ReceiverStream::new(to_send)).await {
            Ok(response) => {
                let mut stream = response.into_inner();
                while let Some(Ok(message)) = stream.next().await {
                    if arrived.send(message).await.is_err() {
                        return;
                    }
                }
            }
            Err(status) => debug!("ps 0 refused the session: {}", status.message()),
        }
    });
    Ok((sender, receiver))
}
