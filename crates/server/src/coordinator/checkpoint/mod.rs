//! The coordinator's side of the checkpoints of a run.
//!
//! `checkpoints` and `saving` decide, as part of the pure machine: when a checkpoint is due, what it consists of, and
//! how it ends. `opening`, `store_keeper`, `beginning` and `lease_keeper` do the slow work in the store, beside the
//! coordinator.

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
