//! `compare.json` in a run directory: what a comparison ran there. A finished run is not repeated, and a directory with
//! another run is refused.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::RunError;

const FILE: &str = "compare.json";

/// The record that a comparison keeps of one of its runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The words after the program's name, without the output directory.
    pub arguments: Vec<String>,
    /// Whether the run finished.
    pub finished: bool,
    /// Why the run failed, if it did.
    pub failure: Option<String>,
}

impl RunRecord {
    /// Finds the record of the run with these arguments in a directory; `None` if the run has not been started.
    ///
    /// # Errors
    /// Fails if the directory holds anything else.
    pub fn find(directory: &Path, arguments: &[String]) -> Result<Option<Self>, RunError> {
        let path = directory.join(FILE);
        let unreadable = |source| RunError::Unreadable { path: path.clone(), source };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let is_empty = match std::fs::read_dir(directory) {
                    Ok(mut entries) => entries.next().is_none(),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
                    Err(error) => return Err(unreadable(error)),
                };
                return if is_empty { Ok(None) } else { Err(RunError::NotOurs { path: directory.to_owned() }) };
            }
            Err(error) => return Err(unreadable(error)),
        };
        let record: Self = serde_json::from_str(&text)
            .map_err(|error| RunError::Damaged { path: path.clone(), why: error.to_string() })?;
        match record.arguments == arguments {
            true => Ok(Some(record)),
            false => Err(RunError::OtherSettings { path: directory.to_owned(), found: record.arguments.join(" ") }),
        }
    }

    /// Writes the record.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn write(&self, directory: &Path) -> std::io::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        windlass_files::write(&directory.join(FILE), &[text.as_bytes(), b"\n"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_known_by_its_arguments() {
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("single");
        let arguments = ["train".to_owned(), "mnist".to_owned()];
        assert_eq!(RunRecord::find(&run, &arguments).unwrap(), None);
        std::fs::create_dir(&run).unwrap();
        assert_eq!(RunRecord::find(&run, &arguments).unwrap(), None);
        let record = RunRecord { arguments: arguments.to_vec(), finished: true, failure: None };
        record.write(&run).unwrap();
        assert_eq!(RunRecord::find(&run, &arguments).unwrap(), Some(record));
        let error = RunRecord::find(&run, &arguments[..1]).unwrap_err();
        assert!(error.to_string().ends_with("holds a run with other settings: train mnist"), "{error}");
        std::fs::write(run.join(FILE), "{").unwrap();
        assert!(RunRecord::find(&run, &arguments).unwrap_err().to_string().contains("compare.json is damaged"));
        std::fs::remove_file(run.join(FILE)).unwrap();
        std::fs::write(run.join("notes.txt"), "mine").unwrap();
        let error = RunRecord::find(&run, &arguments).unwrap_err().to_string();
        assert!(error.ends_with("is not empty, and no comparison has written it"), "{error}");
    }
}
