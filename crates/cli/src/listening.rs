//! The port of a task of a cluster.

use std::net::{IpAddr, TcpListener};

use tracing::info;
use windlass_core::cluster::{Address, ResolvedTask};
use windlass_wire::endpoint::{self, BindError};

use crate::failure::Failure;
use crate::launch;

/// Uses the socket that the launcher passed on, or listens where the cluster says.
pub(crate) fn listen(resolved: &ResolvedTask, bind: Option<&str>) -> Result<TcpListener, Failure> {
    if let Some(listener) = launch::inherited_listener() {
        return Ok(listener);
    }
    let address = &resolved.address;
    let listener = match bind {
        Some(host) => endpoint::listen_on(host, address.port()),
        None => endpoint::listen(address),
    };
    if bind.is_none() && listener.is_ok() && is_elsewhere(address) {
        let host = address.host();
        info!("{host} is not an address of this machine, as in a container; listening on every interface (see --bind)");
    }
    listener.map_err(|error| {
        let hint = match &error {
            BindError::InUse { .. } => Some(other_port(resolved)),
            BindError::Other { .. } => error.hint(),
        };
        Failure::usage(&error).with_hint(hint)
    })
}

/// Uses the socket that the launcher passed on, or listens on the interface given to a client of joined workers: only
/// on this host unless it names another, and on any free port unless it names one.
pub(crate) fn listen_as_client(bind: Option<&str>) -> Result<TcpListener, Failure> {
    if let Some(listener) = launch::inherited_listener() {
        return Ok(listener);
    }
    let listener = match bind.map(|bind| (bind, bind.parse::<Address>())) {
        None => endpoint::listen_on("127.0.0.1", 0),
        Some((_, Ok(address))) => endpoint::listen_on(address.host(), address.port()),
        Some((host, Err(_))) => endpoint::listen_on(host, 0),
    };
    listener.map_err(|error| Failure::usage(&error).with_hint(error.hint()))
}

/// Whether no interface of this machine has the address. A name may be that of a Service or a load balancer, and looking
/// it up may take long, so it counts as one of this machine.
fn is_elsewhere(address: &Address) -> bool {
    let host = address.host().trim_matches(['[', ']']).parse::<IpAddr>();
    host.is_ok_and(|host| TcpListener::bind((host, 0)).is_err())
}

/// The address at which others reach this process: by this machine's name if it listens on every interface.
pub(crate) fn reached_at(listener: &TcpListener) -> String {
    match listener.local_addr() {
        Ok(address) if address.ip().is_unspecified() => format!("{}:{}", hostname(), address.port()),
        _ => local_address(listener),
    }
}

/// The name of this machine in the network.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_listens_on_just_the_interface_that_it_is_told_of() {
        let bound = |bind: Option<&str>| listen_as_client(bind).unwrap().local_addr().unwrap();
        assert!(bound(None).ip().is_loopback());
        assert_eq!(bound(Some("127.0.0.2")).ip().to_string(), "127.0.0.2");
        assert_eq!(bound(Some("0.0.0.0")).ip().to_string(), "0.0.0.0");
        let free = bound(Some("127.0.0.3")).port();
        assert_eq!(bound(Some(&format!("127.0.0.3:{free}"))).to_string(), format!("127.0.0.3:{free}"));
    }

    #[test]
    fn an_ip_address_that_no_interface_has_is_elsewhere() {
        let elsewhere = |address: &str| is_elsewhere(&address.parse().unwrap());
        assert!(elsewhere("192.0.2.1:2222") && elsewhere("[2001:db8::1]:2222"));
        assert!(!elsewhere("127.0.0.1:2222") && !elsewhere("0.0.0.0:2222") && !elsewhere("ps-0.invalid:2222"));
    }

    #[test]
    fn who_listens_everywhere_is_reached_by_the_name_of_the_machine() {
        let everywhere = endpoint::listen_on("0.0.0.0", 0).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        assert_eq!(reached_at(&everywhere), format!("{}:{port}", hostname()));
        let here = endpoint::listen_on("127.0.0.1", 0).unwrap();
        assert_eq!(reached_at(&here), local_address(&here));
    }
}
