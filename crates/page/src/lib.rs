//! The live page of a running cluster: the data it shows, and that data as a page, as JSON, as text, and as a screen.
//!
//! The coordinator puts a [`Status`] into a watch channel whenever it knows more, at most a few times a second, and
//! serves [`router`]. `windlass status` reads `/status.json` and prints [`text`]; `windlass top` reads it again and again
//! and draws a [`Screen`]. This crate knows nothing of the sockets between tasks, and measures nothing.
//!
//! ```
//! use std::sync::Arc;
//! use windlass_page::{Status, Viewers, router};
//!
//! let (status, receiver) = tokio::sync::watch::channel(Arc::new(Status::default()));
//! let page: axum::Router = router(receiver, Viewers::default());
//! status.send_modify(|shown| *shown = Arc::new(Status { step: 40, ..Status::default() }));
//! # drop(page);
//! ```
//!
//! From a [`Status`], `view` makes everything that is shown, in words and numbers ready to be shown; `html` and the
//! script put that into a page, and `changes` sends viewers what changed.

mod changes;
mod chart;
mod curve;
pub mod figures;
mod headline;
mod html;
mod record;
mod screen;
mod serve;
mod status;
mod text;
mod timeline;
mod view;

pub use curve::Curve;
pub use headline::headline;
pub use record::{LastStatus, STATUS_FILE};
pub use screen::{Screen, Scroll, Silence};
pub use serve::{EVENTS_PATH, Viewers, router};
pub use status::{Checkpoint, Node, Phase, Server, Site, State, Status, TimeSplit, Worker};
pub use text::text;
pub use timeline::{Event, EventKind, Timeline};
