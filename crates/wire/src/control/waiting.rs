//! How a task logs the coordinator's messages about missing tasks.

use tracing::{info, warn};

use crate::control::proto::Waiting;

impl Waiting {
    /// Logs which tasks are awaited, and the notices for everyone.
    pub fn log(&self) {
        if !self.tasks.is_empty() {
            info!("waiting for {}", self.tasks.join(", "));
        }
        for notice in &self.notices {
            warn!("{notice}");
        }
    }
}
