//! How the ps tasks of a sparse cluster learn each other's addresses: a worker, which knows all of them, tells each ps.
//!
//! The worker's call lasts as long as the ps does. When it ends, the worker calls again, since a restarted ps knows
//! nothing.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::service::Routes;
use tonic::{Code, Response, Status};
use tracing::info;
use windlass_core::cluster::TaskId;

use crate::control::dial::dial;
use crate::control::proto::roster_client::RosterClient;
use crate::control::proto::roster_server::{Roster, RosterServer};
use crate::control::proto::{Held, Introduction};
use crate::lobby::{INTRODUCTIONS, Visit};
use crate::port::{self, Services};
use crate::retry::{Backoff, CALL_PAUSES, REPORT_EVERY};

/// The addresses of all ps as reported by workers. While the receiver is kept, those workers know that the ps is alive.
pub type Introductions = mpsc::Receiver<Vec<String>>;

/// The service of a ps, to be served on its port, and the introductions that it receives.
pub fn service() -> (Introductions, RosterServer<Service>) {
    let (heard, introductions) = mpsc::channel(1);
    (introductions, RosterServer::new(Service { heard }))
}

/// Receives introductions.
#[derive(Debug)]
pub struct Service {
    heard: mpsc::Sender<Vec<String>>,
}

#[tonic::async_trait]
impl Roster for Service {
    type IntroduceStream = Pin<Box<dyn Stream<Item = Result<Held, Status>> + Send>>;

    async fn introduce(&self, call: tonic::Request<Introduction>) -> Result<Response<Self::IntroduceStream>, Status> {
        // The call stays open.
        if let Some(visit) = call.extensions().get::<Visit>().filter(|visit| !visit.introduces()) {
            visit.was_dismissed();
            return Err(Status::resource_exhausted(format!("{INTRODUCTIONS} workers introduce the ps already")));
        }
        // One introduction is enough: they are all the same.
        let _ = self.heard.try_send(call.into_inner().ps);
        let (held, answer) = mpsc::channel(1);
        let heard = self.heard.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = heard.closed() => {}
                () = held.closed() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answer))))
    }
}

/// Waits on a ps's port until a worker reports the addresses of all ps, or returns `None` after `patience`. All other
/// requests are answered by `router`.
pub async fn await_introduction(
    listener: std::net::TcpListener,
    router: axum::Router,
    patience: Duration,
) -> std::io::Result<Option<Vec<String>>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (mut introductions, service) = service();
    let router = router.merge(Routes::new(service).into_axum_router());
    let serving = tokio::spawn(port::serve(listener, Services::without_streams(router), std::future::pending()));
    let began = Instant::now();
    let heard = loop {
        tokio::select! {
            heard = introductions.recv() => break heard,
            () = tokio::time::sleep(REPORT_EVERY) => {
                let waited = began.elapsed();
                if waited > patience {
                    break None;
                }
                info!("waiting for a worker to send the addresses of the other ps ({} s)", waited.as_secs());
            }
        }
    };
    serving.abort();
    // The port is free again only after its listener has been dropped.
    let _ = serving.await;
    Ok(heard)
}

/// Introduces all ps to each of them whenever it is reachable. Never returns.
pub async fn introduce(ps: Vec<String>) {
    let each = (0..).zip(&ps).map(|(index, address)| introduce_to(TaskId::ps(index), address, &ps));
    futures::future::join_all(each).await;
}

async fn introduce_to(task: TaskId, address: &str, ps: &[String]) {
    let mut backoff = Backoff::new(CALL_PAUSES);
    let (mut away, mut spoken) = (Instant::now(), Instant::now());
    loop {
        match held_by(address, ps).await {
            Ok(()) => {
                backoff.reset();
                away = Instant::now();
            }
            // Other workers are introducing it, and may leave one day.
            Err(status) if status.code() == Code::ResourceExhausted => {
                away = Instant::now();
                tokio::time::sleep(REPORT_EVERY).await;
            }
            Err(status) => {
                if spoken.elapsed() >= REPORT_EVERY && away.elapsed() >= REPORT_EVERY {
                    spoken = Instant::now();
                    let (waited, error) = (away.elapsed().as_secs(), status.message());
                    info!("waiting for {task} at {address} ({waited} s): {error}");
                }
            }
        }
        // A ps that hangs up at once is not called again immediately.
        tokio::time::sleep(backoff.pause().max(CALL_PAUSES.0)).await;
    }
}

/// Introduces the ps to one of them, and returns when that one is gone.
async fn held_by(address: &str, ps: &[String]) -> Result<(), Status> {
    let mut client = RosterClient::new(dial(address).await.map_err(Status::unavailable)?);
    let mut held = client.introduce(Introduction { ps: ps.to_vec() }).await?.into_inner();
    while let Some(Ok(Held {})) = held.next().await {}
    Ok(())
}
