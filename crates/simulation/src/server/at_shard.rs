//! A simulated parameter server's access to its shard: passes on what arrives, carries out the shard's effects, and
//! reports them to the checks.

use std::time::Duration;

use windlass_core::admission::RequestKind;
use windlass_core::consistency::Mode;

use super::ServerNode;
use crate::shard::{AnswerKind, Frame, Shard, ShardEffect};
use crate::world::{Connection, Message, Port, ShardTimer, Timer, World};

impl ServerNode {
    /// Handles a frame on a stream, or its end.
    pub fn stream(&mut self, connection: Connection, frame: Option<Frame>, world: &mut World) {
        let here = self.with(world, |shard, now| match frame {
            Some(frame) => shard.arrive(connection, frame, now),
            None => shard.disconnected(connection, now),
        });
        if here.is_none() && frame.is_some() {
            // The worker will retry.
            world.close(connection, self.pid, Port::Stream);
        }
    }

    /// Handles a timer of the shard.
    pub fn remind_shard(&mut self, shards: u64, timer: &ShardTimer, world: &mut World) {
        if shards == self.shards {
            self.with(world, |shard, now| match timer {
                ShardTimer::Poll => shard.poll(now),
                ShardTimer::RoundPiece => shard.round_piece(now),
                ShardTimer::ReadPiece(number) => shard.read_piece(*number),
            });
        }
    }

    /// Polls the threads that wait in the shard: the coordinator may have announced their processes.
    pub fn poll(&mut self, world: &mut World) {
        self.with(world, Shard::poll);
    }

    /// Runs `act` on the shard, and then carries out the shard's effects.
    pub(super) fn with<T>(&mut self, world: &mut World, act: impl FnOnce(&mut Shard, Duration) -> T) -> Option<T> {
        let mut guard = self.shard.borrow_mut();
        let shard = guard.as_mut()?;
        let result = act(shard, world.now);
        let effects = shard.take_effects();
        drop(guard);
        let mut reads = Vec::new();
        for effect in effects {
            match effect {
                ShardEffect::Answer(connection, asked, answer) => {
                    // A process that was declared dead in the middle of a push may be told that the push is applied,
                    // though its last pieces were refused. That does no harm: the process has to rejoin before its
                    // pushes count again, and continues from where the servers say.
                    let living = self.shard.borrow().as_ref().is_some_and(|shard| shard.gate.is_living(&asked.request));
                    if answer.kind == AnswerKind::Values && asked.request.kind == RequestKind::Push && living {
                        world.watch.acknowledge(self.id, &asked, world.scenario.run.mode, answer.over);
                    }
                    world.send(connection, self.pid, Port::Stream, Message::Answer(answer));
                }
                ShardEffect::Close(connection) => {
                    self.shard.borrow_mut().iter_mut().for_each(|shard| shard.hang_up(connection));
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
                ShardEffect::Joined(worker, incarnation, clock) => {
                    world.watch.join(self.id, (worker.0, incarnation), clock);
                }
                ShardEffect::Left(worker, incarnation) => world.watch.gone(self.id, worker.0, incarnation),
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
            // A worker that was about to leave may now have left.
            self.work(world);
        }
        Some(result)
    }

    /// Checks the parameters after a successful run.
    pub fn check_end(&self, world: &mut World) {
        let guard = self.shard.borrow();
        let Some(shard) = guard.as_ref() else { return };
        let blocks: Vec<_> = shard.blocks().cloned().collect();
        let (steps, workers) = (world.scenario.run.steps.unwrap_or(0), world.scenario.workers);
        world.watch.check_end(self.id, &blocks, (shard.gate.version(), steps));
        let all = Mode::Sync { replicas_to_aggregate: None };
        if world.scenario.keeps_its_processes() && !world.scenario.dynamic && world.scenario.run.mode == all {
            blocks.iter().for_each(|block| world.watch.check_rounds(self.id, block, workers));
        }
    }
}
