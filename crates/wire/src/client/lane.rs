//! One request to one server: its outgoing bytes and its incoming answer.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use windlass_core::cluster::ServerId;
use windlass_core::parameter::{Access, ParameterSpec};
use windlass_core::plan::ShardPlan;

use super::local::LocalPeer;
use super::rows::{RowsIn, RowsOut};
use super::{ClientError, FloatBuffer, Interrupt, ParameterClient, Push, Traffic};
use crate::link::{ServeError, Shard};
use crate::retry::Backoff;
use crate::stream::Socket;
use crate::stream::exchange::{Arrival, Incoming, Outgoing, is_final};
use crate::stream::frame::{Answer, AnswerKind, HEADER_BYTES, Request, RequestKind};

/// A note's length is a multiple of this.
const WORD_BYTES: usize = size_of::<u32>();

/// The shortest and the longest pause before a request that keeps failing is sent again.
const RESEND_PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

pub(super) struct Lane {
    request: Request,
    header: [u8; HEADER_BYTES],
    note: Vec<u8>,
    rows_out: RowsOut,
    rows_in: RowsIn,
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    answer: Option<Answer>,
    text: Option<String>,
    /// When bytes last moved.
    moved: Instant,
    /// Since when the connection has kept breaking without a message from the server; the pauses between attempts.
    failing: Option<Instant>,
    backoff: Backoff,
    /// True if the push was dropped and this lane asks for the values again.
    dropped: bool,
}

impl Lane {
    pub(super) fn new<B: FloatBuffer>(
        client: &ParameterClient<B>,
        index: usize,
        kind: RequestKind,
        push: &Push<B>,
    ) -> Self {
        let plan = &client.plan.servers[index];
        let note = if index == 0 { whole_words(&push.note) } else { Vec::new() };
        let rows_out = RowsOut::new(&client.table, plan, push);
        let rows_in = RowsIn::new(&client.table, plan, &push.wanted);
        let request = Request {
            kind,
            worker: client.worker,
            incarnation: client.incarnation,
            sequence: client.sequence,
            base: client.servers[index].base,
            learning_rate: client.learning_rate,
            note: (note.len() / WORD_BYTES) as u32,
            dense: if kind == RequestKind::Pull { 0 } else { plan.dense_elements() as u64 },
            rows: rows_out.sections,
            wanted: rows_out.wanted_sections,
        };
        Self {
            header: request.encode(),
            request,
            note,
            rows_out,
            rows_in,
            outgoing: None,
            incoming: Incoming::new(),
            answer: None,
            text: None,
            moved: Instant::now(),
            failing: None,
            backoff: Backoff::new(RESEND_PAUSES),
            dropped: false,
        }
    }

    /// A lane that asks for values of at least this version, after the server gave older ones.
    pub(super) fn again<B: FloatBuffer>(
        &self,
        client: &ParameterClient<B>,
        index: usize,
        version: u64,
        push: &Push<B>,
    ) -> Self {
        let wanted = Push { wanted: push.wanted.clone(), ..Push::default() };
        let mut lane = Self::new(client, index, RequestKind::Pull, &wanted);
        lane.request.base = version;
        lane.header = lane.request.encode();
        lane.dropped = self.is_dropped();
        lane
    }

    /// Writes and reads as far as the socket allows.
    pub(super) fn advance(
        &mut self,
        socket: &mut Socket,
        gradients: &[&[f32]],
        places: &mut [&mut [f32]],
    ) -> io::Result<()> {
        let before = self.bytes_moved();
        let advanced = self.move_bytes(socket, gradients, places);
        if self.bytes_moved() != before {
            self.moved = Instant::now();
        }
        advanced
    }

    fn bytes_moved(&self) -> (usize, usize) {
        (self.outgoing.as_ref().map_or(0, Outgoing::written), self.incoming.read())
    }

    fn move_bytes(&mut self, socket: &mut Socket, gradients: &[&[f32]], places: &mut [&mut [f32]]) -> io::Result<()> {
        if !self.is_sent() {
            let gradients = if self.request.kind == RequestKind::Pull { &[] } else { gradients };
            let mut pieces: Vec<&[u8]> = Vec::with_capacity(gradients.len() + 3);
            pieces.extend([self.header.as_slice(), &self.note]);
            pieces.extend(gradients.iter().map(|piece| bytemuck::cast_slice::<f32, u8>(piece)));
            pieces.push(self.rows_out.bytes());
            let outgoing = self.outgoing.get_or_insert_with(|| Outgoing::new(&pieces));
            outgoing.advance(socket, &pieces)?;
        }
        let takes_values = self.request.kind != RequestKind::Initialise;
        let mut arriving: Vec<&mut [u8]> = Vec::with_capacity(places.len() + 1);
        if takes_values {
            arriving.extend(places.iter_mut().map(|place| bytemuck::cast_slice_mut::<f32, u8>(place)));
            arriving.push(bytemuck::cast_slice_mut(self.rows_in.values_mut()));
        }
        loop {
            match self.incoming.advance(socket, &mut arriving)? {
                Arrival::Partial => return Ok(()),
                Arrival::Complete(answer) => {
                    self.answer = Some(answer);
                    return Ok(());
                }
                Arrival::Message(answer, text) => {
                    self.moved = Instant::now();
                    self.failing = None;
                    self.backoff.reset();
                    self.text = Some(text);
                    if is_final(answer.kind) {
                        self.answer = Some(answer);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Serves this lane by a call, for a server in the same process. The lane stays unanswered if the server is still
    /// waiting for others.
    pub(super) fn serve(
        &mut self,
        server: ServerId,
        shard: &dyn Shard,
        gradients: &[&[f32]],
        places: &mut [&mut [f32]],
        interrupt: &Interrupt,
    ) -> Result<(), ClientError> {
        let (bytes, row_values) = ((&*self.note, self.rows_out.bytes()), self.rows_in.values_mut());
        let mut peer = LocalPeer::new(gradients, bytes, places, row_values, interrupt);
        let served = shard.serve(&self.request, &mut peer);
        let (answer, text) = peer.into_answer();
        self.text = Some(text);
        match served {
            Ok(()) => self.answer = answer,
            // The coordinator announces this worker's process to the local server soon; the request is then repeated.
            Err(ServeError::Unannounced(_)) => {
                self.text = Some(format!("the coordinator to announce this worker to {server}"))
            }
            Err(ServeError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(ServeError::Io(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {
                return Err(ClientError::Gone(server));
            }
            Err(error) => return Err(ClientError::Refused { server, reason: error.to_string() }),
        }
        self.check(server)
    }

    /// Turns a refusal into an error.
    pub(super) fn check(&self, server: ServerId) -> Result<(), ClientError> {
        match self.answer.map(|answer| answer.kind) {
            Some(AnswerKind::Fenced) => Err(ClientError::Fenced(server)),
            Some(AnswerKind::Refused) => {
                Err(ClientError::Refused { server, reason: self.text.clone().unwrap_or_default() })
            }
            _ => Ok(()),
        }
    }

    /// Records that the connection broke. Returns how long it has been breaking, and how long to pause.
    pub(super) fn fail(&mut self) -> (Duration, Duration) {
        let failing = self.failing.get_or_insert_with(Instant::now).elapsed();
        (failing, self.backoff.pause())
    }

    /// Restarts the request on a new connection.
    pub(super) fn restart(&mut self) {
        self.outgoing = None;
        self.incoming = Incoming::new();
        self.text = None;
        self.moved = Instant::now();
    }

    pub(super) fn is_sent(&self) -> bool {
        self.is_answered() || self.outgoing.as_ref().is_some_and(Outgoing::is_done)
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer.is_some()
    }

    pub(super) fn answer(&self) -> Option<Answer> {
        self.answer
    }

    /// What the server waits for, by its last message.
    pub(super) fn waiting_text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// True if nothing has arrived or left for this long, not even a message that the server is waiting.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        self.moved.elapsed() > patience
    }

    /// True if the push was not counted.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped || self.answer.is_some_and(|answer| answer.kind != AnswerKind::Values)
    }

    /// The payload that this lane has moved.
    pub(super) fn traffic(&self) -> Traffic {
        let received = self.answer.map_or(0, |answer| (answer.dense + answer.rows) * 4);
        let sent = self.request.dense * 4 + self.rows_out.bytes().len() as u64;
        Traffic { sent, received, in_process: 0 }
    }

    pub(super) fn deliver_rows(&self, answers: &mut [Vec<f32>]) {
        self.rows_in.deliver(answers);
    }
}

/// Pads a note to whole words for transmission.
fn whole_words(note: &str) -> Vec<u8> {
    let mut bytes = note.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(WORD_BYTES), b' ');
    bytes
}

/// How many values of a parameter are sent densely.
pub(super) fn dense_elements(spec: &ParameterSpec) -> usize {
    if spec.access == Access::Dense { spec.elements() } else { 0 }
}

/// Collects, for every server, its pieces of the caller's buffers. An empty push has no pieces.
pub(super) fn gather<'a, B: FloatBuffer>(plan: &ShardPlan, dense: &'a [B]) -> Vec<Vec<&'a [f32]>> {
    let piece = |parameter: usize, range: &Range<usize>| &dense[parameter].floats()[range.clone()];
    let servers = plan.servers.iter().map(|server| {
        let segments = server.segments.iter().filter(|_| !dense.is_empty());
        segments.map(|segment| piece(segment.parameter.0 as usize, &segment.range)).collect()
    });
    servers.collect()
}

/// Collects, for every server, where in the caller's buffers its values arrive. Empty buffers have no such places.
pub(super) fn scatter<'a, B: FloatBuffer>(plan: &ShardPlan, dense: &'a mut [B]) -> Vec<Vec<&'a mut [f32]>> {
    let mut cuts: Vec<(u32, usize, usize, usize)> = Vec::new();
    for (server, part) in plan.servers.iter().enumerate() {
        for segment in &part.segments {
            cuts.push((segment.parameter.0, segment.range.start, segment.range.end, server));
        }
    }
    cuts.sort_unstable();
    let mut places: Vec<Vec<&'a mut [f32]>> = plan.servers.iter().map(|_| Vec::new()).collect();
    let mut cuts = cuts.into_iter().peekable();
    for (parameter, buffer) in dense.iter_mut().enumerate() {
        let mut rest = buffer.floats_mut();
        while let Some((_, start, end, server)) = cuts.next_if(|cut| cut.0 as usize == parameter) {
            if rest.is_empty() {
                continue;
            }
            let (place, tail) = rest.split_at_mut(end - start);
            places[server].push(place);
            rest = tail;
        }
    }
    places
}
