//! One request to one server: its bytes on the way out and its answer on the way in.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use windlass_core::cluster::ServerId;
use windlass_core::parameter::{Access, ParameterSpec};
use windlass_core::plan::ShardPlan;

use super::local::LocalPeer;
use super::rows::{RowsIn, RowsOut};
use super::{ClientError, ParameterClient, Push};
use crate::Socket;
use crate::exchange::{Arrival, Incoming, Outgoing, is_final};
use crate::frame::{Answer, AnswerKind, HEADER_BYTES, Request, RequestKind};
use crate::link::Shard;

pub(super) struct Lane {
    request: Request,
    header: [u8; HEADER_BYTES],
    rows_out: RowsOut,
    rows_in: RowsIn,
    outgoing: Option<Outgoing>,
    incoming: Incoming,
    answer: Option<Answer>,
    text: Option<String>,
    heard: Instant,
}

impl Lane {
    pub(super) fn new(client: &ParameterClient, index: usize, kind: RequestKind, push: &Push) -> Self {
        let plan = &client.plan.servers[index];
        let rows_out = RowsOut::new(&client.table, plan, push);
        let rows_in = RowsIn::new(&client.table, plan, &push.wanted);
        let request = Request {
            kind,
            worker: client.worker,
            incarnation: client.incarnation,
            sequence: client.sequence,
            base: client.servers[index].base,
            learning_rate: client.learning_rate,
            dense: if kind == RequestKind::Pull { 0 } else { plan.dense_elements() as u64 },
            rows: rows_out.sections,
            wanted: rows_out.wanted_sections,
        };
        Self {
            header: request.encode(),
            request,
            rows_out,
            rows_in,
            outgoing: None,
            incoming: Incoming::new(),
            answer: None,
            text: None,
            heard: Instant::now(),
        }
    }

    /// Writes and reads as far as the socket allows.
    pub(super) fn advance(
        &mut self,
        socket: &mut Socket,
        gradients: &[&[f32]],
        places: &mut [&mut [f32]],
    ) -> io::Result<()> {
        if !self.is_sent() {
            let mut pieces: Vec<&[u8]> = Vec::with_capacity(gradients.len() + 2);
            pieces.push(&self.header);
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
                    self.heard = Instant::now();
                    self.text = Some(text);
                    if is_final(answer.kind) {
                        self.answer = Some(answer);
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Serves this lane by a call, for a server in the same process.
    pub(super) fn serve(&mut self, shard: &dyn Shard, gradients: &[&[f32]], places: &mut [&mut [f32]]) {
        let takes_values = self.request.kind != RequestKind::Initialise;
        let mut peer = LocalPeer::new(gradients, self.rows_out.bytes(), places, self.rows_in.values_mut());
        let served = shard.serve(&self.request, &mut peer);
        let (answer, text) = peer.into_answer();
        self.text = Some(text);
        self.answer = match (served, answer) {
            (Ok(()), Some(answer)) if takes_values || !answer.kind.has_values() => Some(answer),
            (Ok(()), Some(answer)) => Some(Answer { dense: 0, rows: 0, ..answer }),
            (Ok(()), None) => Some(refusal()),
            (Err(error), _) => {
                self.text = Some(error.to_string());
                Some(refusal())
            }
        };
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

    /// Begins again, on a new connection.
    pub(super) fn restart(&mut self) {
        self.outgoing = None;
        self.incoming = Incoming::new();
        self.text = None;
        self.heard = Instant::now();
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

    /// What the server last said it waits for.
    pub(super) fn waiting_text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// True if the server has not even said that it waits.
    pub(super) fn is_silent(&self, patience: Duration) -> bool {
        self.heard.elapsed() > patience
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.request.dense * 4 + self.rows_out.bytes().len() as u64
    }

    pub(super) fn deliver_rows(&self, answers: &mut [Vec<f32>]) {
        self.rows_in.deliver(answers);
    }
}

fn refusal() -> Answer {
    let learning_rate = windlass_core::run::LearningRate::initial(0.0);
    Answer { kind: AnswerKind::Refused, over: false, version: 0, learning_rate, dense: 0, rows: 0, text: 0 }
}

/// How many values of a parameter travel densely.
pub(super) fn dense_elements(spec: &ParameterSpec) -> usize {
    if spec.access == Access::Dense { spec.elements() } else { 0 }
}

/// For every server, the pieces of the caller's buffers that belong to it. No pieces for an empty push.
pub(super) fn gather<'a>(plan: &ShardPlan, dense: &'a [Vec<f32>]) -> Vec<Vec<&'a [f32]>> {
    let piece = |parameter: usize, range: &Range<usize>| &dense[parameter][range.clone()];
    let servers = plan.servers.iter().map(|server| {
        let segments = server.segments.iter().filter(|_| !dense.is_empty());
        segments.map(|segment| piece(segment.parameter.0 as usize, &segment.range)).collect()
    });
    servers.collect()
}

/// For every server, the places in the caller's buffers where its values arrive. Empty buffers have no places.
pub(super) fn scatter<'a>(plan: &ShardPlan, dense: &'a mut [Vec<f32>]) -> Vec<Vec<&'a mut [f32]>> {
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
        let mut rest: &'a mut [f32] = buffer;
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
