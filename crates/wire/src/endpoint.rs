//! Where a server takes tensor streams, and how a worker gets there: by a Unix socket if it can, else by TCP.
//!
//! A server's Unix socket lives in Linux's abstract namespace under a name with a random part. A worker on the
//! same host finds it; one elsewhere cannot, and uses TCP. Nothing has to be configured, and nothing is left in
//! the file system.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use windlass_core::cluster::Address;

use crate::Socket;
use crate::control::Endpoint;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a task cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has the port.
    #[error("port {port} on {host} is in use")]
    InUse {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Other {
        /// What was tried.
        address: String,
        /// What the system said.
        source: io::Error,
    },
}

impl BindError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            BindError::InUse { host, port } => Some(format!(
                "another task may still be running; try another port, such as {host}:{}",
                port.checked_add(1).unwrap_or(2222)
            )),
            BindError::Other { .. } => {
                Some("is this the right host for this task? --bind ADDRESS chooses another address".to_owned())
            }
        }
    }
}

/// Listens where a task's peers expect it. A loopback address is listened on as it is written; any other name
/// may belong to a load balancer or a container's host, so every interface is listened on.
pub fn listen(address: &Address) -> Result<TcpListener, BindError> {
    let host = if address.is_loopback() { address.host() } else { "0.0.0.0" };
    listen_on(host, address.port())
}

/// Listens on exactly this host and port.
pub fn listen_on(host: &str, port: u16) -> Result<TcpListener, BindError> {
    TcpListener::bind((host, port)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { host: host.to_owned(), port },
        _ => BindError::Other { address: format!("{host}:{port}"), source },
    })
}

/// Set for a server to keep it from opening a Unix socket, to measure or to debug TCP on one host.
pub const NO_LOCAL_VARIABLE: &str = "WINDLASS_NO_UNIX";

/// Opens the Unix socket for workers on this host, and returns its name. `None` where there is no such thing.
pub fn listen_locally(port: u16) -> Option<(UnixListener, String)> {
    if std::env::var_os(NO_LOCAL_VARIABLE).is_some() {
        return None;
    }
    let random = RandomState::new().build_hasher().finish();
    let name = format!("windlass-{port}-{random:016x}");
    let address = abstract_address(&name)?;
    Some((UnixListener::bind_addr(&address).ok()?, name))
}

/// Connects to a server: by its Unix socket if that is on this host, else by TCP.
pub fn connect(endpoint: &Endpoint) -> io::Result<Socket> {
    if !endpoint.local_name.is_empty()
        && let Some(address) = abstract_address(&endpoint.local_name)
        && let Ok(stream) = UnixStream::connect_addr(&address)
    {
        return Socket::unix(stream);
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{} has no address", endpoint.address));
    for address in endpoint.address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Socket::tcp(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &str) -> Option<std::os::unix::net::SocketAddr> {
    use std::os::linux::net::SocketAddrExt;
    std::os::unix::net::SocketAddr::from_abstract_name(name).ok()
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &str) -> Option<std::os::unix::net::SocketAddr> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_one_host_the_unix_socket_is_chosen() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let (_unix, local_name) = listen_locally(port).unwrap();
        let address = format!("127.0.0.1:{port}");
        assert_eq!(connect(&Endpoint { address: address.clone(), local_name }).unwrap().kind(), "unix");
        let elsewhere = Endpoint { address, local_name: "windlass-1-not-on-this-host".into() };
        assert_eq!(connect(&elsewhere).unwrap().kind(), "tcp");
    }

    #[test]
    fn a_port_in_use_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listen_on("127.0.0.1", port).unwrap_err();
        assert_eq!(error.to_string(), format!("port {port} on 127.0.0.1 is in use"));
        assert!(error.hint().unwrap().contains("another task may still be running"));
    }
}
