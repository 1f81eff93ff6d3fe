//! A parameter server task: its shard of the parameters, and in ps 0 the coordinator of the run.
//!
//! It knows parameters as runs of numbers: nothing here depends on a tensor library or on a model.

mod background;
mod checkpoint;
mod connection;
mod coordinator;
mod memory;
mod prepare;
mod records;
mod saving;
mod shard;
mod task;

pub use checkpoint::{CheckpointConfig, Resume};
pub use records::RunRecords;
pub use shard::{CutError, ParameterShard, ShardStatistics, Snapshot};
pub use task::{Server, ServerConfig};
