//! Run directories: finds, reads, compares and removes them, and determines how their runs ended.
//!
//! ```text
//! run.toml              all settings of the run, and where each comes from
//! .lock                 held by the launcher, or by a run in one process, while it is alive
//! status.json           what the coordinator last knew: where the live page is, how the run ended
//! summary.json          the run in numbers, once it has finished
//! checkpoints/          unless they are stored elsewhere
//! tensorboard/, *.log   …
//! ```
//! Any of these files may be missing: the run may be of an earlier version, may share the directory with other tasks of its
//! cluster, or may have died early. Damaged files are listed in [`Run::problems`], and the others are still read.
//!
//! This crate reads files and locks. It contacts no running task, and prints nothing.

mod activity;
mod checkpoints;
mod comparison;
mod ending;
mod error;
mod files;
mod find;
pub mod names;
mod remove;
mod run;
mod settings;
mod summary;

pub use activity::{Activity, activity};
pub use checkpoints::SavedCheckpoint;
pub use comparison::{Cell, Comparison, Row};
pub use ending::Ending;
pub use error::RunsError;
pub use find::{Found, find, is_run_dir, must_be_run_dir};
pub use remove::{Removal, Removed};
pub use run::{Layout, Run, Score};
pub use settings::{Setting, Settings};
pub use summary::Summary;
