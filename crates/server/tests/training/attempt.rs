//! One attempt at a request on a bad network: it is delivered intact, or meets a fault.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use windlass_wire::stream::frame::{Answer, AnswerKind, HEADER_BYTES, Request};

use crate::faults::{Fault, Frame};
use crate::network::{Orphan, SharedLink, Stage};
use crate::numbers::Random;

/// A request that was taken from a worker, and the connections to both ends.
pub struct Attempt<'a> {
    pub link: &'a SharedLink,
    pub frame: &'a Frame,
    pub client: &'a TcpStream,
    pub server: &'a TcpStream,
}

impl Attempt<'_> {
    /// Delivers the request and its answer intact.
    pub fn deliver(&self) -> io::Result<()> {
        let (answer, bytes) = self.exchange(0, true)?;
        // Before the answer is sent: a test may ask for this as soon as the worker has it.
        self.link.says(&self.frame.request, &answer, true);
        self.link.reach(&self.frame.request, Stage::Answered);
        self.tell(&bytes)
    }

    /// Injects a fault, after which the connection is unusable.
    pub fn meet(&self, fault: Fault, random: &mut Random) -> io::Result<()> {
        let met = match fault {
            Fault::Unheard => self.lose_worker(),
            Fault::AnswerLost | Fault::AnswerCutInHeader | Fault::AnswerCutInValues => self.cut_answer(fault, random),
            Fault::AnswerRefused => self.refuse_answer(fault, random),
            Fault::LateBesideRetry | Fault::LateAfterRetry | Fault::LateAfterNext | Fault::Orphaned => {
                self.delay(fault, random)
            }
            _ => self.cut(fault, random),
        };
        close(self.server);
        close(self.client);
        met
    }

    /// Cuts the request short. If the server answers that, the answer still arrives.
    fn cut(&self, fault: Fault, random: &mut Random) -> io::Result<()> {
        let mut server = self.server;
        server.write_all(&self.frame.bytes[..fault.bytes_at_once(self.frame, random)])?;
        server.shutdown(Shutdown::Write)?;
        while let Ok((answer, bytes)) = read_answer(server) {
            self.link.says(&self.frame.request, &answer, true);
            self.tell(&bytes)?;
        }
        Ok(())
    }

    /// The worker is gone while the server works.
    fn lose_worker(&self) -> io::Result<()> {
        let _late = self.link.late(self.frame.request.worker);
        close(self.client);
        let (answer, _) = self.exchange(0, true)?;
        self.link.says(&self.frame.request, &answer, false);
        Ok(())
    }

    /// The server sends its whole answer, but the worker receives only part of it.
    fn cut_answer(&self, fault: Fault, random: &mut Random) -> io::Result<()> {
        let (answer, bytes) = self.exchange(0, true)?;
        self.link.says(&self.frame.request, &answer, false);
        self.tell(&bytes[..fault.bytes_of_answer(bytes.len() - HEADER_BYTES, random)])
    }

    /// Reads no more of the answer from the server than the worker gets.
    fn refuse_answer(&self, fault: Fault, random: &mut Random) -> io::Result<()> {
        std::thread::scope(|scope| {
            scope.spawn(|| self.send(0, true));
            let mut server = self.server;
            let mut bytes = vec![0; HEADER_BYTES];
            let refused = server.read_exact(&mut bytes).and_then(|()| {
                let answer = read_header(&bytes)?;
                bytes.resize(fault.bytes_of_answer(values_bytes(&answer), random), 0);
                server.read_exact(bytes.get_mut(HEADER_BYTES..).unwrap_or_default())?;
                self.tell(&bytes)
            });
            close(server);
            refused
        })
    }

    /// The worker loses the connection, and what it has sent, or the rest of it, arrives later.
    fn delay(&self, fault: Fault, random: &mut Random) -> io::Result<()> {
        let (request, mut server) = (&self.frame.request, self.server);
        let _late = self.link.late(request.worker);
        let at_once = fault.bytes_at_once(self.frame, random);
        server.write_all(&self.frame.bytes[..at_once])?;
        if fault == Fault::Orphaned {
            // Its process must not notice before it dies.
            let Request { worker, sequence, .. } = *request;
            let (began, pieces) = (at_once >= HEADER_BYTES, self.frame.pieces_within(at_once));
            self.link.note_orphan(Orphan { worker, sequence, began, pieces });
        } else {
            close(self.client);
        }
        self.link.wait_for(request, fault);
        let (answer, _) = self.exchange(at_once, false)?;
        self.link.says(request, &answer, false);
        Ok(())
    }

    /// Sends the request from there on while the answer is read. Returns the answer that ends the request.
    fn exchange(&self, from: usize, counts_as_sent: bool) -> io::Result<(Answer, Vec<u8>)> {
        std::thread::scope(|scope| {
            scope.spawn(|| self.send(from, counts_as_sent));
            loop {
                let (answer, bytes) = read_answer(self.server).inspect_err(|_| close(self.server))?;
                if answer.kind != AnswerKind::Waiting {
                    return Ok((answer, bytes));
                }
            }
        })
    }

    fn send(&self, from: usize, counts_as_sent: bool) {
        let mut server = self.server;
        if server.write_all(&self.frame.bytes[from..]).is_ok() && counts_as_sent {
            self.link.reach(&self.frame.request, Stage::Sent);
        }
    }

    fn tell(&self, bytes: &[u8]) -> io::Result<()> {
        let mut client = self.client;
        client.write_all(bytes)
    }
}

fn read_answer(mut server: &TcpStream) -> io::Result<(Answer, Vec<u8>)> {
    let mut bytes = vec![0; HEADER_BYTES];
    server.read_exact(&mut bytes)?;
    let answer = read_header(&bytes)?;
    bytes.resize(HEADER_BYTES + values_bytes(&answer) + answer.text as usize, 0);
    server.read_exact(&mut bytes[HEADER_BYTES..])?;
    Ok((answer, bytes))
}

fn read_header(bytes: &[u8]) -> io::Result<Answer> {
    let header = bytes.first_chunk().ok_or(io::ErrorKind::UnexpectedEof)?;
    Answer::decode(header).map_err(io::Error::other)
}

fn values_bytes(answer: &Answer) -> usize {
    if answer.kind.has_values() { (answer.dense + answer.rows) as usize * size_of::<f32>() } else { 0 }
}

fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
