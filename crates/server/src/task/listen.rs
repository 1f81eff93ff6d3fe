//! The port of a parameter server: tensor streams of workers, over TCP and from this host, and gRPC and HTTP requests.

use std::net::TcpListener;
use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::watch;
use tonic::service::Routes;
use windlass_instruments::PsInstruments;
use windlass_wire::control::roster::{self, Introductions};
use windlass_wire::lobby::Lobby;
use windlass_wire::port;
use windlass_wire::port::{Services, StreamHandler};

use super::ShardSlot;
use crate::connection::Connections;
use crate::coordinator::CoordinatorHandle;

/// A port at which connections are accepted, until this is dropped.
pub(super) struct ServerPort {
    connections: Connections,
    local_name: String,
    _accepting: watch::Sender<()>,
    /// Tells the workers of a sparse cluster that this server is here.
    _introductions: Introductions,
}

/// The services on a port.
pub(super) struct PortServices {
    /// The shard that the streams lead to.
    pub(super) shard: Arc<ShardSlot>,
    /// The coordinator, if it is in this process.
    pub(super) coordinator: Option<CoordinatorHandle>,
    /// Further HTTP services.
    pub(super) router: axum::Router,
    /// The instruments that count the streams' traffic.
    pub(super) counts: PsInstruments,
}

impl ServerPort {
    pub(super) fn start(listener: TcpListener, services: PortServices) -> std::io::Result<Self> {
        let PortServices { shard, coordinator, router, counts } = services;
        let connections = Connections::counted_by(counts);
        let (accepting, stopped) = watch::channel(());
        let serving = connections.clone();
        let streams: StreamHandler = Arc::new(move |socket, visit| serving.serve(socket, visit, shard.clone()));
        let lobby = Lobby::default();
        let local_name = port::accept_locally(&listener, streams.clone(), lobby.clone(), stopped.clone())?;
        let introductions = accept(listener, coordinator, router, (streams, lobby), stopped)?;
        Ok(Self { connections, local_name, _accepting: accepting, _introductions: introductions })
    }

    /// Returns the name under which workers on this host find the port; empty if they have to use TCP.
    pub(super) fn local_name(&self) -> &str {
        &self.local_name
    }

    /// Closes the tensor streams, which ends their threads.
    pub(super) fn close_streams(&self) {
        self.connections.close();
    }
}

fn accept(
    listener: TcpListener,
    coordinator: Option<CoordinatorHandle>,
    router: axum::Router,
    (streams, lobby): (StreamHandler, Lobby),
    mut stopped: watch::Receiver<()>,
) -> std::io::Result<Introductions> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (introductions, roster) = roster::service();
    let mut routes = Routes::new(roster);
    let mut router = router;
    if let Some(coordinator) = coordinator {
        routes = routes.add_service(coordinator.service());
        router = router.merge(coordinator.page());
    }
    // Otherwise gRPC would answer unknown paths.
    let router = router.merge(routes.into_axum_router()).fallback(|| async { StatusCode::NOT_FOUND });
    tokio::spawn(port::serve(listener, Services { router, streams, lobby }, async move {
        let _ = stopped.changed().await;
    }));
    Ok(introductions)
}
