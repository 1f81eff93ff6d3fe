//! A parameter server task: its shard of the parameters, and in ps 0 the coordinator of the run.
//!
//! It knows parameters as runs of numbers: nothing here depends on a tensor library or on a model.

mod connection;
mod coordinator;
mod shard;
mod task;

pub use shard::{ParameterShard, ShardStatistics};
pub use task::{Server, ServerConfig};
