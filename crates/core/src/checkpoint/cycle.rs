//! When checkpoints are taken, and how far one has progressed: marks, the cut, the servers' parts, the manifest.
//!
//! A pure state machine with the time passed in. It touches no parameters and no files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{CutPoint, cut};
use crate::cluster::ServerId;

/// How long servers have to mark where they stand. Those that have marked continue training meanwhile.
const MARKING: Duration = Duration::from_millis(400);

/// How long after a failed checkpoint the next one is tried.
const RETRY: Duration = Duration::from_secs(5);

/// How long a checkpoint may wait for a task before the log names that task.
const MENTION: Duration = Duration::from_secs(3);

/// When checkpoints are taken, and how many are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Time between two checkpoints.
    pub every: Option<Duration>,
    /// Global steps between two checkpoints.
    pub every_steps: Option<u64>,
    /// How many complete checkpoints are kept.
    pub keep: usize,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next<P> {
    /// Ask every server to mark where it stands.
    Mark,
    /// Tell every server to snapshot the state at this cut, and to write it.
    Cut(CutPoint),
    /// Publish a checkpoint that consists of these parts.
    Publish(BTreeMap<ServerId, P>),
    /// Tell every server that the checkpoint is abandoned.
    Abandon(Setback),
    /// Stop waiting for the checkpoint to be published. The servers' parts stay, since it may still be published.
    Overdue(Setback),
}

/// Why a checkpoint was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setback {
    /// The reason in words.
    pub reason: String,
    /// How likely the next attempt is to succeed.
    pub kind: SetbackKind,
}

/// How likely the next attempt is to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetbackKind {
    /// The servers did not mark in time: the next attempt may well succeed.
    Missed,
    /// Something failed, and may fail again.
    Failed,
    /// Nothing progressed for a long time, and nothing will.
    Stalled,
}

/// What a cycle needs to know about its run.
#[derive(Debug, Clone, Default)]
pub struct CycleRun {
    /// The servers that have a part in checkpoints.
    pub servers: BTreeSet<ServerId>,
    /// Whether updates are rounds, in which all servers advance together, or single pushes.
    pub rounds: bool,
    /// The run's last step, if it ends by steps. Later pushes are dropped, even if some server has heard of them.
    pub limit: Option<u64>,
    /// How long a checkpoint may be written or published without any progress.
    pub stall: Duration,
}

/// The checkpoints of a run, one after another. `P` is what a server reports about the part it has written.
#[derive(Debug)]
pub struct Cycle<P> {
    policy: Policy,
    run: CycleRun,
    number: u64,
    stage: Stage<P>,
    /// The time at the last tick.
    now: Duration,
    /// When, and at which step, the last checkpoint was begun.
    last: (Duration, u64),
    /// True if the last checkpoint could not be taken.
    missed: bool,
}

#[derive(Debug)]
enum Stage<P> {
    Idle,
    Marking {
        since: Duration,
        marks: BTreeMap<ServerId, CutPoint>,
    },
    /// With the time at which each server last reported progress on its part.
    Writing {
        parts: BTreeMap<ServerId, P>,
        heard: BTreeMap<ServerId, Duration>,
    },
    Publishing {
        since: Duration,
    },
}

impl<P: Clone> Cycle<P> {
    /// Starts with no checkpoint under way. The first is due an interval after `now`.
    pub fn new(policy: Policy, now: Duration, step: u64) -> Self {
        let run = CycleRun::default();
        Self { policy, run, number: 0, stage: Stage::Idle, now, last: (now, step), missed: false }
    }

    /// When the last checkpoint was begun.
    pub fn begun_at(&self) -> Duration {
        self.last.0
    }

    /// Starts from this run and step when training begins or resumes from a checkpoint. Forgets a checkpoint under way.
    pub fn go_on_from(&mut self, run: CycleRun, now: Duration, step: u64) {
        (self.run, self.now, self.last, self.missed) = (run, now, (now, step), false);
        self.stage = Stage::Idle;
    }

    /// The servers that have a part in checkpoints.
    pub fn servers(&self) -> &BTreeSet<ServerId> {
        &self.run.servers
    }

    /// The number of the current or last checkpoint.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// True while no checkpoint is under way.
    pub fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// True if a checkpoint should be begun.
    pub fn is_due(&self, now: Duration, step: u64) -> bool {
        let (then, at) = self.last;
        let by_time = self.policy.every.is_some_and(|every| now.saturating_sub(then) >= every);
        let by_steps = self.policy.every_steps.is_some_and(|every| step.saturating_sub(at) >= every);
        let again = self.missed && now.saturating_sub(then) >= RETRY;
        self.is_idle() && (again || step > at && (by_time || by_steps))
    }

    /// Begins a checkpoint, unless one is under way.
    pub fn begin(&mut self, now: Duration, step: u64) -> Option<Next<P>> {
        if !self.is_idle() {
            return None;
        }
        self.number += 1;
        (self.now, self.last, self.missed) = (now, (now, step), false);
        self.stage = Stage::Marking { since: now, marks: BTreeMap::new() };
        Some(Next::Mark)
    }

    /// Records where a server stands.
    pub fn marked(&mut self, number: u64, server: ServerId, mark: CutPoint) -> Option<Next<P>> {
        let Stage::Marking { marks, .. } = &mut self.stage else { return None };
        if number != self.number || !self.run.servers.contains(&server) {
            return None;
        }
        marks.insert(server, mark);
        if marks.len() < self.run.servers.len() {
            return None;
        }
        let mut cut = cut(marks, self.run.rounds);
        cut.version = self.run.limit.map_or(cut.version, |limit| cut.version.min(limit));
        let heard = self.run.servers.iter().map(|server| (*server, self.now)).collect();
        self.stage = Stage::Writing { parts: BTreeMap::new(), heard };
        Some(Next::Cut(cut))
    }

    /// Records a server's progress on its part.
    pub fn progressed(&mut self, number: u64, server: ServerId) {
        if let Stage::Writing { heard, .. } = &mut self.stage
            && number == self.number
            && let Some(heard) = heard.get_mut(&server)
        {
            *heard = self.now;
        }
    }

    /// Records that a server has written its part.
    pub fn written(&mut self, number: u64, server: ServerId, part: P) -> Option<Next<P>> {
        let Stage::Writing { parts, .. } = &mut self.stage else { return None };
        if number != self.number || !self.run.servers.contains(&server) {
            return None;
        }
        parts.insert(server, part);
        if parts.len() < self.run.servers.len() {
            return None;
        }
        let parts = std::mem::take(parts);
        self.stage = Stage::Publishing { since: self.now };
        Some(Next::Publish(parts))
    }

    /// Records whether the checkpoint was published. False if that is no longer awaited.
    pub fn published(&mut self, number: u64, success: bool) -> bool {
        let awaited = number == self.number && matches!(self.stage, Stage::Publishing { .. });
        if awaited {
            (self.stage, self.missed) = (Stage::Idle, !success);
        }
        awaited
    }

    /// Records a server's failure to mark, or to write its part.
    pub fn failed(&mut self, number: u64, setback: Setback) -> Option<Next<P>> {
        if number != self.number || matches!(self.stage, Stage::Idle | Stage::Publishing { .. }) {
            return None;
        }
        (self.stage, self.missed) = (Stage::Idle, true);
        Some(Next::Abandon(setback))
    }

    /// Advances the time. Every wait has a timeout: for marks, for servers that write, and for the store.
    pub fn tick(&mut self, now: Duration) -> Option<Next<P>> {
        self.now = now;
        let (number, stall) = (self.number, self.run.stall);
        let waits = self.waits();
        match &self.stage {
            Stage::Marking { since, .. } if now.saturating_sub(*since) > MARKING => {
                let reason = format!("no answer from {}", waits.names());
                self.failed(number, Setback { reason, kind: SetbackKind::Missed })
            }
            Stage::Writing { .. } if waits.longest() > stall => {
                let reason = format!("{} made no progress writing for {} s", waits.names(), stall.as_secs());
                self.failed(number, Setback { reason, kind: SetbackKind::Stalled })
            }
            Stage::Publishing { since } if now.saturating_sub(*since) > stall => {
                (self.stage, self.missed) = (Stage::Idle, true);
                let reason = format!("the store did not accept its manifest within {} s", stall.as_secs());
                Some(Next::Overdue(Setback { reason, kind: SetbackKind::Stalled }))
            }
            _ => None,
        }
    }

    /// Describes what the current checkpoint waits for, once it has waited for a while.
    pub fn describe_wait(&self) -> Option<String> {
        let seconds = |waited: Duration| (waited >= MENTION).then_some(waited.as_secs());
        match &self.stage {
            Stage::Idle | Stage::Marking { .. } => None,
            Stage::Writing { .. } => {
                let waits = self.waits();
                let seconds = seconds(waits.longest())?;
                Some(format!("the checkpoint is waiting for {} to write: no progress for {seconds} s", waits.names()))
            }
            Stage::Publishing { since } => {
                let seconds = seconds(self.now.saturating_sub(*since))?;
                Some(format!("the checkpoint has been waiting for the store to accept its manifest for {seconds} s"))
            }
        }
    }

    /// The awaited servers, and how long ago each last reported progress.
    fn waits(&self) -> Waits {
        let since = |server: &ServerId| match &self.stage {
            Stage::Marking { since, marks } => (!marks.contains_key(server)).then_some(*since),
            Stage::Writing { parts, heard } if !parts.contains_key(server) => heard.get(server).copied(),
            _ => None,
        };
        let waits = self.run.servers.iter().filter_map(|server| Some((*server, since(server)?)));
        Waits(waits.map(|(server, since)| (server, self.now.saturating_sub(since))).collect())
    }

    /// Forgets the checkpoint under way, because a server was lost. Returns its number if the servers have not all
    /// written their parts yet, and must be told.
    pub fn reset(&mut self) -> Option<u64> {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        matches!(stage, Stage::Marking { .. } | Stage::Writing { .. }).then_some(self.number)
    }
}

/// Servers, and how long each has been awaited.
struct Waits(Vec<(ServerId, Duration)>);

impl Waits {
    fn longest(&self) -> Duration {
        self.0.iter().map(|(_, waited)| *waited).max().unwrap_or_default()
    }

    /// The servers that have been awaited for at least [`MENTION`], or else the longest.
    fn names(&self) -> String {
        let longest = self.longest().min(MENTION);
        let names = self.0.iter().filter(|(_, waited)| *waited >= longest).map(|(server, _)| server.to_string());
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
#[path = "cycle_tests.rs"]
mod tests;
