//! A connection to or from a task that computes for others, and exchanges over many of them on the calling thread.
//!
//! Sockets are not served one after another: a request goes out to every task while the first already answers, so a
//! large message to one does not delay the next.

use std::time::{Duration, Instant};

use super::message::{Incoming, pieces, preamble};
use super::{ComputeError, Limits, Message, MessageError, Section, Silence};
use crate::stream::Socket;
use crate::stream::exchange::{Outgoing, wait_ready};

/// How often a wait checks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many signs of life are read from one task before the others get their turn.
const AT_ONCE: usize = 1000;

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    incoming: Incoming,
    /// Why nothing more can be sent, if that turned out after the answer to the last request.
    broken: Option<ComputeError>,
}

/// Returns whether to stop waiting.
pub type IsStopped<'a> = &'a dyn Fn() -> bool;

impl Connection {
    pub(super) fn new(mut socket: Socket) -> Result<Self, std::io::Error> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, incoming: Incoming::new(), broken: None })
    }

    /// The transport, for logs.
    pub fn kind(&self) -> &'static str {
        self.socket.kind()
    }

    /// Why the connection cannot be used any more, although the last request was answered.
    pub fn broken(&self) -> Option<&ComputeError> {
        self.broken.as_ref()
    }

    /// A second handle, by which another thread can end the connection.
    pub fn handle(&self) -> std::io::Result<Socket> {
        self.socket.try_clone()
    }

    /// Sends a message. Fails if the other end accepts nothing for `patience`.
    pub fn send(
        &mut self,
        head: &[u8],
        sections: &[Section<'_>],
        patience: Duration,
        is_stopped: IsStopped<'_>,
    ) -> Result<(), ComputeError> {
        let preamble = preamble(head, sections);
        let pieces = pieces(&preamble, sections);
        let mut outgoing = Outgoing::new(&pieces);
        let mut silence = Silence::begins();
        loop {
            let before = outgoing.written();
            outgoing.advance(&mut self.socket, &pieces)?;
            if outgoing.is_done() {
                std::io::Write::flush(&mut self.socket)?;
                return Ok(());
            }
            if outgoing.written() > before {
                silence = Silence::begins();
            }
            silence.check(patience)?;
            self.wait(true, is_stopped)?;
        }
    }

    /// Receives the next message. Fails if not a byte arrives for `patience`.
    pub fn receive(
        &mut self,
        limits: &Limits,
        patience: Duration,
        is_stopped: IsStopped<'_>,
    ) -> Result<Message, ComputeError> {
        let mut silence = Silence::begins();
        loop {
            let mut moved = false;
            if let Some(message) = self.incoming.advance(&mut self.socket, limits, &mut moved)? {
                return Ok(message);
            }
            if moved {
                silence = Silence::begins();
            }
            silence.check(patience)?;
            self.wait(false, is_stopped)?;
        }
    }

    fn wait(&self, writing: bool, is_stopped: IsStopped<'_>) -> Result<(), ComputeError> {
        if is_stopped() {
            return Err(ComputeError::Stopped);
        }
        Ok(wait_ready(&[(&self.socket, writing)], LOOK_EVERY)?)
    }
}

/// A request to a task.
pub struct Request<'a> {
    /// The connection to the task.
    pub connection: &'a mut Connection,
    /// The head of the message.
    pub head: Vec<u8>,
    /// Its tensors.
    pub sections: Vec<Section<'a>>,
    /// The limits on the answer.
    pub limits: Limits,
}

/// The outcome of a request.
pub type Reply = Result<Message, ComputeError>;

/// How to wait for answers.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    /// A task is given up after this much silence.
    pub patience: Duration,
    /// Whether a message is an answer rather than a sign of life.
    pub is_answer: &'a dyn Fn(&Message) -> bool,
    /// Whether to stop waiting.
    pub is_stopped: IsStopped<'a>,
    /// Called whenever a request makes progress or fails, with its index in the list.
    pub heard: &'a dyn Fn(usize, Heard),
    /// A message for tasks that have answered, repeated at this interval while others are awaited. They do not reply to
    /// it.
    pub meanwhile: Option<(&'a [u8], Duration)>,
}

/// The progress of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// A sign of life, or a part of the answer.
    Something,
    /// The answer.
    Answer,
    /// No answer, and none is awaited any longer.
    Failed,
}

/// Sends requests to several tasks at once and waits for all of them. A task that fails or is silent delays no other.
pub fn exchange(requests: Vec<Request<'_>>, waiting: Waiting<'_>) -> Vec<Reply> {
    let told = waiting.meanwhile.map(|(head, every)| (preamble(head, &[]), every));
    let told = told.as_ref().map(|(bytes, every)| ([&bytes[..]], *every));
    let preambles: Vec<Vec<u8>> = requests.iter().map(|request| preamble(&request.head, &request.sections)).collect();
    let mut connections = Vec::with_capacity(requests.len());
    let mut sent = Vec::with_capacity(requests.len());
    for Request { connection, sections, limits, .. } in requests {
        connections.push(connection);
        sent.push((sections, limits));
    }
    let pieces: Vec<Vec<&[u8]>> =
        preambles.iter().zip(&sent).map(|(preamble, (sections, _))| pieces(preamble, sections)).collect();
    let mut calls: Vec<Call<'_>> = connections
        .into_iter()
        .zip(&pieces)
        .zip(&sent)
        .map(|((connection, pieces), (_, limits))| Call {
            connection,
            outgoing: Outgoing::new(pieces),
            pieces,
            limits,
            silence: Silence::begins(),
            spoken: Instant::now(),
            reply: None,
        })
        .collect();
    loop {
        for (index, call) in calls.iter_mut().enumerate() {
            match (&call.reply, &told) {
                (None, _) => {
                    let mut moved = false;
                    call.reply = call.advance(&waiting, &mut moved).transpose();
                    match &call.reply {
                        Some(Ok(_)) => (waiting.heard)(index, Heard::Answer),
                        Some(Err(_)) => (waiting.heard)(index, Heard::Failed),
                        None if moved => (waiting.heard)(index, Heard::Something),
                        None => {}
                    }
                }
                (Some(Ok(_)), Some((told, every))) => call.tell(told, *every),
                _ => {}
            }
        }
        let waited: Vec<(&Socket, bool)> = calls
            .iter()
            .filter(|call| call.reply.is_none())
            .map(|call| (&call.connection.socket, !call.outgoing.is_done()))
            .collect();
        if waited.is_empty() {
            break;
        }
        let ready = wait_ready(&waited, LOOK_EVERY);
        drop(waited);
        for (index, call) in calls.iter_mut().enumerate().filter(|(_, call)| call.reply.is_none()) {
            let error = match &ready {
                Err(error) => ComputeError::Io(error.kind().into()),
                // Never stop in the middle of a message, or the task could not parse the next.
                Ok(()) if call.outgoing.is_done() && (waiting.is_stopped)() => ComputeError::Stopped,
                Ok(()) => continue,
            };
            call.reply = Some(Err(error));
            (waiting.heard)(index, Heard::Failed);
        }
    }
    calls.into_iter().map(Call::reply).collect()
}

/// A request in progress.
struct Call<'a> {
    connection: &'a mut Connection,
    pieces: &'a [&'a [u8]],
    outgoing: Outgoing,
    limits: &'a Limits,
    silence: Silence,
    /// When something was last sent to the task.
    spoken: Instant,
    reply: Option<Reply>,
}

impl<'a> Call<'a> {
    /// Sends a task that has answered a small message at this interval. If it no longer receives it, its answer still
    /// counts, but the connection is broken.
    fn tell(&mut self, told: &'a [&'a [u8]], every: Duration) {
        if self.connection.broken.is_none()
            && let Err(error) = self.try_tell(told, every)
        {
            self.connection.broken = Some(error.into());
        }
    }

    fn try_tell(&mut self, told: &'a [&'a [u8]], every: Duration) -> std::io::Result<()> {
        if self.outgoing.is_done() && self.spoken.elapsed() >= every {
            (self.outgoing, self.pieces, self.spoken) = (Outgoing::new(told), told, Instant::now());
        }
        if !self.outgoing.is_done() {
            self.outgoing.advance(&mut self.connection.socket, self.pieces)?;
            std::io::Write::flush(&mut self.connection.socket)?;
        }
        Ok(())
    }

    /// The final outcome.
    fn reply(self) -> Reply {
        if !self.outgoing.is_done() && self.connection.broken.is_none() {
            // The task is in the middle of a message and could not parse what comes next.
            self.connection.broken = Some(ComputeError::Unread);
        }
        self.reply.unwrap_or(Err(ComputeError::Stopped))
    }

    /// Moves what can be moved. Returns the answer once it is complete.
    fn advance(&mut self, waiting: &Waiting<'_>, moved: &mut bool) -> Result<Option<Message>, ComputeError> {
        let Waiting { patience, is_answer, .. } = *waiting;
        let Connection { socket, incoming, .. } = &mut *self.connection;
        if !self.outgoing.is_done() {
            let before = self.outgoing.written();
            self.outgoing.advance(socket, self.pieces)?;
            if self.outgoing.written() > before {
                (self.silence, self.spoken) = (Silence::begins(), Instant::now());
            }
            if self.outgoing.is_done() {
                std::io::Write::flush(socket)?;
            }
        }
        for _ in 0..AT_ONCE {
            match incoming.advance(socket, self.limits, moved)? {
                Some(message) if is_answer(&message) && self.outgoing.is_done() => return Ok(Some(message)),
                Some(message) if is_answer(&message) => return Err(MessageError::Early.into()),
                Some(_) => {} // A sign of life.
                None => break,
            }
        }
        if *moved {
            self.silence = Silence::begins();
        }
        self.silence.check(patience)?;
        Ok(None)
    }
}
