//! A task's session with the coordinator: told what happens, heard of in return.
//!
//! Runs on the async runtime; a task's own thread sends and receives through channels. A broken connection is made
//! again under the same incarnation and loses no message, so that a hiccup of the network is not a death. A task
//! that was declared dead nevertheless is let in again: it hears another `Welcome`, and begins anew.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, info};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::{Outcome, exit_code};

use crate::control::outbox::{Heard, Outbox};
use crate::control::proto::coordinator_client::CoordinatorClient;
use crate::control::proto::{
    CoordinatorMessage, Goodbye, Heartbeat, Hello, Over, TaskMessage, Welcome, coordinator_message, task_message,
};
use crate::retry::{Backoff, CALL_PAUSES, REPORT_EVERY};

const HEARTBEAT_EVERY: Duration = Duration::from_millis(500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// By these a host that has gone without a word is noticed.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a goodbye is given to reach the coordinator, which closes the session when it has.
const LAST_WORDS: Duration = Duration::from_secs(1);
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

/// Where a task that cannot reach the coordinator may find out that the run has ended without it.
pub trait Records: std::fmt::Debug + Send + Sync {
    /// How the run ended that this process was let into as that incarnation, or that it is about to join if it never was;
    /// `None` if it has not ended, as far as is known here.
    fn outcome(&self, incarnation: Option<Incarnation>) -> Pin<Box<dyn Future<Output = Option<Outcome>> + Send + '_>>;
}

/// For how long a task tries to reach the coordinator, and what it asks meanwhile.
#[derive(Debug, Clone)]
pub struct Persistence {
    /// For so long.
    pub patience: Duration,
    /// What may tell that there is nobody to reach any more.
    pub records: Option<Arc<dyn Records>>,
}

impl From<Duration> for Persistence {
    fn from(patience: Duration) -> Self {
        Self { patience, records: None }
    }
}

/// What a task reports of itself with every heartbeat; shared with the thread that does the work.
pub type Progress = Arc<Mutex<Heartbeat>>;

/// A task's end of its session.
#[derive(Debug)]
pub struct Session {
    outgoing: mpsc::Sender<task_message::Kind>,
    incoming: mpsc::Receiver<coordinator_message::Kind>,
}

impl Session {
    /// Opens a session in the background. The first message to arrive is a `Welcome`, or an `Over` if the
    /// coordinator does not let this task in or cannot be reached for `patience`.
    pub fn open(
        coordinator: Coordinator,
        hello: Hello,
        progress: Progress,
        persistence: impl Into<Persistence>,
    ) -> Self {
        let Persistence { patience, records } = persistence.into();
        let (outgoing, to_send) = mpsc::channel(CHANNEL);
        let (arrived, incoming) = mpsc::channel(CHANNEL);
        let runner = Runner {
            coordinator,
            hello: Hello { process: random(), ..hello },
            progress,
            patience,
            records,
            looking: None,
            arrived,
            incarnation: 0,
            outbox: Outbox::default(),
            heard: Heard::default(),
            away: None,
            backoff: Backoff::new(CALL_PAUSES),
            busy: None,
            reason: None,
            spoken: Instant::now(),
        };
        tokio::spawn(runner.run(to_send));
        Self { outgoing, incoming }
    }

    /// The next message; `None` once the session is over.
    pub async fn receive(&mut self) -> Option<coordinator_message::Kind> {
        self.incoming.recv().await
    }

    /// Where to send messages from any thread.
    pub fn sender(&self) -> Sender {
        Sender(self.outgoing.clone())
    }

    /// Says goodbye, once every other sender is gone, and waits until that has been heard.
    pub async fn close(&mut self) {
        (self.outgoing, _) = mpsc::channel(1);
        while self.incoming.recv().await.is_some() {}
    }

    /// The two directions by themselves. The session closes with a goodbye once every sender is gone.
    pub fn split(self) -> (Sender, Receiver) {
        (Sender(self.outgoing), Receiver(self.incoming))
    }
}

/// What arrives on a session.
#[derive(Debug)]
pub struct Receiver(mpsc::Receiver<coordinator_message::Kind>);

impl Receiver {
    /// The next message; `None` once the session is over.
    pub async fn receive(&mut self) -> Option<coordinator_message::Kind> {
        self.0.recv().await
    }
}

/// Sends messages on a session.
#[derive(Debug, Clone)]
pub struct Sender(mpsc::Sender<task_message::Kind>);

impl Sender {
    /// Sends a message; lost if the session is over.
    pub async fn send(&self, kind: task_message::Kind) {
        let _ = self.0.send(kind).await;
    }

    /// As [`Sender::send`], for a thread outside the runtime.
    pub fn send_blocking(&self, kind: task_message::Kind) {
        let _ = self.0.blocking_send(kind);
    }
}

struct Runner {
    coordinator: Coordinator,
    hello: Hello,
    progress: Progress,
    patience: Duration,
    records: Option<Arc<dyn Records>>,
    /// The look at the records that is under way.
    looking: Option<JoinHandle<Option<Outcome>>>,
    arrived: mpsc::Sender<coordinator_message::Kind>,
    /// As the last welcome gave it; zero before the first.
    incarnation: u64,
    outbox: Outbox<task_message::Kind>,
    heard: Heard,
    /// Since when the coordinator has been tried in vain.
    away: Option<Instant>,
    /// The pauses between attempts to connect.
    backoff: Backoff,
    /// Why the coordinator could not let this task in yet.
    busy: Option<String>,
    /// What it waits for itself, as it last said.
    reason: Option<String>,
    /// When a long wait was last spoken of.
    spoken: Instant,
}

enum Ended {
    /// The session is over, by either side's wish.
    Closed,
    /// The connection broke.
    Broken,
}

type Channel = (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>);

impl Runner {
    async fn run(mut self, mut to_send: mpsc::Receiver<task_message::Kind>) {
        while let Some((sender, receiver)) = self.connect().await {
            match self.converse(sender, receiver, &mut to_send).await {
                Ended::Closed => return,
                Ended::Broken => debug!("the session with ps 0 broke"),
            }
            if self.away.is_none() {
                self.spoken = Instant::now();
                info!("lost the session with ps 0, reconnecting");
            }
        }
    }

    /// Connects and says hello, for as long as the patience lasts.
    async fn connect(&mut self) -> Option<Channel> {
        let away = *self.away.get_or_insert_with(Instant::now);
        let mut error = self.busy.clone().unwrap_or_else(|| "it closed the session at once".to_owned());
        loop {
            if away.elapsed() > self.patience {
                self.give_up(away, &error).await;
                return None;
            }
            self.speak(away, &error);
            tokio::select! {
                () = tokio::time::sleep(self.backoff.pause()) => {}
                Some(outcome) = found_end(&mut self.looking) => {
                    self.tell_end(outcome).await;
                    return None;
                }
            }
            if self.arrived.is_closed() {
                return None;
            }
            let opened = match &self.coordinator {
                Coordinator::Local(coordinator) => Ok(coordinator.attach()),
                Coordinator::Remote(address) => open(address).await,
            };
            match opened {
                Ok((sender, receiver)) => {
                    let begun = self.incarnation != 0;
                    let global_step = self.progress.lock().map_or(0, |progress| progress.global_step);
                    let hello = Hello { begun, global_step, ..self.hello.clone() };
                    let hello = self.envelope(0, task_message::Kind::Hello(hello));
                    if sender.send(hello).await.is_ok() {
                        return Some((sender, receiver));
                    }
                }
                Err(failed) => error = failed,
            }
        }
    }

    /// Says every now and then whom it waits for, and why in vain.
    fn speak(&mut self, away: Instant, error: &str) {
        if self.spoken.elapsed() >= REPORT_EVERY {
            self.spoken = Instant::now();
            info!("waiting for ps 0{} ({} s): {error}", self.place(), away.elapsed().as_secs());
            self.look_for_end();
        }
    }

    async fn converse(
        &mut self,
        sender: mpsc::Sender<TaskMessage>,
        mut receiver: mpsc::Receiver<CoordinatorMessage>,
        to_send: &mut mpsc::Receiver<task_message::Kind>,
    ) -> Ended {
        let mut heartbeat = tokio::time::interval(HEARTBEAT_EVERY);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let away = self.away.unwrap_or_else(Instant::now);
        let deadline = tokio::time::Instant::from_std(away + self.patience);
        let mut welcomed = false;
        let mut unanswered = tokio::time::interval(REPORT_EVERY);
        unanswered.reset();
        loop {
            tokio::select! {
                biased;
                arrived = receiver.recv() => {
                    let Some(message) = arrived else { return Ended::Broken };
                    welcomed |= matches!(message.kind, Some(coordinator_message::Kind::Welcome(_)));
                    if let Some(ended) = self.take(message, &sender).await {
                        part(sender, receiver).await;
                        return ended;
                    }
                },
                kind = to_send.recv(), if welcomed => {
                    // Without a sender left, the task is done with its session.
                    let last = kind.is_none();
                    let kind = kind.unwrap_or(task_message::Kind::Goodbye(Goodbye {}));
                    let number = self.outbox.push(kind.clone());
                    let sent = sender.send(self.envelope(number, kind)).await;
                    if last {
                        part(sender, receiver).await;
                        return Ended::Closed;
                    }
                    if sent.is_err() {
                        return Ended::Broken;
                    }
                },
                _ = heartbeat.tick(), if welcomed => {
                    if sender.send(self.heartbeat()).await.is_err() {
                        return Ended::Broken;
                    }
                },
                () = self.arrived.closed(), if !welcomed => return Ended::Closed,
                _ = unanswered.tick(), if !welcomed => self.speak(away, "it accepts connections, but does not answer"),
                Some(outcome) = found_end(&mut self.looking), if !welcomed => {
                    self.tell_end(outcome).await;
                    return Ended::Closed;
                }
                () = tokio::time::sleep_until(deadline), if !welcomed => {
                    let reason = self.reason.take();
                    self.give_up(away, reason.as_deref().unwrap_or("it does not answer")).await;
                    return Ended::Closed;
                }
            }
        }
    }

    /// Takes a message of the coordinator, and hands it to the task unless it has come before.
    async fn take(&mut self, message: CoordinatorMessage, sender: &mpsc::Sender<TaskMessage>) -> Option<Ended> {
        if let Some(coordinator_message::Kind::Busy(busy)) = message.kind {
            if self.busy.is_none() || self.spoken.elapsed() >= REPORT_EVERY {
                self.spoken = Instant::now();
                info!("{}", busy.reason);
            }
            self.busy = Some(busy.reason);
            return Some(Ended::Broken);
        }
        self.outbox.heard(message.heard);
        let kind = message.kind?;
        if let coordinator_message::Kind::Waiting(waiting) = &kind {
            // It is there, though it lets nobody in yet.
            (self.spoken, self.reason) = (Instant::now(), waiting.notices.last().cloned());
        }
        if let coordinator_message::Kind::Welcome(welcome) = &kind {
            (self.away, self.busy, self.looking) = (None, None, None);
            self.backoff.reset();
            if !self.welcome(welcome, sender).await {
                return Some(Ended::Broken);
            }
        } else if !self.heard.is_new(message.number) {
            return None;
        }
        let over = matches!(kind, coordinator_message::Kind::Over(_));
        // A task that does not listen any more is about to say goodbye.
        let _ = self.arrived.send(kind).await;
        if over {
            // So that the coordinator knows that this task knows.
            let _ = sender.send(self.heartbeat()).await;
        }
        over.then_some(Ended::Closed)
    }

    /// Sends again what the coordinator has not heard. False if the connection broke.
    async fn welcome(&mut self, welcome: &Welcome, sender: &mpsc::Sender<TaskMessage>) -> bool {
        if self.incarnation != welcome.incarnation {
            self.incarnation = welcome.incarnation;
            (self.outbox, self.heard) = (Outbox::default(), Heard::default());
        }
        self.outbox.heard(welcome.heard);
        for (number, kind) in self.outbox.kept() {
            if sender.send(self.envelope(number, kind.clone())).await.is_err() {
                return false;
            }
        }
        true
    }

    fn envelope(&self, number: u64, kind: task_message::Kind) -> TaskMessage {
        TaskMessage { number, heard: self.heard.highest(), kind: Some(kind) }
    }

    fn heartbeat(&self) -> TaskMessage {
        let progress = self.progress.lock().map(|progress| progress.clone()).unwrap_or_default();
        self.envelope(0, task_message::Kind::Heartbeat(progress))
    }

    /// Begins to look in the records whether the run has ended meanwhile, unless that is under way. It is done beside the
    /// session: a store may take its time, or hang.
    fn look_for_end(&mut self) {
        let Some(records) = self.records.clone().filter(|_| self.looking.is_none()) else { return };
        let incarnation = (self.incarnation != 0).then_some(Incarnation(self.incarnation));
        self.looking = Some(tokio::spawn(async move { records.outcome(incarnation).await }));
    }

    /// Tells the task how the run has ended without it.
    async fn tell_end(&self, Outcome { exit_code, reason }: Outcome) {
        info!("{reason}");
        let over = Over { exit_code: u32::from(exit_code), reason };
        let _ = self.arrived.send(coordinator_message::Kind::Over(over)).await;
    }

    async fn give_up(&self, away: Instant, error: &str) {
        let reason = format!("gave up waiting for ps 0{} after {} s: {error}", self.place(), away.elapsed().as_secs());
        let over = Over { exit_code: u32::from(exit_code::PEERS), reason };
        let _ = self.arrived.send(coordinator_message::Kind::Over(over)).await;
    }

    fn place(&self) -> String {
        match &self.coordinator {
            Coordinator::Local(_) => String::new(),
            Coordinator::Remote(address) => format!(" at {address}"),
        }
    }
}

/// What the look that is under way finds of the end of the run. Never ready if there is none.
async fn found_end(looking: &mut Option<JoinHandle<Option<Outcome>>>) -> Option<Outcome> {
    let Some(look) = looking else { return std::future::pending().await };
    let found = look.await.ok().flatten();
    *looking = None;
    found
}

/// Waits until the coordinator has heard the last of what was sent, and has closed its side too.
async fn part(sender: mpsc::Sender<TaskMessage>, mut receiver: mpsc::Receiver<CoordinatorMessage>) {
    drop(sender);
    let _ = tokio::time::timeout(LAST_WORDS, async { while receiver.recv().await.is_some() {} }).await;
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Connects to a task's port.
pub(crate) async fn dial(address: &str) -> Result<tonic::transport::Channel, String> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| error.to_string())?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .tcp_nodelay(true);
    match endpoint.connect().await {
        Ok(channel) => Ok(channel),
        Err(error) => Err(crate::endpoint::explain(address, error).await),
    }
}

/// Opens a session over the network.
async fn open(address: &str) -> Result<Channel, String> {
    let channel = dial(address).await?;
    let (sender, to_send) = mpsc::channel(CHANNEL);
    let (arrived, receiver) = mpsc::channel(CHANNEL);
    let mut client = CoordinatorClient::new(channel).max_decoding_message_size(crate::MESSAGE_BYTES);
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
            Err(status) => debug!("ps 0 refused the session: {}", status.message()),
        }
    });
    Ok((sender, receiver))
}

#[cfg(test)]
mod tests;
