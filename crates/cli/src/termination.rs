//! The termination message of a process for its supervisor, such as Kubernetes.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::failure::Failure;

/// The path that Kubernetes expects. The file exists only in its containers.
const PATH: &str = "/dev/termination-log";
/// The variable that names another path, as in a container with its own `terminationMessagePath`.
const VARIABLE: &str = "WINDLASS_TERMINATION_LOG";
/// The maximum length that Kubernetes keeps.
const LONGEST: usize = 4096;

/// Writes why this process has failed, if a supervisor has created a file for it.
pub(crate) fn leave_message(failure: &Failure) {
    let path = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(PATH), PathBuf::from);
    // Writing to a pipe without a reader would keep this process from ending.
    if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        return;
    }
    let text = message(failure);
    // If it cannot be written, the message is still on the screen.
    let _ =
        OpenOptions::new().write(true).truncate(true).open(path).and_then(|mut file| file.write_all(text.as_bytes()));
}

fn message(failure: &Failure) -> String {
    let hint = failure.hint.as_deref().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    let mut text = format!("{}{hint}\n", failure.message);
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_two_characters() {
        let text = message(&Failure::usage("ß".repeat(LONGEST)));
        assert!(text.len() <= LONGEST && text.chars().all(|character| character == 'ß'), "{} bytes", text.len());
    }
}
