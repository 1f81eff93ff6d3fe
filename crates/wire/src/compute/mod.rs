//! Streams to a task that computes for others: a client sends tensors with a short head, and receives tensors back.
//!
//! They share a task's port with everything else and begin like a tensor stream, except that the server speaks first.
//! It sends the name of its local socket, so that a process on the same host that knows only the address can still use
//! shared memory. Other modules define what heads and tensors mean; this one moves them, bounds them and detects
//! silence.
//!
//! ```text
//! client: PREFACE              { header, head, descriptions, tensors } …
//! server: { its local name }   { header, head, descriptions, tensors } …
//! ```

mod connection;
mod message;

use std::io;
use std::time::{Duration, Instant};

pub use connection::{Connection, Heard, Reply, Request, Waiting, exchange};
pub use message::{Contents, ElementKind, Limits, Message, MessageError, Section, Tensor};

use crate::control::proto::Endpoint;
use crate::stream::{Socket, handshake};
use crate::{endpoint, link::ServeError};

/// How long a task may take to identify itself.
const GREETING: Duration = Duration::from_secs(5);
/// The longest name of a local socket.
const NAME_BYTES: usize = 256;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ComputeError {
    /// The connection broke, or the other end closed it.
    #[error("{}", endpoint::in_words(.0))]
    Io(io::Error),
    /// Not a byte has come for this long.
    #[error("silent for {} s", .0.as_secs())]
    Silent(Duration),
    /// The other end has not taken all of a message, so nothing can follow it.
    #[error("it does not read what it is sent")]
    Unread,
    /// The received data is not a message, or exceeds the limits.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The other end does not speak the protocol of a task that computes for others.
    #[error("the task there does not compute for others: is it `windlass join`, and of the same version?")]
    Foreign,
    /// The connection was accepted, but nothing arrives.
    #[error("no answer: it may be suspended, or not a `windlass join` task")]
    Mute,
    /// The process was told to stop while it waited.
    #[error("told to stop")]
    Stopped,
}

impl From<io::Error> for ComputeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Connects to a task that computes for others: through shared memory on the same host, otherwise by TCP. Host names
/// are resolved again on every call.
pub fn connect(address: &str) -> Result<Connection, ComputeError> {
    let (connection, local_name) = greeted(&Endpoint { address: address.to_owned(), local_name: String::new() })?;
    if local_name.is_empty() {
        return Ok(connection);
    }
    let near = Endpoint { address: address.to_owned(), local_name };
    match endpoint::connect(&near)? {
        // The task is on another host.
        Socket::Tcp(_) => Ok(connection),
        socket => begun(socket).map(|(connection, _)| connection),
    }
}

fn greeted(endpoint: &Endpoint) -> Result<(Connection, String), ComputeError> {
    begun(endpoint::connect(endpoint)?)
}

fn begun(mut socket: Socket) -> Result<(Connection, String), ComputeError> {
    socket.set_stall_timeout(GREETING)?;
    let mut connection = Connection::new(handshake::begin(socket)?)?;
    let limits = Limits { head: NAME_BYTES, sections: 0, bytes: 0 };
    let greeting = connection.receive(&limits, GREETING, &|| false).map_err(|error| match error {
        ComputeError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => ComputeError::Foreign,
        ComputeError::Message(_) => ComputeError::Foreign,
        ComputeError::Silent(_) => ComputeError::Mute,
        error => error,
    })?;
    let name = String::from_utf8(greeting.head).map_err(|_| ComputeError::Foreign)?;
    Ok((connection, name))
}

/// Accepts a stream, on the side of the task that computes.
pub fn accept(mut socket: Socket, local_name: &str) -> Result<Connection, ServeError> {
    socket.set_stall_timeout(GREETING)?;
    let mut connection = Connection::new(handshake::accept(socket)?)?;
    let sent = connection.send(local_name.as_bytes(), &[], GREETING, &|| false);
    sent.map_err(|error| ServeError::Io(io::Error::other(error.to_string())))?;
    Ok(connection)
}

/// The time since which the other end has been silent.
#[derive(Debug, Clone, Copy)]
struct Silence(Instant);

impl Silence {
    fn begins() -> Self {
        Self(Instant::now())
    }

    fn check(&self, patience: Duration) -> Result<(), ComputeError> {
        match self.0.elapsed() {
            silent if silent > patience => Err(ComputeError::Silent(silent)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
