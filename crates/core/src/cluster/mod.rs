//! Determines which tasks there are, where each is reached, and which of them this process is.
//!
//! The answer comes from flags, a cluster file (TOML), `TF_CONFIG` (JSON) or a scheduler's variables, in this
//! precedence; [`resolve()`] puts them together. Everything here works on strings and values already read: it must
//! not read the environment or files, look up names, or open sockets.

mod address;
mod environment;
mod error;
mod file;
mod layout;
mod resolve;
mod spec;
mod task;
mod tf_config;

pub use address::{Address, AddressError};
pub use environment::{Environment, NodeListError, SlurmError, SlurmVariables};
pub use error::ClusterError;
pub use layout::RunLayout;
pub use resolve::{ClusterInput, ResolvedTask, Source, resolve};
pub use spec::ClusterSpec;
pub use task::{Job, ServerId, TaskId, WorkerId};

use spec::ClusterDraft;

/// What one source (flags, file, `TF_CONFIG` or Slurm) says, before precedence is applied.
#[derive(Debug, Default)]
struct Statement {
    cluster: Option<ClusterDraft>,
    task: Option<NamedTask>,
}

/// A task as a source names it: the index may be omitted where the job has only one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedTask {
    job: Job,
    index: Option<u32>,
}
