//! Fixtures that several tests of this crate share.

use windlass_core::admission::ShardStatistics;
use windlass_core::checkpoint::Standing;
use windlass_core::cluster::WorkerId;
use windlass_core::consistency::Mode;
use windlass_core::identity::Identity;
use windlass_core::ledger::Incarnation;
use windlass_core::optimizer::Optimizer;
use windlass_core::parameter::{ParameterSpec, ParameterTable};
use windlass_core::plan::Sharding;
use windlass_core::run::RunSpec;
use windlass_core::schedule::Schedule;

use crate::coordinator::OwnShard;

/// An asynchronous run with these parameters, in which a gradient is subtracted as it is.
pub(crate) fn run(parameters: Vec<ParameterSpec>) -> RunSpec {
    RunSpec {
        model: "any".into(),
        mode: Mode::Async,
        optimizer: Optimizer::Sgd,
        learning_rate: 1.0,
        schedule: Schedule::Constant,
        sharding: Sharding::BALANCED,
        steps: None,
        deterministic: false,
        staleness_scaling: false,
        clip_norm: None,
        parameters: ParameterTable::new(parameters).unwrap(),
        identity: Identity::default(),
        data: None,
    }
}

/// The shard of a ps 0 that has not been prepared.
pub(crate) struct NoShard;

impl OwnShard for NoShard {
    fn join(&self, _worker: WorkerId, _incarnation: Incarnation, _clock: u64) -> Option<Standing> {
        None
    }

    fn clock(&self) -> Option<u64> {
        None
    }

    fn retire(&self, _worker: WorkerId, _incarnation: Incarnation) -> Option<Standing> {
        None
    }

    fn statistics(&self) -> Option<ShardStatistics> {
        None
    }
}
