//! The live page of a running cluster: the data shown, and its rendering as a page, JSON, text, and a terminal screen.
//!
//! The coordinator publishes a [`Status`] in a watch channel whenever it changes, at most a few times a second, and
//! serves [`router`]. `windlass status` reads `/status.json` and prints [`text`]; `windlass top` polls it and draws a
//! [`Screen`]. This crate knows nothing of the sockets between tasks, and measures nothing.
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
//! `view` turns a [`Status`] into everything that is shown, worded and formatted; `html` and the script put that into a
//! page, and `changes` sends viewers the differences.

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
