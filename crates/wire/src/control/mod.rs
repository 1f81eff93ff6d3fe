//! Control between tasks, by gRPC: a task's session with the coordinator, and how ps tasks learn each other's addresses.

mod dial;
pub mod outbox;
pub mod proto;
pub mod roster;
pub mod session;
mod waiting;
