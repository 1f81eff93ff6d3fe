//! A worker task: the training loop, the Burn adapter, and the trait that models implement.
//!
//! Start reading at [`train`], the loop; [`task`] is the life cycle around it, [`model`] the trait that a user
//! implements.

pub mod batches;
pub mod board;
pub mod buffer;
mod config;
mod control;
pub mod dataset;
pub mod devices;
pub mod event;
mod gradient;
pub mod history;
pub mod joined;
mod learning;
mod memory;
pub mod metrics;
pub mod model;
pub mod randomness;
pub mod replica;
pub mod report;
pub mod rows;
pub mod spec;
pub mod stages;
pub mod summary;
pub mod tally;
pub mod task;
mod telemetry;
pub mod threads;
pub mod train;
pub mod travel;
