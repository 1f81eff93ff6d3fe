//! A session at work in a simulated process: its effects are carried out, and what is delivered is handed on.

use std::time::Duration;

use windlass_core::cluster::TaskId;
use windlass_wire::control::proto::coordinator_message::Kind;

use crate::session::{Session, SessionEffect, SessionEvent};
use crate::world::{Connection, Event, Happening, Message, Pid, Port, Timer, World};

/// A session with its connection.
#[derive(Debug)]
pub struct Line {
    /// What decides.
    pub session: Session,
    connection: Option<Connection>,
    pid: Pid,
    port: Port,
    armed: Option<Duration>,
}

impl Line {
    /// A session that begins now.
    pub fn new(session: Session, pid: Pid, port: Port) -> Self {
        Self { session, connection: None, pid, port, armed: None }
    }

    /// True if this is its connection.
    pub fn is_on(&self, connection: Connection) -> bool {
        self.connection == Some(connection)
    }

    /// A connection was made, or not.
    pub fn connected(&mut self, connection: Option<Connection>, world: &mut World) -> Vec<Kind> {
        self.connection = connection;
        self.handle(if connection.is_some() { SessionEvent::Opened } else { SessionEvent::NotOpened }, world)
    }

    /// Lets the session decide, and does what it says. Returns what it hands to the task.
    pub fn handle(&mut self, event: SessionEvent, world: &mut World) -> Vec<Kind> {
        let mut delivered = Vec::new();
        for effect in self.session.handle(event, world.now) {
            match effect {
                SessionEffect::Open => world.connect(self.pid, self.port, TaskId::ps(0), Port::Coordinator),
                SessionEffect::Send(message) => {
                    if let Some(connection) = self.connection {
                        world.send(connection, self.pid, self.port, Message::Task(Box::new(message)));
                    }
                }
                SessionEffect::Deliver(kind) => delivered.push(kind),
                SessionEffect::Close => {
                    if let Some(connection) = self.connection.take() {
                        world.close(connection, self.pid, self.port);
                    }
                }
                SessionEffect::Look(incarnation) => {
                    let steps = world.scenario.run.steps.unwrap_or(0);
                    let found = world.scenario.checkpoints.and_then(|_| world.store.outcome(incarnation, steps));
                    let at = world.now + world.random.millis(1, 200);
                    world.at(at, Event::To(self.pid, Happening::Looked(self.port, found)));
                }
                SessionEffect::End => {}
            }
        }
        let deadline = self.session.deadline();
        if let Some(deadline) = deadline.filter(|_| deadline != self.armed) {
            world.remind(self.pid, deadline, Timer::Session(self.port));
        }
        self.armed = deadline;
        delivered
    }
}
