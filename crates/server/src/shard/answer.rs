//! Answers to requests: the values once the worker may continue, and until then the workers that it waits for.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use windlass_core::admission::{Gate, Turn};
use windlass_wire::link::{Peer, ServeError};
use windlass_wire::stream::frame::{Answer, AnswerKind, Request, RequestKind};

use super::receive::WantedRows;
use super::{ParameterShard, bad_rows, ended, lock};

/// How often a waiting worker is told what it waits for.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// How often to check whether the worker still waits.
const LOOK_EVERY: Duration = Duration::from_millis(200);

impl ParameterShard {
    /// Waits until the worker may continue, telling it which workers it waits for, and sends it the values. A worker
    /// that asks for a future version takes no part in the rounds until then, once it is known to be the living
    /// process.
    pub(super) fn wait_and_answer(
        &self,
        request: &Request,
        kind: AnswerKind,
        wanted: &[WantedRows],
        peer: &mut dyn Peer,
    ) -> Result<(), ServeError> {
        let asked = request.into();
        let mut gate = lock(&self.gate);
        let (mut told, mut held_back) = (Instant::now(), None);
        let mut may_skip = request.kind == RequestKind::Pull;
        loop {
            let missing = match gate.turn(&asked, may_skip) {
                Turn::Answer => break,
                Turn::Closed => return Err(ended()),
                Turn::Fenced => {
                    drop(gate);
                    return self.refuse(AnswerKind::Fenced, "", peer);
                }
                Turn::SkipRound => {
                    may_skip = false;
                    drop(gate);
                    self.change_round(|gate| gate.skip_to(&asked));
                    gate = lock(&self.gate);
                    continue;
                }
                Turn::Wait(missing) => missing,
            };
            held_back.get_or_insert_with(Instant::now);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let text = gate.describe_wait(&missing);
                let header = Answer { text: text.len() as u32, ..self.answer_of(&gate, AnswerKind::Waiting, 0) };
                drop(gate);
                peer.answer(&Answer { dense: 0, rows: 0, ..header }, &text)?;
                peer.flush()?;
                gate = lock(&self.gate);
                continue;
            }
            peer.waits()?;
            let waited = self.changed.wait_timeout(gate, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
            gate = waited.0;
        }
        drop(gate);
        let row_values: usize = wanted.iter().map(|(table, rows)| rows.len() * self.rows[*table].width).sum();
        let held_back = held_back.map_or(0, |since| u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
        self.send_values(Answer { held_back, ..self.answer(kind, row_values) }, wanted, peer)
    }

    fn send_values(&self, answer: Answer, wanted: &[WantedRows], peer: &mut dyn Peer) -> Result<(), ServeError> {
        peer.answer(&answer, "")?;
        for block in &self.blocks {
            peer.stage(&lock(block).get().values);
            peer.flush()?;
        }
        for (index, numbers) in wanted {
            let rows = &self.rows[*index];
            let mut values = vec![0.0; numbers.len() * rows.width];
            lock(&rows.table).get().read(numbers, &mut values).map_err(bad_rows)?;
            peer.stage(&values);
        }
        Ok(peer.flush()?)
    }

    /// Refuses a request whose payload has been read. With unread bytes, closing the connection could lose the answer.
    pub(super) fn refuse(&self, kind: AnswerKind, text: &str, peer: &mut dyn Peer) -> Result<(), ServeError> {
        let header = Answer { dense: 0, rows: 0, text: text.len() as u32, ..self.answer(kind, 0) };
        peer.answer(&header, text)?;
        Ok(peer.flush()?)
    }

    pub(super) fn answer(&self, kind: AnswerKind, row_values: usize) -> Answer {
        self.answer_of(&lock(&self.gate), kind, row_values)
    }

    fn answer_of(&self, gate: &Gate, kind: AnswerKind, row_values: usize) -> Answer {
        Answer {
            kind,
            over: gate.is_over(),
            rounds: gate.has_rounds(),
            version: gate.version(),
            learning_rate: gate.learning_rate(),
            dense: self.elements as u64,
            rows: row_values as u64,
            text: 0,
            held_back: 0,
        }
    }
}
