//! Answers the requests of a client until it leaves. What computes the answers is given: a whole model, or its stages.

use std::time::Duration;

use anyhow::bail;
use burn::tensor::TensorData;
use windlass_core::lifecycle::Outcome;
use windlass_wire::compute::{Limits, Message, Section, Tensor};

use super::line::{Line, outcome};
use super::protocol::{Answer, Ask, read};
use super::usage_teller::UsageTeller;
use crate::replica::packed;

/// Computes one kind of request.
pub(super) trait Stepping {
    /// The request.
    type Asked;

    /// Returns the request if it is of this kind.
    fn asked(ask: Ask) -> anyhow::Result<Self::Asked>;

    /// Computes the answer. The client is sent any error.
    fn answer(&mut self, asked: Self::Asked, tensors: Vec<Tensor>) -> anyhow::Result<(Answer, Vec<TensorData>)>;

    /// The limits of a request.
    fn limits(&self) -> Limits;

    /// The number of steps so far.
    fn steps(&self) -> u64;
}

/// The requests of one client.
pub(super) struct Requests<'a> {
    pub(super) line: &'a Line,
    /// How long the client may be silent.
    pub(super) patience: Duration,
    pub(super) is_stopped: &'a dyn Fn() -> bool,
    /// Called after each request has arrived and after it has been answered, with whether the worker is busy with it.
    pub(super) heard: &'a dyn Fn(bool),
    pub(super) usage: UsageTeller,
}

impl Requests<'_> {
    /// Answers them. Returns how the client has ended.
    pub(super) fn serve<S: Stepping>(mut self, stepper: &mut S) -> anyhow::Result<Outcome> {
        let (line, limits) = (self.line, stepper.limits());
        loop {
            let Message { head, sections } = line.receive(&limits, self.patience, self.is_stopped)?;
            (self.heard)(true);
            let answered = match read::<Ask>(&head)? {
                Ask::Ping => line.answer(&Answer::Here, &[]),
                Ask::Wait => Ok(()),
                Ask::Leave { reason, exit_code } => return Ok(outcome(&reason, exit_code)),
                Ask::Assign(_) => bail!("received a second assignment"),
                ask => {
                    let asked = S::asked(ask)?;
                    let (answer, tensors) = match line.busy(|| stepper.answer(asked, sections)) {
                        Ok(answered) => answered,
                        Err(error) => {
                            let _ = line.answer(&Answer::Failed { reason: format!("{error:#}") }, &[]);
                            return Err(error);
                        }
                    };
                    let sections: Vec<Section<'_>> = tensors.iter().map(packed::section).collect();
                    line.answer(&answer.with(self.usage.due()), &sections)
                }
            };
            if let Err(error) = answered {
                return line.last_words(&limits).ok_or(error.into());
            }
            (self.heard)(false);
        }
    }
}
