//! A connected stream of any kind: TCP between hosts; a Unix socket or shared memory within one.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::stream::SharedStream;

/// Enough buffer for a few megabytes in flight, so that a step of a small network is one write and one wake-up.
const BUFFER_BYTES: usize = 4 << 20;

/// Keepalives that detect a vanished host and end reads from it.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
/// How long sent bytes may stay unacknowledged before the connection is closed.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// A tensor stream's socket.
#[derive(Debug)]
pub enum Socket {
    /// Between hosts.
    Tcp(TcpStream),
    /// Within a host.
    Unix(UnixStream),
    /// Within a host, through shared memory.
    Shared(SharedStream),
}

impl Socket {
    /// A TCP connection with its options set.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let keep_alive = socket2::TcpKeepalive::new().with_time(KEEP_ALIVE_AFTER).with_interval(KEEP_ALIVE_EVERY);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keep_alive)?;
        close_if_unacknowledged(&stream)?;
        Ok(Socket::Tcp(stream))
    }

    /// A TCP connection that this process has accepted, with its options set.
    pub fn accepted(stream: TcpStream) -> io::Result<Self> {
        Self::tcp(stream)
    }

    /// A Unix connection with its options set. The kernel may grant a smaller buffer, which only costs speed.
    pub fn unix(stream: UnixStream) -> io::Result<Self> {
        let socket = socket2::SockRef::from(&stream);
        let _ = socket.set_send_buffer_size(BUFFER_BYTES);
        Ok(Socket::Unix(stream))
    }

    /// Chooses between blocking and [`io::ErrorKind::WouldBlock`].
    pub fn set_nonblocking(&mut self, nonblocking: bool) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(nonblocking),
            Socket::Shared(stream) => {
                stream.set_nonblocking(nonblocking);
                Ok(())
            }
        }
    }

    /// Sets how long a blocking read or write may go without a byte; [`is_stalled`] recognises the error.
    pub fn set_stall_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Socket::Shared(stream) => {
                stream.set_stall_timeout(timeout);
                Ok(())
            }
        }
    }

    /// A second handle to the same connection, to shut it down from another thread.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Socket::Tcp(stream) => Socket::Tcp(stream.try_clone()?),
            Socket::Unix(stream) => Socket::Unix(stream.try_clone()?),
            Socket::Shared(stream) => Socket::Unix(stream.bell().try_clone()?),
        })
    }

    /// Shuts the connection down in both directions, which wakes its reader and its writer.
    pub fn shutdown(&self) {
        let _ = match self {
            Socket::Tcp(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Unix(stream) => stream.shutdown(std::net::Shutdown::Both),
            Socket::Shared(stream) => stream.bell().shutdown(std::net::Shutdown::Both),
        };
    }

    /// The transport, for logs.
    pub fn kind(&self) -> &'static str {
        match self {
            Socket::Tcp(_) => "tcp",
            Socket::Unix(_) => "unix",
            Socket::Shared(_) => "shared memory",
        }
    }

    /// True if [`Socket::receive_in_place`] is supported.
    pub fn receives_in_place(&self) -> bool {
        matches!(self, Socket::Shared(_))
    }

    /// The next bytes in place, without a copy, up to [`SharedStream::CAPACITY`]. They stay valid until the next call.
    pub fn receive_in_place(&mut self, len: usize) -> io::Result<&[u8]> {
        match self {
            Socket::Shared(stream) => stream.receive(len),
            Socket::Tcp(_) | Socket::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Places bytes for the other end, without an intermediate copy; they are sent by [`Socket::send_staged`]. Returns
    /// false, and does nothing, if this kind of stream cannot do so, or not now. Never waits.
    pub fn stage(&mut self, bytes: &[u8]) -> bool {
        match self {
            Socket::Shared(stream) => stream.stage(bytes),
            Socket::Tcp(_) | Socket::Unix(_) => false,
        }
    }

    /// Makes the staged bytes visible to the other end.
    pub fn send_staged(&mut self) {
        if let Socket::Shared(stream) = self {
            stream.send_staged();
        }
    }
}

/// Makes the system close a TCP connection to a vanished or disconnected host soon after something was sent to it. By
/// default it tries for a quarter of an hour.
pub(crate) fn close_if_unacknowledged(stream: &impl AsFd) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    socket2::SockRef::from(stream).set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, UNACKNOWLEDGED);
    Ok(())
}

/// True for the error of a socket that has moved nothing for its stall timeout.
pub fn is_stalled(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buffer),
            Socket::Unix(stream) => stream.read(buffer),
            Socket::Shared(stream) => stream.read_vectored(&mut [IoSliceMut::new(buffer)]),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read_vectored(buffers),
            Socket::Unix(stream) => stream.read_vectored(buffers),
            Socket::Shared(stream) => stream.read_vectored(buffers),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(buffer),
            Socket::Unix(stream) => stream.write(buffer),
            Socket::Shared(stream) => stream.write_vectored(&[IoSlice::new(buffer)]),
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write_vectored(buffers),
            Socket::Unix(stream) => stream.write_vectored(buffers),
            Socket::Shared(stream) => stream.write_vectored(buffers),
        }
    }

    /// Wakes the other end of shared memory if it sleeps; until then it may not see what was written.
    fn flush(&mut self) -> io::Result<()> {
        self.send_staged();
        Ok(())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Tcp(stream) => stream.as_fd(),
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Shared(stream) => stream.as_fd(),
        }
    }
}
