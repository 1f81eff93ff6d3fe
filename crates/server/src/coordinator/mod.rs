//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! What it decides is a pure machine (`machine`, behind `interface`): tasks come in (`joining`) and report (`messages`),
//! what the lifecycle decides is carried out (`carry_out`), with `members`, `data_positions`, `capacity`, `refusing` and
//! `checkpoint`. The rest is its shell: an actor (`actor`) that sessions feed with messages (`session_service`).

mod actor;
mod capacity;
mod carry_out;
mod checkpoint;
mod data_positions;
mod interface;
mod joining;
mod machine;
mod members;
mod messages;
mod refusing;
mod session_service;

pub(crate) use actor::ActorConfig;
pub use checkpoint::Beginning;
pub use interface::{Claimed, CoordinatorConfig, Effect, Event, OwnShard, SessionId, TICK};
pub use machine::Coordinator;
pub(crate) use session_service::CoordinatorHandle;
