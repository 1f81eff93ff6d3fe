//! The network layer between Windlass tasks.
//!
//! Control goes by gRPC ([`control`]), tensors by framed streams ([`stream`], [`client`]), and both share a task's one
//! port ([`port`]). This crate moves bytes and keeps deadlines; what a push means is decided in `windlass-core` and
//! done in `windlass-server`.

pub mod client;
pub mod compute;
pub mod control;
pub mod endpoint;
pub mod link;
pub mod lobby;
pub mod port;
pub mod retry;
pub mod stream;

/// The maximum size of a control message.
pub const MESSAGE_BYTES: usize = 8 << 20;

/// The version of everything this crate sends. Tasks of different versions refuse each other.
pub const PROTOCOL: u32 = 3;
