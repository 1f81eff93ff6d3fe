//! The last word of a process for whoever supervises it: in Kubernetes, the termination message of its container.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use crate::failure::Failure;

/// Where Kubernetes wants it. The file exists only in its containers.
const PATH: &str = "/dev/termination-log";
/// Another place, as in a container with a `terminationMessagePath` of its own.
const VARIABLE: &str = "WINDLASS_TERMINATION_LOG";
/// Kubernetes keeps so much of it.
const LONGEST: usize = 4096;

/// Leaves word of why this process has failed, where a supervisor has made a file for that.
pub(crate) fn leave_message(failure: &Failure) {
    let path = std::env::var_os(VARIABLE).map_or_else(|| PathBuf::from(PATH), PathBuf::from);
    // A pipe that nobody reads would keep this process from ending.
    if !std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        return;
    }
    let text = message(failure);
    // If it cannot be written, the message is on the screen all the same.
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
