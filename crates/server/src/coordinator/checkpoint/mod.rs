//! The checkpoints of a run, as the coordinator keeps them.
//!
//! `checkpoints` and `saving` decide, as part of the pure machine: when one is due, what it consists of, what ends it.
//! `opening`, `store_keeper`, `beginning` and `lease_keeper` do what takes time in the store, beside the coordinator.

mod beginning;
mod checkpoints;
mod lease_keeper;
mod opening;
mod saving;
mod store_keeper;

pub use checkpoints::Beginning;
pub(super) use checkpoints::Checkpoints;
pub(super) use opening::{Opened, open};
pub(super) use saving::{LastCheckpoint, unusable};
pub(super) use store_keeper::{StoreKeeper, Tidying};
