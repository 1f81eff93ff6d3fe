//! A parameter server task: its shard of the parameters, and in ps 0 the coordinator of the run.
//!
//! It knows parameters as runs of numbers: nothing here depends on a tensor library or on a model.

/// The target of log events that `launch` also shows to its user.
pub const NOTICE: &str = "windlass_server::notice";

/// How a notice begins of a ps 0 that was restarted and cannot open the checkpoints yet: nothing can be saved meanwhile.
pub const CANNOT_CONTINUE: &str = "ps 0 cannot continue the run yet";

mod background;
mod checkpoint;
mod connection;
pub mod coordinator;
#[cfg(test)]
mod fixtures;
mod records;
mod server_machine;
mod shard;
mod task;

pub use checkpoint::{CheckpointConfig, Part, Resume, before_generation, generation_of};
pub use records::{RunRecords, judge_end};
pub use server_machine::{Holding, LAST_WORDS, ServerEffect, ServerEvent, ServerMachine};
pub use shard::{CutError, ParameterShard, Snapshot};
pub use task::{Server, ServerConfig};
