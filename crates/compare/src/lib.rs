//! Layouts compared with each other: how a comparison is written, which runs it consists of, what their directories tell,
//! and the table and the picture of it.
//!
//! This crate starts nothing and knows no tensors. Whoever runs a [`Plan`] writes a [`RunRecord`] into each run's
//! directory and reads the results with [`Measured::read`].

mod columns;
mod comparison;
mod error;
pub mod file;
mod flags;
mod history;
pub mod layout;
mod measured;
mod picture;
mod plan;
mod record;
pub mod render;
mod utilization;

pub use columns::{COLUMNS, Column, Figure};
pub use comparison::{Comparison, Row};
pub use error::{LayoutError, PlanError, RunError};
pub use file::CompareFile;
pub use flags::Flags;
pub use history::{History, Point};
pub use layout::Layout;
pub use measured::{Measured, Summary};
pub use picture::{PictureError, png, svg};
pub use plan::{Entry, Plan, PlannedRun, Wishes};
pub use record::RunRecord;
pub use utilization::{NodeRole, NodeUse, Utilization};
