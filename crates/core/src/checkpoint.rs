//! When checkpoints are taken, and how far one has come: a cut that all servers agree on, their parts, the manifest.
//!
//! A pure state machine with the time passed in. It touches no parameters and no files.
//!
//! Servers are first asked to *mark* where they stand and to hold back new updates. From their marks follows the
//! *cut*: in sync mode the latest round that any server has applied, otherwise for each worker the latest push that
//! any server has admitted. Each server then takes exactly that state, and goes on. As a worker has one push on its
//! way at a time, no server is more than one behind the cut, and what it lacks is already coming.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::{ServerId, WorkerId};
use crate::ledger::Incarnation;

/// How long servers may hold back updates for a cut. An update is never held longer, come what may.
pub const HOLD: Duration = Duration::from_millis(40);

/// How long after one that could not be taken the next is tried.
const RETRY: Duration = Duration::from_secs(5);

/// When checkpoints are taken, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Time between two.
    pub every: Option<Duration>,
    /// Global steps between two.
    pub every_steps: Option<u64>,
    /// How many whole ones are kept.
    pub keep: usize,
}

/// The last push of each worker that is in a state of the parameters.
pub type Pushes = BTreeMap<WorkerId, (Incarnation, u64)>;

/// What each worker has sent along with that push: what it wants back if it has to go on from there, as JSON.
pub type Notes = BTreeMap<WorkerId, String>;

/// How far the workers are in a state of the parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// The last push of each.
    pub pushes: Pushes,
    /// What came with it, on the first server.
    pub notes: Notes,
}

/// Where a server stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// How many updates its parameters have had.
    pub version: u64,
    /// Which pushes are in them.
    pub pushes: Pushes,
}

impl Mark {
    /// The latest of both, in everything.
    fn merge(&mut self, other: &Mark) {
        self.version = self.version.max(other.version);
        for (worker, push) in &other.pushes {
            let latest = self.pushes.entry(*worker).or_default();
            *latest = (*latest).max(*push);
        }
    }
}

/// Where all servers are cut, given where they stand.
fn cut(marks: &BTreeMap<ServerId, Mark>, rounds: bool) -> Mark {
    let mut cut = Mark::default();
    marks.values().for_each(|mark| cut.merge(mark));
    if !rounds && let Some(mark) = marks.values().next() {
        // Every push is an update: those that this server lacks are on their way to it.
        let lacking =
            |(worker, (incarnation, sequence)): (&WorkerId, &(Incarnation, u64))| match mark.pushes.get(worker) {
                Some((here, had)) if here == incarnation => sequence - had,
                _ => *sequence,
            };
        cut.version = mark.version + cut.pushes.iter().map(lacking).sum::<u64>();
    }
    cut
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next<P> {
    /// Ask every server to mark where it stands.
    Mark,
    /// Tell every server to take the state at this cut, and to write it.
    Cut(Mark),
    /// Publish a checkpoint of these parts.
    Publish(BTreeMap<ServerId, P>),
    /// Tell every server that this one is given up, for this reason.
    Abandon(String),
}

/// The checkpoints of a run, one after another. `P` is what a server says of the part it has written.
#[derive(Debug)]
pub struct Cycle<P> {
    policy: Policy,
    servers: usize,
    number: u64,
    rounds: bool,
    stage: Stage<P>,
    /// When, and at which step, the last was begun.
    last: (Duration, u64),
    /// True if that one could not be taken.
    missed: bool,
}

#[derive(Debug)]
enum Stage<P> {
    Idle,
    Marking { since: Duration, marks: BTreeMap<ServerId, Mark> },
    Writing { parts: BTreeMap<ServerId, P> },
    Publishing,
}

impl<P: Clone> Cycle<P> {
    /// No checkpoint is under way. The first is due an interval after `now`.
    pub fn new(policy: Policy, servers: usize, now: Duration, step: u64) -> Self {
        Self { policy, servers, number: 0, rounds: false, stage: Stage::Idle, last: (now, step), missed: false }
    }

    /// Says whether updates are rounds, in which all servers go on together, or single pushes.
    pub fn set_rounds(&mut self, rounds: bool) {
        self.rounds = rounds;
    }

    /// The number of the checkpoint under way, or of the last.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// True while none is under way.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// True if one should be begun.
    pub fn is_due(&self, now: Duration, step: u64) -> bool {
        let (then, at) = self.last;
        let by_time = self.policy.every.is_some_and(|every| now.saturating_sub(then) >= every);
        let by_steps = self.policy.every_steps.is_some_and(|every| step.saturating_sub(at) >= every);
        let again = self.missed && now.saturating_sub(then) >= RETRY;
        self.is_idle() && (again || step > at && (by_time || by_steps))
    }

    /// Begins one, unless one is under way.
    pub fn begin(&mut self, now: Duration, step: u64) -> Option<Next<P>> {
        if !self.is_idle() {
            return None;
        }
        self.number += 1;
        (self.last, self.missed) = ((now, step), false);
        self.stage = Stage::Marking { since: now, marks: BTreeMap::new() };
        Some(Next::Mark)
    }

    /// A server has marked where it stands.
    pub fn marked(&mut self, number: u64, server: ServerId, mark: Mark) -> Option<Next<P>> {
        let Stage::Marking { marks, .. } = &mut self.stage else { return None };
        if number != self.number {
            return None;
        }
        marks.insert(server, mark);
        if marks.len() < self.servers {
            return None;
        }
        let cut = cut(marks, self.rounds);
        self.stage = Stage::Writing { parts: BTreeMap::new() };
        Some(Next::Cut(cut))
    }

    /// A server has written its part.
    pub fn written(&mut self, number: u64, server: ServerId, part: P) -> Option<Next<P>> {
        let Stage::Writing { parts } = &mut self.stage else { return None };
        if number != self.number {
            return None;
        }
        parts.insert(server, part);
        if parts.len() < self.servers {
            return None;
        }
        let parts = std::mem::take(parts);
        self.stage = Stage::Publishing;
        Some(Next::Publish(parts))
    }

    /// The checkpoint has been published, or could not be.
    pub fn published(&mut self) {
        self.stage = Stage::Idle;
    }

    /// A server could not mark, or could not write its part.
    pub fn failed(&mut self, number: u64, reason: String) -> Option<Next<P>> {
        if number != self.number || matches!(self.stage, Stage::Idle | Stage::Publishing) {
            return None;
        }
        (self.stage, self.missed) = (Stage::Idle, true);
        Some(Next::Abandon(reason))
    }

    /// Lets time pass: servers must not be held for a mark that does not come.
    pub fn tick(&mut self, now: Duration) -> Option<Next<P>> {
        match &self.stage {
            Stage::Marking { since, marks } if now.saturating_sub(*since) > 10 * HOLD => {
                let missing: Vec<String> = (0..self.servers as u32)
                    .map(ServerId)
                    .filter(|server| !marks.contains_key(server))
                    .map(|server| server.to_string())
                    .collect();
                let number = self.number;
                self.failed(number, format!("no word from {}", missing.join(", ")))
            }
            _ => None,
        }
    }

    /// Forgets what is under way: a server was lost.
    pub fn reset(&mut self) {
        self.stage = Stage::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: WorkerId = WorkerId(0);
    const B: WorkerId = WorkerId(1);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn cycle(servers: usize) -> Cycle<&'static str> {
        let policy = Policy { every: Some(seconds(60)), every_steps: Some(1000), keep: 3 };
        Cycle::new(policy, servers, seconds(0), 0)
    }

    fn mark(version: u64, pushes: &[(WorkerId, u64)]) -> Mark {
        Mark { version, pushes: pushes.iter().map(|(worker, push)| (*worker, (Incarnation(1), *push))).collect() }
    }

    #[test]
    fn one_is_due_after_the_time_or_the_steps_whichever_comes_first_and_only_if_something_happened() {
        let cycle = cycle(1);
        assert!(!cycle.is_due(seconds(59), 999));
        assert!(cycle.is_due(seconds(60), 1));
        assert!(cycle.is_due(seconds(1), 1000));
        assert!(!cycle.is_due(seconds(100), 0), "nothing has been learned since");
    }

    #[test]
    fn the_cut_is_the_latest_that_any_server_has_admitted_of_each_worker() {
        let mut cycle = cycle(2);
        assert_eq!(cycle.begin(seconds(1), 5), Some(Next::Mark));
        assert_eq!(cycle.begin(seconds(1), 5), None, "one at a time");
        assert_eq!(cycle.marked(1, ServerId(0), mark(9, &[(A, 5), (B, 4)])), None);
        let cut = cycle.marked(1, ServerId(1), mark(9, &[(A, 4), (B, 5)])).unwrap();
        assert_eq!(cut, Next::Cut(mark(10, &[(A, 5), (B, 5)])), "each lacks one push of the other");
    }

    #[test]
    fn the_cut_of_rounds_is_the_latest_round_that_any_server_has_applied() {
        let mut cycle = cycle(2);
        cycle.set_rounds(true);
        cycle.begin(seconds(1), 5);
        cycle.marked(1, ServerId(0), mark(9, &[(A, 9), (B, 9)]));
        let cut = cycle.marked(1, ServerId(1), mark(8, &[(A, 8), (B, 8)])).unwrap();
        assert_eq!(cut, Next::Cut(mark(9, &[(A, 9), (B, 9)])));
    }

    #[test]
    fn a_later_process_of_a_worker_counts_for_more_than_any_push_of_an_earlier_one() {
        let mut first = mark(1, &[(A, 100)]);
        let second = Mark { version: 1, pushes: [(A, (Incarnation(2), 1))].into() };
        first.merge(&second);
        assert_eq!(first.pushes[&A], (Incarnation(2), 1));
    }

    #[test]
    fn it_is_published_when_every_part_is_written_and_the_next_may_begin_then() {
        let mut cycle = cycle(2);
        cycle.begin(seconds(1), 5);
        cycle.marked(1, ServerId(0), mark(1, &[]));
        cycle.marked(1, ServerId(1), mark(1, &[]));
        assert_eq!(cycle.written(1, ServerId(1), "b"), None);
        assert_eq!(cycle.written(7, ServerId(0), "of another"), None);
        let parts = [(ServerId(0), "a"), (ServerId(1), "b")].into();
        assert_eq!(cycle.written(1, ServerId(0), "a"), Some(Next::Publish(parts)));
        assert!(!cycle.is_idle());
        cycle.published();
        assert!(cycle.is_idle() && !cycle.is_due(seconds(1), 5));
    }

    #[test]
    fn a_failure_abandons_it_and_the_next_is_tried_soon() {
        let mut cycle = cycle(1);
        cycle.begin(seconds(60), 5);
        cycle.marked(1, ServerId(0), mark(5, &[]));
        let abandoned = cycle.failed(1, "the disk is full".into());
        assert_eq!(abandoned, Some(Next::Abandon("the disk is full".into())));
        assert_eq!(cycle.failed(1, "again".into()), None);
        assert!(!cycle.is_due(seconds(61), 6) && cycle.is_due(seconds(60) + RETRY, 6));
        cycle.begin(seconds(60) + RETRY, 6);
        cycle.reset();
        assert!(!cycle.is_due(seconds(119), 7), "once that has been begun, the interval counts again");
    }

    #[test]
    fn a_server_that_does_not_mark_is_named() {
        let mut cycle = cycle(3);
        cycle.begin(seconds(1), 5);
        cycle.marked(1, ServerId(1), mark(1, &[]));
        assert_eq!(cycle.tick(seconds(1) + HOLD), None);
        let Some(Next::Abandon(reason)) = cycle.tick(seconds(2)) else { panic!("it should be given up") };
        assert_eq!(reason, "no word from ps 0, ps 2");
    }
}
