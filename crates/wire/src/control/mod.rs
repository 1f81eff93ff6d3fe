//! Control between tasks, by gRPC: a task's session with the coordinator, how a worker acts on it, and how ps tasks
//! learn each other's addresses.

mod dial;
pub mod outbox;
pub mod proto;
pub mod roster;
pub mod session;
pub mod usage;
mod waiting;
pub mod worker_machine;
