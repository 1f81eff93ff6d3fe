//! A task's one port: tensor streams, gRPC and HTTP, told apart by the first bytes of a connection.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use crate::Socket;
use crate::frame::MAGIC;

/// A connection that has not said what it is by then is closed.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(10);

/// What takes the tensor streams. It is called on the async runtime and must not block.
pub type StreamHandler = Arc<dyn Fn(Socket) + Send + Sync>;

/// Accepts connections until `shutdown` is done: tensor streams go to `streams`, everything else to `router`.
pub async fn serve(
    listener: TcpListener,
    router: axum::Router,
    streams: StreamHandler,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => return,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (router, streams) = (router.clone(), streams.clone());
                tokio::spawn(async move {
                    if let Err(error) = route(stream, router, streams).await {
                        debug!(%peer, %error, "connection closed");
                    }
                });
            }
            // Out of file descriptors, or a peer that was gone before it was accepted: neither ends the task.
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn route(stream: TcpStream, router: axum::Router, streams: StreamHandler) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let first = tokio::time::timeout(FIRST_BYTES_TIMEOUT, first_bytes(&stream)).await??;
    if first == MAGIC {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        streams(Socket::tcp(stream)?);
        return Ok(());
    }
    Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
        .map_err(io::Error::other)
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
        // Part of our own magic is there; the rest is on its way.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What every task answers on its port.
pub fn health() -> axum::Router {
    axum::Router::new().route("/healthz", axum::routing::get(|| async { "ok\n" }))
}
