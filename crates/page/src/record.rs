//! The last known state of a run, as its coordinator writes it to the run directory: the address of its page while it
//! is running, and then how it ended.

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The name of the file in the run directory.
pub const STATUS_FILE: &str = "status.json";

/// The last status of a run. It is rewritten regularly while the run lasts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastStatus {
    /// When it was written, in seconds since 1970.
    pub written: u64,
    /// When the run began, in seconds since 1970; `None` if written by an earlier version.
    pub began: Option<u64>,
    /// The address of the live page; empty for a run in one process, which has none.
    pub address: String,
    /// The exit code of the run's tasks; `None` while the run lasts.
    pub exit_code: Option<u8>,
    /// The status at that time.
    pub status: Status,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_version_is_read_with_defaults_for_what_it_lacks() {
        let record: LastStatus = serde_json::from_str(r#"{"written": 12, "status": {"step": 4}, "new": []}"#).unwrap();
        assert_eq!((record.written, record.status.step, record.exit_code), (12, 4, None));
    }
}
