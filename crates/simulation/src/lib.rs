//! A simulated cluster: the production machines of session, coordinator, server and shard on virtual time, with a network,
//! processes and a store that fail by a seed. One seed is one run, which can be run again.
//!
//! For tests only. It moves no bytes and knows no tensors: a value is the set of pushes that are in it.

mod check;
mod cluster;
mod coordinator;
mod line;
mod random;
mod scenario;
mod server;
mod shard;
mod store;
mod worker;
mod world;

pub use cluster::{Report, run, run_without_chief};
