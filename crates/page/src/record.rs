//! What was last known of a run, as its coordinator leaves it in the run directory: where its page is while it lives, and
//! how it ended.

use serde::{Deserialize, Serialize};

use crate::status::Status;

/// The file in the run directory.
pub const STATUS_FILE: &str = "status.json";

/// The last status of a run. While the run lives it is written again and again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastStatus {
    /// When it was written, in seconds since 1970.
    pub written: u64,
    /// When the run began, in the same; `None` from earlier versions.
    pub began: Option<u64>,
    /// Where the live page is; empty for a run in one process, which has none.
    pub address: String,
    /// How the run ended, as its tasks' exit code; `None` as long as it has not.
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
