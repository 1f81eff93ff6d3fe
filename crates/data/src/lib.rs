//! Data sets for Windlass models: images in memory, the MNIST reader and downloader, a built-in generator of
//! handwritten-looking digits, optionally among clutter, and parallel text for translation.
//!
//! This crate uses files and one download protocol. It must not know Burn, tokio, the cluster or any model: it returns
//! plain vectors and slices.

pub mod cluttered;
pub mod digits;
pub mod download;
pub mod idx;
pub mod images;
pub mod mnist;
pub mod randomness;
pub mod text;

pub use images::{ImageSet, Images};
