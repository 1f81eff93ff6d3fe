//! A task's session with the coordinator: messages in both directions, and heartbeats.
//!
//! Runs on the async runtime; a task's own thread sends and receives through channels. A broken connection is replaced
//! under the same incarnation and loses no message, so a network hiccup is not a death. A task that was declared dead
//! all the same is readmitted: it receives another `Welcome` and starts over.

mod machine;
mod runner;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;

use crate::control::proto::{CoordinatorMessage, Heartbeat, Hello, TaskMessage, coordinator_message, task_message};
pub use machine::{SessionConfig, SessionEffect, SessionEvent, SessionMachine};
use runner::{Runner, Surroundings};

const CHANNEL: usize = 256;

/// A coordinator in the same process.
pub trait Attach: Send + Sync {
    /// Opens a session: returns the channels to send to and to receive from.
    fn attach(&self) -> (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>);
}

/// How the coordinator is reached.
#[derive(Clone)]
pub enum Coordinator {
    /// Within this process.
    Local(Arc<dyn Attach>),
    /// At ps 0's address.
    Remote(String),
}

/// Where a task that cannot reach the coordinator can find out that the run has ended without it.
pub trait Records: std::fmt::Debug + Send + Sync {
    /// How this process's run ended: the run that welcomed it as `incarnation` or, without one, the run it is about to
    /// join. `None` if that run is not known to have ended.
    fn outcome(&self, incarnation: Option<Incarnation>) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>>;
}

/// How long a task tries to reach the coordinator, and what it consults meanwhile.
#[derive(Debug, Clone)]
pub struct Persistence {
    /// How long to keep trying.
    pub patience: Duration,
    /// Where to look up whether the run has ended while the coordinator cannot be reached.
    pub records: Option<Arc<dyn Records>>,
}

impl From<Duration> for Persistence {
    fn from(patience: Duration) -> Self {
        Self { patience, records: None }
    }
}

/// What a task reports in every heartbeat; shared with the thread that does the work.
pub type Progress = Arc<Mutex<Heartbeat>>;

/// A task's end of its session.
#[derive(Debug)]
pub struct Session {
    outgoing: mpsc::Sender<task_message::Kind>,
    incoming: mpsc::Receiver<coordinator_message::Kind>,
}

impl Session {
    /// Opens a session in the background. The first message to arrive is a `Welcome`, or an `Over` if the coordinator
    /// rejects this task or cannot be reached for `patience`.
    pub fn open(
        coordinator: Coordinator,
        hello: Hello,
        progress: Progress,
        persistence: impl Into<Persistence>,
    ) -> Self {
        let Persistence { patience, records } = persistence.into();
        let (outgoing, to_send) = mpsc::channel(CHANNEL);
        let (arrived, incoming) = mpsc::channel(CHANNEL);
        let place = match &coordinator {
            Coordinator::Local(_) => String::new(),
            Coordinator::Remote(address) => format!(" at {address}"),
        };
        let config = SessionConfig { hello: Hello { process: random(), ..hello }, patience, place };
        let surroundings = Surroundings { coordinator, progress, records, to_send, arrived };
        tokio::spawn(Runner::new(config, surroundings).run());
        Self { outgoing, incoming }
    }

    /// Receives the next message; `None` once the session is over.
    pub async fn receive(&mut self) -> Option<coordinator_message::Kind> {
        self.incoming.recv().await
    }

    /// A handle to send messages from any thread.
    pub fn sender(&self) -> Sender {
        Sender(self.outgoing.clone())
    }

    /// Says goodbye once every other sender has been dropped, and waits until the coordinator has received it.
    pub async fn close(&mut self) {
        (self.outgoing, _) = mpsc::channel(1);
        while self.incoming.recv().await.is_some() {}
    }

    /// Splits the session into its two directions. It closes with a goodbye once every sender has been dropped.
    pub fn split(self) -> (Sender, Receiver) {
        (Sender(self.outgoing), Receiver(self.incoming))
    }
}

/// Receives the messages of a session.
#[derive(Debug)]
pub struct Receiver(mpsc::Receiver<coordinator_message::Kind>);

impl Receiver {
    /// Receives the next message; `None` once the session is over.
    pub async fn receive(&mut self) -> Option<coordinator_message::Kind> {
        self.0.recv().await
    }
}

/// Sends messages on a session.
#[derive(Debug, Clone)]
pub struct Sender(mpsc::Sender<task_message::Kind>);

impl Sender {
    /// Sends a message. It is lost if the session is over.
    pub async fn send(&self, kind: task_message::Kind) {
        let _ = self.0.send(kind).await;
    }

    /// As [`Sender::send`], for a thread outside the runtime.
    pub fn send_blocking(&self, kind: task_message::Kind) {
        let _ = self.0.blocking_send(kind);
    }
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests;
