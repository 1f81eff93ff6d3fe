//! A simulated parameter server: the production machine, with its effects carried out here. `preparing` creates its
//! shard, `at_shard` serves it, and `saving` writes its parts.

mod at_shard;
mod preparing;
mod saving;

use std::collections::VecDeque;

use windlass_core::admission::{Request, RequestKind};
use windlass_core::checkpoint::CutPoint;
use windlass_core::cluster::{Job, TaskId};
use windlass_core::ledger::PushId;
use windlass_core::lifecycle::Outcome;
use windlass_core::run::LearningRate;
use windlass_server::{ServerEffect, ServerEvent, ServerMachine};
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::{
    CheckpointFailed, Cut, Endpoint, Hello, Marked, Prepare, coordinator_message, task_message::Kind,
};
use windlass_wire::control::session::SessionEvent;

use crate::coordinator::SharedShard;
use crate::line::Line;
use crate::shard::Shard;
use crate::world::{Connection, Message, Pid, Port, Timer, World};
use saving::PartJob;

/// A parameter server.
pub struct ServerNode {
    id: u32,
    pid: Pid,
    line: Line,
    machine: ServerMachine,
    shard: SharedShard,
    /// The number of shards so far, so that events meant for an earlier shard do not reach the next.
    shards: u64,
    preparing: Option<Prepare>,
    /// The part that is being written, and those queued behind it.
    saving: VecDeque<PartJob>,
    written: Option<(u64, String)>,
    /// Events that wait until a worker has left a round.
    backlog: VecDeque<ServerEvent>,
    effects: VecDeque<ServerEffect>,
    /// True while an effect is carried out: the following effects wait for it, as in the server's task.
    working: bool,
    /// How the server ended.
    pub ended: Option<Outcome>,
}

impl ServerNode {
    /// Starts a server.
    pub fn start(id: u32, pid: Pid, shard: SharedShard, world: &mut World) -> Self {
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Ps.to_string(),
            index: id,
            endpoint: Some(Endpoint { address: format!("ps{id}:1"), local_name: String::new() }),
            process: world.random.number(),
            ..Hello::default()
        };
        let mut server = Self {
            id,
            pid,
            line: Line::new(hello, pid, Port::ServerSession, world),
            machine: ServerMachine::default(),
            shard,
            shards: 0,
            preparing: None,
            saving: VecDeque::new(),
            written: None,
            backlog: VecDeque::new(),
            effects: VecDeque::new(),
            working: false,
            ended: None,
        };
        server.session(SessionEvent::Tick, world);
        server
    }

    /// Handles an event of the session.
    pub fn session(&mut self, event: SessionEvent, world: &mut World) {
        let told = self.line.handle(event, world);
        self.told(told, world);
    }

    /// Handles the result of connecting the session.
    pub fn connected(&mut self, connection: Option<Connection>, world: &mut World) {
        let told = self.line.connected(connection, world);
        self.told(told, world);
    }

    /// Handles a message of the session, or its end.
    pub fn arrived(&mut self, connection: Connection, message: Option<Message>, world: &mut World) {
        if !self.line.is_on(connection) {
            return;
        }
        match message {
            Some(Message::Coordinator(message)) => self.session(SessionEvent::Arrived(*message), world),
            _ => self.session(SessionEvent::Broken, world),
        }
    }

    fn told(&mut self, told: Vec<coordinator_message::Kind>, world: &mut World) {
        for kind in told {
            self.handle(ServerEvent::Told(kind), world);
        }
        if self.line.session.is_over() && self.ended.is_none() {
            self.handle(ServerEvent::Lost, world);
        }
    }

    /// Handles an event of the server.
    pub fn handle(&mut self, event: ServerEvent, world: &mut World) {
        self.backlog.push_back(event);
        self.work(world);
    }

    fn work(&mut self, world: &mut World) {
        if !std::mem::replace(&mut self.working, true) {
            self.work_off(world);
            self.working = false;
        }
    }

    fn work_off(&mut self, world: &mut World) {
        loop {
            let leaving = self.shard.borrow().as_ref().is_some_and(Shard::is_leaving);
            if leaving || self.ended.is_some() {
                return;
            }
            if let Some(effect) = self.effects.pop_front() {
                self.carry_out(effect, world);
            } else if let Some(event) = self.backlog.pop_front() {
                self.effects.extend(self.machine.handle(event, world.now));
                if let Some(deadline) = self.machine.deadline() {
                    world.remind(self.pid, deadline, Timer::Quiet);
                }
            } else {
                return;
            }
        }
    }

    fn say(&mut self, kind: Kind, world: &mut World) {
        self.line.say(kind, world);
    }

    fn carry_out(&mut self, effect: ServerEffect, world: &mut World) {
        let now = world.now;
        match effect {
            ServerEffect::Mention(_) => {}
            ServerEffect::End(outcome) => self.ended = Some(outcome),
            ServerEffect::Send(kind) => self.say(kind, world),
            ServerEffect::CloseSession => self.line.finish(world),
            ServerEffect::Prepare(prepare) => {
                self.clear(world);
                let slow = if prepare.restore.is_empty() { now } else { world.store_delay().0 };
                let ready = slow + world.random.millis(1, 100);
                world.remind(self.pid, ready, Timer::Prepared(prepare.number));
                self.preparing = Some(*prepare);
            }
            ServerEffect::Mark(number) => {
                let mark = self.with(world, |shard, now| shard.gate.hold(number, now));
                let mark = serde_json::to_string(&mark.unwrap_or_default()).unwrap_or_default();
                self.say(Kind::Marked(Marked { number, mark }), world);
            }
            ServerEffect::Cut(Cut { number, id, cut }) => {
                let cut: CutPoint = serde_json::from_str(&cut).unwrap_or_default();
                let made = self.with(world, |shard, now| {
                    let made = shard.gate.cut(number, &cut);
                    shard.poll(now);
                    made
                });
                match made {
                    Some(Ok(())) => {
                        self.saving.push_back(PartJob { number, id, part: None });
                        if self.saving.len() == 1 {
                            self.begin_part(world);
                        }
                    }
                    Some(Err(error)) => {
                        let failed = CheckpointFailed { number, reason: error.to_string(), missed: true };
                        self.say(Kind::CheckpointFailed(failed), world);
                    }
                    None => {}
                }
            }
            ServerEffect::Abandon(number) => {
                self.with(world, |shard, now| shard.abandon(number, now));
                let first = self.saving.front().map(|job| job.number);
                self.saving.retain(|job| job.number > number);
                if let Some((_, object)) = self.written.take_if(|(last, _)| *last == number) {
                    world.store.discard(&object);
                }
                if self.saving.front().map(|job| job.number) != first {
                    self.begin_part(world);
                }
            }
            ServerEffect::Join(worker, incarnation, clock) => {
                self.with(world, |shard, now| drop(shard.join(worker, incarnation, clock, now)));
            }
            ServerEffect::Leave(worker, incarnation) => {
                let push = PushId { worker, incarnation, sequence: 0 };
                let learning_rate = LearningRate::initial(world.scenario.run.learning_rate);
                let request = Request { kind: RequestKind::Pull, push, base: 0, learning_rate };
                if self.shard.borrow().as_ref().is_some_and(|shard| !shard.gate.is_replaced(&request)) {
                    world.watch.leave(self.id, worker.0);
                }
                self.with(world, |shard, now| shard.leave(worker, incarnation, now));
            }
        }
    }

    /// True while the server has a session with the coordinator.
    pub fn is_in_session(&self) -> bool {
        self.line.session.is_welcomed()
    }

    /// True if the coordinator has ever admitted the server.
    pub fn was_let_in(&self) -> bool {
        self.line.let_in
    }

    /// True if the server has had a shard.
    pub fn was_prepared(&self) -> bool {
        self.shards > 0
    }

    /// The server's task.
    pub fn task(&self) -> TaskId {
        TaskId::ps(self.id)
    }
}
