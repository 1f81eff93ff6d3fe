//! A task's one port: tensor streams, gRPC and HTTP, told apart by the first bytes of a connection.
//!
//! Every connection begins in the [`Lobby`], which closes it unless its peer turns out to be a task of the run or it is
//! soon done. A handler that keeps an HTTP response open has to admit the [`Visit`] in the request's extensions.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tracing::{debug, warn};

use crate::endpoint::listen_locally;
use crate::lobby::{Caller, Lobby, Visit};
use crate::stream::Socket;
use crate::stream::close_if_unacknowledged;
use crate::stream::frame::MAGIC;

/// How often expired connections are removed from the lobby.
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// The pause after a connection could not be accepted, for example because file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The maximum size of the head of an HTTP request.
const HEAD_BYTES: usize = 32 << 10;
/// How many calls may run at once on one connection. A task has one or two.
const CALLS: u32 = 16;
/// Interval of the keepalives that detect a task whose host has vanished.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// Accepts the tensor streams. It is called on the async runtime and must not block.
pub type StreamHandler = Arc<dyn Fn(Socket, Visit) + Send + Sync>;

/// What a port serves.
#[derive(Clone)]
pub struct Services {
    /// gRPC and HTTP.
    pub router: axum::Router,
    /// Tensor streams.
    pub streams: StreamHandler,
    /// Where connections wait until they are identified.
    pub lobby: Lobby,
}

impl Services {
    /// A port that accepts no tensor streams.
    pub fn without_streams(router: axum::Router) -> Self {
        Self { router, streams: Arc::new(|_, _| ()), lobby: Lobby::default() }
    }
}

/// Accepts connections until `shutdown` completes.
pub async fn serve(listener: TcpListener, services: Services, shutdown: impl Future<Output = ()>) {
    let mut shutdown = std::pin::pin!(shutdown);
    let mut sweep = tokio::time::interval(SWEEP_EVERY);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = sweep.tick() => {
                services.lobby.expire(Instant::now());
                continue;
            }
            () = &mut shutdown => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let visit = services.lobby.enter(Caller::Remote(peer));
                let (services, guest) = (services.clone(), visit.clone());
                let routing = tokio::spawn(async move {
                    if let Err(error) = route(stream, services, guest).await {
                        debug!(%peer, %error, "connection closed");
                    }
                });
                visit.on_close_unless_set(move || routing.abort());
            }
            // Out of file descriptors, or a peer that was gone before it was accepted: neither ends the task.
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Accepts streams from processes on this host, and returns the name of their socket, or an empty name if they have to
/// use TCP.
pub fn accept_locally(
    listener: &std::net::TcpListener,
    streams: StreamHandler,
    lobby: Lobby,
    mut stopped: watch::Receiver<()>,
) -> io::Result<String> {
    let Some((listener, name)) = listen_locally(listener.local_addr()?.port()) else { return Ok(String::new()) };
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.changed() => return,
            };
            let socket = accepted.and_then(|(stream, _)| stream.into_std()).and_then(|stream| {
                stream.set_nonblocking(false)?;
                Socket::unix(stream)
            });
            match socket {
                Ok(socket) => streams(socket, lobby.enter(Caller::Local)),
                Err(error) => {
                    warn!(%error, "cannot take a local connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    Ok(name)
}

async fn route(stream: TcpStream, services: Services, visit: Visit) -> io::Result<()> {
    stream.set_nodelay(true)?;
    close_if_unacknowledged(&stream)?;
    if first_bytes(&stream).await? == MAGIC {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        (services.streams)(Socket::accepted(stream)?, visit);
        return Ok(());
    }
    let mut builder = Builder::new(TokioExecutor::new());
    // One request per connection: an idle connection would stay in the lobby.
    builder.http1().keep_alive(false).max_buf_size(HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .max_concurrent_streams(CALLS)
        .max_header_list_size(HEAD_BYTES as u32);
    let router = services.router.layer(axum::Extension(visit));
    builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await.map_err(io::Error::other)
}

async fn first_bytes(stream: &TcpStream) -> io::Result<[u8; 4]> {
    let mut first = [0; 4];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if seen == first.len() || first[..seen] != MAGIC[..seen] {
            return Ok(first);
        }
        // Part of our own magic has arrived; the rest is on its way.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
