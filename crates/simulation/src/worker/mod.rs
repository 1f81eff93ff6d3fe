//! A simulated worker: the production machine that decides what it does, and the work itself. It pushes one batch after
//! another, and continues when all servers have answered; its connections to them are in `lanes`.

mod lanes;

use std::collections::BTreeMap;
use std::time::Duration;

use windlass_core::admission::RequestKind;
use windlass_core::cluster::{Job, TaskId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::{Hello, WorkerReport, coordinator_message};
use windlass_wire::control::session::SessionEvent;
use windlass_wire::control::worker_machine::{
    Achievement, Cause, Setback, Work, WorkerEffect, WorkerEvent, WorkerMachine,
};

use crate::line::Line;
use crate::world::{Connection, Message, Pid, Port, Timer, World};
use lanes::Lane;

/// How long a process that leaves waits for its goodbye to be received.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// The current activity of a worker.
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

/// A worker.
pub struct WorkerNode {
    id: u32,
    pid: Pid,
    line: Line,
    machine: WorkerMachine,
    doing: Doing,
    /// The incarnation in which the worker does that.
    acting: Incarnation,
    /// The incarnation for which the lanes were created.
    connected: Incarnation,
    lanes: BTreeMap<u32, Lane>,
    sequence: u64,
    /// The number of batches before this incarnation's first push.
    began: u64,
    ticket: u64,
    /// The outcome, and the deadline for its goodbye to be received.
    leaving: Option<(Outcome, Duration)>,
    /// How the worker ended.
    pub ended: Option<Outcome>,
}

impl WorkerNode {
    /// Starts a worker.
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
            machine: WorkerMachine::new(WorkerId(id), TaskId::worker(id)),
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
            self.decide(WorkerEvent::Told(kind), world);
        }
        if self.line.session.is_over() {
            self.decide(WorkerEvent::SessionEnded, world);
        }
        self.end_if_left(world);
    }

    /// Passes an event to the machine and carries out its effects.
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

    /// Says goodbye, and waits a moment for it to be received.
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

    /// Handles a welcome. Older connections may lead nowhere, and an earlier incarnation has nothing to wait for.
    fn welcomed(&mut self, incarnation: Incarnation, world: &mut World) {
        if self.acting < incarnation {
            self.drop_lanes(world);
            return self.undo(Cause::DeclaredDead, world);
        }
        self.connect_anew(world);
    }

    /// Aborts the current activity, unless it needs no server.
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

    /// Handles a step that has been computed, or a network that has been scored.
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

    /// Handles a request to stop.
    pub fn stop(&mut self, world: &mut World) {
        self.undo(Cause::Interrupted, world);
        self.decide(WorkerEvent::Stop, world);
    }

    /// Advances the time.
    pub fn tick(&mut self, world: &mut World) {
        self.decide(WorkerEvent::Tick, world);
        self.end_if_left(world);
    }

    /// True while the worker has a session with the coordinator.
    pub fn is_in_session(&self) -> bool {
        self.line.session.is_welcomed()
    }

    /// True if the coordinator has ever admitted the worker.
    pub fn was_let_in(&self) -> bool {
        self.line.let_in
    }

    /// The worker's task.
    pub fn task(&self) -> TaskId {
        TaskId::worker(self.id)
    }
}
