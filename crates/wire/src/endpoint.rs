//! Where a server accepts tensor streams, and how a worker reaches it: through a Unix socket if possible, else by TCP.
//!
//! A server's Unix socket lives in Linux's abstract namespace, under a name with a random part. A worker on the same
//! host finds it; a worker elsewhere does not, and uses TCP. Nothing needs to be configured, and nothing is left behind
//! in the file system.

use std::error::Error;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use windlass_core::cluster::Address;

use crate::control::proto::Endpoint;
use crate::stream::Socket;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why a task cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process uses the port.
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
        /// The address.
        address: String,
        /// The system's error.
        source: io::Error,
    },
}

impl BindError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            BindError::InUse { host, port } => Some(format!(
                "another task may still be running; try another port, such as {}",
                written(host, port.checked_add(1).unwrap_or(2222))
            )),
            BindError::Other { .. } => {
                Some("is this the right host for this task? --bind ADDRESS chooses another address".to_owned())
            }
        }
    }
}

/// Listens where a task's peers expect it. A loopback address is bound exactly as written. Any other name may belong to
/// a load balancer or a container's host, so the task listens on every interface, with IPv6 and IPv4.
pub fn listen(address: &Address) -> Result<TcpListener, BindError> {
    if address.is_loopback() {
        return listen_on(address.host(), address.port());
    }
    match listen_everywhere(address.port()) {
        // The machine has no IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => listen_on("0.0.0.0", address.port()),
        listener => listener.map_err(|source| cannot_bind(address.host(), address.port(), source)),
    }
}

/// Listens on exactly this host, a name or an IP address, and port. An IPv6 address may be in brackets.
pub fn listen_on(host: &str, port: u16) -> Result<TcpListener, BindError> {
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    TcpListener::bind((host, port)).map_err(|source| cannot_bind(host, port, source))
}

/// Listens on all IPv6 and IPv4 addresses of this machine. The address of an IPv4 peer is mapped into IPv6.
fn listen_everywhere(port: u16) -> io::Result<TcpListener> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV6, Type::STREAM, None)?;
    socket.set_only_v6(false)?;
    // As the standard library does, so that a task can be restarted at once.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn cannot_bind(host: &str, port: u16, source: io::Error) -> BindError {
    match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { host: host.to_owned(), port },
        _ => BindError::Other { address: written(host, port), source },
    }
}

/// A host and port as users write them.
fn written(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Set this for a server to keep it from opening a Unix socket, to measure or debug TCP on one host.
pub const NO_LOCAL_VARIABLE: &str = "WINDLASS_NO_UNIX";

/// Opens the Unix socket for workers on this host, and returns its name. `None` where that is not supported.
pub fn listen_locally(port: u16) -> Option<(UnixListener, String)> {
    if std::env::var_os(NO_LOCAL_VARIABLE).is_some() {
        return None;
    }
    let random = RandomState::new().build_hasher().finish();
    let name = format!("windlass-{port}-{random:016x}");
    let address = abstract_address(&name)?;
    Some((UnixListener::bind_addr(&address).ok()?, name))
}

/// Connects to a server: through its Unix socket if it is on this host, else by TCP.
pub fn connect(endpoint: &Endpoint) -> io::Result<Socket> {
    if !endpoint.local_name.is_empty()
        && let Some(address) = abstract_address(&endpoint.local_name)
        && let Ok(stream) = UnixStream::connect_addr(&address)
    {
        return Socket::unix(stream);
    }
    let addresses = endpoint.address.to_socket_addrs().map_err(|error| unresolved(&endpoint.address, &error))?;
    let mut last = unresolved(&endpoint.address, &"it has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => return Socket::tcp(stream),
            Err(error) => last = in_words(&error),
        }
    }
    Err(last)
}

/// Explains why a task at this address could not be reached, in words a user can act on. Resolves the host again, since
/// the error of a failed connection does not say whether it was found.
pub async fn explain(address: &str, error: impl Error + Send + 'static) -> String {
    if let Err(error) = tokio::net::lookup_host(address).await {
        return unresolved(address, &error).to_string();
    }
    let mut cause: &(dyn Error + 'static) = &error;
    loop {
        if let Some(error) = cause.downcast_ref::<io::Error>() {
            return in_words(error).to_string();
        }
        match cause.source() {
            Some(deeper) => cause = deeper,
            None => return cause.to_string(),
        }
    }
}

/// The error for a host that has no address, or not yet.
fn unresolved(address: &str, error: &dyn Display) -> io::Error {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let error = error.to_string();
    let error = error.strip_prefix("failed to lookup address information: ").unwrap_or(&error);
    let text = format!("cannot resolve host {host:?}: {error} (is it spelled right, and known to this machine?)");
    io::Error::new(io::ErrorKind::NotFound, text)
}

/// Replaces a connection's error by plain words, without system error numbers.
pub(crate) fn in_words(error: &io::Error) -> io::Error {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused: nothing is listening there yet",
        io::ErrorKind::TimedOut => "no answer: is the host up, and the port open?",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "no route to the host",
        // The system accepted the connection, but the process does not serve it.
        io::ErrorKind::WouldBlock => "it does not answer: is it suspended, or is its machine overloaded?",
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::UnexpectedEof => {
            "it closed the connection"
        }
        io::ErrorKind::WriteZero | io::ErrorKind::BrokenPipe => "its process is gone",
        io::ErrorKind::AddrNotAvailable => "this machine has no address of that kind (IPv4 or IPv6)",
        _ => return io::Error::new(error.kind(), error.to_string()),
    };
    io::Error::new(error.kind(), text)
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

    /// A port that was free a moment ago on all addresses.
    fn port() -> u16 {
        listen_everywhere(0).unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn a_host_by_name_is_listened_for_by_either_kind_of_address() {
        let port = port();
        let _listener = listen(&Address::new("a-name-of-this-host", port).unwrap()).unwrap();
        for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
            assert_eq!(connect(&Endpoint { address, local_name: String::new() }).unwrap().kind(), "tcp");
        }
    }

    #[test]
    fn an_ipv6_address_is_listened_on_with_and_without_brackets() {
        for host in ["::1", "[::1]"] {
            let port = port();
            let listener = listen_on(host, port).unwrap();
            assert_eq!(listener.local_addr().unwrap().to_string(), format!("[::1]:{port}"));
            let again = listen_on(host, port).unwrap_err();
            assert_eq!(again.to_string(), format!("port {port} on ::1 is in use"));
            assert!(again.hint().unwrap().ends_with(&format!(", such as [::1]:{}", port + 1)));
        }
    }

    #[test]
    fn an_unknown_host_is_named() {
        let nowhere = Endpoint { address: "no-such-host.invalid:2222".into(), local_name: String::new() };
        let error = connect(&nowhere).unwrap_err().to_string();
        assert!(error.starts_with("cannot resolve host \"no-such-host.invalid\": "), "{error}");
    }

    #[test]
    fn a_port_where_nothing_listens_is_told_from_an_unknown_host() {
        let nobody = Endpoint { address: format!("[::1]:{}", port()), local_name: String::new() };
        let error = connect(&nobody).unwrap_err();
        assert_eq!(error.to_string(), "connection refused: nothing is listening there yet");
    }

    #[test]
    fn a_server_that_takes_a_connection_and_does_not_answer_is_told_without_numbers_of_the_system() {
        let (mut ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        let error = io::Read::read(&mut ours, &mut [0]).unwrap_err();
        assert_eq!(in_words(&error).to_string(), "it does not answer: is it suspended, or is its machine overloaded?");
        assert_eq!(in_words(&error).kind(), error.kind());
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
