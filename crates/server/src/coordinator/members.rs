//! The processes that play the tasks, as the coordinator reaches them. A process outlives its connections: what it
//! has not heard is kept for the next one.

use std::collections::BTreeMap;

use tokio::sync::mpsc;
use windlass_core::cluster::TaskId;
use windlass_core::ledger::Incarnation;
use windlass_wire::control::coordinator_message::Kind;
use windlass_wire::control::{CoordinatorMessage, Hello, Welcome};
use windlass_wire::outbox::{Heard, Outbox};

use super::front::SessionId;

#[derive(Debug, Default)]
pub(super) struct Members {
    sessions: BTreeMap<SessionId, Connection>,
    members: BTreeMap<TaskId, Member>,
}

#[derive(Debug)]
struct Connection {
    sender: mpsc::Sender<CoordinatorMessage>,
    /// Known after the hello.
    task: Option<TaskId>,
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
    pub(super) fn opened(&mut self, id: SessionId, sender: mpsc::Sender<CoordinatorMessage>) {
        self.sessions.insert(id, Connection { sender, task: None });
    }

    /// Who has lost its connection by this, if it has no newer one.
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

    /// Makes this the session of a process, welcomes it and tells it what it has not heard yet.
    pub(super) fn welcome(&mut self, id: SessionId, task: TaskId, hello: &Hello, incarnation: Incarnation, heard: u64) {
        if self.members.get(&task).is_none_or(|member| member.incarnation != incarnation) {
            self.remove(task);
            let (outbox, heard) = (Outbox::default(), Heard::default());
            self.members.insert(task, Member { process: hello.process, incarnation, session: None, outbox, heard });
        }
        let (Some(member), Some(connection)) = (self.members.get_mut(&task), self.sessions.get_mut(&id)) else {
            return;
        };
        connection.task = Some(task);
        member.outbox.heard(heard);
        let welcome = Kind::Welcome(Welcome { incarnation: incarnation.0, heard: member.heard.highest() });
        let unheard = member.outbox.kept().map(|(number, kind)| (number, kind.clone()));
        let messages: Vec<(u64, Kind)> = std::iter::once((0, welcome)).chain(unheard).collect();
        let older = member.session.replace(id).filter(|older| *older != id);
        older.map(|older| self.sessions.remove(&older));
        for (number, kind) in messages {
            self.deliver(id, number, kind);
        }
    }

    /// Who speaks on a session. Nobody on one that has been replaced, or whose process was declared dead.
    pub(super) fn speaker(&self, id: SessionId) -> Option<(TaskId, Incarnation)> {
        let task = self.sessions.get(&id)?.task?;
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
            self.sessions.remove(&id);
        }
    }

    /// Says a last word on a session, whoever is there.
    pub(super) fn dismiss(&mut self, id: SessionId, kind: Kind) {
        self.deliver(id, 0, kind);
        self.sessions.remove(&id);
    }

    /// Tells those tasks something that they must hear.
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

    /// Tells everyone who is connected something that may be lost.
    pub(super) fn mention(&mut self, kind: &Kind) {
        let sessions: Vec<SessionId> = self.members.values().filter_map(|member| member.session).collect();
        for id in sessions {
            self.deliver(id, 0, kind.clone());
        }
    }

    /// How many tasks have not heard everything.
    pub(super) fn unheard(&self) -> usize {
        self.members.values().filter(|member| !member.outbox.is_empty()).count()
    }

    /// The session of a task that does not read its messages is closed; what it has missed waits for the next.
    fn deliver(&mut self, id: SessionId, number: u64, kind: Kind) {
        let message = CoordinatorMessage { number, kind: Some(kind) };
        if let Some(connection) = self.sessions.get(&id)
            && connection.sender.try_send(message).is_err()
        {
            self.sessions.remove(&id);
        }
    }
}
