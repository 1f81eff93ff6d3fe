//! Tracks which process plays which worker. Processes that were declared dead or replaced are refused.

use super::{Gate, Request};
use crate::checkpoint::Standing;
use crate::cluster::WorkerId;
use crate::ledger::{Acquaintance, Incarnation};

/// Why first values are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLate {
    /// The sending process was declared dead or replaced.
    Fenced,
    /// Training has already begun.
    Begun,
}

impl Gate {
    /// Refuses every process up to this incarnation that is not announced.
    pub fn fence_up_to(&mut self, latest: Incarnation) {
        self.ledger.fence_up_to(latest);
    }

    /// Refuses all earlier processes of this worker from now on, and returns how far the workers are.
    pub fn fence(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.fence(worker, incarnation);
        standing
    }

    /// Like [`Gate::fence`], for a worker that joins in the middle of a run, at this clock.
    pub fn join(&mut self, worker: WorkerId, incarnation: Incarnation, clock: u64) -> Standing {
        // The first server learns of it twice: at once, and with the announcement to all servers. By the second time it
        // may have been replaced, and the clock is then its successor's.
        let was_living = self.ledger.is_living(worker, incarnation);
        let standing = self.fence(worker, incarnation);
        if !was_living && self.ledger.is_living(worker, incarnation) {
            self.consistency.join(worker, clock);
        }
        standing
    }

    /// Refuses a process that has left from now on, and returns how far the workers are.
    pub fn retire(&mut self, worker: WorkerId, incarnation: Incarnation) -> Standing {
        let standing = self.standing();
        self.ledger.retire(worker, incarnation);
        standing
    }

    /// The clock at which a worker that joins now is to start, on all servers.
    pub fn clock(&self) -> u64 {
        self.consistency.clock()
    }

    /// What is known about the process that sends a request.
    pub fn acquaintance(&self, request: &Request) -> Acquaintance {
        self.ledger.acquaintance(request.push.worker, request.push.incarnation)
    }

    /// True if this process plays its worker, as far as is known here.
    pub fn is_living(&self, request: &Request) -> bool {
        self.ledger.is_living(request.push.worker, request.push.incarnation)
    }

    /// True if another process plays the worker now.
    pub fn is_replaced(&self, request: &Request) -> bool {
        self.ledger.is_replaced(request.push.worker, request.push.incarnation)
    }

    /// Why the first values in a request are refused, if they are.
    pub fn refuses_first_values(&self, request: &Request) -> Option<TooLate> {
        if self.ledger.is_fenced(request.push.worker, request.push.incarnation) {
            Some(TooLate::Fenced)
        } else {
            self.begun.then_some(TooLate::Begun)
        }
    }

    /// How far the workers are in the current parameters.
    fn standing(&self) -> Standing {
        let (pushes, decided) = (self.pushes(), self.ledger.decided());
        let notes = self.notes.of(&decided);
        let open = decided.into_iter().filter(|(worker, push)| pushes.get(worker) != Some(push));
        let in_open_round = open.map(|(worker, _)| (worker, notes.get(&worker).cloned().unwrap_or_default()));
        Standing {
            version: self.version(),
            in_open_round: in_open_round.collect(),
            notes: self.notes.of(&pushes),
            pushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::consistency::Mode;
    use crate::identity::Identity;
    use crate::optimizer::Optimizer;
    use crate::parameter::ParameterTable;
    use crate::plan::Sharding;
    use crate::run::RunSpec;
    use crate::schedule::Schedule;

    use super::*;

    #[test]
    fn late_word_of_a_process_that_was_replaced_does_not_set_the_clock_of_its_successor() {
        let run = RunSpec {
            model: "any".into(),
            mode: Mode::Ssp { staleness: 1 },
            optimizer: Optimizer::Sgd,
            learning_rate: 0.1,
            schedule: Schedule::Constant,
            sharding: Sharding::RoundRobin,
            steps: None,
            deterministic: false,
            staleness_scaling: false,
            clip_norm: None,
            parameters: ParameterTable::new(Vec::new()).unwrap(),
            identity: Identity::default(),
            data: None,
        };
        let mut gate = Gate::new(&run, &[WorkerId(0)]);
        gate.join(WorkerId(0), Incarnation(7), 9);
        gate.join(WorkerId(0), Incarnation(5), 3);
        assert_eq!(gate.clock(), 9);
    }
}
