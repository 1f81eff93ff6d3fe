//! The port of a task of a cluster.

use std::net::TcpListener;

use windlass_core::cluster::{Address, ResolvedTask};
use windlass_wire::endpoint::{self, BindError};

use crate::failure::Failure;
use crate::launch;

/// Listens where the launcher already does, or where the cluster says.
pub(crate) fn listen(resolved: &ResolvedTask, bind: Option<&str>) -> Result<TcpListener, Failure> {
    if let Some(listener) = launch::inherited_listener() {
        return Ok(listener);
    }
    let address = &resolved.address;
    let listener = match bind {
        Some(host) => endpoint::listen_on(host, address.port()),
        None => endpoint::listen(address),
    };
    listener.map_err(|error| {
        let hint = match &error {
            BindError::InUse { .. } => Some(other_port(resolved)),
            BindError::Other { .. } => error.hint(),
        };
        Failure::usage(&error).with_hint(hint)
    })
}

/// Listens where the launcher already does, or on an interface as a client of joined workers was told: only on this host
/// unless it names another, and on any free port unless it names one.
pub(crate) fn listen_as_client(bind: Option<&str>) -> Result<TcpListener, Failure> {
    if let Some(listener) = launch::inherited_listener() {
        return Ok(listener);
    }
    let listener = match bind.map(|bind| (bind, bind.parse::<Address>())) {
        None => endpoint::listen_on("127.0.0.1", 0),
        Some((_, Ok(address))) => endpoint::listen(&address),
        Some((host, Err(_))) => endpoint::listen_on(host, 0),
    };
    listener.map_err(|error| Failure::usage(&error).with_hint(error.hint()))
}

pub(crate) fn local_address(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|error| error.to_string(), |address| address.to_string())
}

/// Suggests a port that no task of the cluster has.
fn other_port(resolved: &ResolvedTask) -> String {
    let (address, cluster) = (&resolved.address, &resolved.cluster);
    let ports: Vec<u16> = cluster.tasks().filter_map(|task| cluster.address(task)).map(Address::port).collect();
    let free = (address.port()..=u16::MAX).chain(2222..).find(|port| !ports.contains(port)).unwrap_or(2222);
    let text = address.to_string();
    let host = text.rsplit_once(':').map_or(&*text, |(host, _)| host);
    format!("another task may still be running; try another port, such as {host}:{free}")
}
