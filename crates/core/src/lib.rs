//! The pure logic of Windlass: no async, sockets, files, clocks or tensors.
//!
//! Everything here is a value or a state machine that takes events and time as arguments and returns what to do.
//! `windlass-wire` moves bytes; `windlass-server` and `windlass-worker` carry out what is decided here.

pub mod admission;
pub mod block;
pub mod checkpoint;
pub mod cluster;
pub mod consistency;
pub mod device;
pub mod difference;
pub mod executor;
pub mod fault;
pub mod footprint;
pub mod hang;
pub mod identity;
pub mod learning;
pub mod ledger;
pub mod lifecycle;
pub mod limits;
pub mod membership;
pub mod optimizer;
pub mod parameter;
pub mod plan;
pub mod plateau;
pub mod rows;
pub mod run;
pub mod schedule;
pub mod splitmix;
pub mod straggler;
pub mod timing;
pub mod vector;
