//! The saver of a simulated parameter server: reads one cut after another and writes its part of each.

use std::time::Duration;

use windlass_checkpoint::{CheckpointId, PartRecord};
use windlass_core::plan::ShardPlan;
use windlass_server::Part;
use windlass_wire::control::proto::{CheckpointFailed, PartWritten, task_message::Kind};

use super::ServerNode;
use crate::shard::{ShardAtCut, Values};
use crate::world::{Timer, World};

/// A part to be written.
#[derive(Debug)]
pub(super) struct PartJob {
    pub(super) number: u64,
    pub(super) id: String,
    /// The contents, while they are being written.
    pub(super) part: Option<(Part, Vec<Values>)>,
}

impl ServerNode {
    pub(super) fn begin_part(&mut self, world: &mut World) {
        let Some(number) = self.saving.front().map(|job| job.number) else { return };
        self.written = None;
        self.with(world, |shard, now| shard.read(number, now));
    }

    /// Handles a cut that has been read, or was abandoned.
    pub(super) fn read(&mut self, number: u64, cut: Option<ShardAtCut>, world: &mut World) {
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

    /// Handles a part that has been written, or could not be.
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
}
