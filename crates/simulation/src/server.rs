//! A simulated parameter server: the production machine, a shard, and a saver that writes its parts.

use std::collections::VecDeque;
use std::time::Duration;

use windlass_checkpoint::{CheckpointId, PartRecord};
use windlass_core::admission::{Request, RequestKind};
use windlass_core::checkpoint::CutPoint;
use windlass_core::cluster::{Job, ServerId, TaskId, WorkerId};
use windlass_core::ledger::{Incarnation, PushId};
use windlass_core::lifecycle::Outcome;
use windlass_core::plan::ShardPlan;
use windlass_core::run::LearningRate;
use windlass_server::{Holding, Part, ServerEffect, ServerEvent, ServerMachine, Unprepared};
use windlass_wire::PROTOCOL;
use windlass_wire::control::proto::{
    CheckpointFailed, Cut, Endpoint, Hello, Marked, PartWritten, Prepare, task_message::Kind,
};
use windlass_wire::control::session::SessionEvent;

use crate::coordinator::SharedShard;
use crate::line::Line;
use crate::shard::{AnswerKind, Frame, Shard, ShardAtCut, ShardEffect};
use crate::store::LOCATION;
use crate::world::{Connection, Message, Pid, Port, ShardTimer, Timer, World};

/// A part that is to be written.
#[derive(Debug)]
struct PartJob {
    number: u64,
    id: String,
    /// What was read, while it is written.
    part: Option<(Part, Vec<crate::shard::Values>)>,
}

/// A parameter server.
pub struct ServerNode {
    id: u32,
    pid: Pid,
    line: Line,
    machine: ServerMachine,
    shard: SharedShard,
    /// Counts the shards, so that what is meant for an earlier one does not reach the next.
    shards: u64,
    preparing: Option<Prepare>,
    /// The part that is being written, and those that wait for it.
    saving: VecDeque<PartJob>,
    written: Option<(u64, String)>,
    /// Events that wait until somebody has left a round.
    backlog: VecDeque<ServerEvent>,
    effects: VecDeque<ServerEffect>,
    /// True while an effect is carried out: those behind it wait for it, as they do in the server's task.
    working: bool,
    /// How it has ended.
    pub ended: Option<Outcome>,
}

impl ServerNode {
    /// A server that has just been started.
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

    fn told(&mut self, told: Vec<windlass_wire::control::proto::coordinator_message::Kind>, world: &mut World) {
        for kind in told {
            self.handle(ServerEvent::Told(kind), world);
        }
        if self.line.session.is_over() && self.ended.is_none() {
            self.handle(ServerEvent::Lost, world);
        }
    }

    /// Something happens to the server.
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

    fn begin_part(&mut self, world: &mut World) {
        let Some(number) = self.saving.front().map(|job| job.number) else { return };
        self.written = None;
        self.with(world, |shard, now| shard.read(number, now));
    }

    /// A cut has been read, or was given up.
    fn read(&mut self, number: u64, cut: Option<ShardAtCut>, world: &mut World) {
        let Some(job) = self.saving.front_mut().filter(|job| job.number == number) else { return };
        let Some(ShardAtCut { mark, notes, learning_rate, blocks }) = cut else {
            self.saving.pop_front();
            let reason = "the checkpoint was given up".to_owned();
            self.say(Kind::CheckpointFailed(CheckpointFailed { number, reason, missed: true }), world);
            return self.begin_part(world);
        };
        world.watch.check_cut(self.id, &mark.pushes, &blocks);
        let id: CheckpointId = job.id.parse().expect("a checkpoint's id");
        let object = id.part_object(self.id as usize, world.scenario.servers as usize);
        let plan = ShardPlan::new(
            &world.scenario.run.parameters,
            world.scenario.servers as usize,
            world.scenario.run.sharding,
        );
        let record = PartRecord {
            server: self.id as usize,
            object,
            bytes: 0,
            header_bytes: 0,
            checksums: Vec::new(),
            plan: plan.servers[self.id as usize].clone(),
        };
        job.part = Some((Part { record, mark, notes, learning_rate, held_up: Duration::ZERO }, blocks));
        let (at, fails) = world.store_delay();
        world.remind(self.pid, at, Timer::Written(self.shards, number, fails));
    }

    /// A part is written, or could not be.
    pub fn part_written(&mut self, (shards, number): (u64, u64), fails: bool, world: &mut World) {
        if shards != self.shards || self.saving.front().is_none_or(|job| job.number != number) {
            return;
        }
        let Some((part, blocks)) = self.saving.pop_front().and_then(|job| job.part) else { return };
        let kind = if fails {
            let reason = "no space left".to_owned();
            Kind::CheckpointFailed(CheckpointFailed { number, reason, missed: false })
        } else {
            world.store.write(part.record.object.clone(), blocks);
            self.written = Some((number, part.record.object.clone()));
            Kind::PartWritten(PartWritten { number, part: serde_json::to_string(&part).unwrap_or_default() })
        };
        self.say(kind, world);
        self.begin_part(world);
    }

    /// The shard is allocated or restored.
    pub fn prepared(&mut self, number: u64, world: &mut World) {
        let Some(prepare) = self.preparing.take_if(|prepare| prepare.number == number) else { return };
        let run = world.scenario.run.clone();
        let plan = ShardPlan::new(&run.parameters, prepare.servers as usize, run.sharding);
        let restored = !prepare.restore.is_empty();
        if !plan.is_active(ServerId(self.id)) {
            return self.handle(ServerEvent::Prepared(Ok(Holding { shard: false, saves: false, restored })), world);
        }
        let workers: Vec<WorkerId> = prepare.workers.iter().map(|worker| WorkerId(*worker)).collect();
        let mut blocks = vec![Vec::new(); world.scenario.pieces];
        let mut state = None;
        if restored {
            let manifest = world.store.manifest(&prepare.restore);
            let part = manifest.and_then(|manifest| manifest.parts.iter().find(|part| part.server == self.id as usize));
            let Some(read) = part.and_then(|part| world.store.part(&part.object)) else {
                let reason = format!("checkpoint {} cannot be read", prepare.restore);
                world.watch.fail(|| reason.clone());
                let unprepared = Unprepared { exit_code: 4, reason };
                return self.handle(ServerEvent::Prepared(Err(unprepared)), world);
            };
            blocks.clone_from(read);
            state = manifest.map(|manifest| (manifest.id.step, manifest.learning_rate));
            world.watch.restored += 1;
        }
        world.watch.prepared(self.id, &blocks, prepare.living.iter().map(|living| living.worker));
        let mut shard = Shard::new(&run, &workers, blocks);
        if let Some((version, learning_rate)) = state {
            shard.gate.resume_at(version, learning_rate);
        }
        shard.gate.fence_up_to(Incarnation(prepare.latest_incarnation));
        for living in &prepare.living {
            shard.announce_living(WorkerId(living.worker), Incarnation(living.incarnation));
        }
        for worker in workers.iter().filter(|worker| prepare.living.iter().all(|living| living.worker != worker.0)) {
            shard.leave(*worker, Incarnation::default(), world.now);
        }
        *self.shard.borrow_mut() = Some(shard);
        let saves = !prepare.checkpoints.is_empty();
        debug_assert!(!saves || prepare.checkpoints == LOCATION);
        self.handle(ServerEvent::Prepared(Ok(Holding { shard: true, saves, restored })), world);
    }

    fn clear(&mut self, world: &mut World) {
        self.shards += 1;
        self.preparing = None;
        self.saving.clear();
        self.written = None;
        let shard = self.shard.borrow_mut().take();
        for connection in shard.into_iter().flat_map(|mut shard| shard.close()) {
            world.close(connection, self.pid, Port::Stream);
        }
    }

    /// Something arrives on a stream, or it was closed.
    pub fn stream(&mut self, connection: Connection, frame: Option<Frame>, world: &mut World) {
        let here = self.with(world, |shard, now| match frame {
            Some(frame) => shard.arrive(connection, frame, now),
            None => shard.disconnected(connection),
        });
        if here.is_none() && frame.is_some() {
            // The worker tries again.
            world.close(connection, self.pid, Port::Stream);
        }
    }

    /// The time has come for the shard.
    pub fn remind_shard(&mut self, shards: u64, timer: &ShardTimer, world: &mut World) {
        if shards == self.shards {
            self.with(world, |shard, now| match timer {
                ShardTimer::Poll => shard.poll(now),
                ShardTimer::RoundPiece => shard.round_piece(now),
                ShardTimer::ReadPiece(number) => shard.read_piece(*number),
            });
        }
    }

    /// Looks at those who wait at the shard, about whom the coordinator may have said something.
    pub fn poll(&mut self, world: &mut World) {
        self.with(world, Shard::poll);
    }

    /// Does something with the shard, and then what it wants to have done.
    fn with<T>(&mut self, world: &mut World, act: impl FnOnce(&mut Shard, Duration) -> T) -> Option<T> {
        let mut guard = self.shard.borrow_mut();
        let shard = guard.as_mut()?;
        let result = act(shard, world.now);
        let effects = shard.take_effects();
        drop(guard);
        let mut reads = Vec::new();
        for effect in effects {
            match effect {
                ShardEffect::Answer(connection, asked, answer) => {
                    // A process that was declared dead in the middle of a push may be told that it is applied, though
                    // its last pieces were refused. Nothing follows from that: it has to rejoin before it is taken
                    // seriously again, and goes on from where the servers say.
                    let living = self.shard.borrow().as_ref().is_some_and(|shard| shard.gate.is_living(&asked.request));
                    if answer.kind == AnswerKind::Values && asked.request.kind == RequestKind::Push && living {
                        world.watch.acknowledge(self.id, &asked, world.scenario.run.mode, answer.over);
                    }
                    world.send(connection, self.pid, Port::Stream, Message::Answer(answer));
                }
                ShardEffect::Close(connection) => {
                    self.shard.borrow_mut().iter_mut().for_each(|shard| shard.disconnected(connection));
                    world.close(connection, self.pid, Port::Stream);
                }
                ShardEffect::Poll(at) => {
                    world.remind(self.pid, at, Timer::Shard(self.shards, ShardTimer::Poll));
                }
                ShardEffect::RoundPiece => {
                    let at = world.now + world.random.micros(0, 3000);
                    world.remind(self.pid, at, Timer::Shard(self.shards, ShardTimer::RoundPiece));
                }
                ShardEffect::ReadPiece(number) => {
                    let at = world.now
                        + if world.random.percent(10) {
                            world.random.millis(1, 900)
                        } else {
                            world.random.micros(0, 5000)
                        };
                    world.remind(self.pid, at, Timer::Shard(self.shards, ShardTimer::ReadPiece(number)));
                }
                ShardEffect::Joined(worker, clock) => world.watch.join(self.id, worker.0, clock),
                ShardEffect::Applied(asked, last) => {
                    world.watch.apply(self.id, &asked);
                    if last {
                        world.watch.advance(self.id, asked.request.push.worker.0);
                    }
                }
                ShardEffect::Read(number, cut) => reads.push((number, cut)),
            }
        }
        for (number, cut) in reads {
            self.read(number, cut, world);
        }
        if !self.backlog.is_empty() || !self.effects.is_empty() {
            // Whoever was to leave may have.
            self.work(world);
        }
        Some(result)
    }

    /// Checks the parameters of a run that has ended well.
    pub fn check_end(&self, world: &mut World) {
        let guard = self.shard.borrow();
        let Some(shard) = guard.as_ref() else { return };
        let blocks: Vec<_> = shard.blocks().cloned().collect();
        let (steps, workers) = (world.scenario.run.steps.unwrap_or(0), world.scenario.workers);
        world.watch.check_end(self.id, &blocks, (shard.gate.version(), steps));
        let all = windlass_core::consistency::Mode::Sync { replicas_to_aggregate: None };
        if world.scenario.is_calm() && !world.scenario.dynamic && world.scenario.run.mode == all {
            blocks.iter().for_each(|block| world.watch.check_rounds(self.id, block, workers));
        }
    }

    /// The task that this is.
    pub fn task(&self) -> TaskId {
        TaskId::ps(self.id)
    }
}
