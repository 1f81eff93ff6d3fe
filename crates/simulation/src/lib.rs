//! A simulated cluster: the production machines of session, coordinator, server and shard on virtual time, with a
//! network, processes and a store whose failures derive from a seed. Each seed is one reproducible run.
//!
//! For tests only. It moves no bytes and knows no tensors: a value is the set of pushes that it contains.

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
