//! Comparisons of layouts: the file that describes a comparison, the runs that it consists of, their results as read
//! from run directories, and the resulting table and picture.
//!
//! This crate starts nothing and knows no tensors. The caller runs a [`Plan`], writes a [`RunRecord`] into each run's
//! directory, and reads the results with [`Measured::read`].

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
pub use flags::{FlagRules, Flags};
pub use history::{History, Point};
pub use layout::Layout;
pub use measured::{Measured, Summary};
pub use picture::{PictureError, has_picture, png, svg};
pub use plan::{Entry, Plan, PlannedRun, Wishes};
pub use record::RunRecord;
pub use utilization::{NodeRole, NodeUse, Utilization};
