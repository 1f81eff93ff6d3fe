//! A task's session with the coordinator: told what happens, heard of in return.
//!
//! Runs on the async runtime; a task's own thread sends and receives through channels. A broken connection is made
//! again under the same incarnation, so that a hiccup of the network is not a death.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, info, warn};

use crate::control::coordinator_client::CoordinatorClient;
use crate::control::{
    CoordinatorMessage, Goodbye, Heartbeat, Hello, Over, TaskMessage, coordinator_message, task_message,
};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_millis(150);
const REPORT_EVERY: Duration = Duration::from_secs(3);
const CHANNEL: usize = 256;

/// A coordinator in the same process.
pub trait Attach: Send + Sync {
    /// Opens a session: where to send, and where to listen.
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

/// What a task reports of itself with every heartbeat; shared with the thread that does the work.
pub type Progress = Arc<Mutex<Heartbeat>>;

/// A task's end of its session.
#[derive(Debug)]
pub struct Session {
    outgoing: mpsc::Sender<TaskMessage>,
    incoming: mpsc::Receiver<CoordinatorMessage>,
}

impl Session {
    /// Opens a session in the background. The first message to arrive is a `Welcome`, or an `Over` if the
    /// coordinator does not let this task in or cannot be reached for `patience`.
    pub fn open(coordinator: Coordinator, hello: Hello, progress: Progress, patience: Duration) -> Self {
        let (outgoing, to_send) = mpsc::channel(CHANNEL);
        let (arrived, incoming) = mpsc::channel(CHANNEL);
        tokio::spawn(run(Runner { coordinator, hello, progress, patience, arrived }, to_send));
        Self { outgoing, incoming }
    }

    /// The next message; `None` once the session is over.
    pub async fn receive(&mut self) -> Option<coordinator_message::Kind> {
        loop {
            if let Some(kind) = self.incoming.recv().await?.kind {
                return Some(kind);
            }
        }
    }

    /// As [`Session::receive`], for a thread outside the runtime.
    pub fn receive_blocking(&mut self) -> Option<coordinator_message::Kind> {
        loop {
            if let Some(kind) = self.incoming.blocking_recv()?.kind {
                return Some(kind);
            }
        }
    }

    /// A message that has already arrived.
    pub fn try_receive(&mut self) -> Option<coordinator_message::Kind> {
        self.incoming.try_recv().ok().and_then(|message| message.kind)
    }

    /// Where to send messages from any thread.
    pub fn sender(&self) -> Sender {
        Sender(self.outgoing.clone())
    }
}

/// Sends messages on a session.
#[derive(Debug, Clone)]
pub struct Sender(mpsc::Sender<TaskMessage>);

impl Sender {
    /// Sends a message; lost if the session is over.
    pub async fn send(&self, kind: task_message::Kind) {
        let _ = self.0.send(TaskMessage { kind: Some(kind) }).await;
    }

    /// As [`Sender::send`], for a thread outside the runtime.
    pub fn send_blocking(&self, kind: task_message::Kind) {
        let _ = self.0.blocking_send(TaskMessage { kind: Some(kind) });
    }
}

struct Runner {
    coordinator: Coordinator,
    hello: Hello,
    progress: Progress,
    patience: Duration,
    arrived: mpsc::Sender<CoordinatorMessage>,
}

enum Ended {
    /// The session is over, by either side's wish.
    Closed,
    /// The connection broke.
    Broken,
}

async fn run(mut runner: Runner, mut to_send: mpsc::Receiver<TaskMessage>) {
    // A message taken from the queue when the connection broke under it, to be sent on the next.
    let mut unsent = None;
    loop {
        let Some((sender, receiver)) = runner.connect().await else { return };
        match runner.converse(sender, receiver, &mut to_send, &mut unsent).await {
            Ended::Closed => return,
            Ended::Broken => info!("lost the session with ps 0, connecting again"),
        }
    }
}

type Channel = (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>);

impl Runner {
    /// Connects and says hello, for as long as the patience lasts.
    async fn connect(&mut self) -> Option<Channel> {
        let started = Instant::now();
        let mut spoken = started;
        let mut pause = RETRY_FIRST;
        loop {
            let opened = match &self.coordinator {
                Coordinator::Local(coordinator) => Ok(coordinator.attach()),
                Coordinator::Remote(address) => open(address).await,
            };
            let error = match opened {
                Ok((sender, receiver)) => {
                    let hello = TaskMessage { kind: Some(task_message::Kind::Hello(self.hello.clone())) };
                    if sender.send(hello).await.is_ok() {
                        return Some((sender, receiver));
                    }
                    "the session closed at once".to_owned()
                }
                Err(error) => error,
            };
            if self.arrived.is_closed() {
                return None;
            }
            let Coordinator::Remote(address) = &self.coordinator else { return None };
            if started.elapsed() > self.patience {
                let seconds = started.elapsed().as_secs();
                let reason = format!("gave up waiting for ps 0 at {address} after {seconds} s: {error}");
                self.over(windlass_core::lifecycle::exit_code::PEERS, reason).await;
                return None;
            }
            if spoken.elapsed() >= REPORT_EVERY {
                spoken = Instant::now();
                info!("waiting for ps 0 at {address} ({} s)", started.elapsed().as_secs());
                debug!(%error, "ps 0 not reached");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MOST);
        }
    }

    async fn converse(
        &mut self,
        sender: mpsc::Sender<TaskMessage>,
        mut receiver: mpsc::Receiver<CoordinatorMessage>,
        to_send: &mut mpsc::Receiver<TaskMessage>,
        unsent: &mut Option<TaskMessage>,
    ) -> Ended {
        let mut heartbeat = tokio::time::interval(HEARTBEAT_EVERY);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        if let Some(message) = unsent.take()
            && let Err(failed) = sender.send(message).await
        {
            *unsent = Some(failed.0);
            return Ended::Broken;
        }
        loop {
            tokio::select! {
                biased;
                arrived = receiver.recv() => match arrived {
                    Some(message) => {
                        let over = matches!(message.kind, Some(coordinator_message::Kind::Over(_)));
                        if let Some(coordinator_message::Kind::Welcome(welcome)) = &message.kind {
                            self.hello.incarnation = welcome.incarnation;
                        }
                        if self.arrived.send(message).await.is_err() || over {
                            return Ended::Closed;
                        }
                    }
                    None => return Ended::Broken,
                },
                message = to_send.recv() => match message {
                    Some(message) => {
                        if let Err(failed) = sender.send(message).await {
                            *unsent = Some(failed.0);
                            return Ended::Broken;
                        }
                    }
                    // The task is done with its session.
                    None => {
                        let goodbye = TaskMessage { kind: Some(task_message::Kind::Goodbye(Goodbye {})) };
                        let _ = sender.send(goodbye).await;
                        return Ended::Closed;
                    }
                },
                _ = heartbeat.tick() => {
                    let progress = self.progress.lock().map(|progress| progress.clone()).unwrap_or_default();
                    let message = TaskMessage { kind: Some(task_message::Kind::Heartbeat(progress)) };
                    if sender.send(message).await.is_err() {
                        return Ended::Broken;
                    }
                }
            }
        }
    }

    async fn over(&self, exit_code: u8, reason: String) {
        let over = Over { exit_code: u32::from(exit_code), reason };
        let _ = self.arrived.send(CoordinatorMessage { kind: Some(coordinator_message::Kind::Over(over)) }).await;
    }
}

/// Opens a session over the network.
async fn open(address: &str) -> Result<Channel, String> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    let (sender, to_send) = mpsc::channel(CHANNEL);
    let (arrived, receiver) = mpsc::channel(CHANNEL);
    let mut client = CoordinatorClient::new(channel).max_decoding_message_size(usize::MAX);
    // The coordinator answers the call itself only after the first message, so both run at once.
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
            Err(status) => warn!("ps 0 refused the session: {}", status.message()),
        }
    });
    Ok((sender, receiver))
}
