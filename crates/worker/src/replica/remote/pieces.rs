//! A step of a divided model: each piece goes to the worker that has its stage, and to no other. A seat is locked while
//! its worker computes a piece.

use std::time::Instant;

use windlass_wire::compute::{self, ComputeError, Limits, Request, Section, Tensor};

use super::crew::{AskError, Crew, size};
use crate::joined::protocol::{Answer, read};

impl Crew {
    /// How many times a worker has joined, if it is present.
    pub(crate) fn joined(&self, seat: usize, is_stopped: &dyn Fn() -> bool) -> Option<u64> {
        let seat = &self.shared.seats[seat];
        let state = seat.lock_until(is_stopped)?;
        state.is_ready().then(|| seat.joined())
    }

    /// Counts a step that a worker took part in.
    pub(crate) fn count_step(&self, seat: usize) {
        self.shared.seats[seat].counts().steps += 1;
    }

    /// Asks one worker for something that no other can answer, because it depends on what this worker has been sent
    /// since it joined for the `joined`th time. The limits apply to both the request and the answer.
    pub(crate) fn ask(
        &self,
        (seat, joined): (usize, u64),
        (head, sections): (Vec<u8>, Vec<Section<'_>>),
        limits: Limits,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(Answer, Vec<Tensor>), AskError> {
        let seat = &self.shared.seats[seat];
        let mut state = seat.lock_until(is_stopped).ok_or(AskError::Stopped)?;
        let why = state.why.clone();
        let is_same = seat.joined() == joined;
        let link = state.link.as_mut().filter(|link| is_same && !link.owes);
        let Some(link) = link else {
            return Err(AskError::Worker(if is_same { why } else { "it has rejoined".to_owned() }));
        };
        limits.check(&head, &sections).map_err(|error| AskError::Model(format!("it cannot be asked: {error}")))?;
        link.spoken = Instant::now();
        seat.counts().asks(size(&head, &sections));
        let (began, heard) = (Instant::now(), |_, heard| seat.counts().heard(heard));
        let request = Request { connection: &mut link.connection, head, sections, limits };
        let reply = compute::exchange(vec![request], self.shared.waiting(is_stopped, &heard, None)).pop();
        // Workers do not measure single pieces.
        seat.counts().computed(0, began.elapsed());
        let answered = match reply {
            Some(Ok(message)) => {
                seat.counts().answered(message.size());
                read(&message.head).map(|answer| (answer, message.sections)).map_err(|it| it.to_string())
            }
            Some(Err(ComputeError::Stopped)) | None => {
                link.owes = true;
                return Err(AskError::Stopped);
            }
            Some(Err(error)) => Err(error.to_string()),
        };
        match answered {
            Ok((Answer::Failed { reason }, _)) => Err(AskError::Model(reason)),
            Ok((Answer::Staged(mut answer), tensors)) => {
                answer.usage.take().into_iter().for_each(|usage| seat.counts().uses(*usage));
                Ok((Answer::Staged(answer), tensors))
            }
            Ok(answered) => Ok(answered),
            Err(why) => {
                self.shared.lost(seat, &mut state, why.clone());
                Err(AskError::Worker(why))
            }
        }
    }
}
