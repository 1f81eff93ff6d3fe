//! A simulated worker: the production machine that decides what it does, and its hold on the servers. It pushes one batch
//! after another, to all servers at once, again after a broken connection, and goes on when all have answered.

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::admission::{Request, RequestKind};
use windlass_core::cluster::{Job, ServerId, TaskId, WorkerId};
use windlass_core::ledger::{Incarnation, PushId};
use windlass_core::lifecycle::Outcome;
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::{Hello, WorkerReport, coordinator_message};
use windlass_wire::control::session::SessionEvent;
use windlass_wire::control::worker_machine::{
    Achievement, Cause, Setback, Work, WorkerEffect, WorkerEvent, WorkerMachine,
};

use crate::line::Line;
use crate::shard::{Answer, AnswerKind, Asked, Frame};
use crate::world::{Connection, Message, Pid, Port, Timer, World};

/// The pause between two attempts to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// How long a process that leaves waits for its goodbye to be heard.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Initialising,
    Pulling,
    Computing,
    Pushing,
    Scoring,
    Concluding,
}

/// The way to a server.
#[derive(Debug, Default)]
struct Lane {
    connection: Option<Connection>,
    connecting: bool,
    base: u64,
    asked: Option<Asked>,
    answer: Option<Answer>,
    failures: u32,
    failing: Option<Duration>,
    /// Counts attempts, so that an old reminder does nothing.
    attempt: u64,
    /// True if the values are asked for again, after others had newer ones.
    again: bool,
}

/// A worker.
pub struct WorkerNode {
    id: u32,
    pid: Pid,
    line: Line,
    machine: WorkerMachine,
    doing: Doing,
    /// As which incarnation it does that.
    acting: Incarnation,
    /// As which incarnation the lanes were made.
    connected: Incarnation,
    lanes: BTreeMap<u32, Lane>,
    sequence: u64,
    /// Batches that it had had before this incarnation's first push.
    began: u64,
    ticket: u64,
    /// How it ends, and until when it waits for its goodbye to be heard.
    leaving: Option<(Outcome, Duration)>,
    /// How it has ended.
    pub ended: Option<Outcome>,
}

impl WorkerNode {
    /// A worker that has just been started.
    pub fn start(id: u32, pid: Pid, world: &mut World) -> Self {
        let hello = Hello {
            protocol: PROTOCOL,
            job: Job::Worker.to_string(),
            index: id,
            run: serde_json::to_string(&world.scenario.run).unwrap_or_default(),
            batches: 10,
            process: world.random.number(),
            ..Hello::default()
        };
        let mut worker = Self {
            id,
            pid,
            line: Line::new(hello, pid, Port::WorkerSession, world),
            machine: WorkerMachine::new(WorkerId(id)),
            doing: Doing::Nothing,
            acting: Incarnation::default(),
            connected: Incarnation::default(),
            lanes: BTreeMap::new(),
            sequence: 0,
            began: 0,
            ticket: 0,
            leaving: None,
            ended: None,
        };
        worker.session(SessionEvent::Tick, world);
        worker
    }

    /// Something happens on the session.
    pub fn session(&mut self, event: SessionEvent, world: &mut World) {
        let told = self.line.handle(event, world);
        self.told(told, world);
    }

    /// The session is connected, or not.
    pub fn connected(&mut self, connection: Option<Connection>, world: &mut World) {
        let told = self.line.connected(connection, world);
        self.told(told, world);
    }

    /// A session's message or end.
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
            self.decide(WorkerEvent::Told(kind), world);
        }
        if self.line.session.is_over() {
            self.decide(WorkerEvent::SessionEnded, world);
        }
        self.end_if_left(world);
    }

    /// Lets the machine decide, and does what it says.
    fn decide(&mut self, event: WorkerEvent, world: &mut World) {
        for effect in self.machine.handle(event, world.now) {
            match effect {
                WorkerEffect::Work(incarnation, work) => self.begin(incarnation, work, world),
                WorkerEffect::Welcomed(incarnation) => self.welcomed(incarnation, world),
                WorkerEffect::RunIsOver => self.undo(Cause::Interrupted, world),
                WorkerEffect::Report(report) => self.line.say(report, world),
                WorkerEffect::End(outcome) => self.leave(outcome, world),
                WorkerEffect::Mention(_) | WorkerEffect::Warn(_) | WorkerEffect::MentionWaiting(_) => {}
            }
        }
        if let Some(deadline) = self.machine.deadline() {
            world.remind(self.pid, deadline, Timer::Worker);
        }
    }

    /// Says goodbye, and waits for a moment until it has been heard.
    fn leave(&mut self, outcome: Outcome, world: &mut World) {
        let until = world.now + LEAVE_WITHIN;
        self.leaving = Some((outcome, until));
        world.remind(self.pid, until, Timer::Worker);
        self.line.finish(world);
        self.end_if_left(world);
    }

    fn end_if_left(&mut self, world: &World) {
        let Some((_, until)) = &self.leaving else { return };
        let was_let_in = self.machine.incarnation().is_some();
        if self.line.session.is_over() || world.now >= *until || !was_let_in {
            self.ended = self.leaving.take().map(|(outcome, _)| outcome);
        }
    }

    /// Connections from before a welcome may lead nowhere; a client of an earlier incarnation has nothing to wait for.
    fn welcomed(&mut self, incarnation: Incarnation, world: &mut World) {
        if self.acting < incarnation {
            self.drop_lanes(world);
            return self.undo(Cause::DeclaredDead, world);
        }
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

    /// What it does comes to nothing, unless it needs no server for it.
    fn undo(&mut self, cause: Cause, world: &mut World) {
        if self.doing == Doing::Concluding {
            return;
        }
        self.drop_lanes(world);
        if std::mem::replace(&mut self.doing, Doing::Nothing) != Doing::Nothing {
            let setback = Setback { cause, error: format!("{cause:?}") };
            self.decide(WorkerEvent::Completed(Err(setback)), world);
        }
    }

    fn achieve(&mut self, achievement: Achievement, world: &mut World) {
        self.doing = Doing::Nothing;
        self.decide(WorkerEvent::Completed(Ok(achievement)), world);
    }

    fn is_local(&self, server: u32, world: &World) -> bool {
        world.directory.get(&TaskId::ps(server)) == Some(&self.pid)
    }

    fn drop_lanes(&mut self, world: &mut World) {
        for (server, lane) in std::mem::take(&mut self.lanes) {
            if let Some(connection) = lane.connection {
                world.close(connection, self.pid, Port::Lane(server));
            }
        }
    }

    fn begin(&mut self, incarnation: Incarnation, work: Work, world: &mut World) {
        self.acting = incarnation;
        match work {
            Work::Initialise(_) => {
                self.doing = Doing::Initialising;
                self.ask(RequestKind::Initialise, world);
            }
            Work::Train(start) => {
                self.join_servers(world);
                self.began = start.batches.saturating_sub(self.sequence);
                self.doing = Doing::Pulling;
                self.ask(RequestKind::Pull, world);
            }
            Work::Summarise(..) => {
                self.doing = Doing::Scoring;
                self.ask(RequestKind::Pull, world);
            }
        }
    }

    /// Makes the lanes of this incarnation, unless they are there.
    fn join_servers(&mut self, world: &mut World) {
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

    fn ask(&mut self, kind: RequestKind, world: &mut World) {
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

    fn connect(&mut self, server: u32, world: &mut World) {
        let lane = self.lanes.get_mut(&server).expect("a lane");
        if !lane.connecting {
            lane.connecting = true;
            world.connect(self.pid, Port::Lane(server), TaskId::ps(server), Port::Stream);
        }
    }

    /// A lane is connected, or not.
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

    /// A lane's connection broke.
    pub fn lane_closed(&mut self, server: u32, connection: Connection, world: &mut World) {
        let is_local = self.is_local(server, world);
        let Some(lane) = self.lanes.get_mut(&server).filter(|lane| lane.connection == Some(connection)) else { return };
        lane.connection = None;
        if lane.asked.is_none() || lane.answer.is_some() {
            return;
        }
        if is_local {
            // The server in this process has let go of its parameters; the coordinator says what follows.
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

    /// Tries a server again.
    pub fn try_again(&mut self, server: u32, attempt: u64, world: &mut World) {
        if self.lanes.get(&server).is_some_and(|lane| lane.attempt == attempt && lane.connection.is_none()) {
            self.connect(server, world);
        }
    }

    /// A server answers.
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

    /// Asks servers again whose values are of an earlier round than others'. True if that need not be.
    fn align(&mut self, world: &mut World) -> bool {
        let versions = || self.lanes.values().filter_map(|lane| lane.answer).filter(|answer| answer.rounds);
        let newest = versions().map(|answer| answer.version).max().unwrap_or(0);
        let is_behind = |lane: &Lane| lane.answer.is_some_and(|answer| answer.rounds && answer.version < newest);
        let behind: Vec<u32> = self.lanes.iter().filter(|(_, lane)| is_behind(lane)).map(|(id, _)| *id).collect();
        // A server that nobody is left to bring there stays behind.
        if behind.is_empty() || behind.iter().any(|server| self.lanes[server].again) {
            return true;
        }
        for server in behind {
            self.lanes.get_mut(&server).expect("a lane").again = true;
            self.ask_one(server, RequestKind::Pull, newest, world);
        }
        false
    }

    fn go_on(&mut self, over: bool, world: &mut World) {
        match self.doing {
            Doing::Initialising => self.achieve(Achievement::Initialised, world),
            Doing::Pulling | Doing::Pushing if over => {
                let steps = self.began + self.sequence;
                let report = WorkerReport { worker: self.id, steps, ..WorkerReport::default() };
                self.achieve(Achievement::Trained(Box::new(report)), world);
            }
            Doing::Pulling | Doing::Pushing => {
                self.doing = Doing::Computing;
                self.wait(world.scenario.compute, world);
            }
            Doing::Scoring => {
                self.doing = Doing::Concluding;
                self.wait(200, world);
            }
            Doing::Nothing | Doing::Computing | Doing::Concluding => {}
        }
    }

    fn wait(&mut self, longest: u64, world: &mut World) {
        self.ticket += 1;
        let at = world.now + world.random.millis(1, longest);
        world.remind(self.pid, at, Timer::Computed(self.ticket));
    }

    /// A step is computed, or the network is scored.
    pub fn computed(&mut self, ticket: u64, world: &mut World) {
        if ticket != self.ticket {
            return;
        }
        match self.doing {
            Doing::Computing => {
                self.doing = Doing::Pushing;
                self.ask(RequestKind::Push, world);
            }
            Doing::Concluding => self.achieve(Achievement::Concluded(Outcome::done()), world),
            _ => {}
        }
    }

    /// The process is told to stop.
    pub fn stop(&mut self, world: &mut World) {
        self.undo(Cause::Interrupted, world);
        self.decide(WorkerEvent::Stop, world);
    }

    /// Time has passed.
    pub fn tick(&mut self, world: &mut World) {
        self.decide(WorkerEvent::Tick, world);
        self.end_if_left(world);
    }

    /// True if the coordinator has ever let it in.
    pub fn was_let_in(&self) -> bool {
        self.line.let_in
    }

    /// The task that this is.
    pub fn task(&self) -> TaskId {
        TaskId::worker(self.id)
    }
}
