//! When a request may be answered, and which workers it waits for until then.

use super::{Gate, Request, RequestKind};
use crate::cluster::WorkerId;

/// What to do with a request whose sender waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Answer it now.
    Answer,
    /// Drop it: the run has ended or is rolling back.
    Closed,
    /// Refuse it: another process plays the worker now.
    Fenced,
    /// Take its worker out of the open round with [`Gate::skip_to`], and ask again.
    SkipRound,
    /// Ask again when something has changed. The request waits for these workers.
    Wait(Vec<WorkerId>),
}

impl Gate {
    /// Decides what to do with a request whose sender waits. A worker that asks for a future version takes no part in
    /// the rounds until then, once it is known to be the living process; `may_skip` is false if it has already been
    /// taken out.
    pub fn turn(&self, request: &Request, may_skip: bool) -> Turn {
        match self.waits_for(request) {
            None => Turn::Answer,
            Some(_) if self.closed => Turn::Closed,
            Some(_) if request.kind == RequestKind::Pull && self.is_replaced(request) => Turn::Fenced,
            Some(_) if may_skip && self.is_living(request) => Turn::SkipRound,
            Some(missing) => Turn::Wait(missing),
        }
    }

    /// The workers that the sender of a request has to wait for; `None` if the request may be answered now.
    fn waits_for(&self, request: &Request) -> Option<Vec<WorkerId>> {
        match request.kind {
            RequestKind::Push => self.consistency.waits_for(request.push.worker, request.base),
            _ => self.consistency.waits_for_version(request.base),
        }
    }

    /// Describes which workers a worker waits for.
    pub fn describe_wait(&self, missing: &[WorkerId]) -> String {
        const NAMED: usize = 8;
        let mut names: Vec<String> = missing.iter().take(NAMED).map(ToString::to_string).collect();
        if missing.len() > NAMED {
            names.push(format!("{} more", missing.len() - NAMED));
        }
        format!("{} in step {}", names.join(", "), self.consistency.version() + 1)
    }
}
