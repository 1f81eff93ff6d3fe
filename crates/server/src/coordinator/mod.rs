//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! What it decides is a pure machine (`machine`, with `effects`, `saving`, `members`, `positions`, `checkpoints`,
//! `capacity` and `refusing`). The rest is its shell: an actor that sessions feed with messages (`actor`, `front`), and
//! what it has done beside it in the checkpoint store (`store_keeper`, `beginning`, `lease_keeper`, `opening`).

mod actor;
mod beginning;
mod capacity;
mod checkpoints;
mod effects;
mod front;
mod lease_keeper;
mod machine;
mod members;
mod opening;
mod positions;
mod refusing;
mod saving;
mod store_keeper;

pub(crate) use actor::ActorConfig;
pub use checkpoints::Beginning;
pub(crate) use front::CoordinatorHandle;
pub use machine::{Claimed, Coordinator, CoordinatorConfig, Effect, Event, OwnShard, SessionId, TICK};
