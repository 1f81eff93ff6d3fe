//! The coordinator: the one place that knows the whole cluster. It lives in ps 0.
//!
//! Its decisions are a pure machine (`machine`, behind `interface`): tasks join (`joining`) and report (`messages`),
//! what the lifecycle decides is carried out (`carry_out`), with `members`, `data_positions`, `capacity`, `refusing`
//! and `checkpoint`; `history` remembers what has happened, and `client_process` announces a client once. The rest is
//! its shell: an actor (`actor`) that sessions feed with messages (`session_service`), which ends with a `farewell`.
//! Monitoring reads one `observation` of the run: Prometheus (`run_instruments`), the live page (`status`), and the
//! record of hardware usage (`utilization`).

mod actor;
mod capacity;
mod carry_out;
mod checkpoint;
mod client_process;
mod data_positions;
mod farewell;
mod history;
mod interface;
mod joined;
mod joining;
mod machine;
mod members;
mod messages;
mod observation;
mod refusing;
mod run_instruments;
mod session_service;
mod status;
mod utilization;

pub(crate) use actor::ActorConfig;
pub use checkpoint::Beginning;
pub use farewell::Farewell;
pub use history::{History, HistoryEvent, HistoryKind, SavedCheckpoint};
pub use interface::{Claimed, CoordinatorConfig, Effect, Event, OwnShard, SessionId, TICK};
pub use machine::Coordinator;
pub use observation::{NodeObservation, Observation, RunFacts, TaskObservation};
pub(crate) use session_service::CoordinatorHandle;
