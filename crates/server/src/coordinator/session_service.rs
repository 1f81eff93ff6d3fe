//! How sessions reach the coordinator: over gRPC on the task's port, or by channels from within the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::middleware::{self, Next};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};
use windlass_page::{EVENTS_PATH, Viewers};
use windlass_wire::MESSAGE_BYTES;
use windlass_wire::control::proto::coordinator_server::{Coordinator as CoordinatorService, CoordinatorServer};
use windlass_wire::control::proto::{CoordinatorMessage, TaskMessage};
use windlass_wire::control::session::Attach;
use windlass_wire::lobby::Visit;

use super::actor::{self, ActorConfig, Outlets};
use super::checkpoint::Tidying;
use super::farewell::Farewell;
use super::interface::{SessionId, TICK};
use crate::task::ShardSlot;

const CHANNEL: usize = 256;
/// How long viewers of the live page may take to be sent how the run ended.
const VIEWERS_LEAVE: Duration = Duration::from_millis(500);

/// An event on a session.
#[derive(Debug)]
pub(super) enum SessionInput {
    /// The sender for answers, and the connection's slot in the port's lobby if it came through the port.
    Opened(mpsc::Sender<CoordinatorMessage>, Option<Visit>),
    Message(TaskMessage),
    Closed,
}

/// A way to open sessions with the coordinator.
#[derive(Debug, Clone)]
pub(crate) struct CoordinatorHandle {
    events: mpsc::Sender<(SessionId, SessionInput)>,
    next: Arc<AtomicU64>,
    unheard: watch::Receiver<Option<usize>>,
    status: watch::Receiver<Arc<windlass_page::Status>>,
    viewers: Viewers,
    end_recorded: watch::Receiver<bool>,
    /// Held while old checkpoints are removed.
    tidying: Tidying,
}

impl CoordinatorHandle {
    pub(crate) fn start(config: ActorConfig, shard: Arc<ShardSlot>) -> Self {
        let (events, inbox) = mpsc::channel(CHANNEL);
        let (count, unheard) = watch::channel(None);
        let (page, status) = watch::channel(Arc::default());
        let (recording, end_recorded) = watch::channel(false);
        let tidying = config.tidying.clone();
        let outlets = Outlets { unheard: count, page, end_recorded: recording };
        tokio::spawn(actor::run(config, shard, outlets, inbox));
        let next = Arc::new(AtomicU64::new(1));
        Self { events, next, unheard, status, viewers: Viewers::default(), end_recorded, tidying }
    }

    /// The gRPC side, to be served on the task's port.
    pub(crate) fn service(&self) -> CoordinatorServer<Service> {
        CoordinatorServer::new(Service(self.clone())).max_decoding_message_size(MESSAGE_BYTES)
    }

    /// The live page, to be served on the task's port.
    pub(crate) fn page(&self) -> axum::Router {
        // A viewer may stay connected indefinitely, unless the lobby is crowded.
        let stays = async |request: Request, next: Next| {
            if request.uri().path() == EVENTS_PATH {
                request.extensions().get::<Visit>().into_iter().for_each(Visit::has_spoken);
            }
            next.run(request).await
        };
        windlass_page::router(self.status.clone(), self.viewers.clone()).layer(middleware::from_fn(stays))
    }

    /// Waits until every task has heard the last word, and the run directory tells how the run ended, but not longer than
    /// this while the process runs. Then old checkpoints that are being removed have the time that they have anyway,
    /// and open pages a moment to be sent the end.
    pub(crate) async fn ended(&self, longest: Duration) {
        let mut farewell = Farewell::new(longest);
        let (mut unheard, mut end_recorded) = (self.unheard.clone(), self.end_recorded.clone());
        let mut tick = tokio::time::interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // An error means that the sender is gone, and nothing more will come.
            let have_heard = *unheard.borrow_and_update() == Some(0) || unheard.has_changed().is_err();
            let is_recorded = *end_recorded.borrow_and_update() || end_recorded.has_changed().is_err();
            if farewell.is_over(have_heard && is_recorded) {
                break;
            }
            tokio::select! {
                Ok(()) = unheard.changed(), if !have_heard => {}
                Ok(()) = end_recorded.changed(), if !is_recorded => {}
                _ = tick.tick() => farewell.tick(),
            }
        }
        drop(self.tidying.lock().await);
        self.viewers.have_left(VIEWERS_LEAVE).await;
    }

    /// Opens a session that is fed by `messages`, and returns the coordinator's messages on it.
    fn open(
        &self,
        messages: impl tokio_stream::Stream<Item = Result<TaskMessage, Status>> + Unpin + Send + 'static,
        visit: Option<Visit>,
    ) -> mpsc::Receiver<CoordinatorMessage> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        tokio::spawn(forward(id, (sender, visit), messages, self.events.clone()));
        receiver
    }
}

impl Attach for CoordinatorHandle {
    fn attach(&self) -> (mpsc::Sender<TaskMessage>, mpsc::Receiver<CoordinatorMessage>) {
        let (sender, inbox) = mpsc::channel(CHANNEL);
        (sender, self.open(ReceiverStream::new(inbox).map(Ok), None))
    }
}

pub(crate) struct Service(CoordinatorHandle);

#[tonic::async_trait]
impl CoordinatorService for Service {
    type SessionStream = std::pin::Pin<Box<dyn tokio_stream::Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: tonic::Request<Streaming<TaskMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let visit = request.extensions().get::<Visit>().cloned();
        let receiver = self.0.open(request.into_inner(), visit);
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(Ok))))
    }
}

/// Feeds a session to the coordinator: its opening with the first message, its messages and its end.
async fn forward(
    id: SessionId,
    (sender, visit): (mpsc::Sender<CoordinatorMessage>, Option<Visit>),
    mut messages: impl tokio_stream::Stream<Item = Result<TaskMessage, Status>> + Unpin,
    events: mpsc::Sender<(SessionId, SessionInput)>,
) {
    let Some(Ok(hello)) = messages.next().await else { return };
    visit.iter().for_each(Visit::has_spoken);
    if events.send((id, SessionInput::Opened(sender, visit))).await.is_err() {
        return;
    }
    let mut next = Some(Ok(hello));
    while let Some(Ok(message)) = next {
        if events.send((id, SessionInput::Message(message))).await.is_err() {
            return;
        }
        next = messages.next().await;
    }
    let _ = events.send((id, SessionInput::Closed)).await;
}
