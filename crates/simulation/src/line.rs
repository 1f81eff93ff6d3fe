//! Runs the production session machine in a simulated process: carries out its effects, and passes on what it delivers.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_core::cluster::TaskId;
use windlass_wire::control::proto::{Hello, coordinator_message, task_message};
use windlass_wire::control::session::{SessionConfig, SessionEffect, SessionEvent, SessionMachine};

use crate::world::{Connection, Event, Happening, Message, Pid, Port, Timer, World};

/// A session with its connection.
#[derive(Debug)]
pub struct Line {
    /// The session's state machine.
    pub session: SessionMachine,
    connection: Option<Connection>,
    pid: Pid,
    port: Port,
    armed: Option<Duration>,
    /// The task's messages that the coordinator has not accepted yet, and whether they are the last.
    to_say: VecDeque<task_message::Kind>,
    finished: bool,
    /// True once the coordinator has admitted the task.
    pub let_in: bool,
}

impl Line {
    /// Starts a session.
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

    /// True if this is the session's connection.
    pub fn is_on(&self, connection: Connection) -> bool {
        self.connection == Some(connection)
    }

    /// Handles the result of an attempt to connect.
    pub fn connected(&mut self, connection: Option<Connection>, world: &mut World) -> Vec<coordinator_message::Kind> {
        self.connection = connection;
        let refused = || SessionEvent::NotOpened("nobody is there".to_owned());
        self.handle(connection.map_or_else(refused, |_| SessionEvent::Opened), world)
    }

    /// Sends a message of the task.
    pub fn say(&mut self, kind: task_message::Kind, world: &mut World) {
        self.to_say.push_back(kind);
        self.say_what_is_taken(world);
    }

    /// Ends the session after the messages so far.
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

    /// Passes an event to the machine and carries out its effects. Returns the messages for the task.
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
