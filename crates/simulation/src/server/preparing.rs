//! How a simulated parameter server gets its shard, new or restored, and drops it.

use std::time::Duration;

use windlass_core::cluster::{ServerId, WorkerId};
use windlass_core::ledger::Incarnation;
use windlass_core::lifecycle::Outcome;
use windlass_core::plan::ShardPlan;
use windlass_server::{Holding, ServerEvent};
use windlass_wire::control::proto::Prepare;

use super::ServerNode;
use crate::shard::Shard;
use crate::store::LOCATION;
use crate::world::{Port, Timer, World};

impl ServerNode {
    /// The shard has been allocated or restored.
    pub fn prepared(&mut self, number: u64, world: &mut World) {
        let is_restored = |prepare: &Prepare| !prepare.restore.is_empty();
        if self.preparing.as_ref().is_some_and(is_restored) && world.store.is_unreadable(world.now) {
            // The restore is retried.
            return world.remind(self.pid, world.now + Duration::from_secs(1), Timer::Prepared(number));
        }
        let Some(prepare) = self.preparing.take_if(|prepare| prepare.number == number) else { return };
        let run = world.scenario.run.clone();
        let plan = ShardPlan::new(&run.parameters, prepare.servers as usize, run.sharding);
        let restored = !prepare.restore.is_empty();
        if !plan.is_active(ServerId(self.id)) {
            return self.handle(ServerEvent::Prepared(Ok(Holding { shard: false, saves: false, restored })), world);
        }
        let workers: Vec<WorkerId> = prepare.workers.iter().map(|worker| WorkerId(*worker)).collect();
        let mut blocks = vec![Vec::new(); world.scenario.pieces];
        let (mut state, mut id) = (None, None);
        if restored {
            let manifest = world.store.manifest(&prepare.restore);
            let part = manifest.and_then(|manifest| manifest.parts.iter().find(|part| part.server == self.id as usize));
            let Some(read) = part.and_then(|part| world.store.part(&part.object)) else {
                let reason = format!("checkpoint {} cannot be read", prepare.restore);
                world.watch.fail(|| reason.clone());
                let unprepared = Outcome { exit_code: 4, reason };
                return self.handle(ServerEvent::Prepared(Err(unprepared)), world);
            };
            blocks.clone_from(read);
            state = manifest.map(|manifest| (manifest.id.step, manifest.learning_rate));
            id = manifest.map(|manifest| manifest.id);
            world.watch.restored += 1;
        }
        world.watch.prepared(self.id, id, &blocks, prepare.living.iter().map(|living| living.worker));
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

    pub(super) fn clear(&mut self, world: &mut World) {
        self.shards += 1;
        self.preparing = None;
        self.saving.clear();
        self.written = None;
        let shard = self.shard.borrow_mut().take();
        for connection in shard.into_iter().flat_map(|mut shard| shard.close()) {
            world.close(connection, self.pid, Port::Stream);
        }
    }
}
