//! What crosses the network between Windlass tasks.
//!
//! Control goes by gRPC ([`control`], [`session`]), tensors by framed streams ([`frame`], [`client`]), and both
//! share a task's one port ([`port`]). This crate moves bytes and keeps deadlines; what a push means is decided
//! in `windlass-core` and done in `windlass-server`.

pub mod client;
pub mod endpoint;
mod exchange;
pub mod frame;
pub mod handshake;
pub mod link;
pub mod lobby;
pub mod outbox;
pub mod port;
pub mod roster;
pub mod session;
mod shared;
mod socket;
mod waiting;

/// The generated messages and services of `proto/windlass.proto`.
#[allow(missing_docs, clippy::all)]
pub mod control {
    tonic::include_proto!("windlass.v1");
}

pub use shared::SharedStream;
pub use socket::{Socket, is_stalled};

/// The longest control message that is taken.
pub const MESSAGE_BYTES: usize = 8 << 20;

/// The version of everything this crate sends. Tasks of different versions refuse each other.
pub const PROTOCOL: u32 = 2;
