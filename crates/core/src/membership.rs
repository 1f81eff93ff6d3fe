//! Tracks which process plays each task, when it was last heard from, and when it counts as dead.
//!
//! Time is passed in. A process whose connection broke gets a short grace period to reconnect. A process that is
//! connected but silent (stopped, swapped out, cut off) gets the whole timeout, unless another process claims its task:
//! then it has to show a sign of life within a few seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cluster::TaskId;
use crate::fault::{self, Fault};
use crate::ledger::Incarnation;

/// How long a connected process may be silent once another process claims its task.
const CHALLENGED: Duration = Duration::from_secs(3);
/// Messages that were in flight when the challenger came prove nothing; only those that arrive later than this do.
const IN_FLIGHT: Duration = Duration::from_secs(1);

/// How long a process may be away before it is declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For a process that is connected but silent.
    pub silent: Duration,
    /// For a process whose connection broke.
    pub disconnected: Duration,
}

impl Patience {
    /// Tolerates this much silence. A broken connection is tolerated for at most a second.
    pub fn new(silent: Duration) -> Self {
        Self { silent, disconnected: silent.min(Duration::from_secs(1)) }
    }
}

/// The state of a task's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The process is alive, as far as is known.
    Present,
    /// The process has done its work and said goodbye.
    Finished,
    /// The process was declared dead; it may come back as a new incarnation.
    Dead,
}

/// Why a process cannot play a task that another one plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupied {
    /// The process is alive.
    Alive,
    /// It is not known yet whether the process still lives: its host may have vanished.
    Unsure,
}

#[derive(Debug)]
struct Member {
    incarnation: Incarnation,
    presence: Presence,
    connected: bool,
    heard: Duration,
    /// Since when another process has claimed the task.
    challenged: Option<Duration>,
}

/// The processes that play the tasks.
#[derive(Debug)]
pub struct Membership {
    patience: Patience,
    members: BTreeMap<TaskId, Member>,
    incarnations: u64,
}

impl Membership {
    /// Starts without members. New incarnations are later than `before`.
    pub fn new(patience: Patience, before: Incarnation) -> Self {
        Self { patience, members: BTreeMap::new(), incarnations: before.0 }
    }

    /// Makes a process rejoin as a new incarnation.
    pub fn dismiss(&mut self, task: TaskId) {
        if let Some(member) = self.members.get_mut(&task).filter(|member| member.presence == Presence::Present) {
            member.presence = Presence::Dead;
            member.connected = false;
        }
    }

    /// The latest incarnation that has been given to any process.
    pub fn latest(&self) -> Incarnation {
        Incarnation(self.incarnations)
    }

    /// Admits a process under a new incarnation, later than any before, unless another process plays the task and is
    /// still connected. That process is then challenged: a newcomer that keeps asking gets a clear answer within
    /// seconds.
    pub fn join(&mut self, task: TaskId, now: Duration) -> Result<Incarnation, Occupied> {
        let connected = |member: &&mut Member| member.presence == Presence::Present && member.connected;
        if let Some(member) = self.members.get_mut(&task).filter(connected) {
            // A challenger that asked long ago and went away again proves nothing.
            let is_recent = |since: &Duration| now.saturating_sub(*since) <= 2 * CHALLENGED;
            let since = member.challenged.filter(is_recent).unwrap_or(now);
            member.challenged = Some(since);
            if member.heard <= since + IN_FLIGHT {
                return Err(Occupied::Unsure);
            }
            member.challenged = None;
            return Err(Occupied::Alive);
        }
        self.incarnations += 1;
        let incarnation = Incarnation(self.incarnations);
        let presence = Presence::Present;
        self.members.insert(task, Member { incarnation, presence, connected: true, heard: now, challenged: None });
        Ok(incarnation)
    }

    /// Readmits a process whose connection broke, if it has not been declared dead meanwhile. A process that has said
    /// goodbye stays finished: it may still have a part of the last checkpoint to write.
    pub fn rejoin(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) -> bool {
        let has_left = |member: &Member| member.presence == Presence::Finished;
        match self.undeclared(task, incarnation) {
            Some(member) if !(has_left(member) && fault::is_back(Fault::StoppedServerForgotten)) => {
                member.connected = true;
                member.heard = now;
                true
            }
            _ => false,
        }
    }

    /// Records a sign of life.
    pub fn heard(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        if let Some(member) = self.undeclared(task, incarnation) {
            member.heard = now;
        }
    }

    /// When the process that plays a task was last heard from.
    pub fn last_heard(&self, task: TaskId) -> Option<Duration> {
        self.members.get(&task).map(|member| member.heard)
    }

    /// Records that a process's connection broke.
    pub fn disconnected(&mut self, task: TaskId, incarnation: Incarnation, now: Duration) {
        if let Some(member) = self.undeclared(task, incarnation) {
            member.connected = false;
            member.heard = now;
        }
    }

    /// Records that a process said goodbye. False if it no longer played the task.
    pub fn finished(&mut self, task: TaskId, incarnation: Incarnation) -> bool {
        let member = self.undeclared(task, incarnation).filter(|member| member.presence == Presence::Present);
        member.map(|member| member.presence = Presence::Finished).is_some()
    }

    /// Declares tasks dead that have been away too long, and returns them with the reason. A task that has said goodbye
    /// may be away, unless it `has_to_stay` for unfinished work.
    pub fn expire(&mut self, now: Duration, has_to_stay: impl Fn(TaskId) -> bool) -> Vec<(TaskId, String)> {
        let mut expired = Vec::new();
        for (task, member) in &mut self.members {
            let is_missed = match member.presence {
                Presence::Present => true,
                Presence::Finished => has_to_stay(*task),
                Presence::Dead => false,
            };
            if !is_missed {
                continue;
            }
            let away = now.saturating_sub(member.heard);
            if !member.connected && away >= self.patience.disconnected {
                member.presence = Presence::Dead;
                expired.push((*task, "its connection broke and it did not come back".to_owned()));
            } else if member.connected && (away >= self.patience.silent || member.is_displaced(now)) {
                member.presence = Presence::Dead;
                expired.push((*task, format!("no sign of life for {:.1} s", away.as_secs_f64())));
            }
        }
        expired
    }

    /// The state of a task's process; `None` if the task never joined.
    pub fn presence(&self, task: TaskId) -> Option<Presence> {
        self.members.get(&task).map(|member| member.presence)
    }

    /// The incarnation of a task's current or last process.
    pub fn incarnation(&self, task: TaskId) -> Option<Incarnation> {
        self.members.get(&task).map(|member| member.incarnation)
    }

    /// True if a task's process is alive, as far as is known.
    pub fn is_present(&self, task: TaskId) -> bool {
        self.presence(task) == Some(Presence::Present)
    }

    /// The process that plays a task, if it is this one and was not declared dead.
    fn undeclared(&mut self, task: TaskId, incarnation: Incarnation) -> Option<&mut Member> {
        let member = self.members.get_mut(&task)?;
        (member.incarnation == incarnation && member.presence != Presence::Dead).then_some(member)
    }
}

impl Member {
    /// True if another process has claimed the task for a while, and this one has shown no sign of life since.
    fn is_displaced(&self, now: Duration) -> bool {
        self.challenged.is_some_and(|since| self.heard <= since + IN_FLIGHT && now.saturating_sub(since) >= CHALLENGED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Job;

    const TASK: TaskId = TaskId { job: Job::Worker, index: 1 };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn expire(membership: &mut Membership, now: Duration) -> Vec<(TaskId, String)> {
        membership.expire(now, |_| false)
    }

    fn membership() -> (Membership, Incarnation) {
        let mut membership = Membership::new(Patience::new(seconds(10)), Incarnation(0));
        let incarnation = membership.join(TASK, seconds(0)).unwrap();
        (membership, incarnation)
    }

    #[test]
    fn a_silent_process_dies_after_the_timeout_and_only_once() {
        let (mut membership, incarnation) = membership();
        membership.heard(TASK, incarnation, seconds(5));
        assert!(expire(&mut membership, seconds(14)).is_empty());
        assert_eq!(expire(&mut membership, seconds(15)).len(), 1);
        assert!(expire(&mut membership, seconds(16)).is_empty());
        assert_eq!(membership.presence(TASK), Some(Presence::Dead));
    }

    #[test]
    fn a_broken_connection_is_forgiven_for_a_second() {
        let (mut membership, incarnation) = membership();
        membership.disconnected(TASK, incarnation, seconds(5));
        assert!(expire(&mut membership, Duration::from_millis(5999)).is_empty());
        assert!(membership.rejoin(TASK, incarnation, Duration::from_millis(5999)));
        assert!(expire(&mut membership, seconds(7)).is_empty());
    }

    #[test]
    fn a_process_declared_dead_cannot_come_back_as_itself() {
        let (mut membership, incarnation) = membership();
        expire(&mut membership, seconds(10));
        assert!(!membership.rejoin(TASK, incarnation, seconds(11)));
        let next = membership.join(TASK, seconds(11)).unwrap();
        assert!(next > incarnation);
        assert!(membership.is_present(TASK));
    }

    #[test]
    fn a_task_that_is_being_played_is_not_given_away() {
        let (mut membership, incarnation) = membership();
        assert_eq!(membership.join(TASK, seconds(1)), Err(Occupied::Unsure));
        membership.heard(TASK, incarnation, seconds(2));
        assert_eq!(membership.join(TASK, seconds(2)), Err(Occupied::Unsure), "that may have been on its way");
        membership.heard(TASK, incarnation, seconds(3));
        assert_eq!(membership.join(TASK, seconds(3)), Err(Occupied::Alive));
        assert!(expire(&mut membership, seconds(5)).is_empty(), "and it stays");
        membership.disconnected(TASK, incarnation, seconds(5));
        assert!(membership.join(TASK, seconds(5)).is_ok());
    }

    #[test]
    fn a_process_whose_host_vanished_is_replaced_seconds_after_another_claims_its_task() {
        let (mut membership, vanished) = membership();
        membership.heard(TASK, vanished, seconds(1));
        assert_eq!(membership.join(TASK, seconds(2)), Err(Occupied::Unsure));
        assert!(expire(&mut membership, seconds(4)).is_empty());
        assert_eq!(membership.join(TASK, seconds(4)), Err(Occupied::Unsure));
        assert_eq!(expire(&mut membership, seconds(5)), [(TASK, "no sign of life for 4.0 s".to_owned())]);
        assert!(membership.join(TASK, seconds(5)).unwrap() > vanished);
    }

    #[test]
    fn a_finished_task_does_not_expire() {
        let (mut membership, incarnation) = membership();
        assert!(membership.finished(TASK, incarnation));
        membership.disconnected(TASK, incarnation, seconds(1));
        assert!(expire(&mut membership, seconds(100)).is_empty());
    }

    #[test]
    fn a_finished_task_that_has_to_stay_is_missed_like_any_other() {
        let (mut lost, incarnation) = membership();
        lost.finished(TASK, incarnation);
        lost.disconnected(TASK, incarnation, seconds(1));
        assert!(lost.expire(Duration::from_millis(1999), |_| true).is_empty());
        assert_eq!(lost.expire(seconds(2), |_| true).len(), 1);
        assert_eq!(lost.presence(TASK), Some(Presence::Dead));

        let (mut silent, incarnation) = membership();
        silent.finished(TASK, incarnation);
        silent.heard(TASK, incarnation, seconds(5));
        assert!(silent.expire(seconds(14), |_| true).is_empty());
        assert_eq!(silent.expire(seconds(15), |_| true).len(), 1);
    }

    #[test]
    fn a_process_that_has_said_goodbye_comes_back_as_itself_and_as_finished() {
        let (mut membership, incarnation) = membership();
        membership.finished(TASK, incarnation);
        membership.disconnected(TASK, incarnation, seconds(1));
        assert!(membership.rejoin(TASK, incarnation, seconds(2)));
        assert_eq!(membership.presence(TASK), Some(Presence::Finished));
        assert!(membership.join(TASK, seconds(3)).unwrap() > incarnation, "and is no reason to refuse the next");
    }

    #[test]
    fn news_of_an_old_incarnation_changes_nothing() {
        let (mut membership, old) = membership();
        membership.disconnected(TASK, old, seconds(1));
        membership.join(TASK, seconds(1)).unwrap();
        membership.disconnected(TASK, old, seconds(2));
        membership.heard(TASK, old, seconds(2));
        assert!(expire(&mut membership, seconds(5)).is_empty());
    }

    #[test]
    fn who_asked_once_and_went_away_does_not_speak_for_the_next_who_asks() {
        let mut membership = Membership::new(Patience::new(seconds(10)), Incarnation(0));
        let living = membership.join(TASK, seconds(0)).unwrap();
        assert_eq!(membership.join(TASK, seconds(1)), Err(Occupied::Unsure));
        for second in 1..100 {
            membership.heard(TASK, living, seconds(second));
        }
        // The host vanishes. The process that is started elsewhere is told to wait, not refused.
        assert_eq!(membership.join(TASK, seconds(101)), Err(Occupied::Unsure));
    }
}
