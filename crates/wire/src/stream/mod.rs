//! Streams of tensors: how their bytes are framed, and the TCP, Unix and shared-memory connections that carry them.

pub(crate) mod exchange;
pub mod frame;
pub mod handshake;
mod shared_memory;
mod socket;

pub use shared_memory::SharedStream;
pub(crate) use socket::close_if_unacknowledged;
pub use socket::{Socket, is_stalled};
