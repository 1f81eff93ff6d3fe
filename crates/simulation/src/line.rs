//! The production session machine at work in a simulated process: its effects are carried out, and what is delivered is
//! handed on.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_core::cluster::TaskId;
use windlass_wire::control::proto::{Hello, coordinator_message, task_message};
use windlass_wire::control::session::{SessionConfig, SessionEffect, SessionEvent, SessionMachine};

use crate::world::{Connection, Event, Happening, Message, Pid, Port, Timer, World};

/// A session with its connection.
#[derive(Debug)]
pub struct Line {
    /// What decides.
    pub session: SessionMachine,
    connection: Option<Connection>,
    pid: Pid,
    port: Port,
    armed: Option<Duration>,
    /// What the task has said before the coordinator takes it, and whether that is all.
    to_say: VecDeque<task_message::Kind>,
    finished: bool,
    /// True once the coordinator has let the task in.
    pub let_in: bool,
}

impl Line {
    /// A session that begins now.
    pub fn new(hello: Hello, pid: Pid, port: Port, world: &World) -> Self {
        let config = SessionConfig { hello, patience: world.scenario.peer_timeout, place: String::new() };
        let session = SessionMachine::new(config, world.now);
        Self {
            session,
            connection: None,
            pid,
            port,
            armed: None,
            to_say: VecDeque::new(),
            finished: false,
            let_in: false,
        }
    }

    /// True if this is its connection.
    pub fn is_on(&self, connection: Connection) -> bool {
        self.connection == Some(connection)
    }

    /// A connection was made, or not.
    pub fn connected(&mut self, connection: Option<Connection>, world: &mut World) -> Vec<coordinator_message::Kind> {
        self.connection = connection;
        let refused = || SessionEvent::NotOpened("nobody is there".to_owned());
        self.handle(connection.map_or_else(refused, |_| SessionEvent::Opened), world)
    }

    /// The task says something.
    pub fn say(&mut self, kind: task_message::Kind, world: &mut World) {
        self.to_say.push_back(kind);
        self.say_what_is_taken(world);
    }

    /// The task has nothing more to say.
    pub fn finish(&mut self, world: &mut World) {
        self.finished = true;
        self.say_what_is_taken(world);
    }

    fn say_what_is_taken(&mut self, world: &mut World) {
        while self.session.is_welcomed() {
            let said = self.to_say.pop_front().map(SessionEvent::Say);
            let Some(event) = said.or(self.finished.then_some(SessionEvent::Finish)) else { return };
            let delivered = self.decide(event, world);
            debug_assert!(delivered.is_empty());
        }
    }

    /// Lets the session decide, and does what it says. Returns what it hands to the task.
    pub fn handle(&mut self, event: SessionEvent, world: &mut World) -> Vec<coordinator_message::Kind> {
        let delivered = self.decide(event, world);
        self.say_what_is_taken(world);
        delivered
    }

    fn decide(&mut self, event: SessionEvent, world: &mut World) -> Vec<coordinator_message::Kind> {
        let mut delivered = Vec::new();
        for effect in self.session.handle(event, world.now) {
            match effect {
                SessionEffect::Open => world.connect(self.pid, self.port, TaskId::ps(0), Port::Coordinator),
                SessionEffect::Send(message) => {
                    if let Some(connection) = self.connection {
                        world.send(connection, self.pid, self.port, Message::Task(Box::new(message)));
                    }
                }
                SessionEffect::StopSending => {
                    if let Some(connection) = self.connection {
                        world.stop_sending(connection, self.pid, self.port);
                    }
                }
                SessionEffect::Close => {
                    if let Some(connection) = self.connection.take() {
                        world.close(connection, self.pid, self.port);
                    }
                }
                SessionEffect::Deliver(kind) => delivered.push(kind),
                SessionEffect::Look { number, incarnation } => {
                    let steps = world.scenario.run.steps.unwrap_or(0);
                    let found = world.scenario.checkpoints.and_then(|_| world.store.outcome(incarnation, steps));
                    let at = world.now + world.random.millis(1, 200);
                    world.at(at, Event::To(self.pid, Happening::Looked(self.port, number, found)));
                }
                SessionEffect::Mention(line) => {
                    if world.trace {
                        println!("{:>10.4} process {} {:?}: {line}", world.now.as_secs_f64(), self.pid, self.port);
                    }
                }
                SessionEffect::End => {}
            }
        }
        self.let_in |= self.session.is_welcomed();
        let deadline = self.session.deadline();
        if let Some(deadline) = deadline.filter(|_| deadline != self.armed) {
            world.remind(self.pid, deadline, Timer::Session(self.port));
        }
        self.armed = deadline;
        delivered
    }
}
