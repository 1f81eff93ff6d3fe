//! A simulated worker's connections to the servers: asks all of them at once, and retries after a broken connection.

use std::time::Duration;

use windlass_core::admission::{Request, RequestKind};
use windlass_core::cluster::{ServerId, TaskId, WorkerId};
use windlass_core::ledger::PushId;
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;
use windlass_wire::control::worker_machine::Cause;

use super::WorkerNode;
use crate::shard::{Answer, AnswerKind, Asked, Frame};
use crate::world::{Connection, Message, Port, Timer, World};

/// The pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A worker's connection to one server.
#[derive(Debug, Default)]
pub(super) struct Lane {
    connection: Option<Connection>,
    connecting: bool,
    base: u64,
    asked: Option<Asked>,
    answer: Option<Answer>,
    failures: u32,
    failing: Option<Duration>,
    /// The number of attempts, so that an old timer has no effect.
    attempt: u64,
    /// True if the values are being requested again because another server had newer ones.
    again: bool,
}

impl WorkerNode {
    fn is_local(&self, server: u32, world: &World) -> bool {
        world.directory.get(&TaskId::ps(server)) == Some(&self.pid)
    }

    pub(super) fn drop_lanes(&mut self, world: &mut World) {
        for (server, lane) in std::mem::take(&mut self.lanes) {
            if let Some(connection) = lane.connection {
                world.close(connection, self.pid, Port::Lane(server));
            }
        }
    }

    /// Creates the lanes of this incarnation, unless they exist.
    pub(super) fn join_servers(&mut self, world: &mut World) {
        if self.connected == self.acting && !self.lanes.is_empty() {
            return;
        }
        self.drop_lanes(world);
        (self.connected, self.sequence) = (self.acting, 0);
        let scenario = &world.scenario;
        let plan = ShardPlan::new(&scenario.run.parameters, scenario.servers as usize, scenario.run.sharding);
        let active = (0..scenario.servers).filter(|server| plan.is_active(ServerId(*server)));
        self.lanes = active.map(|server| (server, Lane::default())).collect();
    }

    pub(super) fn ask(&mut self, kind: RequestKind, world: &mut World) {
        self.join_servers(world);
        if kind == RequestKind::Push {
            self.sequence += 1;
        }
        for server in self.lanes.keys().copied().collect::<Vec<_>>() {
            let base = if kind == RequestKind::Push { self.lanes[&server].base } else { 0 };
            self.ask_one(server, kind, base, world);
        }
    }

    fn ask_one(&mut self, server: u32, kind: RequestKind, base: u64, world: &mut World) {
        let push = PushId { worker: WorkerId(self.id), incarnation: self.connected, sequence: self.sequence };
        let learning_rate = LearningRate::initial(world.scenario.run.learning_rate);
        let asked = Asked { request: Request { kind, push, base, learning_rate }, batch: self.began + self.sequence };
        let lane = self.lanes.get_mut(&server).expect("a lane");
        (lane.asked, lane.answer, lane.failures, lane.failing) = (Some(asked), None, 0, None);
        match lane.connection {
            Some(connection) => self.send(server, connection, asked, world),
            None => self.connect(server, world),
        }
    }

    fn send(&self, server: u32, connection: Connection, asked: Asked, world: &mut World) {
        let port = Port::Lane(server);
        world.send(connection, self.pid, port, Message::Frame(Frame::Request(asked)));
        if asked.request.kind != RequestKind::Pull {
            for _ in 0..world.scenario.pieces {
                world.send(connection, self.pid, port, Message::Frame(Frame::Piece));
            }
        }
    }

    /// Reconnects to the servers of other processes, since those may have been replaced.
    pub(super) fn connect_anew(&mut self, world: &mut World) {
        for server in self.lanes.keys().copied().collect::<Vec<_>>() {
            if self.is_local(server, world) {
                continue;
            }
            let lane = self.lanes.get_mut(&server).expect("a lane");
            if let Some(connection) = lane.connection.take() {
                world.close(connection, self.pid, Port::Lane(server));
                self.connect(server, world);
            }
        }
    }

    fn connect(&mut self, server: u32, world: &mut World) {
        let lane = self.lanes.get_mut(&server).expect("a lane");
        if !lane.connecting {
            lane.connecting = true;
            world.connect(self.pid, Port::Lane(server), TaskId::ps(server), Port::Stream);
        }
    }

    /// Handles the result of connecting a lane.
    pub fn lane_connected(&mut self, server: u32, connection: Option<Connection>, world: &mut World) {
        let unwanted = |worker: &Self, world: &mut World| {
            if let Some(connection) = connection {
                world.close(connection, worker.pid, Port::Lane(server));
            }
        };
        let Some(lane) = self.lanes.get_mut(&server) else { return unwanted(self, world) };
        if !lane.connecting || lane.connection.is_some() {
            return unwanted(self, world);
        }
        lane.connecting = false;
        lane.connection = connection;
        let asked = lane.asked.filter(|_| lane.answer.is_none());
        match (connection, asked) {
            (Some(connection), Some(asked)) => self.send(server, connection, asked, world),
            (Some(_), None) => {}
            (None, _) => self.retry(server, RECONNECT_PAUSE, world),
        }
    }

    /// Handles a lane's broken connection.
    pub fn lane_closed(&mut self, server: u32, connection: Connection, world: &mut World) {
        let is_local = self.is_local(server, world);
        let Some(lane) = self.lanes.get_mut(&server).filter(|lane| lane.connection == Some(connection)) else { return };
        lane.connection = None;
        if lane.asked.is_none() || lane.answer.is_some() {
            return;
        }
        if is_local {
            // The server in this process has dropped its parameters; the coordinator decides what follows.
            return self.undo(Cause::Released(ServerId(server)), world);
        }
        let pause = Duration::from_millis((1 << lane.failures.min(10)) - 1).min(Duration::from_millis(100));
        lane.failures += 1;
        self.retry(server, pause, world);
    }

    fn retry(&mut self, server: u32, pause: Duration, world: &mut World) {
        let lane = self.lanes.get_mut(&server).expect("a lane");
        let failing = *lane.failing.get_or_insert(world.now);
        if world.now - failing > world.scenario.peer_timeout {
            return self.undo(Cause::Unreachable, world);
        }
        lane.attempt += 1;
        world.remind(self.pid, world.now + pause, Timer::Retry(server, lane.attempt));
    }

    /// Retries a server.
    pub fn try_again(&mut self, server: u32, attempt: u64, world: &mut World) {
        if self.lanes.get(&server).is_some_and(|lane| lane.attempt == attempt && lane.connection.is_none()) {
            self.connect(server, world);
        }
    }

    /// Handles a server's answer.
    pub fn answered(&mut self, server: u32, connection: Connection, answer: Answer, world: &mut World) {
        let Some(lane) = self.lanes.get_mut(&server).filter(|lane| lane.connection == Some(connection)) else { return };
        match answer.kind {
            AnswerKind::Fenced => return self.undo(Cause::DeclaredDead, world),
            AnswerKind::Refused => return self.undo(Cause::Unreachable, world),
            _ => lane.answer = Some(answer),
        }
        if self.lanes.values().any(|lane| lane.answer.is_none()) || !self.align(world) {
            return;
        }
        let mut over = true;
        for lane in self.lanes.values_mut() {
            let Some(answer) = lane.answer else { continue };
            (lane.base, lane.again) = (answer.version, false);
            over &= answer.over;
        }
        let step = self.lanes.values().next().map_or(0, |lane| lane.base);
        self.line.session.progress.global_step = step;
        self.line.session.progress.local_step = self.began + self.sequence;
        self.go_on(over, world);
    }

    /// Pulls again from servers whose values are of an earlier round than those of others. True if there is no need to.
    fn align(&mut self, world: &mut World) -> bool {
        let versions = || self.lanes.values().filter_map(|lane| lane.answer).filter(|answer| answer.rounds);
        let newest = versions().map(|answer| answer.version).max().unwrap_or(0);
        let is_behind = |lane: &Lane| lane.answer.is_some_and(|answer| answer.rounds && answer.version < newest);
        let behind: Vec<u32> = self.lanes.iter().filter(|(_, lane)| is_behind(lane)).map(|(id, _)| *id).collect();
        // A server stays behind if no worker is left to advance it.
        if behind.is_empty() || behind.iter().any(|server| self.lanes[server].again) {
            return true;
        }
        for server in behind {
            self.lanes.get_mut(&server).expect("a lane").again = true;
            self.ask_one(server, RequestKind::Pull, newest, world);
        }
        false
    }
}
