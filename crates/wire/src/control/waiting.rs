//! How a task says in its log what the coordinator has told it of those who are missing.

use tracing::{info, warn};

use crate::control::proto::Waiting;

impl Waiting {
    /// Says who is waited for, and what else everyone should know.
    pub fn log(&self) {
        if !self.tasks.is_empty() {
            info!("waiting for {}", self.tasks.join(", "));
        }
        for notice in &self.notices {
            warn!("{notice}");
        }
    }
}
