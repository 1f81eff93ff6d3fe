//! Control between tasks, by gRPC: a task's session with the coordinator, what a worker makes of it,
//! and how ps tasks learn each other's addresses.

mod dial;
pub mod outbox;
pub mod proto;
pub mod roster;
pub mod session;
pub mod usage;
mod waiting;
pub mod worker_machine;
