//! The processes that play the tasks, and how the coordinator reaches them. A process outlives its connections:
//! messages that it has not acknowledged are kept for its next connection.

use std::collections::BTreeMap;

use windlass_core::cluster::TaskId;
use windlass_core::ledger::Incarnation;
use windlass_wire::control::outbox::{Heard, Outbox};
use windlass_wire::control::proto::coordinator_message::Kind;
use windlass_wire::control::proto::{CoordinatorMessage, Hello, Welcome};

use super::interface::{Effect, SessionId};

#[derive(Debug, Default)]
pub(super) struct Members {
    /// The task of each connection, known after the hello.
    sessions: BTreeMap<SessionId, Option<TaskId>>,
    members: BTreeMap<TaskId, Member>,
    effects: Vec<Effect>,
}

#[derive(Debug)]
struct Member {
    process: u64,
    incarnation: Incarnation,
    session: Option<SessionId>,
    outbox: Outbox<Kind>,
    heard: Heard,
}

impl Members {
    pub(super) fn opened(&mut self, id: SessionId) {
        self.sessions.insert(id, None);
    }

    /// Drops a connection whose task does not read. What the task has missed waits for its next connection.
    pub(super) fn undelivered(&mut self, id: SessionId) {
        self.sessions.remove(&id);
    }

    /// Takes the messages to send and the connections to close.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Handles a closed connection. Returns its task, unless that has a newer connection.
    pub(super) fn closed(&mut self, id: SessionId) -> Option<(TaskId, Incarnation)> {
        self.sessions.remove(&id);
        let (task, member) = self.members.iter_mut().find(|(_, member)| member.session == Some(id))?;
        member.session = None;
        Some((*task, member.incarnation))
    }

    /// The incarnation of a process that has been here before.
    pub(super) fn earlier(&self, task: TaskId, process: u64) -> Option<Incarnation> {
        self.members.get(&task).filter(|member| member.process == process).map(|member| member.incarnation)
    }

    /// Makes this the session of a process, and sends it a welcome and all unacknowledged messages.
    pub(super) fn welcome(&mut self, id: SessionId, task: TaskId, hello: &Hello, incarnation: Incarnation, heard: u64) {
        if self.members.get(&task).is_none_or(|member| member.incarnation != incarnation) {
            self.remove(task);
            let (outbox, heard) = (Outbox::default(), Heard::default());
            self.members.insert(task, Member { process: hello.process, incarnation, session: None, outbox, heard });
        }
        let (Some(member), Some(connection)) = (self.members.get_mut(&task), self.sessions.get_mut(&id)) else {
            return;
        };
        *connection = Some(task);
        self.effects.push(Effect::Admit(id, task));
        // A process that does not know this incarnation yet may acknowledge messages of an earlier coordinator.
        if hello.incarnation == incarnation.0 {
            member.outbox.heard(heard);
        }
        let welcome = Kind::Welcome(Welcome { incarnation: incarnation.0, heard: member.heard.highest() });
        let unheard = member.outbox.kept().map(|(number, kind)| (number, kind.clone()));
        let messages: Vec<(u64, Kind)> = std::iter::once((0, welcome)).chain(unheard).collect();
        let older = member.session.replace(id).filter(|older| *older != id);
        older.into_iter().for_each(|older| self.close(older));
        for (number, kind) in messages {
            self.deliver(id, number, kind);
        }
    }

    /// The task that speaks on a session; `None` if the session was replaced, or its process declared dead.
    pub(super) fn speaker(&self, id: SessionId) -> Option<(TaskId, Incarnation)> {
        let task = (*self.sessions.get(&id)?)?;
        let member = self.members.get(&task)?;
        (member.session == Some(id)).then_some((task, member.incarnation))
    }

    /// Notes a message of a task; false if it has come before.
    pub(super) fn hear(&mut self, task: TaskId, number: u64, heard: u64) -> bool {
        let Some(member) = self.members.get_mut(&task) else { return false };
        member.outbox.heard(heard);
        member.heard.is_new(number)
    }

    /// Forgets the process of a task. If it is alive it will say hello again.
    pub(super) fn remove(&mut self, task: TaskId) {
        if let Some(id) = self.members.remove(&task).and_then(|member| member.session) {
            self.close(id);
        }
    }

    fn close(&mut self, id: SessionId) {
        if self.sessions.remove(&id).is_some() {
            self.effects.push(Effect::Close(id));
        }
    }

    /// Forgets these processes.
    pub(super) fn remove_those(&mut self, which: impl Fn(TaskId, Incarnation) -> bool) {
        let those = self.members.iter().filter(|(task, member)| which(**task, member.incarnation));
        let those: Vec<TaskId> = those.map(|(task, _)| *task).collect();
        those.into_iter().for_each(|task| self.remove(task));
    }

    /// Sends a last message on a session, whichever task it belongs to.
    pub(super) fn dismiss(&mut self, id: SessionId, kind: Kind) {
        self.deliver(id, 0, kind);
        self.sessions.remove(&id);
        self.effects.push(Effect::Dismiss(id));
    }

    /// Sends these tasks a message that must arrive.
    pub(super) fn tell(&mut self, to: impl Fn(TaskId) -> bool, kind: &Kind) {
        let mut messages = Vec::new();
        for (_, member) in self.members.iter_mut().filter(|(task, _)| to(**task)) {
            let number = member.outbox.push(kind.clone());
            messages.extend(member.session.map(|id| (id, number)));
        }
        for (id, number) in messages {
            self.deliver(id, number, kind.clone());
        }
    }

    /// Sends every connected task a message that may be lost.
    pub(super) fn mention(&mut self, kind: &Kind) {
        let sessions: Vec<SessionId> = self.members.values().filter_map(|member| member.session).collect();
        for id in sessions {
            self.deliver(id, 0, kind.clone());
        }
    }

    /// Returns how many tasks have not acknowledged every message.
    pub(super) fn unheard(&self) -> usize {
        self.members.values().filter(|member| !member.outbox.is_empty()).count()
    }

    fn deliver(&mut self, id: SessionId, number: u64, kind: Kind) {
        let Some(task) = self.sessions.get(&id) else { return };
        let member = task.and_then(|task| self.members.get(&task));
        let heard = member.filter(|member| member.session == Some(id)).map_or(0, |member| member.heard.highest());
        self.effects.push(Effect::Send(id, CoordinatorMessage { number, heard, kind: Some(kind) }));
    }
}

#[cfg(test)]
mod tests {
    use windlass_wire::control::proto::Waiting;

    use super::*;

    const TASK: TaskId = TaskId { job: windlass_core::cluster::Job::Worker, index: 3 };

    fn waiting() -> Kind {
        Kind::Waiting(Waiting::default())
    }

    /// The last message that was sent.
    fn said(members: &mut Members) -> CoordinatorMessage {
        match members.take_effects().pop() {
            Some(Effect::Send(1, message)) => message,
            other => panic!("{other:?} where something was to be said"),
        }
    }

    #[test]
    fn what_a_task_has_heard_of_another_coordinator_is_told_again() {
        let mut members = Members::default();
        let hello = |incarnation| Hello { incarnation, ..Hello::default() };
        members.opened(1);
        members.welcome(1, TASK, &hello(3), Incarnation(5), 7);
        members.tell(|task| task == TASK, &waiting());
        assert_eq!(said(&mut members).number, 1);
        // The connection breaks before the welcome arrives.
        members.opened(1);
        members.welcome(1, TASK, &hello(3), Incarnation(5), 7);
        assert_eq!(said(&mut members).number, 1, "it has not heard this one");
        members.opened(1);
        members.welcome(1, TASK, &hello(5), Incarnation(5), 1);
        assert!(matches!(said(&mut members).kind, Some(Kind::Welcome(_))), "now it has");
    }

    #[test]
    fn what_a_task_has_heard_is_kept_no_longer_and_every_message_says_what_the_coordinator_has_heard() {
        let mut members = Members::default();
        members.opened(1);
        members.welcome(1, TASK, &Hello::default(), Incarnation(5), 0);
        assert!(matches!(said(&mut members).kind, Some(Kind::Welcome(_))));
        for number in 1..=10 {
            assert!(members.hear(TASK, number, 0));
            members.tell(|task| task == TASK, &waiting());
            let message = said(&mut members);
            assert_eq!((message.number, message.heard), (number, number));
        }
        assert_eq!(members.unheard(), 1);
        members.hear(TASK, 0, 10);
        assert_eq!(members.unheard(), 0);
        members.mention(&waiting());
        assert_eq!(said(&mut members).heard, 10, "those that may be lost say it, too");
    }
}
