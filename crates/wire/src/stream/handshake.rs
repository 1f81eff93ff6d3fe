//! How a tensor stream begins: the client's preface and, on one host, the offer of shared memory.
//!
//! Over a Unix socket, the client sends a shared memory file along with its preface, and the server replies with a byte
//! that accepts or declines it. If it declines, or between hosts, the connection is used as it is.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tracing::debug;

use crate::link::ServeError;
use crate::stream::SharedStream;
use crate::stream::Socket;
use crate::stream::frame::{PREFACE_BYTES, preface, read_preface};

/// Set this for a task to keep it from sharing memory, to measure or debug Unix sockets.
pub const NO_SHARING_VARIABLE: &str = "WINDLASS_NO_SHARED_MEMORY";
/// How long a server may take to answer an offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
const TAKEN: u8 = 1;
const DECLINED: u8 = 0;

/// Begins a stream, on the client's side.
pub(crate) fn begin(socket: Socket) -> io::Result<Socket> {
    match socket {
        Socket::Unix(stream) if std::env::var_os(NO_SHARING_VARIABLE).is_none() => offer(stream),
        mut socket => {
            socket.write_all(&preface())?;
            Ok(socket)
        }
    }
}

fn offer(mut stream: UnixStream) -> io::Result<Socket> {
    let (shared, file) = match SharedStream::create(stream.try_clone()?) {
        Ok(made) => made,
        Err(error) => {
            debug!(%error, "cannot make shared memory");
            stream.write_all(&preface())?;
            return Ok(Socket::Unix(stream));
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    attached.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(&stream, &[IoSlice::new(&preface())], &mut attached, SendFlags::empty())?;
    stream.write_all(&preface()[sent..])?;
    stream.set_read_timeout(Some(OFFER_TIMEOUT))?;
    let mut answer = [DECLINED];
    stream.read_exact(&mut answer)?;
    stream.set_read_timeout(None)?;
    Ok(if answer[0] == TAKEN { Socket::Shared(shared) } else { Socket::Unix(stream) })
}

/// Reads a stream's preface on the server's side, and maps the shared memory that comes with it.
pub fn accept(socket: Socket) -> Result<Socket, ServeError> {
    let mut bytes = [0; PREFACE_BYTES];
    match socket {
        Socket::Unix(mut stream) => {
            let (read, file) = receive_with_file(&stream, &mut bytes)?;
            stream.read_exact(&mut bytes[read..])?;
            read_preface(&bytes)?;
            let Some(file) = file else { return Ok(Socket::Unix(stream)) };
            match SharedStream::open(stream.try_clone()?, &file) {
                Ok(shared) => {
                    stream.write_all(&[TAKEN])?;
                    Ok(Socket::Shared(shared))
                }
                Err(error) => {
                    debug!(%error, "declined shared memory");
                    stream.write_all(&[DECLINED])?;
                    Ok(Socket::Unix(stream))
                }
            }
        }
        mut socket => {
            socket.read_exact(&mut bytes)?;
            read_preface(&bytes)?;
            Ok(socket)
        }
    }
}

/// Reads the first bytes of a stream, and the file that may come with them.
fn receive_with_file(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut attached = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut attached, RecvFlags::CMSG_CLOEXEC)?;
    let file = attached.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((message.bytes, file))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn connect(client: impl FnOnce(UnixStream) + Send + 'static) -> Result<Socket, ServeError> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || client(ours));
        let accepted = accept(Socket::Unix(theirs));
        client.join().unwrap();
        accepted
    }

    #[test]
    fn two_ends_on_one_host_share_memory_and_bytes_pass_both_ways() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut server = accept(Socket::Unix(theirs)).unwrap();
            let mut bytes = [0; 4];
            server.read_exact(&mut bytes).unwrap();
            server.write_all(&bytes).unwrap();
            server.flush().unwrap();
            server.kind()
        });
        let mut client = begin(Socket::Unix(ours)).unwrap();
        client.write_all(b"ping").unwrap();
        client.flush().unwrap();
        let mut bytes = [0; 4];
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
        assert_eq!((client.kind(), server.join().unwrap()), ("shared memory", "shared memory"));
    }

    #[test]
    fn a_client_that_offers_nothing_is_served_by_the_socket() {
        let socket = connect(|mut stream| stream.write_all(&preface()).unwrap()).unwrap();
        assert_eq!(socket.kind(), "unix");
    }

    #[test]
    fn a_file_that_is_no_region_is_declined_and_the_socket_serves() {
        let socket = connect(|mut stream| {
            let file = std::fs::File::open("/dev/null").unwrap();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut attached = SendAncillaryBuffer::new(&mut space);
            let files = [file.as_fd()];
            attached.push(SendAncillaryMessage::ScmRights(&files));
            sendmsg(&stream, &[IoSlice::new(&preface())], &mut attached, SendFlags::empty()).unwrap();
            let mut answer = [9];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [DECLINED]);
        });
        assert_eq!(socket.unwrap().kind(), "unix");
    }

    #[test]
    fn another_preface_is_refused() {
        let refused = connect(|mut stream| stream.write_all(b"GET / HT").unwrap());
        assert!(matches!(refused, Err(ServeError::Frame(_))));
    }
}
